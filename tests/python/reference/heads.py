"""Small seeded traces for comparing the engine with the reference: odd sizes, sinks, clusters, duplicates."""

import json
from dataclasses import dataclass

import h5py
import numpy as np

from .common import Head, Rope


@dataclass(frozen=True)
class Shape:
    """One trace. `layers`: numbers of the recorded layers among n_layers; `prompts`: ids."""

    name: str
    G: int
    Hkv: int
    n: int
    P: int
    d: int
    dv: int
    scale: float
    layers: tuple = (7,)
    n_layers: int = 12
    prompts: tuple = ("a",)
    layout: str = "half_split"
    rotary_dims: int = 8
    duplicates: int = 0
    seed: int = 0


SHAPES = {
    s.name: s
    for s in (
        Shape("grouped", 3, 2, 163, 109, 12, 7, 12**-0.5, prompts=("b-second", "a-first"), seed=1),
        Shape("single", 1, 1, 233, 157, 8, 11, 0.45, layout="interleaved", duplicates=9, seed=2),
        Shape("layered", 2, 1, 131, 83, 10, 10, 0.3, layers=(0, 3, 6), n_layers=7, seed=3),
        Shape("short", 1, 1, 61, 41, 8, 8, 0.35, layers=(0,), n_layers=1, seed=4),
    )
}


def inverse_frequencies(shape):
    return 100.0 ** (-np.arange(0, shape.rotary_dims, 2) / shape.rotary_dims)


def tensors(shape, prompt, layer):
    """q [Hq, n, d], k [Hkv, n, d], v [Hkv, n, dv] in float32.

    Keys drift through five clusters; tokens 0 and 2 are sinks (they get much attention, their values are
    small); value norms spread over several powers of two, one is zero; the last `duplicates` keys of the
    prompt's middle repeat earlier ones.
    """
    rng = np.random.default_rng([shape.seed, shape.prompts.index(prompt), layer])
    topics = rng.normal(size=(5, shape.d)) * 1.5
    topic = np.cumsum(rng.random(shape.n) < 0.15) % 5
    k = topics[topic] + 0.8 * rng.normal(size=(shape.Hkv, shape.n, shape.d))
    liked = rng.normal(size=shape.d)
    liked *= 3.0 / np.linalg.norm(liked)
    k[:, [0, 2]] = liked + 0.3 * rng.normal(size=(shape.Hkv, 2, shape.d))
    q = 0.7 * topics[topic] + liked + rng.normal(size=(shape.G * shape.Hkv, shape.n, shape.d))
    v = rng.normal(size=(shape.Hkv, shape.n, shape.dv)) * 2.0 ** rng.uniform(-2, 2, size=(shape.n, 1))
    v[:, [0, 2]] *= [[0.05], [0.002]]
    v[:, 11] = 0.0
    middle = shape.P // 2
    k[:, middle : middle + shape.duplicates] = k[:, 20 : 20 + shape.duplicates]
    return (x.astype(np.float32) for x in (q, k, v))


def token_classes(n):
    """Class of every token: some punctuation (1), two special tokens (2)."""
    classes = np.zeros(n, dtype=np.uint8)
    classes[4::7], classes[[0, n // 3]] = 1, 2
    return classes


def write_trace(path, shape):
    """Writes a trace in the engine's format."""
    rope = {
        "type": "default",
        "theta": 100.0,
        "inv_freq": inverse_frequencies(shape).tolist(),
        "layout": shape.layout,
        "rotary_dims": shape.rotary_dims,
    }
    with h5py.File(path, "w") as f:
        f.attrs["kvreplay_schema"] = 1
        f.attrs["n_layers"] = shape.n_layers
        f.attrs["rope_json"] = json.dumps(rope)
        for prompt in shape.prompts:
            f[f"prompts/{prompt}/token_class"] = token_classes(shape.n)
            for layer in shape.layers:
                g = f.create_group(f"prompts/{prompt}/layers/{layer:03d}")
                g.attrs["scaling"] = shape.scale
                g.attrs["rotary_dims"] = shape.rotary_dims
                for name, x in zip("qkv", tensors(shape, prompt, layer), strict=True):
                    g[name] = x


def heads(shape):
    """Every head of the trace: {(prompt, layer, kv head): Head}."""
    rope = Rope(inverse_frequencies(shape), shape.layout)
    result = {}
    for rank, prompt in enumerate(sorted(shape.prompts)):
        for layer in shape.layers:
            q, k, v = tensors(shape, prompt, layer)
            for h in range(shape.Hkv):
                group = q[h * shape.G : (h + 1) * shape.G]
                place = {"layer": layer, "kv_head": h, "n_layers": shape.n_layers, "prompt_rank": rank}
                result[prompt, layer, h] = Head(group, k[h], v[h], shape.scale, shape.P, **place, rope=rope)
    return result
