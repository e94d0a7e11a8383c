"""`python hostile_calls.py SEED CALLS`: calls `kvreplay.replay` with unsuitable arguments.

Each call may return a run or raise one of the documented exceptions; anything else is printed, and the exit
code is 1. Prints the number of calls for each way to end.
"""

import random
import sys
from collections import Counter

import kvreplay
import numpy as np
from numpy.lib.stride_tricks import as_strided
from program_beside_python import made_layer

PROMISED = (kvreplay.KvreplayError, TypeError)
TENSORS = made_layer(1)


class Subclass(np.ndarray):
    """A subclass of ndarray."""


class Converts:
    """An object that claims to be an array, and is not."""

    def __init__(self, how):
        self.how = how

    def __array__(self, *_, **__):
        return self.how()


class FakeDevice:
    """A tensor on a GPU that cannot be read."""

    shape = (4, 160, 16)
    dtype = "torch.float32"

    class device:
        type = "cuda"

    def __init__(self, answer=None):
        self.answer = answer

    def detach(self):
        return self

    def __getitem__(self, _):
        return self if self.answer is None else self.answer

    def cpu(self):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")


FakeDevice.__module__ = "torch"


def one(value):
    return lambda x: value


def with_value(value):
    def change(x):
        x = x.copy()
        x.flat[x.size // 3] = value
        return x

    return change


def broadcast(*shape):
    return one(np.broadcast_to(np.float32(1), shape))


def raising():
    raise ZeroDivisionError("raised by foreign code")


SHAPES = {
    "as it is": lambda x: x,
    "one head": lambda x: x[0],
    "a number": one(np.float32(1)),
    "a batch": lambda x: x[None],
    "two batches": lambda x: np.stack([x, x]),
    "no head": lambda x: x[:0],
    "no token": lambda x: x[:, :0],
    "no dim": lambda x: x[:, :, :0],
    "a token": lambda x: x[:, :1],
    "fewer tokens": lambda x: x[:, :-1],
    "fewer dims": lambda x: x[:, :, :-1],
    "three heads": lambda x: np.concatenate([x, x])[:3],
    "axes changed": lambda x: x.transpose(1, 0, 2),
    "2^40 tokens": broadcast(4, 1 << 40, 16),
    "2^40 heads": broadcast(1 << 40, 160, 16),
    "2^40 dims": broadcast(4, 160, 1 << 40),
    "2^60 numbers": broadcast(1 << 20, 1 << 20, 1 << 20),
}
NUMBERS = {
    "NaN": with_value(np.nan),
    "infinite": with_value(-np.inf),
    "largest": lambda x: np.full(x.shape, 3e38, np.float32),
    "smallest": lambda x: np.full(x.shape, 1e-44, np.float32),
    "zero": np.zeros_like,
    "float64": lambda x: x.astype(float),
    "longdouble": lambda x: x.astype(np.longdouble),
    "int": lambda x: x.astype(int),
    "uint16": lambda x: x.astype(np.uint16),
    "bool": lambda x: x > 0,
    "complex": lambda x: x.astype(complex),
    "objects": lambda x: x.astype(object),
    "words": lambda x: x.astype(str),
    "dates": lambda x: x.astype(int).astype("M8[s]"),
    "records": lambda x: np.zeros(x.shape, "f4,f4"),
    "swapped": lambda x: x.astype(">f4"),
    "half": lambda x: x.astype(np.float16),
    "masked": lambda x: np.ma.masked_less(x, 0),
    "subclass": lambda x: x.view(Subclass),
    "matrix": lambda x: x[0].view(np.matrix),
}
MEMORY = {
    "fortran": np.asfortranarray,
    "backwards": lambda x: x[::-1, ::-1, ::-1],
    "overlapping": lambda x: as_strided(x, x.shape, (4, 4, 4)),
    "unaligned": lambda x: np.frombuffer(b"x" + x.tobytes(), "u1")[1:].view("f4").reshape(x.shape),
    "of records": lambda x: np.zeros(x.shape, [("a", "f4"), ("b", "u1")])["a"],
    "read only": lambda x: np.frombuffer(x.tobytes(), "f4").reshape(x.shape),
    "memoryview": memoryview,
    "lists": lambda x: x.tolist(),
}
OBJECTS = {
    "None": one(None),
    "ragged": one([[1, 2], [3]]),
    "text": one("abc"),
    "bytes": one(b"abc"),
    "dict": one({"dtype": "float32", "data": np.zeros(3, np.float16)}),
    "generator": lambda x: (row for row in x),
    "function": one(print),
    "class": one(np.ndarray),
    "device": lambda x: FakeDevice(),
    "device of other rows": one(FakeDevice(np.zeros((1, 1), np.float32))),
    "converts to text": one(Converts(lambda: "text")),
    "converts by raising": one(Converts(raising)),
}
TENSOR_KINDS = {**SHAPES, **NUMBERS, **MEMORY, **OBJECTS}

ODD = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**70,
    -(2**70),
    10**400,
    0.5,
    1.5,
    -0.0,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\0",
    "\udcff",
    "10%",
    "-5%",
    "..%",
    "1e9%",
    "all",
    b"x",
    [],
    [[]],
    [[[1]]],
    (),
    {},
    {"x": 1},
    {1: 2},
    {"at": [2]},
    {"tokens": []},
    {"first": -1},
    {"last": 0},
    {"name": "h2o"},
    set(),
    range(0),
    range(5),
    np.int64(3),
    np.float32(0.5),
    np.array(32),
    np.array([1.5]),
    np.arange(4),
    np.array(["a"]),
    object(),
    print,
    kvreplay.Policy,
    "h2o",
    "nothing",
    ["h2o", "h2o"],
    {"name": "h2o", "recent_frac": 7},
    {"name": "snapkv", "window": [2**70]},
    {"name": "external", "kept": "x"},
    lambda prompt: 1,
    lambda: 1,
    1 << 20,
    "p0",
    ["p0"],
    [0],
    [0, 0],
    [-1],
    3 + 4j,
    bytearray(b"x"),
    memoryview(b"x"),
    slice(3),
]
KEYWORDS = (
    "methods",
    "budgets",
    "prefill",
    "tokens",
    "layers",
    "kv_heads",
    "prompts",
    "queries",
    "prompt",
    "needles",
    "recall_k",
    "tier",
    "machine",
    "seeds",
    "metrics",
    "save",
    "scaling",
    "sliding_window",
    "attention_chunk",
    "softcap",
    "sinks",
    "rope",
    "q_prescaled",
    "position_ids",
    "q_pos",
    "model",
    "n_layers",
    "device",
    "jobs",
    "precision",
    "audit",
)


def hostile_call(rng):
    """(positional arguments, keyword arguments), some of them unsuitable."""
    tensors = list(TENSORS)
    for i in range(3):
        if rng.random() < 0.3:
            tensors[i] = TENSOR_KINDS[rng.choice(list(TENSOR_KINDS))](tensors[i])
    words = {"methods": ["window", "h2o"], "budgets": [32], "prefill": 112, "jobs": 2}
    for name in rng.sample(KEYWORDS, rng.choice([0, 1, 1, 2, 3])):
        words[name] = rng.choice(ODD)
    if rng.random() < 0.1:
        given = {rng.choice([0, 3, -1, 2**70, "a", None]): tuple(tensors)}
        return [], {**words, "layers": given}
    return tensors, words


def main(seed, calls):
    rng = random.Random(seed)
    ended = Counter()
    wrong = 0
    for call in range(calls):
        arrays, words = hostile_call(rng)
        try:
            kvreplay.replay(*arrays, progress=False, **words)
            ended["a run"] += 1
        except PROMISED as error:
            ended[type(error).__name__] += 1
            if not all(line.strip() for line in str(error).split("\n")):  # a line for each mistake
                wrong += 1
                print(f"call {call}: {error!r} has an empty line", file=sys.stderr)
        except Exception as error:
            wrong += 1
            print(f"call {call}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
    print(dict(ended))
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
