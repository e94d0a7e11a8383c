"""The files of `kvreplay confirm OUT`: every correlation and every exception of a results folder."""

from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
from kvbase.files import write_atomic

from ..data.confirmed import CONFIRM, confirmed
from ..errors import ConfigError, ResultsError
from ..loss.predicted import losses_of
from ..stats.intervals import by_trace
from .answer_tests import answer_tests
from .answers import answer_correlations, answer_rows
from .best import shown_choices
from .cells import retrieval_table
from .correlations import FEWEST, correlations
from .exceptions import exceptions
from .instances import Instances, instances_of, sink_holders
from .retrieval import Group, retrieval


@dataclass(frozen=True)
class OfTrace:
    """The Instances of one trace; {label: keeps the first token}, None if the run does not say; the Groups of
    prompts that have an answer; and `answer_rows`."""

    trace: str
    instances: Instances
    sinks: dict | None
    retrieved: list[Group]
    answers: pd.DataFrame

    @cached_property
    def answer_ranks(self):
        """`answer_correlations` of its answers; empty without any."""
        return answer_correlations(self.answers) if len(self.answers) else self.answers


def of_traces(frame, out):
    """[OfTrace] from `load`'s table of the folder `out`, in order. Raises ResultsError if the closed loop has
    not finished an instance there."""
    require_confirmed(frame, out)
    traces = known_traces(frame, losses_of(frame))
    if not traces:
        raise ResultsError(
            f"{out / CONFIRM}: holds no finished instance; run `kvreplay confirm {out} --model M` again"
        )
    return traces


def require_confirmed(frame, out):
    """The Confirmed of `load`'s table of the folder `out`. Raises ResultsError if the closed loop did not run
    there."""
    found = confirmed(frame)
    if found is None:
        raise ResultsError(
            f"{out / CONFIRM}: no such file, or no row in it; `kvreplay confirm {out} --model M` writes it"
        )
    return found


def known_traces(frame, losses=None):
    """[OfTrace] for traces with an instance that the closed loop has finished; `losses`: the table's
    predicted losses, if known."""
    made = []
    for _, rows in by_trace(frame):
        confirmation = confirmed(rows, whole=False)
        trace = rows["trace_id"].iloc[0]
        own = losses and losses.of_trace(trace)
        instances = instances_of(rows, confirmation, own) if confirmation else None
        if instances is not None:
            found = retrieval(confirmation.losses), answer_rows(rows, confirmation, own)
            made.append(OfTrace(trace, instances, sink_holders(rows), *found))
    return made


def chosen(traces, methods, without):
    """The traces with only the instances of `methods`, or `without` some: comma-separated lists of methods or
    labels; None for all. Raises ResultsError for a name that no instance has."""
    kept = []
    for each in traces:
        table = each.instances.table
        rows = _named(table, methods, "--methods") if methods else table["label"].notna()
        rows &= ~_named(table, without, "--without") if without else True
        instances = each.instances.only(rows)
        retrieved = [group.only(instances.table["label"]) for group in each.retrieved]
        retrieved = [group for group in retrieved if len(group.table)]
        answers = each.answers
        answers = answers[answers["label"].isin(instances.table["label"])] if len(answers) else answers
        kept.append(replace(each, instances=instances, retrieved=retrieved, answers=answers))
    return kept


def _named(table, names, option):
    wanted = [name.strip() for name in names.split(",")]
    known = {*table["method"], *table["label"]}
    strange = [name for name in wanted if name not in known]
    if strange:
        raise ConfigError(f"{option} {strange[0]}: no such method; methods: {', '.join(sorted(known))}")
    return table["method"].isin(wanted) | table["label"].isin(wanted)


def written(out, traces, table):
    """Writes OUT/confirm_correlations.csv, OUT/confirm_exceptions.csv and, if prompts have answers,
    OUT/confirm_retrieval.csv; if the model wrote them, also OUT/answers.csv, a row per group, budget and
    method, and OUT/answer_correlations.csv. Returns their paths."""
    tables = {"confirm_correlations.csv": table, "confirm_exceptions.csv": exception_table(traces)}
    if any(each.retrieved for each in traces):
        tables["confirm_retrieval.csv"] = retrieval_table([(each.trace, each.retrieved) for each in traces])
    if any(len(each.answers) for each in traces):
        tables["answers.csv"] = _of_answers(traces, lambda each: answer_tests(each.answers))
        tables["answer_correlations.csv"] = _of_answers(traces, lambda each: each.answer_ranks)
    return [
        write_atomic(out / name, each.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
        for name, each in tables.items()
    ]


def _of_answers(traces, table):
    """The tables of all traces whose answers were written."""
    tables = [table(each).assign(trace_id=each.trace) for each in traces if len(each.answers)]
    return pd.concat(tables, ignore_index=True)


def correlation_table(traces):
    """`correlations` for every trace. Raises ConfigError if there is none."""
    tables = [correlations(each.instances, each.sinks).assign(trace_id=each.trace) for each in traces]
    table = pd.concat(tables, ignore_index=True)
    if table.empty:
        raise ConfigError(
            f"no text has the {FEWEST} instances that a rank correlation needs, without oracles; confirm"
            " more methods or budgets, or exclude fewer"
        )
    return table


def exception_table(traces):
    """`exceptions` for the best measure and the main one, for every trace."""
    tables = [
        exceptions(each.instances, choice.values).assign(
            trace_id=each.trace, measure=choice.measure, weighting=choice.weighting
        )
        for each in traces for choice in shown_choices(each.instances)
    ]  # fmt: skip
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
