"""Measures the cost of a method in Python beside the built-in one with equal decisions, and the cost of
`kvreplay.replay` beside the engine's own time.

    PYTHONPATH=lib/python:apps:analysis:traces:tests/python python tests/bench/own_methods.py [--repeat 5]

Tensors are random: one layer with 8 query heads on 4 kv heads of 64, on one thread. A method's time is the
CPU time of a replay with it minus that of `exact` alone, which holds the work that all methods share. Each
time is the smallest of the repetitions, which alternate.
"""

import argparse
import time

import kvreplay
import numpy as np
from own_methods_of_tests import Oldest, PythonH2o, python_snapkv
from program_beside_python import made_layer

BUDGETS = (256, 1024)


class Nothing(Oldest):
    """A policy that reads all its input and keeps a score, as cheaply as Python can."""

    def observe(self, tokens, p):
        tokens.scores[-1] = 0.0


def measured(arrays, methods, repeat, budget, prefill):
    """{name: seconds of the method}."""
    least = {}
    for _ in range(repeat):
        for name, method in {"exact": None, **methods}.items():
            given = {} if method is None else {"budgets": [budget]}
            entries = ["exact"] if method is None else ["exact", method]
            started = time.process_time()
            run = kvreplay.replay(*arrays, methods=entries, prefill=prefill, jobs=1, progress=False, **given)
            took = time.process_time() - started
            assert not len(run.failed), run.failed["error"].iloc[0]
            least[name] = min(least.get(name, np.inf), took)
    shared = least.pop("exact")
    return {name: took - shared for name, took in least.items()}


def steps(arrays, repeat):
    """Microseconds per step of a streaming policy; the prompt is a quarter, so that steps dominate."""
    tokens, heads = arrays[1].shape[1], arrays[1].shape[0]
    prefill = tokens // 4
    per_step = 1e6 / (heads * (tokens - prefill))
    methods = {
        "h2o": "h2o",
        "python_h2o": PythonH2o,
        "window": "window",
        "oldest": Oldest,
        "nothing": Nothing,
    }
    for budget in BUDGETS:
        found = measured(arrays, methods, repeat, budget, prefill)
        for name, took in found.items():
            print(f"step   B={budget:<5} {name:<12} {per_step * took:8.1f} us a step of a kv head")


def cuts(arrays, repeat):
    """Milliseconds per prompt of a one-shot method."""
    tokens, heads = arrays[1].shape[1], arrays[1].shape[0]
    methods = {"snapkv": "snapkv", "python_snapkv": python_snapkv}
    for name, took in measured(arrays, methods, repeat, 256, tokens - 16).items():
        print(f"prompt B=256   {name:<12} {1e3 * took / heads:8.2f} ms a kv head")


def overhead(arrays, repeat):
    """Wall time of `kvreplay.replay` over that of the engine in it, and of the table."""
    tokens = arrays[1].shape[1]
    words = {"prefill": tokens // 2, "budgets": [128, 512], "jobs": 1, "progress": False}
    for methods in (["streaming_llm"], ["h2o", "snapkv", "streaming_llm"]):
        entries = [
            {"name": "streaming_llm", "positions": "original"} if m == "streaming_llm" else m for m in methods
        ]
        ratios = []
        for _ in range(repeat):
            started = time.perf_counter()
            run = kvreplay.replay(*arrays, methods=entries, **words)
            called = time.perf_counter() - started
            _ = run.table
            ratios.append(
                (called / run.engine_s - 1, called, run.engine_s, time.perf_counter() - started - called)
            )
        over, called, engine, table = sorted(ratios)[len(ratios) // 2]
        print(
            f"call   {'+'.join(methods):<30} {called:.3f} s, engine {engine:.3f} s: {100 * over:+.1f} % "
            f"(the table: {1e3 * table:.0f} ms)"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    arrays = made_layer(1, heads=8, kv_heads=4, tokens=asked.tokens, dim=64, v_dim=64)
    kvreplay.replay(*made_layer(1), prefill=112, methods=["h2o"], budgets=[32]).summary()
    overhead(arrays, asked.repeat)
    steps(arrays, asked.repeat)
    cuts(arrays, asked.repeat)


if __name__ == "__main__":
    main()
