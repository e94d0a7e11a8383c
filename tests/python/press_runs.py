"""Presses of kvpress as methods, beside kvpress itself. Needs an environment with kvpress (see
tests/kvpress.sh).

    python tests/python/press_runs.py [--model M | --gguf-file F] [--tokens N]

Prints for every scorer that runs on a CPU whether each kv head keeps the tokens that the press itself keeps,
at three ratios; then the seconds of kvpress and of one live replay for five methods at one ratio. Exits with
1 if a set differs.
"""

import argparse
import copy
import sys
import time
from pathlib import Path

import kvpress
import kvreplay as kv
import torch
from kvpress.utils import compute_n_kept
from transformers import DynamicCache

RATIOS = (0.25, 0.5, 0.75)
FIVE = ("SnapKVPress", "KnormPress", "ExpectedAttentionPress", "TOVAPress", "KeyDiffPress")


def presses():
    """Every scorer of kvpress that needs no trained weights."""
    made = [getattr(kvpress, name) for name in dir(kvpress)]
    kinds = [kind for kind in made if isinstance(kind, type) and issubclass(kind, kvpress.ScorerPress)]
    trained = {"ScorerPress", "QFilterPress", "KVzapPress", "PyramidKVPress", "ExpectedAttentionStatsPress"}
    special = {"RandomPress": {"seed": 3}, "CriticalKVPress": {"press": kvpress.SnapKVPress()}}
    return [kind(**special.get(kind.__name__, {})) for kind in kinds if kind.__name__ not in trained]


def seeded(press):
    """The press, with the random numbers of a layer that kvreplay gives it."""
    score = press.score

    def with_seed(module, *args, **more):
        torch.manual_seed(module.layer_idx)
        return score(module, *args, **more)

    press.score = with_seed
    return press


def kept_by_press(model, press, ids, ratio):
    """{layer: sets of the tokens that each kv head keeps}, found by comparing the cut cache with the full
    one."""
    full, cut = DynamicCache(), DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=full)
        press.compression_ratio = ratio
        with press(model):
            model(ids, past_key_values=cut)
    kept = {}
    for layer, (all_rows, rows) in enumerate(zip(full.layers, cut.layers, strict=True)):
        heads = zip(all_rows.keys[0], rows.keys[0], strict=True)
        kept[layer] = [{int((row == whole).all(-1).nonzero()[0]) for row in own} for whole, own in heads]
    return kept


def kept_live(model, press, ids, budgets):
    """{(layer, kv head, budget): set of kept tokens} of a live replay."""
    with torch.no_grad(), kv.live(model, [press], budgets, save=["kept"]) as live:
        model.generate(ids, max_new_tokens=2, min_new_tokens=2, do_sample=False)
    run = live.run
    if len(run.failed):
        raise AssertionError(run.failed["error"].iloc[0])
    return {
        (cell.row["layer"], cell.row["kv_head"], cell.row["budget_tokens"]): set(
            cell.arrays["kept_flat"][cell.arrays["kept_off"][0] : cell.arrays["kept_off"][1]].tolist()
        )
        for cell in run.cells
    }


def differing(model, press, ids):
    """How many (ratio, layer, kv head) keep other tokens, and of how many."""
    # One press reads the probabilities that eager attention alone returns.
    model.set_attn_implementation("eager" if isinstance(press, kvpress.ObservedAttentionPress) else "sdpa")
    budgets = {compute_n_kept(ids.shape[1], ratio): ratio for ratio in RATIOS}
    own = seeded(copy.copy(press))
    theirs = {budget: kept_by_press(model, own, ids, ratio) for budget, ratio in budgets.items()}
    mine = kept_live(model, press, ids, list(budgets))
    wrong = 0
    for budget, layers in theirs.items():
        for layer, heads in layers.items():
            wrong += sum(mine[layer, head, budget] != kept for head, kept in enumerate(heads))
    return wrong, len(mine)


def seconds(model, ids):
    """(kvpress, one forward pass for each of five presses; one live replay of the five), in seconds."""
    five = [getattr(kvpress, name)(compression_ratio=0.5) for name in FIVE]
    budget = compute_n_kept(ids.shape[1] * 3 // 4, 0.5)
    start = time.perf_counter()
    with torch.no_grad():
        for press in five:
            with press(model):
                model(ids, past_key_values=DynamicCache())
    middle = time.perf_counter()
    with torch.no_grad(), kv.live(model, five, [budget], queries={"last": 64}, prefill=0.75) as live:
        model(ids)
    return middle - start, time.perf_counter() - middle, live.run


def main():
    """The command line."""
    from kvrecord.model import SourceModel, resolve

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--gguf-file")
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("presses", nargs="*", help="names of presses (default: all)")
    words = parser.parse_args()
    subject = SourceModel(resolve(words.model, words.gguf_file), "cpu", lambda text: None)
    model, tokenizer = subject.model, subject.find_tokenizer(True)
    text = (Path(__file__).parents[2] / "traces/samples/prompt.txt").read_text()
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, : words.tokens]
    failed = 0
    chosen = [press for press in presses() if not words.presses or type(press).__name__ in words.presses]
    for press in chosen:
        try:
            wrong, cells = differing(model, press, ids)
        except AttributeError as error:  # CriticalKVPress on models whose configuration has no head_dim
            print(f"{subject.name}, {type(press).__name__}: the press itself fails: {error}", flush=True)
            continue
        failed += wrong
        print(
            f"{subject.name}, {type(press).__name__}: {cells - wrong} of {cells} kept sets equal", flush=True
        )
    theirs, ours, run = seconds(model, ids)
    print(f"{subject.name}: five presses at one ratio, {ids.shape[1]} tokens: kvpress {theirs:.2f} s, "
          f"kvreplay {ours:.2f} s ({run.engine_s:.2f} s in the engine)")  # fmt: skip
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
