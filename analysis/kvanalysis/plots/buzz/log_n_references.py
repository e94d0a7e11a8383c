"""BUZZ Fig. 7: small budgets, and the factor log n against its two exact references."""

import numpy as np
import pandas as pd

from ...drawing.curve_axes import ERROR, Axis
from ...drawing.curves import Sheet, curves_picture
from ...errors import ResultsError
from ...stats.claims import Claim, Places, claims_judged, judged, select
from ...stats.intervals import UNIT, head_points, used_rows
from ...stats.words import BAND_NOTE, replay_note
from ..run.budget_claims import caption

REFERENCES = {
    "against exact attention": {"method": "exact", "log_n": "off"},
    "against exact attention with log n": {"method": "exact", "log_n": "context"},
}
LABELS = {"off": "buzz", "live": "buzz, log n of the live tokens", "context": "buzz, log n of the context"}


def data(run):
    """(rows that compare methods, rows of buzz against each reference): step `run` has the methods, step
    `log_n` has exact and buzz with every `log_n` and output.save: [outputs]."""
    return run.frame("run"), errors_of(run.arrays("outputs", "log_n"), used_rows(run.frame("log_n")))


def draw(_run, found):
    frame, rows = found
    return [methods_picture(frame), references_picture(rows)]


def claims(run, found):
    frame, rows = found
    return [*claims_judged(run, frame), *(log_n_verdict(rows, which) for which in ("live", "context"))]


def relative_error(found, wanted):
    """Mean over heads and rows of |z - o| / |o|; rows with a zero output are left out."""
    size = np.linalg.norm(wanted, axis=-1)
    error = np.linalg.norm(found.astype(float) - wanted, axis=-1)
    return float((error[size > 0] / size[size > 0]).mean())


def errors_of(arrays, rows):
    """Rows of buzz, once for each reference: columns `reference`, `rel_err_out_mean` against it."""
    parts = []
    for _, unit in rows.groupby(UNIT, sort=True):
        for reference, wanted in REFERENCES.items():
            [key] = select(unit, wanted)["key"].head(1).tolist() or [None]
            if key is None:
                raise ResultsError(f"step log_n has no row of {wanted} for a head")
            exact = arrays[key]["out"].astype(float)
            buzz = unit[unit["method"] == "buzz"]
            errors = [relative_error(arrays[key]["out"], exact) for key in buzz["key"]]
            parts.append(buzz.assign(reference=reference, rel_err_out_mean=errors))
    found = pd.concat(parts, ignore_index=True)
    found["log_n"] = [params["log_n"] for params in found["params"]]
    return found


def methods_picture(frame):
    points = head_points(frame, "rel_err_out_mean", ["label", "budget_tokens"]).rename(
        columns={"budget_tokens": "x"}
    )
    sheet = Sheet(
        title="Error at small budgets",
        points=points.assign(panel=""),
        x=Axis("budget [tokens per kv head]", "budget"),
        y=Axis(ERROR, "error"),
        note=f"{replay_note(frame)} {BAND_NOTE}",
        caption=f"The paper reports perplexity, which a replay cannot measure. {caption(frame)}",
    )
    return curves_picture(sheet, "methods")


def references_picture(rows):
    points = head_points(rows, "rel_err_out_mean", ["reference", "log_n", "budget_tokens"])
    points = points.rename(columns={"reference": "panel", "budget_tokens": "x"})
    points["label"] = points["log_n"].map(LABELS)
    points = points.sort_values(
        "label", key=lambda names: names.map(list(LABELS.values()).index), kind="stable"
    )
    sheet = Sheet(
        title="The factor log n",
        points=points.sort_values("panel", kind="stable").reset_index(drop=True),
        x=Axis("budget [tokens per kv head]", "budget"),
        y=Axis(ERROR, "error"),
        note=f"{replay_note(rows)} Logits times ln(L)/ln(512), L = live tokens or the whole context."
        f" {BAND_NOTE}",
        caption="With the factor, the method approximates another attention than the model's. Its error is"
        " therefore shown against exact attention with that factor as well as against the model's own.",
    )
    return curves_picture(sheet, "log_n")


def log_n_verdict(rows, which):
    """Verdict on each factor, against the reference that it is meant to approximate."""
    exact, scaled = REFERENCES
    own = rows[rows["reference"] == rows["log_n"].map(lambda name: exact if name == "off" else scaled)]
    claim = Claim(
        claim=f"the factor log n ({which}) lowers the error, each against its own exact reference",
        source="BUZZ Fig. 7, Table 3 (perplexity)",
        lower={"method": "buzz", "log_n": which},
        higher={"method": "buzz", "log_n": "off"},
    )
    return judged(claim, own, Places())
