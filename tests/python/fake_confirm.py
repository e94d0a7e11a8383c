"""Writes the files of `kvreplay confirm` next to fake results, from losses that a test chooses."""

import csv
import json

from kvanalysis import load
from kvanalysis.data.confirmed import confirmed
from kvanalysis.predict.instances import instances_of
from test_kvanalysis_fake import COLUMNS, PREFILL, TOKENS, TRACE, fake_row, write_results

# Written out, not imported: this is the contract of the readers.
# fmt: off
IDENTITY = ["key", "trace_id", "model", "prompt", "method", "params", "given", "budget_tokens", "seed",
            "n_prefill", "n_tokens", "selection", "layers"]
LOSSES = ["distance_from", "distance_to", "n_rows", "loss_full", "loss", "loss_increase", "kl_mean", "kl_p95",
          "top1_agreement", "confirm_s", "status", "error"]
ERRORS = ["layer", "rel_err_out_mean", "rel_err_proj_mean", "rel_err_resid_mean", "rel_err_resid_late",
          "drift_mean"]
ANSWERS = ["answer_exact_full", "answer_exact", "answer_rank_full", "answer_rank", "answer_logprob_full",
           "answer_logprob"]
PREDICTIONS = ["kld_mean", "kld_mean_se", "kld_median", "kld_p99", "same_top", "same_top_se"]
WRITTEN = ["task", "question", "answer_limit", "answer_correct_full", "answer_correct", "answer_text_full",
           "answer_text", "answer_selection", "answer_s"]
DRAWS = ["n_draws", "loss_increase_sd", "kl_mean_sd"]
# fmt: on
ROWS, SPLIT = TOKENS - PREFILL - 1, 16  # rows after the prompt that have a target; start of the second part
FULL = 3.0  # nats a token of the uncompressed model


def confirm_rows(
    method="h2o", budget=64, loss=0.1, prompt="p0", seed="", given=None, layers="0-2", selection="recorded",
    trace_id=TRACE, **changes,
):  # fmt: skip
    """Rows of confirm.csv of one finished instance: the whole, then two parts with half and twice the
    loss."""
    identity = {
        "trace_id": trace_id, "model": "SmolLM2-135M-Instruct", "prompt": prompt, "method": method,
        "params": "{}", "given": json.dumps(given or {}, sort_keys=True), "budget_tokens": budget,
        "seed": seed, "n_prefill": PREFILL, "n_tokens": TOKENS, "selection": selection, "layers": layers,
    }  # fmt: skip
    identity["key"] = "-".join(str(identity[name]) for name in IDENTITY[1:] if name != "params")
    parts = [(0, ROWS, 1), (0, SPLIT, 0.5), (SPLIT, ROWS, 2)]
    return [
        identity | {
            "distance_from": first, "distance_to": last, "n_rows": last - first, "loss_full": FULL,
            "loss": FULL + scale * loss, "loss_increase": scale * loss, "kl_mean": scale * abs(loss) / 100,
            "kl_p95": abs(loss), "top1_agreement": max(0.0, 1 - scale * abs(loss) / 4), "confirm_s": 1.5,
            "status": "ok", "error": "",
        } | changes
        for first, last, scale in parts
    ]  # fmt: skip


def answered(rank_full, rank, **place):
    """Rows of a prompt with an answer; worst rank of the answer's tokens in the full and the compressed
    run."""
    whole, *parts = confirm_rows(**place)
    values = (int(rank_full == 1), int(rank == 1), rank_full, rank, -0.5 * rank_full, -0.5 * rank)
    return [whole | dict(zip(ANSWERS, values, strict=True)), *parts]


def failed_confirm(error="kept.h5 says nothing of it", **place):
    """The one row of an instance that could not be run."""
    row = dict.fromkeys((*IDENTITY, *LOSSES), "")
    known = confirm_rows(**place)[0]
    return [row | {name: known[name] for name in IDENTITY} | {"status": "failed", "error": error}]


def layer_rows(rows, errors):
    """Rows of confirm_layers.csv for the instance in `rows`; `errors`: one {column: value} for each layer."""
    identity = {name: rows[0][name] for name in IDENTITY}
    return [
        dict.fromkeys(ERRORS, "") | identity | {"layer": layer} | each for layer, each in enumerate(errors)
    ]


def write_confirm(folder, losses, layers=None):
    """Writes OUT/confirm.csv and, with `layers`, OUT/confirm_layers.csv; returns the folder."""
    more = [
        name
        for name in (*PREDICTIONS, *ANSWERS, *WRITTEN, *DRAWS, "cells")
        if any(name in row for row in losses)
    ]
    _write(folder / "confirm.csv", [*IDENTITY, *LOSSES, *more], losses)
    if layers is not None:
        _write(folder / "confirm_layers.csv", [*IDENTITY, *ERRORS], layers)
    return folder


def _write(path, columns, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def planted(folder, cells, prompts=("p0",), n_layers=3, more=()):
    """Writes a folder with results and confirm.csv. `cells`: {(method, budget): (loss, {column: value, or
    [one value per layer]})}, equal on every prompt. `more`: further rows of confirm.csv."""
    rows, losses, layers = [], [], []
    for prompt in prompts:
        for (method, budget), (loss, values) in cells.items():
            params = values.get("params", {})
            by_layer = [{name: _at(value, layer) for name, value in values.items() if name != "params"}
                        for layer in range(n_layers)]  # fmt: skip
            for layer, own in enumerate(by_layer):
                of_run = {name: value for name, value in own.items() if name not in ERRORS[2:]}
                rows.append(
                    fake_row(
                        method, params, budget, layer=layer, seed="", given={}, **{"prompt": prompt} | of_run
                    )
                )
            told = confirm_rows(method, budget, loss, prompt, layers=f"0-{n_layers - 1}")
            of_model = [{name: value for name, value in own.items() if name in ERRORS} for own in by_layer]
            losses, layers = losses + told, layers + layer_rows(told, of_model)
    extra = dict.fromkeys(name for row in rows for name in row if name not in COLUMNS)
    write_results(folder, rows, columns=[*COLUMNS, *extra])
    return write_confirm(folder, [*losses, *more], layers)


def written(folder, scores, full=1.0):
    """Adds written answers to a folder's confirm.csv. scores: {(method, budget, prompt): score}; full: the
    full model's, for all prompts or {prompt: score}."""
    with (folder / "confirm.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    whole = [row for row in rows if row["distance_to"] == str(ROWS) and row["distance_from"] == "0"]
    for row in whole:
        prompt = row["prompt"]
        of_full = full[prompt] if isinstance(full, dict) else full
        score = scores[row["method"], int(row["budget_tokens"]), prompt]
        values = ("niah_single", "agnostic", 32, of_full, score, "full text", "text", "recorded", 0.5)
        row |= dict(zip(WRITTEN, values, strict=True))
        row |= dict(zip(ANSWERS, (int(of_full), int(score), 1, 2 - int(score), -1.0, -2.0), strict=True))
    return write_confirm(folder, rows)


def _at(value, layer):
    return value[layer] if isinstance(value, list) else value


def read(folder):
    """Reads the Instances of a folder."""
    frame = load(folder)
    return instances_of(frame, confirmed(frame))


def six_methods(error_of=lambda loss: loss, other=None, budgets=(64, 128), params=None):
    """Cells of six methods: the main measure is a function of the loss, another column is not."""
    cells = {}
    for number, method in enumerate(("adakv", "h2o", "knorm", "snapkv", "tova", "window")):
        for place, budget in enumerate(budgets):
            loss = 0.05 * (1 + number) * (len(budgets) - place)
            values = {"rel_err_out_mean": error_of(loss), "params": (params or {}).get(method, {})}
            if other is not None:
                values |= other(number, place)
            cells[method, budget] = (loss, values)
    return cells
