"""Writes kept sets that know the needle, for the method `external` (docs/external.md).

usage: needles_to_external.py TRACE.h5 -o FOLDER [--share 0.2]

The trace holds prompts of `kvreplay tasks make`. Two files are written, with equal sets for every head.
needle.h5 keeps the needle's tokens, the first four tokens, and the last ones up to the share of the prompt:
an oracle, because no method knows what will be asked. without.h5 keeps all but the needle's tokens.
"""

import argparse
from pathlib import Path

import h5py
import numpy as np

SINKS = 4


def needle_of(prompt):
    """The needle's tokens, ascending."""
    spans = prompt.attrs["needle_tokens"]
    return np.unique(np.concatenate([np.arange(first, last) for first, last in spans]))


def with_needle(needle, n_prompt, share):
    """The needle, the first tokens, and the last ones up to `share` of the prompt."""
    kept = np.union1d(needle, np.arange(SINKS))
    rest = max(0, int(share * n_prompt) - len(kept))
    others = np.setdiff1d(np.arange(n_prompt), kept)
    return np.union1d(kept, others[len(others) - rest :])


def write(path, trace, sets_of):
    """One file: the tokens sets_of(needle, length of the prompt), for all heads of all layers."""
    with h5py.File(path, "w") as file:
        for name, prompt in trace["prompts"].items():
            kept = sets_of(needle_of(prompt), int(prompt.attrs["n_prompt"]))
            for layer, rows in prompt["layers"].items():
                for head in range(len(rows["k"])):
                    group = file.create_group(f"{name}/{layer}/{head}")
                    group["kept_flat"], group["kept_off"] = kept.astype(np.int32), np.array([0, len(kept)])
                    group.attrs["oneshot"] = 1


def main(words=None):
    usage, _, rest = __doc__.partition("usage: ")
    parser = argparse.ArgumentParser(description=usage, epilog=rest)
    parser.add_argument("trace")
    parser.add_argument("-o", "--out", required=True, type=Path)
    parser.add_argument("--share", type=float, default=0.2)
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    with h5py.File(options.trace) as trace:
        write(options.out / "needle.h5", trace, lambda at, n: with_needle(at, n, options.share))
        write(options.out / "without.h5", trace, lambda at, n: np.setdiff1d(np.arange(n), at))


if __name__ == "__main__":
    main()
