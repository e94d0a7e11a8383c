"""Broken configurations: each ends with a complete result or with a message that names the place."""

import copy
import json
import random
import re

import h5py
import pytest
import yaml
from kvreplay_cli import kvreplay_measured, synth, table

ALL, OFTEN = 1000, 150  # the later ones are slow
LIMIT_S, MOST_BYTES = 30, 10**9
GOOD = {
    "schema": 1,
    "name": "mutant",
    "traces": ["t.h5"],
    "select": {"prompts": "all", "layers": [0, 1], "kv_heads": "all"},
    "replay": {"tokens": 96, "prefill": 64, "prompt": "cut", "queries": {"stride": 2}},
    "methods": [
        "exact",
        {"name": "h2o", "recent_frac": 0.25, "gqa": {"level": "kv", "agg": "max"}},
        {"name": "snapkv", "window": [4, 8], "pool": "avg", "kernel": 3},
        {"name": "streaming_llm", "sinks": 2, "positions": "original", "phase": "stream"},
        {"name": "external", "kept": "lists-{budget}.h5", "order": "attend_then_evict"},
    ],
    "budget": {"tokens": [16, 32]},
    "seeds": {"first": 0, "count": 2},
    "metrics": "default",
    "run": {"device": "cpu", "jobs": 1, "precision": "single"},
    "output": {"dir": "o", "save": ["kept"]},
}
STRANGE = [
    None,
    True,
    -1,
    0,
    1,
    3,
    17,
    1e300,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "all",
    "exact",
    "stream",
    "010",
    "\u00e4",
    "x" * 300,
    "../..",
    [],
    {},
    [[]],
    {"a": {"b": []}},
    [1, "1", 1.0],
    2**70,
    "cuda",
    "kept",
    ["h2o", "h2o"],
]


def places(node, path=()):
    """Every path to a value inside a tree of maps and lists."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def parent(tree, path):
    for key in path[:-1]:
        tree = tree[key]
    return tree


def change_structure(rng):
    """Replaces, removes or repeats a value, or moves it to another key."""
    tree = copy.deepcopy(GOOD)
    for _ in range(rng.choice([1, 1, 2])):
        path = rng.choice(list(places(tree)))
        holder, key = parent(tree, path), path[-1]
        what = rng.choice(["replace", "replace", "remove", "repeat", "rename"])
        if what == "replace":
            holder[key] = rng.choice(STRANGE)
        elif what == "remove":
            del holder[key]
        elif isinstance(holder, list):
            holder.append(holder[key])
        elif what == "rename":
            name = str(key)
            holder[name[:-1] + rng.choice("xyz")] = holder.pop(key)
        else:
            holder[str(key) + "s"] = holder[key]
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False).encode()


def change_bytes(rng):
    """Flips, removes or inserts bytes, or truncates the text."""
    data = bytearray(yaml.safe_dump(GOOD, sort_keys=False).encode())
    for _ in range(rng.choice([1, 1, 3, 10])):
        at = rng.randrange(len(data))
        what = rng.choice(["flip", "cut", "insert", "tear", "copy"])
        if what == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif what == "cut":
            del data[at : at + rng.randrange(1, 12)]
        elif what == "insert":
            data[at:at] = rng.choice(
                [
                    b":",
                    b"- ",
                    b"[",
                    b"}",
                    b"&a ",
                    b"*a",
                    b"!!",
                    b"\t",
                    b"\n",
                    b"\x00",
                    b"%",
                    b'"',
                    b"<<: ",
                    b"|",
                    b"?",
                ]
            )
        elif what == "tear":
            del data[max(at, 10) :]
        else:
            data[at:at] = data[at : at + rng.randrange(1, 60)]
        if not data:
            return b""
    return bytes(data)


ODD_NUMBERS = (
    "010", "0x10", "0o7", "0b11", "1_000", "+5", "5.", ".5", "1e2", "1E-2", "-0", "1:30", "~", ".inf",
    "-.inf", ".nan", "1e400", "1e-400", "99999999999999999999", "0.1e1", "--5", "1,5",
    "\uff15", "1\u00a0", "true", "'NaN'", "5%", "16px",
)  # fmt: skip
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "latin-1", "utf-8-sig", "cp037")


def change_form(rng):
    """Changes the form of the text: numbers, encodings, line ends, sizes, depth, aliases."""
    text = "# \u00e4\n" + yaml.safe_dump(GOOD, sort_keys=False)
    lines = text.splitlines()
    at = rng.randrange(1, len(lines))
    what = rng.choice(
        ["number", "number", "encoding", "line end", "repeat", "size", "deep", "alias", "indent"]
    )
    if what == "number":
        numbers = list(re.finditer(r"(?<=[\s:-])\d+(\.\d+)?$", text, re.M))
        found = rng.choice(numbers)
        text = text[: found.start()] + rng.choice(ODD_NUMBERS) + text[found.end() :]
    elif what == "encoding":
        return text.encode(rng.choice(ENCODINGS))
    elif what == "line end":
        text = text.replace("\n", rng.choice(["\r\n", "\r", "\u2028", "\n\n\n"]))
    elif what == "repeat":
        text = "\n".join([*lines[:at], *[lines[at - 1]] * rng.choice([1, 2, 5000]), *lines[at:]]) + "\n"
    elif what == "size":
        extra = ["#" * 2_000_000, f"name: {'x' * 900_000}", f"metrics: [{'rel_err_fro, ' * 50_000}]"]
        extra += [f"methods: [{'{name: h2o, recent_frac: [0.1, 0.2, 0.3]}, ' * 5_000}]"]
        extra += ["budget: {tokens: [" + ", ".join(map(str, range(1, 60_000))) + "]}"]
        line = rng.choice(extra)
        text = re.sub(rf"^{line.split(':')[0]}:(.*\n)( .*\n|- .*\n)*", "", text, flags=re.M) + line + "\n"
    elif what == "deep":
        left, right = rng.choice([("[", "]"), ("{a: ", "}"), ("[{a: ", "}]")])
        depth = rng.choice([10, 50, 100_000])
        text += f"metrics: {left * depth}1{right * depth}\n"
    elif what == "alias":
        bomb = [f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]" for i in range(1, rng.choice([2, 5, 12]))]
        text += "\n".join(["b0: &b0 [x]", *bomb, "metrics: *b1"]) + "\n"
    else:
        text = "\n".join([*lines[:at], rng.choice([" ", "\t", "   "]) + lines[at], *lines[at + 1 :]]) + "\n"
    return text.encode()


def write_lists(path, tokens):
    with h5py.File(path, "w") as file:
        for layer in ("000", "001"):
            file[f"synthetic/{layer}/0/kept_flat"] = range(tokens)
            file[f"synthetic/{layer}/0/kept_off"] = [0, tokens]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mutants")
    for budget in GOOD["budget"]["tokens"]:
        write_lists(path / f"lists-{budget}.h5", budget)
    synth(path / "t.h5", "--tokens", 128, "--prompt", 96, "--layers", 2, "--q-heads", 2, "--kv-heads", 1)
    return path


def run(config, out):
    return kvreplay_measured("run", config, "-o", out, "--force", "--progress", "none", limit_s=LIMIT_S)


def test_the_unchanged_configuration_runs(folder):
    (folder / "c.yaml").write_text(yaml.safe_dump(GOOD, sort_keys=False))
    result = run(folder / "c.yaml", folder / "good")
    assert result.returncode == 0, result.stderr
    assert all(row["status"] == "ok" for row in table(folder / "good"))


SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= OFTEN else []) for seed in range(ALL)]
SEED_WITH_MANY_PROBLEMS = 131  # seed of a text that once took a minute


def mutant(seed):
    return (change_bytes, change_structure, change_form)[seed % 3](random.Random(seed))


def test_a_text_of_sixty_thousand_problems_is_among_those_that_are_often_tried():
    assert SEED_WITH_MANY_PROBLEMS < OFTEN
    assert mutant(SEED_WITH_MANY_PROBLEMS).endswith(b" 59999]}\n")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mutated_configuration_ends_well(folder, seed):
    config, out = folder / f"m{seed}.yaml", folder / f"out{seed}"
    config.write_bytes(mutant(seed))
    result = run(config, out)
    assert result.returncode in (0, 2, 3, 4), result.stderr
    assert result.rss_bytes <= MOST_BYTES
    if result.returncode == 0:
        meta = json.loads((out / "results.meta.json").read_text())
        rows = table(out)
        assert len(rows) == meta["cells"]["planned"] > 0
        assert all(row["status"] == "ok" for row in rows)
    else:
        place = rf"^({re.escape(str(config))}:\d+:\d+|kvreplay): error: \S"
        assert re.search(place, result.stderr, re.M), result.stderr
        assert "internal error" not in result.stderr
