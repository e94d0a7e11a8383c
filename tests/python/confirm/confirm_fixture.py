"""A tiny model, its trace, and the tokens that the real engine kept."""

import csv
import json

import h5py
from kvreplay_cli import kvreplay

import torch  # isort: skip
import transformers  # isort: skip

import kvrecord
from front_door import confirm as closed_loop

# Threads do not speed up tiny tensors, and they slow them down where cores are shared.
torch.set_num_threads(1)

PREFILL, TOKENS = 40, 72
METHODS = [
    {"name": "exact"},
    {"name": "streaming_llm", "sinks": 2},
    {"name": "h2o"},
    {"name": "h2o", "positions": "cache"},
    {"name": "h2o", "row_format": {"name": "int4", "group": 4}},
    {"name": "h2o", "row_format": {"name": "kivi", "bits": 4, "g": 4, "R": 8}},
    {"name": "h2o", "variant": "hf_mask"},
    {"name": "h2o", "order": "evict_then_attend"},
    {"name": "tova"},
    {"name": "snapkv", "window": 4},
    {"name": "snapkv", "window": 4, "gqa.level": "query"},
    {"name": "snapkv", "window": 4, "gqa.level": "query", "row_format": "bf16"},
    {"name": "uniform", "sinks": 2, "recent": 4},
    {"name": "topk_oracle", "per_head": True},
]
# Methods whose rows are weighted, synthetic or at other positions.
WEIGHTED = [
    {"name": "subgen_stream", "delta_rel": 0.7, "t": 4, "s": 16},
    {"name": "wildcat", "sinks": 2, "recent": 4},
    {"name": "qjl", "m_in": 16, "m_out": 16, "buffer": 8, "group": 4, "outliers": 1},
]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    # Larger weights than usual, so that attention is far from uniform.
    "initializer_range": 0.3,
}


def tiny_llama(seed=0, **changes):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | changes)).eval()


def gemma2():
    """Has windows, soft caps, and a norm between the output projection and the residual sum."""
    torch.manual_seed(0)
    sizes = SIZES | {"head_dim": 8, "sliding_window": 24, "query_pre_attn_scalar": 8}
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**sizes)).eval()


def record(model, path, prompts=("a",), **options):
    """A float32 trace of random tokens; returns its path.

    The prompt and the later tokens run in two passes, as in a confirmation. The rows are therefore equal to
    the last bit, and no code of a row format flips.
    """
    with kvrecord.record(model, path, **options) as recorder, torch.no_grad():
        for number, prompt in enumerate(prompts):
            with recorder.prompt(prompt):
                ids = tokens_of(number)
                cache = model(input_ids=ids[:, :PREFILL], use_cache=True).past_key_values
                model(input_ids=ids[:, PREFILL:], past_key_values=cache, use_cache=True)
    return path


def tokens_of(number):
    """Token ids [1, T] of prompt `number`."""
    torch.manual_seed(number)
    return torch.randint(3, 64, (1, TOKENS))


def replay(trace, out, methods, budget=16, **sections):
    """Replays `methods`, saves lists and outputs, and returns the results folder."""
    config = {
        "schema": 1,
        "name": "confirm",
        "traces": [str(trace)],
        "replay": {"prefill": PREFILL},
        "methods": methods,
        "budget": {"tokens": [budget]},
        "seeds": {"first": 0, "count": 1},
        "output": {"dir": str(out), "save": ["kept", "outputs"]},
    } | sections
    path = out.with_suffix(".yaml")
    path.write_text(json.dumps(config))
    done = kvreplay("run", path)
    assert done.returncode == 0, done.stderr
    return out


def saved(model, folder):
    """Saves the model to a folder that --model accepts."""
    model.save_pretrained(folder)
    return folder


def confirm(out, model, *words):
    """Runs the command line in this process; returns its exit code."""
    return closed_loop.main([str(out), "--model", str(model), *map(str, words)])


def rows(out, name="confirm.csv", **where):
    """Rows of a table as dicts."""
    with (out / name).open(newline="") as file:
        found = list(csv.DictReader(file))
    return [row for row in found if all(row[key] == value for key, value in where.items())]


def whole(out, **where):
    """The rows that cover all distances, one for each instance."""
    return [row for row in rows(out, **where) if row["distance_from"] in ("", "0") and _widest(row)]


def _widest(row):
    return row["status"] == "failed" or row["distance_to"] == str(
        int(row["n_tokens"]) - int(row["n_prefill"]) - 1
    )


def meta(out):
    """The contents of confirm.meta.json."""
    return json.loads((out / "confirm.meta.json").read_text())


def verified(out):
    """The recorded deviations from the engine's outputs."""
    return [one["deviation"] for one in meta(out)["verified"].values()]


def copy_of(out, to):
    """A copy of a results folder, without its confirmation."""
    to.mkdir()
    for name in ("results.csv", "results.meta.json", "kept.h5", "outputs.h5"):
        (to / name).write_bytes((out / name).read_bytes())
    return to


def change_kept(out, change):
    """Applies change(group) to every cell of kept.h5."""
    with h5py.File(out / "kept.h5", "r+") as file:
        for group in file.values():
            change(group)
