"""Latent attention (MLA): caches hold one latent a token for all heads; outputs are those of the heads."""

import csv
import json
import math

import h5py
import kvreplay as kv
import numpy as np
import pytest
from kvbase.errors import ConfigError, TraceError
from kvreplay_cli import kvreplay

PREFILL = 60
EVICTORS = ("window", "h2o", "tova", "snapkv", "knorm", "keydiff", "scissorhands", "lagkv", "curdkv", "rkv")


def write(path, layers, **of_group):
    """A trace of one prompt without rotation; layers: {number: datasets}."""
    with h5py.File(path, "w") as file:
        file.attrs["kvreplay_schema"] = 1
        for number, datasets in layers.items():
            group = file.create_group(f"prompts/p0/layers/{number:03d}")
            group.attrs.update({"scaling": 1.0, "rope": "none", **of_group})
            for name, array in datasets.items():
                group[name] = np.asarray(array, np.float32)
    return path


def random_layer(tokens=90, heads=4, width=176, rope=16, key=12, value=10, seed=0):
    """Datasets of a random layer whose attention is far from uniform."""
    draw = np.random.default_rng(seed).standard_normal
    made = {
        "latent": draw((tokens, width)),
        "rope_k": draw((tokens, rope)),
        "up_k": draw((heads, width, key)) / math.sqrt(width),
        "up_v": draw((heads, width, value)) / math.sqrt(width),
        "q": draw((heads, tokens, key + rope)),
    }
    return {
        name: array.astype(np.float32).astype(float) for name, array in made.items()
    }  # as a file holds them


def attended(layer, head, row, held, latent=None, rope_k=None, scaling=1.0):
    """Output of a query head over the held tokens, from keys and values of that head: [Dv]."""
    latent = layer["latent"] if latent is None else latent
    rope_k = layer["rope_k"] if rope_k is None else rope_k
    keys = np.concatenate([latent[held] @ layer["up_k"][head], rope_k[held]], axis=1)
    logits = scaling * keys @ layer["q"][head, row]
    weights = np.exp(logits - logits.max())
    return weights @ (latent[held] @ layer["up_v"][head]) / weights.sum()


def deviation(found, expected):
    return np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected)


def run_of(path, methods, budgets=24, **options):
    return kv.replay(
        path, methods=methods, budgets=budgets, prefill=PREFILL, save=["outputs", "kept"], **options
    )


# ---- by hand


def test_two_heads_read_one_latent_each_through_its_own_projection(tmp_path):
    # Head 0: logits (ln 2)/2 * (1, 3), weights 1/3 and 2/3, sum of latents 7/3. Head 1: a key of 0, uniform.
    layer = {
        "latent": [[1], [3]],
        "rope_k": [[0], [0]],
        "up_k": [[[1]], [[0]]],
        "up_v": [[[2]], [[-1]]],
        "q": [[[0, 0], [math.log(2) / 2, 0]], [[0, 0], [5, 0]]],
    }
    run = kv.replay(write(tmp_path / "t.h5", {0: layer}), methods="exact", prefill=1, save="outputs")
    rows, outputs = run.outputs("exact")
    assert rows.tolist() == [1]
    np.testing.assert_allclose(outputs[:, 0, 0], [14 / 3, -2], rtol=1e-6)


def test_a_cached_token_takes_the_bytes_of_its_latent_and_rotated_part_once(tmp_path):
    path = write(tmp_path / "t.h5", {0: random_layer()})
    row = run_of(path, "window").row()
    assert row["full_bytes"] == 90 * (176 + 16) * 4
    assert row["peak_bytes"] == 25 * (176 + 16) * 4  # the budget and the step's own token
    kept = run_of(path, {"name": "window", "row_format": {"name": "fp8_ds_mla", "rope": 16}}).row()
    # 176 bytes of E4M3, two scales, 16 numbers of bfloat16; the newest token is exact in its step.
    coded = 176 + 2 * 4 + 16 * 2
    assert kept["total_bytes"] == 24 * coded + (176 + 16) * 4


# ---- against keys and values of each head


@pytest.mark.parametrize("method", EVICTORS)
def test_outputs_of_an_evictor_are_attention_of_each_head_over_the_held_tokens(tmp_path, method):
    layer = random_layer()
    run = run_of(
        write(tmp_path / "t.h5", {0: layer}), {"name": method, "positions": "original"}, precision="double"
    )
    rows, outputs = run.outputs(method)
    kept = run.kept(method)
    streams = len(kept) > 1
    for i, row in enumerate(rows):
        held = np.union1d(kept[i if streams else 0], [row] if streams else np.arange(PREFILL, row + 1))
        for head in range(4):
            assert deviation(outputs[head, i], attended(layer, head, row, held)) < 1e-5
    assert min(map(len, kept)) < PREFILL


def as_stored_by_flashmla(layer):
    """(latents, rotated parts) as fp8_ds_mla reads them back, by torch's own types."""
    torch = pytest.importorskip("torch")
    latent, rope_k = (torch.tensor(layer[name], dtype=torch.float32) for name in ("latent", "rope_k"))
    tiles = []
    for tile in latent.split(128, dim=-1):
        scale = tile.abs().amax(-1, keepdim=True) / 448
        tiles.append((tile / scale).to(torch.float8_e4m3fn).float() * scale)
    return torch.cat(tiles, -1).numpy(), rope_k.bfloat16().float().numpy()


def test_rows_in_fp8_are_those_of_flashmla(tmp_path):
    layer = random_layer()
    form = {"name": "fp8_ds_mla", "rope": 16}
    run = run_of(write(tmp_path / "t.h5", {0: layer}), {"name": "exact", "row_format": form})
    rows, outputs = run.outputs("exact")
    latent, rope_k = as_stored_by_flashmla(layer)
    for i, row in enumerate(rows):
        own_latent, own_rope = latent.copy(), rope_k.copy()
        own_latent[row], own_rope[row] = layer["latent"][row], layer["rope_k"][row]  # exact in its own step
        for head in range(4):
            expected = attended(layer, head, row, np.arange(row + 1), own_latent, own_rope)
            assert deviation(outputs[head, i], expected) < 1e-4
            assert deviation(outputs[head, i], attended(layer, head, row, np.arange(row + 1))) > 1e-3


@pytest.mark.parametrize("form", ["fp8_e4m3", "int8", "int4", "q8_0", "nvfp4", "bf16"])
def test_a_coded_row_is_key_and_value_at_once(tmp_path, form):
    layer = random_layer()
    path = write(tmp_path / "t.h5", {0: layer})
    rows, outputs = run_of(path, {"name": "exact", "row_format": form}).outputs("exact")
    latent, rope_k = layer["latent"].astype(np.float32), layer["rope_k"].astype(np.float32)
    both = np.concatenate([rope_k, latent], axis=1)
    coded = kv.read_back(form, both, both, prompt=PREFILL).keys
    for i, row in enumerate(rows):
        own = coded.astype(float)
        own[row] = both[row]
        expected = attended(layer, 1, row, np.arange(row + 1), own[:, 16:], own[:, :16])
        assert deviation(outputs[1, i], expected) < 1e-4


def test_queries_after_the_projection_give_equal_numbers(tmp_path):
    layer = random_layer()
    absorbed = dict(layer)
    up_k = absorbed.pop("up_k")
    projected = np.einsum("htd,hcd->htc", layer["q"][..., :12], up_k)
    absorbed["q"] = np.concatenate([projected, layer["q"][..., 12:]], axis=-1)
    runs = [
        run_of(write(tmp_path / f"{i}.h5", {0: given}), list(EVICTORS))
        for i, given in enumerate((layer, absorbed))
    ]
    for method in EVICTORS:
        for a, b in zip(*(run.kept(method) for run in runs), strict=True):
            np.testing.assert_array_equal(a, b)
        assert deviation(*(run.outputs(method)[1] for run in runs)) < 1e-5
    one, other = (kv.open(tmp_path / f"{i}.h5").layer(0) for i in range(2))
    np.testing.assert_allclose(one.q, other.q, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(one.k, other.k)
    assert one.latent == {"width": 176, "rope": 16, "key": 12, "value": 10} and other.latent["key"] == 0


def test_a_layer_shows_the_rows_that_are_replayed(tmp_path):
    layer = random_layer()
    found = kv.open(write(tmp_path / "t.h5", {0: layer})).layer(0)
    np.testing.assert_allclose(
        found.k[0], np.concatenate([layer["rope_k"], layer["latent"]], axis=1), rtol=1e-6
    )
    np.testing.assert_allclose(found.v[0], layer["latent"], rtol=1e-6)
    np.testing.assert_allclose(found.up_v, layer["up_v"], rtol=1e-6)
    raw, dtype = found.raw("rope_k")
    assert dtype == "float32" and raw.shape == (90, 16)
    with pytest.raises(TraceError, match="has the tensors q, latent, rope_k, up_k, up_v, out, not k"):
        found.raw("k")
    # A query of the view times a key of the view is the head's own logit.
    own = np.concatenate([layer["latent"] @ layer["up_k"][2], layer["rope_k"]], axis=1) @ layer["q"][2, 70]
    np.testing.assert_allclose(found.q[2, 70] @ found.k[0].T, own, rtol=1e-4, atol=1e-4)


def test_threads_precision_and_audit_agree(tmp_path):
    path = write(tmp_path / "t.h5", {0: random_layer(), 1: random_layer(seed=1)})
    methods = [*EVICTORS, {"name": "h2o", "row_format": "fp8_e4m3"}]
    plain = run_of(path, methods, jobs=1)
    for options, tolerance in (({"jobs": 2}, 0), ({"audit": True}, 1e-5), ({"precision": "double"}, 1e-4)):
        other = run_of(path, methods, **options)
        for a, b in zip(plain.cells, other.cells, strict=True):
            assert a.row["total_bytes"] == b.row["total_bytes"]
            assert b.row["rel_err_out_mean"] == pytest.approx(a.row["rel_err_out_mean"], rel=tolerance, abs=0)


# ---- what is refused


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"name": "h2o", "row_format": "kivi"}, "kivi codes keys and values by blocks"),
        (
            {"name": "h2o", "row_format": {"key": "int8", "value": "int4"}},
            "keys and values have formats of their own",
        ),
        ({"name": "h2o", "row_format": "fp8_ds_mla"}, "keeps 64 rotated numbers apart, and the layer has 16"),
        ({"name": "h2o", "merge": "d2o"}, "write.* keys and values apart"),
        ("wildcat", "write.* keys and values apart"),
        ("qjl", "write.* keys and values apart"),
    ],
)
def test_what_holds_keys_and_values_apart_is_refused(tmp_path, methods, message):
    path = write(tmp_path / "t.h5", {0: random_layer()})
    with pytest.raises(ConfigError, match=message):
        kv.replay(path, methods=methods, budgets=40, prefill=PREFILL)


def test_the_format_of_latents_is_refused_for_keys_and_values(tmp_path):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 40, 128)).astype(np.float32) for _ in range(3))
    with pytest.raises(ConfigError, match="fp8_ds_mla stores rows of latent attention"):
        kv.replay(q, k, v, methods={"name": "h2o", "row_format": "fp8_ds_mla"}, budgets=8, prefill=20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"up_v": None}, "up_v: is missing. A layer with the dataset latent needs"),
        ({"rope_k": None}, "rope_k: is missing"),
        ({"up_k": None}, "up_k: is missing, and rows of q have 28 numbers"),
        ({"rope_k": np.zeros((80, 16))}, r"rope_k: has shape \[80, 16\], it must be \[90, 16\]"),
        ({"latent": np.zeros((1, 90, 176))}, r"it must have 2 axes"),
        ({"up_v": np.zeros((4, 100, 10))}, r"up_v: has shape \[4, 100, 10\], it must be \[4, 176, 10\]"),
        ({"up_k": np.zeros((3, 176, 12))}, r"up_k: has shape \[3, 176, 12\], it must be \[4, 176, 12\]"),
        ({"q": np.zeros((4, 90, 50))}, "q: has rows of 50 numbers, they must have 28"),
        ({"out": np.zeros((4, 90, 12))}, r"out: has shape \[4, 90, 12\], it must be \[4, 90, 10\]"),
    ],
)
def test_a_wrong_dataset_is_named(tmp_path, change, message):
    layer = {name: array for name, array in (random_layer() | change).items() if array is not None}
    with pytest.raises(TraceError, match=message):
        kv.open(write(tmp_path / "t.h5", {0: layer})).layer(0)


def test_a_number_that_is_none_is_found(tmp_path):
    layer = random_layer()
    layer["up_k"][2, 5, 3] = np.nan
    done = kvreplay("validate", "--deep", write(tmp_path / "t.h5", {0: layer}))
    assert done.returncode != 0 and "up_k" in done.stderr + done.stdout


# ---- models


torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from kvrecord.rotary import rotate  # noqa: E402
from kvrecord.verify import verify  # noqa: E402
from kvtrace.dtypes import read_floats  # noqa: E402
from tiny_models import LATENT_SIZES, build  # noqa: E402

TOKENS = torch.tensor([[(7 * i * i + 3 * i + 5) % 61 + 3 for i in range(80)]])


def record(model, path, **options):
    with kvrecord.record(model, path, **options), torch.no_grad():
        model.generate(TOKENS, max_new_tokens=11, min_new_tokens=11, do_sample=False, pad_token_id=1)
    return path


@pytest.fixture(scope="module", params=["DeepseekV2", "DeepseekV3"])
def recorded(request, tmp_path_factory):
    """(model, path) of a tiny random model, recorded with what its heads gave."""
    model = build(request.param, **LATENT_SIZES)
    path = record(model, tmp_path_factory.mktemp("mla") / "t.h5", with_output=True)
    return model, path


@pytest.mark.torch
def test_a_model_is_recorded_by_its_latents_and_verified(recorded):
    model, path = recorded
    assert [str(check) for check in verify(model, path) if not check.ok] == []
    with h5py.File(path) as file:
        for group in file["prompts/0/layers"].values():
            assert {name: group[name].shape for name in ("q", "latent", "rope_k", "up_k", "up_v", "out")} == {
                "q": (4, 90, 20),
                "latent": (90, 24),
                "rope_k": (90, 8),
                "up_k": (4, 24, 12),
                "up_v": (4, 24, 10),
                "out": (4, 90, 10),
            }
            assert "k" not in group and "v" not in group and group.attrs["rope"] == "post"
    assert kvreplay("validate", "--deep", path).returncode == 0


@pytest.mark.torch
def test_the_replay_gives_the_outputs_of_transformers(recorded):
    run = run_of(recorded[1], "exact")
    for number in (0, 1):
        rows, outputs = run.outputs("exact", layer=number)
        assert deviation(outputs, kv.open(recorded[1]).layer(number).out[:, rows]) < 1e-5


@pytest.mark.torch
def test_methods_move_the_rotated_part_alone(recorded):
    """streaming_llm counts positions within the cache; a key is turned by the table that the trace states."""
    run = run_of(recorded[1], "streaming_llm", layers=[1])
    rows, outputs = run.outputs("streaming_llm", layer=1)
    kept = run.kept("streaming_llm", layer=1)
    found = kv.open(recorded[1]).layer(1)
    with h5py.File(recorded[1]) as file:
        layer = {name: file[f"prompts/0/layers/001/{name}"][...].astype(float) for name in random_layer()}
    for i, row in enumerate(rows):
        held = np.union1d(kept[i], [row])
        shrunk = (np.arange(len(held)) + row + 1 - len(held)) - held  # distances to the query, without gaps
        turned = layer["rope_k"].copy()
        for place, token in enumerate(held):
            angles = shrunk[place] * np.array(found.rope["inv_freq"])
            turned[token] = rotate(layer["rope_k"][token : token + 1], angles, found.rope["layout"])[0]
        for head in range(4):
            expected = attended(layer, head, row, held, rope_k=turned, scaling=found.scaling)
            assert deviation(outputs[head, i], expected) < 1e-5


@pytest.mark.torch
def test_further_passes_record_latents_too(tmp_path):
    model = build("DeepseekV3", **LATENT_SIZES)
    path = record(model, tmp_path / "t.h5", gradient=2, lookahead=4, with_output=True, with_input=True)
    assert [str(check) for check in verify(model, path) if not check.ok] == []
    methods = [
        {"name": "laq", "generated": True, "lookahead": 4},
        {"name": "snapkv", "wrapper": "critical"},
        {"name": "snapkv", "wrapper": "caote"},
    ]
    run = kv.replay(path, methods=methods, budgets=40)
    assert {cell.row["status"] for cell in run.cells} == {"ok"}


@pytest.mark.torch
def test_projections_on_the_gradient_are_those_of_the_heads_errors(tmp_path):
    path = record(build("DeepseekV3", **LATENT_SIZES), tmp_path / "t.h5", gradient=2, with_output=True)
    words = (
        "--method",
        "h2o",
        "--budget",
        "40",
        "--save",
        "projections,outputs",
        "--layers",
        "0",
        "-o",
        tmp_path / "run",
    )
    assert kvreplay("run", path, *words).returncode == 0
    layer = kv.open(path).layer(0)
    with h5py.File(path) as file, h5py.File(tmp_path / "run/projections.h5") as made:
        group = file["prompts/0/layers/000"]
        g, rows_of_g = read_floats(group["g"]), group["g_rows"][...].tolist()
        with h5py.File(tmp_path / "run/outputs.h5") as outputs:
            key = next(iter(outputs))
            rows, out = outputs[key]["rows"][...], outputs[key]["out"][...]
        for i, row in enumerate(rows[:-1]):
            error = out[:, i] - layer.out[:, row]
            expected = (g[:, :, rows_of_g.index(row)] * error).sum(-1).T
            np.testing.assert_allclose(made[key]["a"][:, i], expected, rtol=2e-2, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_keep_their_projections_in_their_own_type(tmp_path, dtype):
    model = build("DeepseekV3", **LATENT_SIZES).to(dtype)
    path = record(model, tmp_path / "t.h5")
    assert [str(check) for check in verify(model, path) if not check.ok] == []
    layer = kv.open(path).layer(0)
    assert layer.raw("up_v")[1] == layer.raw("latent")[1] == str(dtype).removeprefix("torch.")


@pytest.mark.torch
def test_keys_that_latents_do_not_explain_are_recorded_by_head(tmp_path):
    model = build("DeepseekV3", **LATENT_SIZES)
    for block in model.model.layers:
        block.self_attn.kv_b_proj.register_forward_hook(lambda module, args, out: out.tanh())
    path = record(model, tmp_path / "t.h5")
    with h5py.File(path) as file:
        assert "latent" not in file["prompts/0/layers/000"] and "k" in file["prompts/0/layers/000"]


@pytest.mark.torch
def test_the_closed_loop_attends_to_latents(tmp_path):
    """The first layer sees the recorded rows, so its errors in the model are those of the replay."""
    model = build("DeepseekV3", **LATENT_SIZES)
    model.save_pretrained(tmp_path / "model")
    path = record(model, tmp_path / "t.h5")
    methods = [
        "h2o",
        "streaming_llm",
        "balancekv",
        {"name": "h2o", "row_format": {"name": "fp8_ds_mla", "rope": 8}},
    ]
    config = {
        "schema": 1,
        "name": "loop",
        "traces": [str(path)],
        "methods": methods,
        "budget": {"tokens": [40]},
        "seeds": {"first": 0, "count": 1},
        "output": {"dir": str(tmp_path / "out"), "save": ["kept", "curves", "outputs"]},
    }
    (tmp_path / "loop.yaml").write_text(json.dumps(config))
    assert kvreplay("run", tmp_path / "loop.yaml").returncode == 0
    done = kvreplay("confirm", tmp_path / "out", "--model", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    offline = {
        (row["method"], row["given"]): row
        for row in read_csv(tmp_path / "out/results.csv")
        if row["layer"] == "0"
    }
    looped = [row for row in read_csv(tmp_path / "out/confirm_layers.csv") if row["layer"] == "0"]
    assert len(looped) == len(methods)
    for row in looped:
        expected = float(offline[row["method"], row["given"]]["rel_err_out_mean"])
        assert float(row["rel_err_out_mean"]) == pytest.approx(expected, rel=1e-4)
        assert expected > 1e-2


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
