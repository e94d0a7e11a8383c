"""Methods calibrated on queries of other text, against the numpy definitions, and refusals."""

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from engine_cases_calibration import CASES, layers_of, texts_of, write_files
from engine_runs import Runs, parameters
from kvreplay_cli import BINARY, kvreplay
from reference import reads
from token_lists import ragged

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("engine"), CASES, write_files)


@pytest.mark.parametrize("case,trace", parameters(CASES))
def test_the_engine_agrees_with_the_definition(runs, case, trace):
    runs.check(case, trace, layers_of(trace))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace")
    write_files(path, "smooth")
    return path


def replayed(folder, out, *methods, prompts=("p0",), tokens=41, code=0, **more):
    """The results of each method, one row per kv head; or the message if it is refused."""
    config = {
        "schema": 1,
        "traces": [str(folder / "t.h5")],
        "select": {"prompts": list(prompts)},
        "methods": list(methods),
        "budget": {"tokens": [tokens]},
        "run": {"precision": "double"},
        "output": {"dir": str(out / "out"), **more},
    }
    (out / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    done = kvreplay("run", out / "run.yaml", "--force", "--progress", "none")
    assert done.returncode == code, done.stderr
    if code != 0:
        return done.stderr
    rows = pd.read_csv(out / "out/results.csv")
    assert set(rows.status) == {"ok"}
    of_head = [part for _, part in rows.groupby(["prompt", "layer", "kv_head"])]
    return [pd.DataFrame([part.iloc[i] for part in of_head]) for i in range(len(methods))]


def errors(rows):
    return rows.rel_err_out_mean.tolist()


THREE = [
    "triattention",
    {"name": "qfilters", "recent": 5},
    {"name": "doublesparsity", "dense_layers": [], "group_factor": 4},
    {"name": "expected_attention", "n_future": 50},
]


def entry(method, calibration):
    return {**(method if isinstance(method, dict) else {"name": method}), "calibration": calibration}


@pytest.mark.parametrize("method", THREE, ids=lambda m: m if isinstance(m, str) else m["name"])
def test_a_calibration_file_gives_the_results_of_its_prompts(folder, tmp_path, method):
    kvreplay("calibrate", folder / "t.h5", "-o", tmp_path / "one.h5", "--prompts", "p2")
    kvreplay("calibrate", folder / "t.h5", "-o", tmp_path / "two.h5", "--prompts", "p1,p2")
    rows = replayed(
        folder,
        tmp_path,
        *(entry(method, by) for by in ("prompt:p2", "others", "file:one.h5", "file:two.h5", "self")),
    )
    prompt, others, one, two, own = map(errors, rows)
    assert one == pytest.approx(prompt, rel=1e-12) and two == pytest.approx(others, rel=1e-12)
    assert prompt != others and own not in (prompt, others)


def test_double_sparsity_reads_by_channels_of_other_texts(folder, tmp_path):
    """Each query head selects its own tokens, so lists are compared head by head."""
    method = entry(THREE[2], "others")
    [rows] = replayed(folder, tmp_path, method, save=["kept"])
    with h5py.File(tmp_path / "out/kept.h5") as f:
        for row in rows.itertuples():
            head = next(
                h
                for heads in layers_of("smooth")
                for h in heads
                if (h.layer, h.kv_head) == (row.layer, row.kv_head)
            )
            texts = texts_of(head, "smooth", ("p1", "p2"))
            found = reads.doublesparsity(head, 41, group_factor=4, dense_layers=(), others=texts)
            got = [tokens.tolist() for tokens in ragged(f[row.key], "attended")]
            want = [step[g].tolist() for g in range(head.G) for step in found.tokens]
            assert got == want


def test_results_state_that_a_calibration_is_offline_and_its_size(folder, tmp_path):
    rows = replayed(
        folder, tmp_path, "triattention", entry("triattention", "others"), entry(THREE[1], "prompt:p1")
    )
    extras = [yaml.safe_load(row.extras.iloc[0]) for row in rows]
    d, pairs, group = 12, 4, 3
    assert [e["calibration_bytes"] for e in extras] == [4 * group * (d + pairs)] * 2 + [4 * d]
    assert [e.get("offline") for e in extras] == [None, 1, 1]
    assert rows[0].total_bytes.tolist() == rows[1].total_bytes.tolist()


def test_an_allocator_works_with_calibrated_methods(folder, tmp_path):
    methods = [{**entry(THREE[1], by), "allocator": "ada"} for by in ("self", "others")]
    own, others = replayed(folder, tmp_path, *methods)
    assert errors(own) != errors(others)


def changed_file(folder, tmp_path, change):
    with h5py.File(folder / "a.h5") as f, h5py.File(tmp_path / "b.h5", "w") as g:
        for name in f:
            f.copy(name, g)
        g.attrs.update(f.attrs)
        change(g)
    return "file:b.h5"


def shorter(f):
    del f["layers/001/q_dir"]
    f["layers/001/q_dir"] = np.zeros((2, 5))


def twice(f):
    f["layers/000/channel_rank"][0, 3] = f["layers/000/channel_rank"][0, 2]


def nameless(f):
    del f.attrs["trace_id"]


def infinite(f):
    f["layers/002/q_abs_mean"][1, 1] = np.inf


WRONG = [
    (THREE[0], "prompt:p0", "is the replayed prompt itself"),
    (THREE[0], "prompt:p3", "has no prompt p3. It holds p0, p1, p2"),
    (THREE[0], "prompt:", "must be self, others, prompt:ID or file:PATH"),
    (THREE[0], "all", "must be self, others, prompt:ID or file:PATH"),
    (THREE[1], "file:none.h5", "`kvreplay calibrate TRACE -o FILE` writes one"),
    (THREE[1], lambda f: f.pop("layers/001"), "has no layer 001. It holds 000, 002"),
    (THREE[1], shorter, "/layers/001/q_dir: has shape [2, 5], it must be [2, 12]"),
    (THREE[0], lambda f: f.pop("layers/001/q_mean"), "has no dataset q_mean"),
    (THREE[0], infinite, "/layers/002/q_abs_mean: holds inf at 5"),
    (THREE[2], twice, "/layers/000/channel_rank: holds "),
    (THREE[0], nameless, "has no attribute trace_id"),
]


@pytest.mark.parametrize("method,by,says", WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_an_unusable_calibration_is_refused_with_a_remedy(folder, tmp_path, method, by, says):
    given = changed_file(folder, tmp_path, by) if callable(by) else by
    said = replayed(folder, tmp_path, entry(method, given), code=2)
    assert says in said
    if callable(by):
        assert "b.h5" in said and "kvreplay calibrate" in said


def test_a_file_of_the_replayed_prompt_is_refused(folder, tmp_path):
    kvreplay("calibrate", folder / "t.h5", "-o", tmp_path / "all.h5")
    said = replayed(folder, tmp_path, entry("triattention", "file:all.h5"), code=2)
    assert "include p0 of this very trace" in said and "--prompts" in said


def test_others_of_a_trace_with_one_prompt_are_refused(folder, tmp_path):
    with h5py.File(folder / "t.h5") as f, h5py.File(tmp_path / "t.h5", "w") as g:
        g.attrs.update(f.attrs)
        f.copy("prompts/p0", g.create_group("prompts"), "p0")
    said = replayed(tmp_path, tmp_path, entry("qfilters", "others"), code=2)
    assert "needs another prompt" in said and "holds only p0" in said and "kvreplay calibrate" in said


def test_calibrate_refuses_impossible_requests_with_the_reason(folder, tmp_path):
    write = ("calibrate", folder / "t.h5", "-o", tmp_path / "c.h5")
    assert "has no prompt q" in kvreplay(*write, "--prompts", "q").stderr
    assert "names p1 twice" in kvreplay(*write, "--prompts", "p1,p1").stderr
    assert kvreplay(*write).returncode == 0
    assert "--force" in kvreplay(*write).stderr
    with h5py.File(tmp_path / "c.h5") as f:
        assert f.attrs["prompts"] in ("p0,p1,p2", b"p0,p1,p2") and f.attrs["count"] == 151 + 39 + 70
