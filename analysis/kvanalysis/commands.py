"""The commands and their options; each imports its modules only when it runs."""

import math
import shlex
import sys
from contextlib import closing

from kvbase.command import INTERRUPTED, OK, fail
from kvbase.files import no_such_file
from kvbase.program import call

from .errors import ConfigError, FigureError, ResultsError, SweepError

STOPPED = (75, INTERRUPTED)  # exit codes of a step that was asked to stop


def report(options):
    from .page.figure_folder import holds_figures

    file = options.output or options.out / "report.html"
    if not (options.out / "results.csv").is_file() and holds_figures(options.out):
        from .page.figures_page import write_figures_page

        print(write_figures_page(options.out, file))
        return
    _require_results(
        options.out,
        "report takes the output directory of a run, or what `kvreplay figures CONFIG -o DIR` made",
    )
    from .drawing.progress import DrawingProgress
    from .page.report import write_report

    frame = _whole_curves(options.out)
    with closing(DrawingProgress()) as told:
        page = write_report(frame, options.out / "figures", file, told)
    print(page)


def figures(options):
    _figures_of_configs(options) if _holds_configs(options.place) else _figures_of_run(options.place)


def _holds_configs(place):
    """Whether this is a figure's configuration, or a folder of them."""
    return place.suffix in (".yaml", ".yml") or (place.is_dir() and any(place.glob("*.yaml")))


def _figures_of_run(out):
    _require_results(
        out, "figures takes the output directory of a run, or a configuration of configs/figures"
    )
    from .drawing.progress import DrawingProgress
    from .figures.make import write_figures

    frame = _whole_curves(out)
    with closing(DrawingProgress()) as told:
        drawn = write_figures(frame, out / "figures", told=told)
    _print_pictures(drawn)


def table(options):
    """Prints the table that the run has printed; with intervals, the one of its page."""
    from .data.meta import load_meta
    from .stats.format import aligned, table_cells

    # Rounds of an adaptive sweep leave budgets that only some heads have: their means are not comparable.
    if not (options.intervals or load_meta(options.out).get("rounds")):
        code, printed = call(["table", options.out])
        print(printed, end="")
        return code
    from .stats.summary import summarise

    print(aligned(*table_cells(summarise(_whole_curves(options.out)))))
    return OK


def compare(options):
    """Prints the answers about a run's table; options.out: its folder."""
    from .answer.compare import compare_at
    from .answer.selection import shares_in
    from .answer.words import text
    from .loss.predicted import losses_of

    _require_results(options.out, "compare takes the output directory of a run, a trace or a configuration")
    shares = shares_in(options.at)
    frame = _whole_curves(options.out)
    methods = options.methods.split(",") if options.methods else None
    asked = {"of": options.of, "layers": options.layers, "measure": options.measure, "phase": options.phase}
    asked |= {"methods": methods, "losses": losses_of(frame)}
    print(text([compare_at(frame, share, **asked) for share in shares]))


def export(options):
    if options.epsilon:
        from .data.load import load
        from .sweeps.products import write_epsilon

        epsilons = _epsilons(options.epsilon)
        print(write_epsilon(options.out, load(options.out), options.measure, epsilons))
        return
    from .data.parquet import write_parquet

    print(write_parquet(options.out, options.output))


def _figures_of_configs(options):
    from .figures.make import figure_configs, make_figure

    asked = _asked(options)
    configs, failed = figure_configs(options.place), []
    for config in configs:
        print(f"{config.name}: {config.title}", file=sys.stderr)
        try:
            result = make_figure(config, options.out / config.name, asked)
        except (FigureError, ResultsError) as problem:
            # A trace that does not suit this figure may suit the others of the folder.
            failed.append(config.name)
            if len(configs) == 1 or problem.exit_code in STOPPED:
                raise
            fail(problem, 0)
            continue
        _print_pictures(result.figures)
        for verdict in result.verdicts:
            print(f"  {verdict.outcome}: {verdict.claim} ({verdict.numbers})", file=sys.stderr)
    if failed:
        raise FigureError(f"{len(failed)} of {len(configs)} figures were not drawn: {', '.join(failed)}")


def claims(options):
    from kvbase.files import write_atomic

    from .page.claims_by_model import csv_text, folders_in, read_claims, tables
    from .stats.format import markdown

    found = read_claims(folders_in(options.folders))
    parts = [f"{caption}\n\n{markdown(header, rows)}" for caption, header, rows in tables(found)]
    if options.csv:
        print(write_atomic(options.csv, csv_text(found)), file=sys.stderr)
    for model, names in found.quick.items():
        if names:
            print(f"{model}: --quick, a quick look and not a result: {', '.join(names)}", file=sys.stderr)
    print("\n\n".join(parts))


def leaderboard(options):
    from .figures.config import read_figure_config
    from .page.leaderboard import make_leaderboard

    print(make_leaderboard(read_figure_config(options.config), options.out, _asked(options)))


def _asked(options):
    """The options of a figure configuration's run steps."""
    from .figures.steps import RunOptions

    return RunOptions(tuple(options.trace), tuple(options.set), options.quick, options.force)


def refine(options):
    from .sweeps.config import read_sweep_config
    from .sweeps.drive import run_sweep
    from .sweeps.rounds import RUN, Engine

    try:
        words = tuple(shlex.split(options.submit))
    except ValueError as problem:
        raise SweepError(f"--submit {options.submit}: {problem}") from problem
    if words and options.engine == RUN:
        raise SweepError("--submit: `kvreplay run` takes no such options; add --engine local or slurm")
    config = read_sweep_config(options.config, options.set, options.trace)
    for path in run_sweep(config, options.out, Engine(options.engine, words)):
        print(path)


def study(options):
    from .study.config import read_study
    from .study.drive import finished, run_study
    from .study.tables import write_tables

    names = tuple(options.models.split(",")) if options.models else ()
    config = read_study(options.config, options.files, names, check_files=not options.tables)
    if not options.tables:
        run_study(config, options.out, dry=options.dry_run)
    if options.dry_run:
        return
    for path in write_tables(finished(config, options.out), options.out):
        print(path)


def _epsilons(text):
    try:
        epsilons = sorted({float(word) for word in text.split(",")})
    except ValueError:
        epsilons = []
    if not epsilons or not all(math.isfinite(each) and each > 0 for each in epsilons):
        raise ConfigError(f"--epsilon {text}: write numbers above 0, such as 0.05,0.1")
    return epsilons


def confirmed(options):
    """Prints which offline measure predicted what the model lost; options.out: a folder with confirm.csv."""
    from .predict.answer_cells import predictor_cells, recommendation
    from .predict.cells import correlation_cells, group_cells, group_words
    from .predict.tables import chosen, correlation_table, of_traces, written
    from .predict.words import METHODS_NOTE, confirmed_note
    from .stats.format import aligned

    frame = _whole_curves(options.out)
    traces = chosen(of_traces(frame, options.out), options.methods, options.without)
    table = correlation_table(traces)
    if not (options.methods or options.without):
        for path in written(options.out, traces, table):
            print(path, file=sys.stderr)
    target = "top1_lost" if options.target == "top1" else options.target
    for each in traces:
        print(confirmed_note(each.instances), METHODS_NOTE, file=sys.stderr)
        of_all = (table["scope"] == "all") & (table["target"] == target) & (table["trace_id"] == each.trace)
        print(aligned(*correlation_cells(table[of_all])))
        for group in each.retrieved:
            print(f"\n{group_words(group)}\n{aligned(*group_cells(group))}")
        if len(ranks := each.answer_ranks):
            print(f"\n{recommendation(ranks)}\n{aligned(*predictor_cells(ranks))}")


def formats(options):
    """Prints what each row format costs the model; options.out: a folder with confirm.csv."""
    from .predict.formats import format_cells, format_losses, format_notes
    from .stats.clipping import clipping_notes
    from .stats.format import aligned

    _require_results(options.out, "formats takes the output directory of a run that `kvreplay confirm` ran")
    frame = _whole_curves(options.out)
    table = format_losses(frame, options.out)
    for note in [*format_notes(table), *clipping_notes(frame)]:
        print(note, file=sys.stderr)
    print(aligned(*format_cells(table)))


def predict(options):
    from .loss.predicted import write_predicted
    from .loss.predicted_cells import predicted_cells, predicted_note
    from .stats.format import aligned

    path, table = write_predicted(options.out)
    print(path, file=sys.stderr)
    print(predicted_note(table), file=sys.stderr)
    print(aligned(*predicted_cells(table)))


def allocate(options):
    if options.formats and options.budget is None:
        _allocate_formats(options)
    else:
        _refuse_incomplete(options)
        _allocate_tokens(options)


def _refuse_incomplete(options):
    if options.bytes is not None or options.like is not None:
        raise ConfigError("--bytes and --like are limits of --formats without --budget")
    if options.budget is None or options.method is None:
        raise ConfigError("give --method and --budget, or --formats to choose a row format for each head")
    if options.formats and options.output and not options.json:
        raise ConfigError(
            "--formats: the CSV file holds tokens alone; add --json FILE, beside which formats.csv is written"
        )


def _allocate_tokens(options):
    from kvbase.files import write_atomic

    from .data.load import load
    from .loss import budgets
    from .loss.budget_files import csv_text, json_text, summary
    from .loss.format_files import formats_csv

    budget = _budget(options.budget)
    found = budgets.allocate(load(options.out), options.method, budget, options.prompt, options.formats)
    print(summary(found), file=sys.stderr)
    beside = _formats_file(options) if options.formats else None
    for path, text in ((options.output, csv_text), (options.json, json_text), (beside, formats_csv)):
        if path:
            print(write_atomic(path, text(found)))
    if not (options.output or options.json):
        print((json_text if options.formats else csv_text)(found), end="")


def _allocate_formats(options):
    from kvbase.files import write_atomic

    from .data.load import load
    from .loss.format_choice import choices, choose_formats, formats_of
    from .loss.format_files import choice_cells, formats_csv, formats_json
    from .stats.format import aligned

    one = options.bytes is not None or options.like is not None
    if not one and (options.output or options.json):
        raise ConfigError(
            "--formats: a file holds one choice: say at which bytes with --like FORMAT or --bytes N"
        )
    formats = formats_of(load(options.out), options.method, options.prompt)
    if not one:
        print(aligned(*choice_cells(choices(formats))))
        return
    limit = _bytes(options.bytes) if options.like is None else formats.named(options.like)
    found = choose_formats(formats, limit)
    print(aligned(*choice_cells([found])), file=sys.stderr)
    output = options.output or _formats_file(options)
    for path, text in ((output, formats_csv), (options.json, formats_json)):
        if path:
            print(write_atomic(path, text(found)))
    if not output:
        print(formats_csv(found), end="")


def _formats_file(options):
    """Beside the JSON file, if one is written."""
    from .loss.format_files import FORMATS_FILE

    return options.json and options.json.with_name(FORMATS_FILE)


def _bytes(text):
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"--bytes {text}: write a number of bytes, such as 8294400")
    return int(text)


def _budget(text):
    from .loss.budgets import Budget

    percent = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or (percent and value > 1):
        raise ConfigError(
            f"--budget {text}: write tokens per kv head, such as 128, or a share of the bytes, such as 25%"
        )
    return Budget(share=value) if percent or value < 1 else Budget(tokens=value)


def _require_results(out, takes):
    if not out.exists():
        raise ResultsError(f"{out}: {no_such_file(out)}. {takes}")
    if not (out / "results.csv").is_file():
        raise ResultsError(f"{out}: holds no results.csv. {takes}")


def _whole_curves(out):
    """The table of a run; for an adaptive sweep, only the rows that allow means over heads."""
    from .budgets.replayed import at_common_budgets
    from .data.load import load
    from .data.shares import with_common_budgets

    frame = with_common_budgets(load(out))
    if not frame.attrs["meta"].get("rounds"):
        return frame
    kept = at_common_budgets(frame)
    kept.attrs["searched"] = len(frame) - len(kept)
    return kept


def _print_pictures(figures):
    for figure in figures:
        print(*(path for path in (figure.png, figure.narrow) if path), sep="\n")
