"""Reads confirm.csv and confirm_layers.csv: the model's own loss with the tokens that each method kept."""

import json
import re
from itertools import chain

from kvbase.cells import CONFIRMED, CONFIRMED_FACTS, EXTENT

from ..errors import ResultsError
from .results_csv import COUNT, NUMBER, TEXT, row_number, typed_table
from .row_formats import SOURCE, parts_named

CELLS = "cells"  # hash of the keys of an instance's cells; tables of older versions lack it
COUNTS = ("budget_tokens", "seed", *EXTENT)
IDENTITY = {name: COUNT if name in COUNTS else TEXT for name in CONFIRMED_FACTS if name != CELLS}
OF_LOSSES = ("loss_full", "loss", "loss_increase", "kl_mean", "kl_p95", "top1_agreement")
OF_LAYERS = (
    *("rel_err_out_mean", "rel_err_proj_mean", "rel_err_resid_mean", "rel_err_resid_late"),
    "drift_mean",
)
LOSSES = {
    **IDENTITY,
    **dict.fromkeys(("distance_from", "distance_to", "n_rows"), COUNT),
    **dict.fromkeys((*OF_LOSSES, "confirm_s"), NUMBER),
    **dict.fromkeys(("status", "error"), TEXT),
}
# Only for prompts that ask for something (`kvreplay tasks lines`); a table may lack these columns.
ANSWERS = ("answer_exact_full", "answer_exact", "answer_rank_full", "answer_rank", "answer_logprob_full",
           "answer_logprob")  # fmt: skip
# Only where the model wrote its answers (`--generate`).
WRITTEN = {
    **dict.fromkeys(("task", "question", "answer_text_full", "answer_text", "answer_selection"), TEXT),
    **dict.fromkeys(("answer_correct_full", "answer_correct", "answer_s"), NUMBER),
    "answer_limit": COUNT,
}
# The measures that llama.cpp prints; tables of older versions lack them.
OF_PREDICTIONS = (
    *("kld_mean", "kld_mean_se", "kld_median", "kld_p999", "kld_p99", "kld_p95", "kld_p90", "kld_max"),
    *("same_top", "same_top_se", "dp_mean", "dp_rms", "ln_ppl_ratio"),
)
# For instances with quantised rows, whose numbers are means over draws; tables of older versions lack them.
DRAWS = {"n_draws": COUNT, "loss_increase_sd": NUMBER, "kl_mean_sd": NUMBER}
LAYERS = {**IDENTITY, "layer": COUNT, **dict.fromkeys(OF_LAYERS, NUMBER)}
NAMED = ("key", "trace_id", "prompt", "method", "given", "selection", "layers")  # no field of these is empty
# Unique combinations: a second key with equal values means that results or model have changed in between.
RANGE = [*CONFIRMED, "distance_from", "distance_to"]
RECORDED, OWN = "recorded", "own"


def read_confirm_csv(path):
    """One row per instance and range of distances behind the prompt, failed instances included: counts as
    Int64, losses in nats a token as floats. None without such a file; raises ResultsError. The columns of
    OF_PREDICTIONS and DRAWS always exist, with missing values where the table lacks them.

    An instance's first row is the one over all its rows (docs/closed_loop.md).
    """
    later = dict.fromkeys(OF_PREDICTIONS, NUMBER) | DRAWS
    frame = _table(path, LOSSES, (*NAMED, "status"), dict.fromkeys(ANSWERS, NUMBER) | WRITTEN | later)
    if frame is None:
        return None
    finished = (frame["status"] == "ok").to_numpy()
    for name in ("distance_from", "distance_to", "n_rows", *OF_LOSSES):
        _refuse(path, finished & frame[name].isna().to_numpy(), f"{name} is empty, but status is ok")
    odd = ~frame["selection"].isin((RECORDED, OWN))
    _refuse(path, odd, f"selection is neither {RECORDED} nor {OWN}")
    _refuse(path, frame.duplicated(RANGE), "repeats a range of an instance")
    _check_layers(frame, path)
    return frame.assign(**{name: float("nan") for name in later if name not in frame})


def drawn_once(losses):
    """Marks rows of instances that quantise what they store and were run once: their noise is unknown."""
    codes = {text: _rounds(text) for text in losses["params"].unique()}
    coded = (losses["method"] == "qjl") | losses["params"].map(codes)
    return coded & ~(losses["n_draws"].astype(float) > 1)


def _rounds(text):
    """Whether resolved parameters name a row format that rounds keys or values."""
    try:
        found = json.loads(text).get("row_format", SOURCE)
    except (ValueError, AttributeError):
        return False
    return bool(set(parts_named(found)) - {SOURCE, "f32"})


def draw_variance(losses, name="loss_increase"):
    """Variance [nats^2] of each row's loss increase, or KL, as a mean over its draws; 0 where it was drawn
    once."""
    spread = losses[f"{name}_sd"].astype(float)
    return (spread**2 / losses["n_draws"].astype(float)).fillna(0)


def read_confirm_layers_csv(path):
    """One row per instance and compressed layer, errors as floats, NaN where an error does not apply. None
    without such a file; raises ResultsError."""
    frame = _table(path, LAYERS, (*NAMED, "layer"))
    if frame is not None:
        _refuse(path, frame.duplicated(["key", "layer"]), "repeats a layer of an instance")
    return frame


def layers_of(text):
    """[0, 1, 2, 7] of "0-2,7"; ValueError for anything else."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise ValueError(f"{text!r} is not a list of layers")
    ends = ([int(end) for end in part.split("-")] for part in text.split(","))
    return list(chain.from_iterable(range(each[0], each[-1] + 1) for each in ends))


def _table(path, columns, never_empty, optional=None):
    if not path.is_file():
        return None

    def check(found, path):
        missing = [name for name in columns if name not in found]
        if missing:
            raise ResultsError(
                f"{path}: missing columns: {', '.join(missing)}; move it away and run"
                f" `kvreplay confirm {path.parent} --model M` again"
            )

    kinds = columns | (optional or {})
    return typed_table(path, "a table of `kvreplay confirm`", kinds, TEXT, never_empty, check)


def _refuse(path, rows, why):
    if rows.any():
        raise ResultsError(
            f"{path}: row {row_number(rows)} {why}; move the file away and run"
            f" `kvreplay confirm {path.parent} --model M` again"
        )


def _check_layers(frame, path):
    for text in frame["layers"].unique():
        try:
            layers_of(text)
        except ValueError as problem:
            at = row_number(frame["layers"] == text)
            raise ResultsError(f"{path}: row {at}: layers: {problem}, as in 0-29 or 0,7,15") from problem
