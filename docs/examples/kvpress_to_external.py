"""Writes the tokens that a press of kvpress keeps as a file for the method `external` (docs/external.md).

usage: kvpress_to_external.py TRACE.h5 PRESS BUDGET... -o press-{budget}.h5 [-p NAME=VALUE]...

PRESS is a class of kvpress whose score() uses only keys and values: KnormPress, KeyDiffPress, LagKVPress,
CURPress. It scores the prompt of a whole layer in one call, as in a model. Each kv head keeps the BUDGET
tokens with the highest scores; among equal scores, the first. Needs torch, kvpress and h5py; checked with
kvpress 0.5.5.
"""

import argparse
import importlib
import json

import h5py
import numpy as np
import torch


def scores_of(press, layer, tokens):
    """Scores of the first `tokens` tokens, float64 [kv heads, tokens]; larger scores are kept."""
    keys, values = (torch.from_numpy(layer[name][:, :tokens].astype(np.float32))[None] for name in "kv")
    return press.score(None, None, keys, values, None, {})[0].double().numpy()


def top(scores, budget):
    """Indices of the `budget` highest scores in ascending order; among equal scores, the first."""
    return np.sort(np.argsort(-scores, kind="stable")[:budget])


def write_lists(group, kept):
    group["kept_flat"], group["kept_off"] = kept.astype(np.int32), np.array([0, len(kept)])
    group.attrs["oneshot"] = 1


def convert(trace, press, budgets, pattern):
    """Writes one file per budget; {budget} in `pattern` becomes the budget in tokens."""
    files = {budget: h5py.File(pattern.replace("{budget}", str(budget)), "w") for budget in budgets}
    with h5py.File(trace) as source:
        for prompt_id, prompt in source["prompts"].items():
            tokens = int(prompt.attrs["n_prompt"])
            for name, layer in prompt["layers"].items():
                for head, scores in enumerate(scores_of(press, layer, tokens)):
                    for budget, file in files.items():
                        write_lists(file.create_group(f"{prompt_id}/{name}/{head}"), top(scores, budget))
    for file in files.values():
        file.close()


def value_of(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main(words=None):
    usage, _, rest = __doc__.partition("usage: ")
    parser = argparse.ArgumentParser(description=usage, epilog=rest)
    parser.add_argument("trace")
    parser.add_argument("press")
    parser.add_argument("budgets", type=int, nargs="+")
    parser.add_argument(
        "-o", "--out", required=True, help="output file; {budget} in its name becomes the budget"
    )
    parser.add_argument(
        "-p", "--param", action="append", default=[], help="parameter of the press, such as n_sink=8"
    )
    given = parser.parse_args(words)
    if len(given.budgets) > 1 and "{budget}" not in given.out:
        parser.error("several budgets make several files: write {budget} into the name after -o")
    parameters = dict(pair.split("=", 1) for pair in given.param)
    press = getattr(importlib.import_module("kvpress"), given.press)
    press = press(**{name: value_of(text) for name, text in parameters.items()})
    convert(given.trace, press, given.budgets, given.out)


if __name__ == "__main__":
    main()
