"""KVzip at every level against the numpy definition, with repeat passes of this prompt and of others."""

from functools import cache

import h5py
import numpy as np
import pytest
import yaml
from engine_cases_calibration import LENGTHS, other_layers, write_files
from engine_cases_tier2 import Case, layers_of
from engine_runs import Runs, parameters
from kvreplay_cli import BINARY, kvreplay
from reference.common import oneshot
from reference.repeat_scores import Repeat, by_head, kvzip, kvzip_scores

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

TRACE = "smooth"
ROWS = 9  # rows that repeat a chunk; there are two chunks


def layers_in(prompt):
    return layers_of(TRACE) if prompt == "p0" else other_layers(TRACE)[prompt]


@cache
def repeats_of(prompt):
    """The second pass of every head, in the layout of layers_of()."""
    rng = np.random.default_rng(len(prompt) + sum(map(ord, prompt)))

    def of(head):
        # Each row attends to some prompt token, more strongly in some heads than in others.
        sharpness = 1 + 2 * rng.random()
        sought = rng.integers(0, head.P, 2 * ROWS)
        clear = sharpness * head.k[sought]
        q = np.stack([clear + rng.normal(size=clear.shape) for _ in range(head.G)])
        k = rng.normal(size=(2 * ROWS, head.d))
        single = [x.astype(np.float32).astype(float) for x in (q, k)]
        return Repeat(*single, (0, ROWS, 2 * ROWS), (0, head.P // 2, head.P))

    return [[of(h) for h in heads] for heads in layers_in(prompt)]


def write_repeated(folder, trace):
    write_files(folder, trace)
    with h5py.File(folder / "t.h5", "r+") as f:
        for prompt in ("p0", *LENGTHS):
            first = repeats_of(prompt)[0][0]
            group = f.create_group(f"prompts/{prompt}/repeat")
            group["tokens"] = np.zeros(2 * ROWS, np.int32)
            group["rows"], group["ctx"] = np.int32(first.rows), np.int32(first.ctx)
            f[f"prompts/{prompt}"].attrs["context_tokens"] = first.ctx[-1]
            for heads, own in zip(layers_in(prompt), repeats_of(prompt), strict=True):
                at = f[f"prompts/{prompt}/layers/{heads[0].layer:03}"]
                at["repeat_q"] = np.concatenate([r.q for r in own]).astype(np.float32)
                at["repeat_k"] = np.stack([r.k for r in own]).astype(np.float32)


def largest(prompt, sinks):
    """The largest score of each head in a prompt's repeat pass, sinks left out."""
    return np.array(
        [
            kvzip_scores(h, r, sinks)[sinks:].max()
            for heads, own in zip(layers_in(prompt), repeats_of(prompt), strict=True)
            for h, r in zip(heads, own, strict=True)
        ]
    )


def whole_heads(prompts, sinks=4, recent=0):
    def reference(layers, B):
        heads = [h for same in layers for h in same]
        worth = np.max([largest(p, sinks) for p in prompts], axis=0)
        P, ends = heads[0].P, sinks + recent
        held = iter(by_head(worth, P, B * len(heads), ends))
        safe = np.append(np.arange(sinks), np.arange(P - recent, P))
        return [[oneshot(h, np.arange(P) if next(held) == P else safe) for h in same] for same in layers]

    return reference


def competing(level, **o):
    return lambda layers, B: kvzip(layers, repeats_of("p0"), B, level, **o)


def case(reference, level, budgets=(41, 64), **o):
    return Case({"name": "kvzip", "level": level, **o}, reference, (TRACE,), budgets)


OTHERS = tuple(LENGTHS)
CASES = [
    *(case(competing(level), level) for level in ("uniform", "layer", "pair")),
    case(competing("pair", sinks=2, recent=7), "pair", sinks=2, recent=7),
    case(whole_heads(("p0",)), "head"),
    case(whole_heads(("p0",), 2, 9), "head", sinks=2, recent=9),
    case(whole_heads(OTHERS), "head", calibration="others"),
    case(whole_heads(("p2",), 4, 3), "head", calibration="prompt:p2", recent=3),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("engine"), CASES, write_repeated)


@pytest.mark.parametrize("case,trace", parameters(CASES))
def test_the_engine_agrees_with_the_definition(runs, case, trace):
    runs.check(case, trace, layers_of(trace))


def test_the_cases_distinguish_the_prompts():
    order = {p: tuple(np.argsort(-largest(p, 4), kind="stable")[:2]) for p in ("p0", *OTHERS)}
    together = np.max([largest(p, 4) for p in OTHERS], axis=0)
    assert len({*order.values(), tuple(np.argsort(-together, kind="stable")[:2])}) >= 3, order


REFUSED = [
    (
        {"level": "pair", "calibration": "others"},
        "kvzip looks at this prompt alone with these parameters: leave out calibration",
    ),
    ({"level": "head", "calibration": "file:a.h5"}, "write calibration: self, others or prompt:ID"),
    ({"level": "head", "sinks": 0}, "with level head most heads keep only sinks and recent, and both are 0"),
    ({"level": "head", "calibration": "prompt:p0"}, "kvzip learns from prompt p0, which is replayed too"),
    ({"level": "head", "calibration": "prompt:p9"}, "kvzip learns from prompt p9, which"),
    ({"level": "head", "allocator": "duo"}, "kvzip shares its budget by a rule of its own"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("repeated")
    write_repeated(path, TRACE)
    return path


def configured(folder, **o):
    config = {
        "schema": 1,
        "traces": ["t.h5"],
        "select": {"prompts": ["p0"]},
        "methods": [{"name": "kvzip", **o}],
        "budget": {"tokens": [41]},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return folder / "run.yaml"


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_a_meaningless_combination_is_refused_with_the_remedy(folder, words, said):
    done = kvreplay("validate", configured(folder, **words))
    assert done.returncode == 2
    assert said in done.stderr


def test_another_prompt_without_a_repeat_pass_is_named(folder, tmp_path):
    (tmp_path / "t.h5").write_bytes((folder / "t.h5").read_bytes())
    with h5py.File(tmp_path / "t.h5", "r+") as f:
        del f["prompts/p1/repeat"]
        for layer in f["prompts/p1/layers"].values():
            del layer["repeat_q"], layer["repeat_k"]
    done = kvreplay("validate", configured(tmp_path, level="head", calibration="others"))
    assert done.returncode == 2, done.stdout
    assert "prompt p1" in done.stderr and "`kvreplay record --repeat`" in done.stderr
