"""The method `external`: token sets computed elsewhere are measured like those of any method."""

import importlib.util
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from kvreplay_cli import BINARY, ROOT, TIMES, kvreplay, synth
from test_sample import widened

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
PAGE = ROOT / "docs/external.md"
SCRIPT = ROOT / "docs/examples/kvpress_to_external.py"
LAYERS, KV_HEADS, BUDGETS = [0, 15], [0, 2], [64, 128]
ORIGINALS = {
    "h2o": {"name": "h2o"},
    "snapkv": {"name": "snapkv"},
    "streaming_llm": {"name": "streaming_llm", "positions": "cache"},
    "uniform": {"name": "uniform"},
    "balancekv": {"name": "balancekv"},
    "tova": {"name": "tova"},
    "by_query": {"name": "h2o", "gqa.level": "query"},
    "early": {"name": "h2o", "order": "evict_then_attend"},
    "coded": {"name": "knorm", "row_format": "int8"},
}
# Axes that are not in the lists.
AXES = ("positions", "gqa.level", "row_format")
# Columns that the lists do not determine: identity and time; bounds and extras of the method; bytes of
# scores, sketches and weights.
UNDETERMINED_COLUMNS = TIMES | {"key", "method", "params", "given", "seed", "extras"}
OF_THE_METHOD = re.compile(r"bound_.*|.*bytes.*|weight_floats|equivalent_tokens")

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")


def config_of(out, methods, budget, **more):
    config = {
        "schema": 1,
        "traces": [str(SAMPLE)],
        "select": {"layers": LAYERS, "kv_heads": KV_HEADS},
        "methods": methods,
        "seeds": {"count": 1},
        "run": {"precision": "double"},
        "output": {"dir": str(out), "save": ["kept"]},
        **more,
    }
    return config | ({"budget": {"tokens": budget}} if budget else {})


def run(folder, name, methods, budget=None, **more):
    """Runs a configuration; returns the rows of the results, and their lists."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config_of(folder / name, methods, budget, **more)))
    done = kvreplay("run", path, "--progress", "none")
    assert done.returncode == 0, done.stderr
    return pd.read_csv(folder / name / "results.csv"), folder / name / "kept.h5"


def rewrite(rows, kept, folder, names):
    """Writes the lists of cells as files for `external`; `names`[i] is the file of the i-th method."""
    files = {}
    with h5py.File(kept) as source:
        for row in rows.to_dict("records"):
            name = names(row)
            file = files.setdefault(name, h5py.File(folder / name, "a"))
            source.copy(row["key"], file, f"{row['prompt']}/{row['layer']:03d}/{row['kv_head']}")
    for file in files.values():
        file.close()


def sorted_rows(rows):
    by = ["layer", "kv_head", "budget_tokens"]
    return rows.sort_values(by, ignore_index=True)


def check_same(ours, theirs, label):
    ours, theirs = sorted_rows(ours), sorted_rows(theirs)
    assert len(ours) == len(theirs) > 0
    for column in theirs.columns:
        if column in UNDETERMINED_COLUMNS or OF_THE_METHOD.fullmatch(column):
            continue
        a, b = ours[column], theirs[column]
        if pd.api.types.is_numeric_dtype(b):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12, err_msg=f"{label}: {column}")
        else:
            assert a.equals(b), f"{label}: {column}"


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """{label: (rows of `external`, rows of the method)}."""
    folder = tmp_path_factory.mktemp("external")
    rows, kept = run(folder, "original", list(ORIGINALS.values()), BUDGETS)
    # Rows of one head are in the order of the configuration.
    rows["label"] = (
        rows.groupby(["layer", "kv_head", "budget_tokens"]).cumcount().map(dict(enumerate(ORIGINALS)))
    )
    rewrite(rows, kept, folder, lambda row: f"{row['label']}-{row['budget_tokens']}.h5")
    external = [
        {"name": "external", "kept": f"../{folder.name}/{label}-{{budget}}.h5"}
        | {axis: entry[axis] for axis in AXES if axis in entry}
        for label, entry in ORIGINALS.items()
    ]
    ours, _ = run(folder, "external", external, BUDGETS)
    ours["label"] = ours["params"].map(lambda text: json.loads(text)["kept"].removesuffix("-{budget}.h5"))
    return {label: (ours[ours.label == label], rows[rows.label == label]) for label in ORIGINALS}


@pytest.mark.parametrize("label", ORIGINALS)
def test_replayed_lists_have_every_measure_of_their_method(replayed, label):
    ours, theirs = replayed[label]
    method = ORIGINALS[label]["name"]
    assert len(theirs) == len(LAYERS) * len(KV_HEADS) * len(BUDGETS)
    assert set(ours["method"]) == {"external"} and set(theirs["method"]) == {method}
    check_same(ours, theirs, label)


@pytest.mark.parametrize("label", ["snapkv", "coded"])
def test_lists_of_a_method_without_scores_are_charged_like_the_method(replayed, label):
    ours, theirs = map(sorted_rows, replayed[label])
    for column in [c for c in theirs.columns if OF_THE_METHOD.fullmatch(c) and not c.startswith("bound_")]:
        np.testing.assert_allclose(ours[column], theirs[column], err_msg=column)


def test_a_size_that_is_an_output_needs_no_budget(tmp_path):
    methods = [{"name": "subgen_stream", "delta_rel": 0.9}]
    theirs, kept = run(tmp_path, "original", methods)
    rewrite(theirs, kept, tmp_path, lambda row: "subgen.h5")
    ours, _ = run(tmp_path, "external", [{"name": "external", "kept": "subgen.h5"}])
    assert ours.budget_tokens.isna().all()
    # Several rows of the method hold one token, and it evicts most tokens during the prompt.
    drop = [c for c in theirs.columns if re.search(r"_tokens$|_floats$|evict", c) and c != "budget_tokens"]
    check_same(ours.drop(columns=drop), theirs.drop(columns=drop), "subgen_stream")


# --- Refusals --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A trace of 96 tokens with a prompt of 64; the tests select one head of one layer."""
    path = tmp_path_factory.mktemp("trace") / "t.h5"
    return synth(
        path, "--tokens", "96", "--prompt", "64", "--layers", "1", "--kv-heads", "1", "--q-heads", "2"
    )


def replay_lists(trace, file, *words):
    return kvreplay(
        *("run", trace, "--method", "external,window", "-s", f"methods.0.kept={file}"),
        *("-o", file.parent / "out", "--force", "--progress", "none", *words),
    )


def write_lists(path, lists, dtype=np.int64, **more):
    with h5py.File(path, "w") as file:
        flat = [token for one in lists for token in one]
        file["kept_flat"] = np.array(flat, dtype)
        file["kept_off"] = np.cumsum([0, *map(len, lists)])
        for name, data in more.items():
            file[name] = data
    return path


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", ">i4", "u4", "i8", ">u8"])
def test_tokens_may_be_integers_of_any_width(trace, tmp_path, dtype):
    done = replay_lists(trace, write_lists(tmp_path / "l.h5", [[0, 3, 60]], dtype), "--budget", 3)
    assert done.returncode == 0, done.stderr


def streaming(change):
    """33 lists of the first token and the last two, with changes."""
    lists = [[0, 62 + i, 63 + i] for i in range(33)]
    change(lists)
    return lists


@pytest.mark.parametrize(
    "change,message",
    [
        (
            lambda lists: lists[4].__setitem__(2, 68),
            r"list 4 \(after token 67\) holds 68, .* may not know the future",
        ),
        (lambda lists: lists[7].insert(1, 5), r"list 7 \(after token 70\) holds 5, which list 6 does not"),
        (
            lambda lists: lists[0].insert(1, 5),
            r"list 0 \(after token 63\) holds 4 tokens, more than the budget of 3",
        ),
    ],
    ids=["future", "return", "budget"],
)
def test_future_returning_and_excess_tokens_are_refused(trace, tmp_path, change, message):
    sound = replay_lists(
        trace, write_lists(tmp_path / "sound.h5", streaming(lambda lists: None)), "--budget", 3
    )
    assert sound.returncode == 0, sound.stderr
    done = replay_lists(trace, write_lists(tmp_path / "l.h5", streaming(change)), "--budget", 3)
    assert done.returncode == 2
    assert re.search(rf"error: external: \S*l\.h5: /: kept_flat: {message}", done.stderr), done.stderr
    assert not (tmp_path / "out/results.csv").exists() or "sound" in str(sound)


def huge(file):
    del file["kept_flat"]
    file.create_dataset("kept_flat", (1 << 40,), np.int32, chunks=(1024,))


def replaced(name, data):
    def change(file):
        del file[name]
        file[name] = data

    return change


HOSTILE = {
    "no kept_flat": (lambda file: file.__delitem__("kept_flat"), "nor kept_flat at the root"),
    "no kept_off": (lambda file: file.__delitem__("kept_off"), "kept_off: is missing"),
    "a group": (
        lambda file: (file.__delitem__("kept_off"), file.create_group("kept_off")),
        "is not a dataset",
    ),
    "floats": (replaced("kept_flat", [0.0, 3.0, 60.0]), "does not hold integers"),
    "text": (replaced("kept_flat", ["a", "b", "c"]), "does not hold integers"),
    "pairs": (replaced("kept_flat", np.zeros(3, [("a", "i4"), ("b", "i4")])), "does not hold integers"),
    "a table": (replaced("kept_flat", np.zeros((3, 1), int)), r"has the shape \[3, 1\]"),
    "a number": (replaced("kept_off", 3), r"has the shape \[\]"),
    "huge": (huge, "chunks"),
    "large numbers": (replaced("kept_flat", np.array([0, 3, 2**63 + 5], np.uint64)), "no token's index"),
    "offsets that fall": (replaced("kept_off", [0, 3, 2, 3]), "falls from 3 to 2 at 2"),
    "offsets beyond": (replaced("kept_off", [0, 2**40]), "ends with 1099511627776"),
    "weights of text": (lambda file: file.update(num=["a"] * 3, den=[1] * 3), "num: does not hold numbers"),
    "an attribute": (
        lambda file: file.attrs.__setitem__("oneshot", "yes"),
        "attribute oneshot is not a number",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_by_name(trace, tmp_path, what):
    change, message = HOSTILE[what]
    path = write_lists(tmp_path / "l.h5", [[0, 3, 60]])
    with h5py.File(path, "r+") as file:
        change(file)
    done = replay_lists(trace, path, "--budget", 3)
    assert done.returncode == 2, done.stderr
    assert re.search(rf"l\.h5: .*{message}", done.stderr), done.stderr


def test_files_that_are_no_hdf5_or_cut_short_are_refused(trace, tmp_path):
    sound = write_lists(tmp_path / "sound.h5", [[0, 3, 60]]).read_bytes()
    for name, content in {"text": b"kept: 1\n", "empty": b"", "half": sound[: len(sound) // 2]}.items():
        (tmp_path / f"{name}.h5").write_bytes(content)
        done = replay_lists(trace, tmp_path / f"{name}.h5", "--budget", 3)
        assert done.returncode == 2 and f"{name}.h5: " in done.stderr, done.stderr
    missing = replay_lists(trace, tmp_path / "none.h5", "--budget", 3)
    assert missing.returncode == 2 and "no file " in missing.stderr


def test_flipped_bits_never_crash_the_reader(trace, tmp_path):
    rng = np.random.default_rng(0)
    sound = write_lists(tmp_path / "l.h5", streaming(lambda lists: None), num=[1.0] * 99, den=[1.0] * 99)
    content = np.frombuffer(sound.read_bytes(), np.uint8)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"schema: 1\ntraces: [{trace}]\nbudget: {{tokens: 3}}\nmethods: [{{name: external, kept: l.h5}}]\n"
    )
    codes = set()
    for _ in range(60):
        broken = content.copy()
        for at in rng.integers(len(broken), size=3):
            broken[at] ^= 1 << rng.integers(8)
        sound.write_bytes(broken.tobytes())
        done = kvreplay("validate", config)
        codes.add(done.returncode)
        assert done.returncode in (0, 2), done.stderr
    assert codes == {0, 2}


def test_a_file_that_brings_hdf5_down_is_refused_however_often_it_is_checked(trace, tmp_path):
    path = write_lists(tmp_path / "l.h5", [[0, 3, 60]])
    with h5py.File(path, "r+") as file:
        file.attrs["oneshot"] = 1
    content, integers = path.read_bytes(), b"oneshot\0\x10\x08\0\0\x08\0\0\0\0\0\x40\0"
    assert content.count(integers) == 1
    path.write_bytes(content.replace(integers, integers[:-2] + bytes(2)))  # integers with 0 bits
    config, external = tmp_path / "c.yaml", "{name: external, kept: l.h5}"
    for budgets, methods in (
        ("[3]", external),
        ("[3, 4]", external),
        ("[3]", f"{external}, {external[:-1]}, row_format: int8}}"),
    ):
        config.write_text(
            f"schema: 1\ntraces: [{trace}]\nbudget: {{tokens: {budgets}}}\nmethods: [{methods}]\n"
        )
        done = kvreplay("validate", config)
        assert done.returncode == 2 and "l.h5: is damaged: reading it ends with" in done.stderr, done.stderr


# --- Pages and messages ----------------------------------------------------------------------------------


def fences(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)


@pytest.fixture
def checkout(tmp_path):
    """A folder with the sample trace at the page's path."""
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    return tmp_path


def test_the_ten_lines_of_the_page_match_knorm(checkout):
    (code,) = fences("python")
    subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True)
    words = fences("sh")[0].replace("\\\n", " ").split()
    assert words[0] == "kvreplay"
    done = kvreplay(*words[1:], "--progress", "none", cwd=checkout)
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(checkout / "out/external/results.csv")
    by_method = {name: part.set_index(["layer", "kv_head"]) for name, part in rows.groupby("method")}
    error = {name: part.rel_err_out_mean for name, part in by_method.items()}
    assert len(error["external"]) == 30
    pd.testing.assert_series_equal(error["external"], error["knorm"], rtol=1e-6)
    assert abs(error["external"] - error["snapkv"]).max() > 0.01


def fake_press(torch):
    """A stand-in with the interface of a press of kvpress."""

    class KnormPress:
        def __init__(self, power=1):
            self.power = power

        def score(self, module, hidden_states, keys, values, attentions, kwargs):
            assert keys.shape[:3] == values.shape[:3] == (1, 3, 640)
            return -(torch.linalg.vector_norm(keys, dim=-1) ** self.power)

    return KnormPress


def convert(monkeypatch, words):
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "kvpress", SimpleNamespace(KnormPress=fake_press(torch)))
    spec = importlib.util.spec_from_file_location("kvpress_to_external", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(list(map(str, words)))


def test_a_press_becomes_files_that_the_configuration_of_the_page_replays(checkout, monkeypatch):
    convert(
        monkeypatch, [SAMPLE, "KnormPress", 64, 128, "-o", checkout / "press-{budget}.h5", "-p", "power=2"]
    )
    lines = [f"schema: 1\ntraces: [{SAMPLE}]\nselect: {{layers: [7, 15]}}\n"]
    lines += [fences("yaml")[0].replace("- snapkv ", "- knorm "), "output: {dir: out, save: [kept]}\n"]
    (checkout / "c.yaml").write_text("".join(lines))
    done = kvreplay("run", checkout / "c.yaml", "--progress", "none")
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(checkout / "out/results.csv")
    keys = rows.pivot(index=["layer", "kv_head", "budget_tokens"], columns="method", values="key")
    assert len(keys) == 2 * 3 * 2
    with h5py.File(checkout / "out/kept.h5") as kept:
        for ours, theirs in zip(keys["external"], keys["knorm"], strict=True):
            assert (kept[ours]["kept_flat"][:] == kept[theirs]["kept_flat"][:]).all()
            assert kept[ours].attrs["oneshot"] == 1


def test_several_budgets_need_several_files(monkeypatch, capsys, tmp_path):
    with pytest.raises(SystemExit):
        convert(monkeypatch, [SAMPLE, "KnormPress", 64, 128, "-o", tmp_path / "press.h5"])
    assert "write {budget} into the name" in capsys.readouterr().err


def test_the_sample_reads_the_same_in_the_page_as_in_the_tests():
    with h5py.File(SAMPLE) as f:
        keys = f["prompts/0/layers/000/k"]
        assert (keys[:].astype(float) == widened(keys)).all()


def test_lists_that_were_moved_are_not_replayed_again(trace, tmp_path):
    write_lists(tmp_path / "l.h5", [[0, 3, 60]])
    first = replay_lists(trace, tmp_path / "l.h5", "--budget", 3)
    assert first.returncode == 0, first.stderr
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "l.h5").rename(tmp_path / "elsewhere/m.h5")
    words = ("run", trace, "--method", "external,window", "-s", f"methods.0.kept={moved}", "--budget", 3)
    before = pd.read_csv(tmp_path / "out/results.csv")
    again = kvreplay(*words, "-o", tmp_path / "out", "--progress", "none")
    assert again.returncode == 0, again.stderr
    after = pd.read_csv(tmp_path / "out/results.csv")
    assert list(before.key) == list(after.key) and list(before.select_s) == list(after.select_s)


def test_the_program_describes_the_inputs_of_external():
    text = kvreplay("describe", "external").stdout
    assert re.search(r"^kept +none: give a file +a path, relative to the configuration +", text, re.M)
    assert "without one, lists are as long as they are" in text
