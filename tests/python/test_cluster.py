"""`kvreplay clusterability`: every number of its file against an independent float64 computation."""

import csv
import json
import math
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from kvreplay_cli import ROOT, kvreplay, synth
from mutate_trace import mutations, write_trace
from reference.common import Rope, rotate, uniform

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
ORACLE = ROOT / "tests/golden/oracle_dev.h5"
TOLERANCE = 1e-6
SHARES = (0.01, 0.05, 0.2)
FACTORS = (0.3, 0.5, 0.7, 0.9)
COLUMNS = ["trace_id", "model", "prompt", "layer", "kv_head", "measure", "view", "param", "x", "value"]
NOT_IN_TABLE = {"accumulated_heads", "m_n"}


def cluster(trace, out, *words, **options):
    return kvreplay("cluster", trace, "-o", out, "--progress", "none", *words, **options)


def survey(trace, out, *words):
    done = cluster(trace, out, *words)
    assert done.returncode == 0, done.stderr
    return out


# --- A trace, read without the engine ----------------------------------------------------------------------


def widened(dataset):
    if dataset.dtype == np.float32:
        return dataset[:].astype(np.float64)
    raw = np.empty(dataset.shape, np.uint16)  # bfloat16
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, dataset.id.get_type())
    return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def rope_of(file, layer):
    """The Rope of a layer; None if not recorded, a Rope without pairs for a layer without rotary
    embedding."""
    if layer.attrs.get("rope") == "none":
        return Rope(np.zeros(0)), 1.0
    text = layer.attrs.get("rope_json", file.attrs.get("rope_json"))
    if text is None:
        return None, 1.0
    j = json.loads(text)
    return Rope(np.array(j["inv_freq"]), j.get("layout", "half_split")), j.get("attention_factor", 1.0)


class Unit:
    def __init__(self, path, prompt, layer, head, tokens=None):
        with h5py.File(path) as f:
            p = f["prompts"][prompt]
            g = p["layers"][f"{layer:03d}"]
            self.place = (sorted(f["prompts"]).index(prompt), layer, head)
            q, k, v = (widened(g[name]) for name in "qkv")
            G = len(q) // len(k)
            n = self.n = tokens or k.shape[1]
            rows = g["q_pos"][:] if "q_pos" in g else np.arange(q.shape[1])
            self.rows = rows[rows < n]
            self.q = q[head * G : (head + 1) * G, : len(self.rows)]
            self.k, self.v = k[head, :n], v[head, :n]
            a = g.attrs
            self.scale, self.cap = a["scaling"], a.get("softcap", 0)
            self.window = a.get("sliding_window", 0)
            self.sinks = g["sinks"][head * G : (head + 1) * G].astype(float) if "sinks" in g else None
            self.positions = p["position_ids"][:n] if "position_ids" in p else np.arange(n)
            self.rope, self.factor = rope_of(f, g)
            recorded = int(p.attrs.get("n_prompt", k.shape[1]))
            self.P = recorded if recorded < n else max(1, n // 2)

    def mask(self):
        j, i = np.arange(self.n), self.rows[:, None]
        return (j <= i) & ((j > i - self.window) if self.window else True)

    def probabilities(self):
        """[G, rows, n]; rows sum to less than 1 if a sink logit takes a share."""
        logits = self.scale * np.einsum("grd,nd->grn", self.q, self.k)
        if self.cap:
            logits = self.cap * np.tanh(logits / self.cap)
        logits = np.where(self.mask(), logits, -np.inf)
        top = logits.max(axis=2, keepdims=True)
        if self.sinks is not None:
            top = np.maximum(top, self.sinks[:, None, None])
        e = np.exp(logits - top)
        z = e.sum(axis=2, keepdims=True)
        if self.sinks is not None:
            z = z + np.exp(self.sinks[:, None, None] - top)
        return e / z

    def views(self):
        views = {"keys": self.k, "values": self.v}
        if self.rope is not None:
            keys = self.k.copy()
            keys[:, : 2 * len(self.rope.inv_freq)] /= self.factor
            views["keys_unrotated"] = rotate(keys, -self.positions.astype(float), self.rope)
        return views


# --- The measures, written as plainly as possible ----------------------------------------------------------


def farthest_first(X):
    nearest = np.full(len(X), np.inf)
    free = np.ones(len(X), bool)
    centers, radii, means = [], [], []
    c = 0
    for _ in range(min(256, len(X))):
        centers.append(c)
        free[c] = False
        nearest = np.minimum(nearest, np.sqrt(((X - X[c]) ** 2).sum(1)))
        c = int(np.argmax(np.where(free, nearest, -1)))
        radii.append(nearest.max())
        means.append(nearest.mean())
    return centers, radii, means


def online_counts(X, radius):
    representatives, counts = np.empty((0, X.shape[1])), []
    for x in X:
        near = len(representatives) and np.sqrt(((representatives - x) ** 2).sum(1)).min() <= radius
        if not near:
            representatives = np.vstack([representatives, x])
        counts.append(len(representatives))
    return np.array(counts)


def median_distance(X, place, seed):
    n = len(X)
    if n * (n - 1) // 2 <= 2000:
        i, j = np.triu_indices(n, 1)
    else:
        pair = np.arange(2000)
        rank, layer, head = place
        u, w = (uniform(seed, rank, layer, head, "distance_pairs", pair, slot) for slot in (0, 1))
        i, j = (u * n).astype(int), (w * (n - 1)).astype(int)
        j += j >= i
    return np.median(np.sqrt(((X[i] - X[j]) ** 2).sum(1)))


def line(x, y):
    total = ((y - y.mean()) ** 2).sum()
    if total == 0:
        return 0.0, 1.0
    slope, intercept = np.polyfit(x, y, 1)
    return slope, 1 - ((y - intercept - slope * x) ** 2).sum() / total


def of_points(X, place, seed):
    centers, radii, means = farthest_first(X)
    median = median_distance(X, place, seed)
    at = [n for n in (256 << i for i in range(20)) if n < len(X)] + [len(X)]
    counts = np.array([online_counts(X, f * median)[np.array(at) - 1] for f in FACTORS])
    centred = X - X.mean(0)
    variance = np.linalg.svd(centred, compute_uv=False) ** 2
    share = variance / variance.sum()
    positive = share[share > 0]
    fits = [line(np.log(at), np.log(m)) for m in counts]
    return {
        "centers": centers,
        "radii": radii,
        "mean_distance": means,
        "m_n": at,
        "m_count": counts,
        "rms": math.sqrt((centred**2).sum(1).mean()),
        "median_distance": median,
        "delta_rel": FACTORS,
        "spectral_share_16": share[:16].sum(),
        "effective_rank": math.exp(-(positive * np.log(positive)).sum()),
        "growth_exponent": [f[0] for f in fits],
        "growth_r2": [f[1] for f in fits],
    }


def count_of(share, n):
    return max(1, math.floor(share * n))


def shares_of(A):
    ordered = np.sort(A)[::-1]
    return np.array([ordered[: count_of(f, len(A))].sum() for f in SHARES]) / A.sum()


def top_set(A, count):
    return set(np.argsort(-A, kind="stable")[:count].tolist())


def overlap(a, b):
    result = []
    for f in SHARES:
        A, B = (top_set(x, count_of(f, len(x))) for x in (a, b))
        result.append(len(A & B) / len(A | B))
    return result


def of_rows(unit):
    p, mask, rows, n = unit.probabilities(), unit.mask(), unit.rows, unit.n
    later = rows >= 1
    sparse = (p < 0.01 * p.max(axis=2, keepdims=True)) & mask
    rest = p[:, :, 1:]
    sparse_rest = (rest < 0.01 * rest.max(axis=2, keepdims=True)) & mask[:, 1:]
    w = p / p.sum(axis=2, keepdims=True)
    entropy = -np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0).sum(2)
    heads = p.sum(1)
    A = heads.sum(0)  # C9: a group's score is the sum
    null = (mask / mask.sum(1, keepdims=True)).sum(0)
    ordered = np.sort(A[A > 0])[::-1]
    rank = np.arange(1, len(ordered) + 1)
    power, exponential = line(np.log(rank), np.log(ordered)), line(rank, np.log(ordered))
    result = {
        "sparsity": sparse[:, later].sum((1, 2)) / mask[later].sum(),
        "sparsity_no_sink": sparse_rest[:, later].sum((1, 2)) / mask[later, 1:].sum(),
        "sparsity_masked": (sparse | ~mask).mean((1, 2)),
        "sink_mass": p[:, later, 0].mean(1),
        "top1_is_sink": (p[:, later].argmax(2) == 0).mean(1),
        "attended_effective": np.exp(entropy[:, later]).mean(1),
        "accumulated": A,
        "accumulated_heads": heads,
        "top_share": shares_of(A),
        "top_share_heads": [shares_of(head) for head in heads],
        "top_share_null": shares_of(null),
        "top_share_ratio": shares_of(A) / shares_of(null),
        "gini": np.abs(A[:, None] - A).sum() / (2 * n * A.sum()),
        "log_log_slope": power[0],
        "log_log_r2": power[1],
        "exponential_slope": exponential[0],
        "exponential_r2": exponential[1],
    }
    P = unit.P
    parts = {
        "local": (rows < P) & (rows >= P - 32),
        "full": rows < P,
        "future": rows >= P,
        "global": rows >= 0,
    }
    sums = {name: p[:, chosen].sum(1).mean(0)[:P] for name, chosen in parts.items()}
    held = {name: chosen.any() for name, chosen in parts.items()}
    held["global"] = held["future"] and held["full"]
    names = list(parts)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            result[f"overlap_{a}_{b}"] = overlap(sums[a], sums[b]) if held[a] and held[b] else []
    return result


# --- Comparing ---------------------------------------------------------------------------------------------


def close(got, want, what):
    got, want = np.asarray(got, float), np.asarray(want, float)
    assert got.shape == want.shape, what
    assert np.isfinite(got).all(), what
    scale = np.maximum(np.abs(want), 1e-9)
    assert (np.abs(got - want) <= TOLERANCE * scale).all(), f"{what}: {got} instead of {want}"


def compare_unit(group, unit, seed=0):
    rows = of_rows(unit)
    views = unit.views()
    assert set(group) == set(rows) | set(views)
    assert dict(group.attrs) == {"tokens": unit.n, "prefill": unit.P, "query_rows": len(unit.rows)}
    for name, want in rows.items():
        close(group[name][()], want, name)
    for view, X in views.items():
        held = {**{k: d[()] for k, d in group[view].items()}, **group[view].attrs}
        wanted = of_points(X, unit.place, seed)
        assert set(held) == set(wanted)
        for name, want in wanted.items():
            close(held[name], want, f"{view}/{name}")


def test_the_sample_equals_an_independent_computation(tmp_path):
    out = survey(SAMPLE, tmp_path / "c.h5", "--layers", 15)
    with h5py.File(out) as f:
        (prompt,) = f
        assert list(f[prompt]) == ["015"]
        assert list(f[prompt]["015"]) == ["0", "1", "2"]
        for head in range(3):
            compare_unit(f[prompt]["015"][str(head)], Unit(SAMPLE, prompt, 15, head))


def test_a_synthetic_trace_of_other_shapes_equals_it_too(tmp_path):
    shape = "--tokens 700 --prompt 600 --q-heads 6 --kv-heads 2 --head-dim 24 --v-head-dim 20 --layers 2"
    trace = synth(tmp_path / "t.h5", *shape.split(), "--duplicates", 9)
    out = survey(trace, tmp_path / "c.h5", "--seed", 5, "--layers", 1)
    with h5py.File(out) as f:
        assert f.attrs["seed"] == 5
        (prompt,) = f
        for head in range(2):
            compare_unit(f[prompt]["001"][str(head)], Unit(trace, prompt, 1, head), seed=5)


def odd_trace(path):
    """Layers with interleaved, partial and scaled rotary embedding and a soft cap; with window and sink
    logits but no rotary embedding; with strided rows and a separate rotary embedding."""
    rng = np.random.default_rng(3)
    T, G, Hkv, d, dv = 290, 3, 2, 10, 7
    rope = {"type": "yarn", "theta": 100.0, "inv_freq": [1.0, 0.1, 0.01], "attention_factor": 1.25}
    with h5py.File(path, "w") as f:
        f.attrs.update(kvreplay_schema=1, n_layers=3, model="odd, with a comma")
        f.attrs["rope_json"] = json.dumps(rope | {"layout": "interleaved", "rotary_dims": 6})
        for prompt in ("a", "b"):
            p = f.create_group(f"prompts/{prompt}")
            p["position_ids"] = (np.arange(T) * 2 + 5).astype(np.int32)
            p.attrs["n_prompt"] = 200
            for layer in range(3):
                g = p.create_group(f"layers/{layer:03d}")
                for name, heads, width in (("q", G * Hkv, d), ("k", Hkv, d), ("v", Hkv, dv)):
                    g[name] = (2 * rng.normal(size=(heads, T, width))).astype(np.float32)
                g.attrs.update(scaling=0.4, rotary_dims=6)
            g = p["layers/000"]
            g.attrs["softcap"] = 3.0
            g = p["layers/001"]
            g.attrs.update(rope="none", sliding_window=37, rotary_dims=0)
            g["sinks"] = rng.normal(size=G * Hkv).astype(np.float32)
            g = p["layers/002"]
            rows = np.arange(4, T, 5, dtype=np.int32)
            q = g["q"][:, rows]
            del g["q"]
            g["q"], g["q_pos"] = q, rows
            own = {"type": "default", "theta": 50.0, "inv_freq": [0.7, 0.3], "rotary_dims": 4}
            g.attrs.update(rope_json=json.dumps(own | {"layout": "half_split"}), rotary_dims=4)
    return path


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    return odd_trace(tmp_path_factory.mktemp("odd") / "odd.h5")


def test_soft_cap_window_sinks_stride_and_every_rotary_layout_are_honoured(odd, tmp_path):
    out = survey(odd, tmp_path / "c.h5")
    with h5py.File(out) as f:
        for layer in range(3):
            for prompt, head in (("a", 0), ("b", 1)):
                compare_unit(f[prompt][f"{layer:03d}"][str(head)], Unit(odd, prompt, layer, head))
        plain = f["a/001/0"]
        assert (plain["keys/radii"][:] == plain["keys_unrotated/radii"][:]).all()


def test_a_trace_without_rotary_metadata_lacks_the_view(odd, tmp_path):
    trace = tmp_path / "t.h5"
    shutil.copy(odd, trace)
    with h5py.File(trace, "a") as f:
        del f.attrs["rope_json"]
    with h5py.File(survey(trace, tmp_path / "c.h5", "--layers", "0,1", "--tokens", 60)) as f:
        assert "keys_unrotated" not in f["a/000/0"]
        assert "keys_unrotated" in f["a/001/0"]  # known to have no rotary embedding
        compare_short(f["a/000/0"], Unit(trace, "a", 0, 0, tokens=60))


def compare_short(group, unit):
    """Fewer than 256 tokens: the median uses every pair, and no growth is fitted."""
    assert group["keys/m_n"][:].tolist() == [unit.n]
    assert "growth_exponent" not in group["keys"].attrs
    centers, radii, _ = farthest_first(unit.k)
    assert group["keys/centers"][:].tolist() == centers
    close(group["keys/radii"][:], radii, "radii")
    i, j = np.triu_indices(unit.n, 1)
    median = np.median(np.sqrt(((unit.k[i] - unit.k[j]) ** 2).sum(1)))
    close(group["keys"].attrs["median_distance"], median, "median")


def test_one_token_has_no_measure_of_rows_and_no_nan(odd, tmp_path):
    with h5py.File(survey(odd, tmp_path / "c.h5", "--tokens", 1)) as f:
        assert f["a/000/0/sparsity"].shape == (0,)
        assert f["a/000/0/keys/radii"][:].tolist() == [0]
        assert f["a/002/0"].attrs["query_rows"] == 0  # the first recorded query is beyond the prompt
        assert f["a/002/0/top_share"].shape == (0,)
    assert "nan" not in (tmp_path / "c.csv").read_text().lower()


def test_without_decode_rows_there_is_no_future_to_overlap_with(odd, tmp_path):
    with h5py.File(survey(odd, tmp_path / "c.h5", "--layers", 0, "--prefill", 290)) as f:
        group = f["a/000/0"]
        assert group["overlap_local_full"].shape == (3,)
        for name in ("local_future", "full_future", "local_global", "full_global", "future_global"):
            assert group[f"overlap_{name}"].shape == (0,)


def test_recorded_expectations_are_met(tmp_path):
    with h5py.File(ORACLE) as f:
        for name, case in f["cases"].items():
            trace = tmp_path / f"{name}.h5"
            with h5py.File(trace, "w") as t:
                t.attrs["kvreplay_schema"] = 1
                g = t.create_group("prompts/p0/layers/000")
                g.attrs["scaling"] = case.attrs["scale"]
                for x in "qkv":
                    g[x] = case[x][:]
            with h5py.File(survey(trace, tmp_path / f"{name}-c.h5")) as got:
                unit, want = got["p0/000/0"], case["results/sparsity"].attrs
                assert unit["sparsity"][:].mean() == pytest.approx(want["causal_entries"], rel=TOLERANCE)
                assert unit["sparsity_masked"][:].mean() == pytest.approx(want["all_entries"], rel=TOLERANCE)
                for view in ("keys", "values"):
                    centers = case[f"kcenter/{view}_centers"][:]
                    assert (unit[view]["centers"][: len(centers)] == centers).all()
                    close(unit[view]["radii"][: len(centers)], case[f"kcenter/{view}_radii"][:], view)


# --- The files ---------------------------------------------------------------------------------------------


def test_the_numbers_do_not_depend_on_threads_and_the_files_are_the_same_bytes(odd, tmp_path):
    files = [survey(odd, tmp_path / f"{jobs}.h5", "-j", jobs) for jobs in (1, 2, 5)]
    for suffix in (".h5", ".csv"):
        assert len({p.with_suffix(suffix).read_bytes() for p in files}) == 1


def test_the_table_holds_the_same_numbers(odd, tmp_path):
    out = survey(odd, tmp_path / "c.h5", "-s", "select.layers=[0, 1]", "--prompts", "b")
    with (tmp_path / "c.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == COLUMNS
    assert {r["model"] for r in lines} == {"odd, with a comma"}
    found = {}
    for r in lines:
        place = tuple(r[c] for c in ("prompt", "layer", "kv_head", "view", "measure"))
        found.setdefault(place, []).append(float(r["value"]))
    wanted = {}
    with h5py.File(out) as f:
        assert {r["trace_id"] for r in lines} == {f.attrs["trace_id"].decode()}
        for layer in (0, 1):
            for head in (0, 1):
                unit = f[f"b/{layer:03d}/{head}"]
                named = {("", k): d[()] for k, d in unit.items() if isinstance(d, h5py.Dataset)}
                for view in ("keys", "keys_unrotated", "values"):
                    named |= {(view, k): d[()] for k, d in unit[view].items()}
                    named |= {(view, k): x for k, x in unit[view].attrs.items()}
                for (view, name), x in named.items():
                    if name not in NOT_IN_TABLE and np.size(x):
                        wanted["b", str(layer), str(head), view, name] = np.ravel(x).tolist()
    assert found == wanted
    m = [r for r in lines if r["measure"] == "m_count" and r["view"] == "values"][:3]
    assert [(r["param"], r["x"]) for r in m] == [("0.3", "256"), ("0.3", "290"), ("0.5", "256")]


def test_a_summary_goes_to_stdout(odd, tmp_path):
    done = cluster(odd, tmp_path / "c.h5")
    assert done.stdout.count("\n") == 1 + 6 + 2
    assert "wrote" in done.stderr and "wrote" not in done.stdout


def test_existing_files_stay_unless_forced(odd, tmp_path):
    out = survey(odd, tmp_path / "c.h5", "--layers", 0)
    before = out.read_bytes(), out.with_suffix(".csv").read_bytes()
    again = cluster(odd, out, "--layers", 1)
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert (out.read_bytes(), out.with_suffix(".csv").read_bytes()) == before
    survey(odd, out, "--layers", 1, "--force")
    assert out.read_bytes() != before[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.csv", "c.h5"]
    out.unlink()
    assert cluster(odd, out).returncode == 2  # an existing table is enough to refuse


def test_the_trace_itself_is_never_overwritten(odd, tmp_path):
    trace = tmp_path / "t.h5"
    shutil.copy(odd, trace)
    before = trace.read_bytes()
    done = cluster(trace, tmp_path / "." / "t.h5", "--force")
    assert done.returncode == 2
    assert "the trace itself" in done.stderr
    assert trace.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "9"], "has no layer 9"),
        (["--kv-heads", "5"], "has no kv head 5"),
        (["--prompts", "c"], "has no prompt c"),
        (["--tokens", "291"], "290"),
        (["--tokens", "50", "--prefill", "51"], "50"),
        (["-s", "methods=[h2o]"], "select.*"),
        (["--jobs", "none"], "--jobs"),
    ],
)
def test_bad_selections_are_exit_2_and_write_nothing(odd, tmp_path, words, message):
    done = cluster(odd, tmp_path / "c.h5", *words)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_missing_and_damaged_traces_are_exit_3_and_write_nothing(tmp_path):
    sound = tmp_path / "sound.h5"
    write_trace(sound)
    assert cluster(tmp_path / "sond.h5", tmp_path / "c.h5").returncode == 3
    for i, (name, damage) in enumerate(mutations(60)):
        trace, out = tmp_path / "damaged.h5", tmp_path / f"c{i}.h5"
        shutil.copy(sound, trace)
        damage(trace)
        done = cluster(trace, out, timeout=30)
        assert done.returncode in (0, 3), (name, done.stderr)
        assert out.exists() == (done.returncode == 0), name
        if done.returncode == 3:
            assert "damaged.h5" in done.stderr or "/prompts" in done.stderr, name


def test_logits_beyond_double_are_reported_and_never_written(odd, tmp_path):
    trace, out = tmp_path / "t.h5", tmp_path / "c.h5"
    shutil.copy(odd, trace)
    with h5py.File(trace, "a") as f:
        f["prompts/a/layers/001"].attrs["scaling"] = 1e308
    done = cluster(trace, out, "--prompts", "a")
    assert done.returncode == 3, done.stderr
    assert "layers/001" in done.stderr
    assert not out.exists() and not out.with_suffix(".csv").exists()


def test_an_unwritable_folder_is_reported(odd, tmp_path):
    (tmp_path / "file").write_text("")
    done = cluster(odd, Path(tmp_path / "file" / "c.h5"), "--layers", 0)
    assert done.returncode == 2
    assert "file" in done.stderr
