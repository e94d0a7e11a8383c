"""BUZZ's cache over time: a saw-tooth between the size after a pass and the size that triggers one."""

import numpy as np
import pandas as pd

from ...drawing.curve_axes import Axis
from ...drawing.curves import Sheet, curves_picture
from ...errors import ResultsError
from ...stats.intervals import UNIT, used_rows
from ...stats.verdict import FAILS, HOLDS, UNDECIDED, Verdict
from ...stats.words import replay_note
from ..buzz import theory

LONG = 32  # passes after which the recursion has settled
PEAK, LOW = "k + w + T", "k + w + a*"


def data(run):
    """(rows of buzz, {key of a cell: tokens after each step}); needs output.save: [kept]."""
    rows = used_rows(run.frame())
    rows = rows[rows["method"] == "buzz"]
    if rows.empty:
        raise ResultsError("no cell of buzz has a result")
    return rows, {key: np.diff(run.arrays("kept")[key]["kept_off"]) for key in rows["key"]}


def draw(_run, found):
    """A panel for each stride."""
    rows, _ = found
    sheet = Sheet(
        title="Live tokens over time",
        points=points_of(*found),
        x=Axis("decode step"),
        y=Axis("resident tokens"),
        note=f"{replay_note(rows)} Sizes depend on lengths alone: all heads have the same.",
        caption=caption(rows),
        markers=False,
    )
    return [curves_picture(sheet)]


def claims(run, found):
    verdicts = [peak_verdict(found[0]), low_verdict(*found), same_verdict(*found)]
    if any(step.command == "bounds" for step in run.config.steps):
        verdicts.append(program_verdict(*found, run.bounds()))
    return verdicts


def sizes(params):
    """(sinks, window, stride, threshold, variant) of a cell."""
    return tuple(params[name] for name in ("sinks", "window", "stride", "threshold", "variant"))


def points_of(rows, traces):
    """One curve per stride and variant, for the first head, and the two lines of the theory."""
    first = rows.drop_duplicates("params_json")
    frames, places = [], []
    for key, params in zip(first["key"], first["params"], strict=True):
        k, w, s, T, variant = sizes(params)
        live = traces[key]
        at = {"panel": f"segments of s = {s}", "label": variant, "stride": s, "x": np.arange(len(live))}
        frames.append(pd.DataFrame(at | {"y": live}))
        places.append((s, k, w, T, len(live) - 1))
    for s, k, w, T, last in sorted(set(places)):
        for label, y in ((PEAK, k + w + T), (LOW, k + w + theory.fixed_point(s, T))):
            frames.append(
                pd.DataFrame(
                    {"panel": f"segments of s = {s}", "label": label, "stride": s, "x": [0, last], "y": y}
                )
            )
    return pd.concat(frames, ignore_index=True).sort_values("stride", ascending=False, kind="stable")


def caption(rows):
    texts = []
    for _, group in rows.groupby("params_json", sort=False):
        k, w, s, T, variant = sizes(group["params"].iloc[0])
        texts.append(
            f"s = {s}, {variant}: peak attended {group['peak_attended_tokens'].max():.0f}, time average"
            f" {group['mean_kept_tokens'].mean():.1f} (theory {theory.mean_size(k, w, s, T):.1f})"
        )
    return (
        "; ".join(texts)
        + ". The average includes the first filling. s of 1 or 2 would never remove old tokens and is"
        " refused."
    )


def peak_verdict(rows):
    """Verdict: every cell's peak equals the theory's exactly."""
    wanted = [theory.peak_attended(k, w, T, variant) for k, w, s, T, variant in map(sizes, rows["params"])]
    hits = (rows["peak_attended_tokens"].to_numpy() == np.array(wanted)).sum()
    return Verdict(
        claim="the cache never attends to more than k + w + T + 1 tokens (reference) or k + w + T (paper)",
        source="BUZZ Theorem 3.1, algorithms 1 and 2",
        how="peak_attended_tokens of every cell is exactly that",
        outcome=HOLDS if hits == len(rows) else FAILS,
        numbers=f"{hits} of {len(rows)} cells; peaks {', '.join(str(p) for p in sorted(set(wanted)))}",
    )


def after_passes(live, protected):
    """Middle tokens after each pass during decoding, found where the size falls."""
    falls = np.flatnonzero(np.diff(live) < 0) + 1
    return [int(size) - protected for size in live[falls]]


def low_verdict(rows, traces):
    """Verdict: sizes after passes follow the recursion, pass by pass, from a prompt that triggered no
    pass."""
    hits, tried, texts = 0, 0, {}
    for key, params, prompt in zip(rows["key"], rows["params"], rows["n_prefill"], strict=True):
        k, w, s, T, variant = sizes(params)
        seen = after_passes(traces[key], k + w)
        wanted = theory.middle_after_passes(s, T, variant, len(seen))
        tried += len(seen) > 0 and prompt <= k + w + T
        hits += seen == wanted and len(seen) > 0 and prompt <= k + w + T
        texts[s, variant] = f"s = {s} {variant}: {seen} against a* = {theory.fixed_point(s, T):.1f}"
    return Verdict(
        claim="the middle after passes converges to the fixed point a*",
        source="BUZZ Theorem 3.1",
        how="the sizes after each pass equal the recursion with the code's ceilings, in every cell whose"
        " prompt triggered no pass",
        outcome=_every(hits, tried),
        numbers=f"{hits} of {_counted(tried, rows)}; " + "; ".join(texts[name] for name in sorted(texts)),
    )


def same_verdict(rows, traces):
    """Verdict: all heads of an instance have equal sizes at all times."""
    groups = [
        [traces[key] for key in group["key"]]
        for _, group in rows.groupby(["trace_id", "prompt", "params_json"])
    ]
    same = sum(all(np.array_equal(group[0], other) for other in group) for group in groups)
    return Verdict(
        claim="memory follows from lengths alone",
        source="BUZZ section 3",
        how="all heads of an instance hold equally many tokens after every step",
        outcome=HOLDS if same == len(groups) else FAILS,
        numbers=f"{same} of {len(groups)} instances over {len(rows.drop_duplicates(UNIT))} heads",
    )


def program_verdict(rows, traces, bounds):
    """Verdict: the table of `kvreplay bounds buzz` matches the replay: the peak, and each cell's last
    pass."""
    inputs = ["sinks", "window", "stride", "threshold", "variant"]
    table = bounds.pivot_table(index=inputs, columns="quantity", values="value")
    hits = tried = 0
    columns = (rows[name] for name in ("key", "params", "peak_attended_tokens", "n_prefill"))
    for key, params, peak, prompt in zip(*columns, strict=True):
        k, w, s, T, variant = sizes(params)
        said = table.loc[tuple(params[name] for name in inputs)]
        passes = after_passes(traces[key], k + w)
        if prompt > k + w + T or not _settled(s, T, variant, len(passes)):
            continue
        tried += 1
        hits += peak == said["peak_attended"] and said["pass_low"] <= passes[-1] <= said["pass_high"]
    return Verdict(
        claim="kvreplay bounds buzz states the peak and the size at which passes settle",
        source="BUZZ Theorem 3.1",
        how="peak_attended exactly, and the middle after the last pass within pass_low and pass_high,"
        " every cell whose passes have settled",
        outcome=_every(hits, tried),
        numbers=f"{hits} of {_counted(tried, rows)}",
    )


def _settled(stride, threshold, variant, passes):
    """Whether the recursion has reached its fixed point, or a short cycle, after so many passes."""
    sizes = theory.middle_after_passes(stride, threshold, variant, passes + LONG)
    return passes > 0 and sizes[passes - 1] in sizes[passes + LONG // 2 :]


def _every(hits, tried):
    return UNDECIDED if not tried else HOLDS if hits == tried else FAILS


def _counted(tried, rows):
    left = len(rows) - tried
    return f"{tried} cells" + (f" ({left} more had too few passes, or one inside the prompt)" if left else "")
