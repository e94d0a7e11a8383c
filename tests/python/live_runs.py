"""Live runs beside replays of the trace that the same forward passes saved.

    python tests/python/live_runs.py MODEL [METHOD...]      a model, as `kvreplay record --model` or
    --gguf-file takes it

Runs three kinds of calls on a model: a prompt alone, a generation of 64 tokens, and a batch of 3 with left
padding. Every method that such a trace can serve is replayed live and from the saved trace; prints the number
of compared cells, and every column that differs. Exits with 1 if one does.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import kvreplay as kv
import numpy as np

# Lists from a file, a question in the prompt, and parameters without a default, which EXTRA has.
NOT_SERVED = ("external", "finch", "subgen_stream", "duo_attention", "dms")
EXTRA = (
    {"name": "subgen_stream", "delta_rel": 0.7},
    {"name": "duo_attention", "sinks": 4, "recent": 60},
    {"name": "dms", "threshold": -4, "window": 8},
    {"name": "snapkv", "wrapper": "critical"},
    {"name": "snapkv", "allocator": ["ada", "cake"]},
    {"name": "snapkv", "gqa.level": ["query", "layer"]},
    {"name": "kvzip", "level": ["layer", "pair"]},
    {"name": "triattention", "level": "union", "buffer": 32, "buffer_in_budget": True},
    {"name": "h2o", "row_format": ["int8", "nvfp4"]},
)
PLACE = ["prompt", "layer", "kv_head", "method", "params", "budget_tokens", "share", "seed"]
OTHER = ("key", "trace_id")  # by which runs of one and of another trace differ


def served(model):
    """Every method that a trace of a plain text can serve, and some with options that need more of a
    model."""
    windows = "sliding_attention" in (getattr(model.config.get_text_config(), "layer_types", None) or ())
    generated = [] if windows else [{"name": "laq", "generated": True}]  # such a cache cannot be cut
    return [name for name in kv.methods() if name not in NOT_SERVED] + [*EXTRA, *generated]


def differences(live, replayed):
    """Columns of two runs that differ anywhere but in times; ["rows"] if they have other cells."""
    tables = []
    for run in (live, replayed):
        table = run.table.assign(share=run.frame.get("budget_share"))
        tables.append(table.sort_values(PLACE).reset_index(drop=True))
    a, b = tables
    if len(a) != len(b) or not a[PLACE].equals(b[PLACE]):
        return ["rows"]
    measured = [name for name in a if name not in OTHER and not name.endswith("_s")]
    return [name for name in measured if not a[name].equals(b[name])]


def equal_arrays(live, replayed):
    """Whether the kept lists that two runs saved are equal in every cell."""
    mine, theirs = (
        {tuple(str(cell.row[name]) for name in PLACE if name in cell.row): cell.arrays for cell in run.cells}
        for run in (live, replayed)
    )
    return mine.keys() == theirs.keys() and all(
        np.array_equal(mine[place]["kept_flat"], theirs[place]["kept_flat"])
        for place in mine
        if "kept_flat" in mine[place]
    )


def ids_of(model, rows, tokens, seed=0):
    """Token ids [rows, tokens] of no meaning."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    size = model.config.get_text_config().vocab_size
    return torch.randint(3, size, (rows, tokens), generator=draw).to(model.device)


def prompt_alone(model, ids, live):
    """One forward pass."""
    model(ids, use_cache=False)


def generation(model, ids, live, tokens=64):
    """`generate`, greedily."""
    model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)


def padded_batch(model, ids, live):
    """A batch of 3 with padding on the left."""
    import torch

    batch = torch.cat([ids, ids.flip(1), ids.roll(7, 1)])
    mask = torch.ones_like(batch)
    mask[0, : ids.shape[1] // 3] = 0
    mask[2, :5] = 0
    model(batch, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), use_cache=False)


CALLS = (prompt_alone, generation, padded_batch)


def compare(model, ids, calls, methods, budgets, folder, tokenizer=None, **options):
    """(Run of a live replay, Run of the saved trace)."""
    import torch

    saved = Path(folder) / "live.h5"
    saved.unlink(missing_ok=True)
    same = {name: options[name] for name in ("queries", "seeds", "save", "kv_heads") if name in options}
    with (
        torch.no_grad(),
        kv.live(model, methods, budgets, tokenizer=tokenizer, save_trace=saved, **options) as live,
    ):
        for call in calls:
            call(model, ids, live)
    if live.failed:
        raise AssertionError(live.failed)
    return live.run, kv.replay(saved, methods=methods, budgets=budgets, **same)


def main():
    """The command line."""
    from kvrecord.model import SourceModel, resolve

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--gguf-file")
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("methods", nargs="*")
    words = parser.parse_args()
    subject = SourceModel(resolve(words.model, words.gguf_file), "cpu", lambda text: None)
    model, tokenizer = subject.model, subject.find_tokenizer(True)
    n_layers = model.config.get_text_config().num_hidden_layers
    layers = [0, n_layers // 2, n_layers - 1]
    text = (Path(__file__).parents[2] / "traces/samples/prompt.txt").read_text()
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, : words.tokens]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for call in CALLS:
            start = time.time()
            live, replayed = compare(
                model, ids, [call], words.methods or served(model), [64, "30%"], folder, tokenizer,
                layers=layers, save=["kept"],
            )  # fmt: skip
            wrong = differences(live, replayed)
            wrong += [] if equal_arrays(live, replayed) else ["kept lists"]
            broken = int((live.table["status"] != "ok").sum())
            failed = failed or bool(wrong)
            found = f"differ: {', '.join(wrong)}" if wrong else "equal"
            cells = f"{len(live)} cells, {broken} failed, {found}, {time.time() - start:.0f} s"
            print(f"{subject.name}, {call.__name__}: {cells}", flush=True)
            for name, rows in live.failed.groupby("method"):
                print("   ", name, rows["error"].iloc[0].splitlines()[-1])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
