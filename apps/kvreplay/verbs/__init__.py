"""The verbs that Python adds to the engine's, by the question that they answer."""

from kvbase.command import Verb

GROUPS: dict[str, tuple[Verb, ...]] = {
    "Record and import": (
        Verb("record", "queries, keys and values of a model's prompts as a trace", "kvrecord.cli"),
        Verb("import", "a trace from arrays that another program saved", "kvreplay.importing.cli"),
        Verb("tasks", "prompts whose answers can be checked", "kvreplay.verbs.tasks"),
    ),
    "Compare": (
        Verb("compare", "the best method at equal bytes, and which differences are significant",
             "kvreplay.verbs.compare"),
        Verb("report", "one self-contained HTML page of a run, or of a folder of figures",
             "kvanalysis.cli:report"),
        Verb("figures", "figures of a run, or of a configuration, which is run first",
             "kvanalysis.cli:figures"),
        Verb("table", "the table that a run has printed, or one with intervals", "kvanalysis.cli:table"),
        Verb("export", "a run's table as Parquet, or the budget that each error needs",
             "kvanalysis.cli:export"),
        Verb("leaderboard", "replays the leaderboard's methods, ranks them and writes the page",
             "kvanalysis.cli:leaderboard"),
        Verb("quickstart", "replays the sample trace, prints the table and writes a page",
             "kvreplay.verbs.quickstart"),
    ),
    "Ask the model": (
        Verb("confirm", "the model's own loss with what each method kept", "kvreplay.verbs.confirm"),
        Verb("formats", "what each row format costs the model, in the measures of llama.cpp",
             "kvanalysis.cli:formats"),
        Verb("predict", "the loss of each method in nats a token, predicted from the trace alone",
             "kvanalysis.cli:predict"),
        Verb("allocate", "tokens or a row format for each kv head, for the lowest predicted loss",
             "kvanalysis.cli:allocate"),
    ),
    "Study": (
        Verb("refine", "replays round by round, with budgets where the curves bend",
             "kvanalysis.cli:refine"),
        Verb("study", "records, replays and confirms several models", "kvanalysis.cli:study"),
        Verb("claims", "which claims of the papers hold on which models", "kvanalysis.cli:claims"),
    ),
}  # fmt: skip
VERBS = {verb.name: verb for verbs in GROUPS.values() for verb in verbs}
