"""The closed loop on tiny random models, with the real engine."""

import json
import os

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import h5py  # noqa: E402
import numpy as np  # noqa: E402
from confirm_fixture import (  # noqa: E402
    METHODS,
    PREFILL,
    SIZES,
    TOKENS,
    change_kept,
    confirm,
    copy_of,
    gemma2,
    meta,
    record,
    replay,
    rows,
    saved,
    tiny_llama,
    tokens_of,
    verified,
    whole,
)
from kvbase.errors import TraceError  # noqa: E402
from kvconfirm.trace import Trace  # noqa: E402
from kvreplay_cli import BINARY, table  # noqa: E402

pytestmark = pytest.mark.torch
WRITES_ROWS = {"wildcat", "qjl"}


# --- Attended tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [0, 2])
def test_the_models_masks_give_the_engines_outputs_for_every_method_with_lists(tiny, own_copy, layer):
    _, model, trace = tiny
    code = confirm(own_copy, model, "--trace", trace, "--layers", layer, "--verify")
    failed = {row["method"]: row["error"] for row in rows(own_copy, status="failed")}
    assert set(failed) == WRITES_ROWS and all("--select own" in error for error in failed.values())
    assert code == 1
    deviations = verified(own_copy)
    assert len(deviations) == len(METHODS) + 1
    assert max(deviations) < 1e-5


def test_own_selection_gives_the_engines_outputs_without_earlier_compressed_layers(tiny, own_copy):
    _, model, trace = tiny
    words = ("--trace", trace, "--layers", 1, "--verify", "--select", "own", "--kvreplay", BINARY)
    assert confirm(own_copy, model, *words) == 0
    assert len(whole(own_copy, status="ok", selection="own")) == len(METHODS) + 3


def test_verification_fails_for_other_lists(tiny, own_copy):
    _, model, trace = tiny

    def shift(group):
        if "kept_flat" in group and group.attrs.get("oneshot"):
            group["kept_flat"][...] = np.maximum(group["kept_flat"][...] - 1, 0)

    change_kept(own_copy, shift)
    words = ("--trace", trace, "--layers", 0, "--verify", "--methods", "snapkv,h2o")
    assert confirm(own_copy, model, *words) == 1
    assert {row["method"] for row in rows(own_copy, status="failed")} == {"snapkv"}
    assert "differs from the engine's" in rows(own_copy, status="failed")[0]["error"]


# --- The measures ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def confirmed(tiny, tmp_path_factory):
    """Confirmed results with every layer compressed."""
    out, model, trace = tiny
    out = copy_of(out, tmp_path_factory.mktemp("confirmed") / "out")
    confirm(out, model, "--trace", trace)
    return out


def test_the_hook_without_a_mask_leaves_the_logits_as_they_are(confirmed):
    found = meta(confirmed)["full_model"]["b"]
    assert found["without_mask"] == 0
    assert found["mask_of_all"] < 1e-4 and found["one_pass"] < 1e-4


def test_keeping_everything_loses_nothing(confirmed):
    for row in rows(confirmed, method="exact"):
        assert float(row["loss_increase"]) == 0
        assert float(row["kl_mean"]) == 0
        assert float(row["top1_agreement"]) == 1


def test_compression_of_all_layers_costs_something(confirmed):
    for row in whole(confirmed, status="ok"):
        if row["method"] != "exact":
            assert float(row["kl_mean"]) > 0
            assert float(row["loss_full"]) == float(whole(confirmed, method="exact")[0]["loss_full"])


def test_each_instance_has_the_names_that_it_has_in_the_results(confirmed):
    shared = (
        "trace_id",
        "model",
        "prompt",
        "method",
        "given",
        "budget_tokens",
        "seed",
        "n_prefill",
        "n_tokens",
    )
    named = {tuple(row[name] for name in shared) for row in table(confirmed)}
    assert {tuple(row[name] for name in shared) for row in rows(confirmed)} == named
    assert len({row["key"] for row in rows(confirmed)}) == len(named)


def test_ranges_of_distances_follow_the_whole(confirmed):
    found = [(row["distance_from"], row["distance_to"]) for row in rows(confirmed, method="tova")]
    assert found == [("0", "31"), ("0", "16"), ("16", "31")]
    parts = [(int(row["n_rows"]), float(row["loss"])) for row in rows(confirmed, method="tova")]
    mean = sum(n * loss for n, loss in parts[1:]) / sum(n for n, _ in parts[1:])
    assert parts[0][1] == pytest.approx(mean, abs=1e-6)


def test_every_row_of_an_instance_has_its_losses_in_a_file(confirmed):
    found = whole(confirmed, status="ok")
    assert len(list((confirmed / "confirm_rows").iterdir())) == len(found)
    for row in found:
        losses = np.load(confirmed / "confirm_rows" / f"{row['key']}.npz")
        assert losses["kl"].shape == (int(row["n_rows"]),)
        assert losses["kl"].mean() == pytest.approx(float(row["kl_mean"]), rel=1e-5, abs=1e-7)
        increase = (losses["loss"] - losses["loss_full"]).mean()
        assert increase == pytest.approx(float(row["loss_increase"]), rel=1e-4, abs=1e-6)
        assert losses["same_top"].mean() == pytest.approx(float(row["top1_agreement"]), abs=1e-6)


def test_losses_are_those_of_the_model_under_the_same_mask(tiny, confirmed):
    """An independent computation: transformers itself makes the mask of the window of last tokens."""
    _, folder, trace = tiny
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    out = replay(trace, confirmed.parent / "window", [{"name": "window"}], select={"prompts": ["b"]})
    assert confirm(out, folder, "--trace", trace) == 0
    ids = tokens_of(1)  # prompt b
    steps = torch.arange(TOKENS)
    hidden = steps[None, :] > steps[:, None]
    # A window of 16 means the 16 tokens before the new one.
    hidden |= (steps[:, None] >= PREFILL) & (steps[None, :] < steps[:, None] - 16)
    mask = torch.zeros(TOKENS, TOKENS).masked_fill(hidden, -torch.inf)[None, None]
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[PREFILL:-1], ids[0, PREFILL + 1 :])
    assert float(whole(out)[0]["loss"]) == pytest.approx(float(loss), abs=1e-5)


def test_the_layers_errors_are_the_engines(confirmed):
    engine = {}
    for row in table(confirmed):
        engine.setdefault((row["method"], row["given"], row["layer"]), []).append(
            float(row["rel_err_out_mean"])
        )
    compared = 0
    for row in rows(confirmed, "confirm_layers.csv"):
        if row["rel_err_out_mean"]:
            expected = np.mean(engine[row["method"], row["given"], row["layer"]])
            assert float(row["rel_err_out_mean"]) == pytest.approx(expected, rel=1e-4, abs=1e-6)
            compared += 1
    assert compared == 3 * (len(METHODS) + 1)


def test_in_the_first_layer_the_drift_is_the_error_after_the_projection(confirmed):
    for row in rows(confirmed, "confirm_layers.csv", layer="0"):
        assert float(row["drift_mean"]) == pytest.approx(float(row["rel_err_resid_mean"]), abs=1e-6)
    deeper = rows(confirmed, "confirm_layers.csv", layer="2", method="streaming_llm")
    assert float(deeper[0]["drift_mean"]) != pytest.approx(float(deeper[0]["rel_err_resid_mean"]), rel=0.01)


def test_selections_on_the_compressed_model_differ_in_deeper_layers(tiny, tmp_path):
    _, model, trace = tiny
    methods = [{"name": "h2o"}, {"name": "tova"}, {"name": "snapkv", "window": 4}]
    out = replay(trace, tmp_path / "out", methods, 20, select={"prompts": ["b"]})
    assert confirm(out, model, "--trace", trace) == 0
    assert confirm(out, model, "--trace", trace, "--select", "own", "--kvreplay", BINARY) == 0
    moved = {}
    for method in ("h2o", "tova", "snapkv"):
        recorded, own = (whole(out, method=method, selection=way)[0] for way in ("recorded", "own"))
        assert recorded["key"] != own["key"]
        moved[method] = abs(float(recorded["loss"]) - float(own["loss"]))
    assert min(moved["h2o"], moved["tova"]) > 0.01  # they evict while decoding
    assert moved["snapkv"] < 1e-5  # it selects in the prompt, which is not compressed


# --- Other architectures --------------------------------------------------------------------------


def mistral():
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=24))


def gpt_oss():
    sizes = SIZES | {"head_dim": 8, "sliding_window": 24, "num_local_experts": 2, "num_experts_per_tok": 1}
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes))


def gpt_neox():
    sizes = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes))


@pytest.mark.parametrize("build", [mistral, gemma2, gpt_oss, gpt_neox])
def test_windows_soft_caps_sinks_and_partial_rotation_are_followed(build, tmp_path):
    torch.manual_seed(0)
    model = build().eval()
    trace = record(model, tmp_path / "trace.h5")
    methods = [
        {"name": "exact"},
        {"name": "streaming_llm", "sinks": 2},
        {"name": "h2o", "row_format": {"name": "int4", "group": 4}},
        {"name": "snapkv", "window": 4},
        {"name": "uniform", "sinks": 2, "recent": 4},
    ]
    out = replay(trace, tmp_path / "out", methods)
    folder = saved(model, tmp_path / "model")
    for layer in range(3):
        assert confirm(out, folder, "--trace", trace, "--layers", layer, "--verify") == 0
    assert confirm(out, folder, "--trace", trace, "--methods", "exact") == 0
    assert float(whole(out, method="exact", layers="0-2")[0]["loss_increase"]) == pytest.approx(0, abs=1e-6)


# --- Mismatches and refusals ----------------------------------------------------------------------


def refused(capsys, out, model, *words, code=2):
    assert confirm(out, model, *words) == code
    assert not (out / "confirm.csv").exists()
    return capsys.readouterr().err


def test_a_trace_that_was_not_replayed_is_refused(tiny, own_copy, tmp_path, capsys):
    other = record(tiny_llama(seed=4), tmp_path / "other.h5")
    message = refused(capsys, own_copy, tiny[1], "--trace", other)
    assert "give the trace that was replayed" in message and str(other) in message


def test_a_model_of_another_shape_is_refused_with_the_difference(tiny, own_copy, tmp_path, capsys):
    other = saved(tiny_llama(num_hidden_layers=4), tmp_path / "model")
    message = refused(capsys, own_copy, other, "--trace", tiny[2])
    assert "the model has n_layers = 4" in message and "recorded from a model with 3" in message


def test_a_model_with_other_weights_is_refused_by_its_keys(tiny, own_copy, tmp_path, capsys):
    other = saved(tiny_llama(seed=7), tmp_path / "model")
    message = refused(capsys, own_copy, other, "--trace", tiny[2])
    assert "the model's keys differ from the recorded ones" in message and "prompt b" in message


def test_missing_layers_of_results_are_named_with_the_remedy(tiny, tmp_path, capsys):
    some = {"layers": [0, 2], "prompts": ["b"]}
    out = replay(tiny[2], tmp_path / "out", [{"name": "h2o"}], select=some)
    message = refused(capsys, out, tiny[1], "--trace", tiny[2])
    assert "the results hold layers 0,2, not 1" in message and "--layers 0,2" in message
    assert confirm(out, tiny[1], "--trace", tiny[2], "--layers", "0,2") == 0
    assert whole(out)[0]["layers"] == "0,2"


def test_a_layer_that_was_not_recorded_says_how_to_record_it(tiny):
    says = "prompt b has no layer 99, and the whole model runs: record the trace again without --layers"
    with pytest.raises(TraceError, match=says):
        Trace(tiny[2]).layer("b", 99)


def test_all_layers_are_those_with_attention_where_the_trace_holds_them_all(tiny, tmp_path):
    """Some models have attention only in every fourth layer."""
    path = tmp_path / "some.h5"
    path.write_bytes(tiny[2].read_bytes())
    with h5py.File(path, "r+") as file:
        for prompt in "ab":
            del file[f"prompts/{prompt}/layers/001"]
    assert Trace(path).attention_layers(3) == [0, 2]
    with h5py.File(path, "r+") as file:
        file.attrs["dump_json"] = json.dumps({"layers": [0, 2]})
    assert Trace(path).attention_layers(3) == [0, 1, 2]


def test_missing_kv_heads_of_results_are_named(tiny, tmp_path, capsys):
    some = {"kv_heads": [1], "prompts": ["b"]}
    out = replay(tiny[2], tmp_path / "out", [{"name": "h2o"}], select=some)
    assert "lack kv heads 0 of layer 0" in refused(capsys, out, tiny[1], "--trace", tiny[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "no column key"),
        (lambda text: "a,b\n1,2\n", "not a table of kvreplay run"),
        (lambda text: text.splitlines()[0] + "\n", "holds no cell"),
        (lambda text: text + text.splitlines()[1] + "\n", "layer 0, kv head 0 stands twice"),
        (lambda text: text + text.splitlines()[1].split(",")[0] + "\n", "results.csv:"),
    ],
)
def test_an_invalid_results_file_is_refused(tiny, own_copy, capsys, change, message):
    path = own_copy / "results.csv"
    path.write_text(change(path.read_text()))
    assert message in refused(capsys, own_copy, tiny[1], "--trace", tiny[2])


def test_results_without_lists_are_refused_with_the_option_that_saves_them(tiny, own_copy, capsys):
    (own_copy / "kept.h5").unlink()
    message = refused(capsys, own_copy, tiny[1], "--trace", tiny[2])
    assert "kept.h5" in message and "output.save: [kept]" in message


@pytest.fixture
def no_model(monkeypatch):
    """Any attempt to load a model fails the test."""

    def loads(*_):
        raise AssertionError("a model is loaded")

    for name in ("resolve", "load_config", "load_model"):
        monkeypatch.setattr(f"kvconfirm.confirm.{name}", loads)


def another_method(group):
    group.attrs["method"] = "tova"


def another_budget(group):
    group.attrs["budget_tokens"] = 17


def another_length(group):
    """Adds one list. Lists of attended tokens are only counted when the instance runs."""
    if "kept_off" in group:
        off = group["kept_off"][...]
        del group["kept_off"]
        group["kept_off"] = np.append(off, off[-1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (another_method, "its lists have method tova"),
        (another_budget, "its lists have budget_tokens 17"),
        (another_length, f"lists, but a prompt of {PREFILL} tokens and {TOKENS - PREFILL} steps need"),
    ],
)
def test_lists_of_another_run_are_refused_before_a_model_is_loaded(
    tiny, own_copy, capsys, no_model, change, said
):
    change_kept(own_copy, change)
    message = refused(capsys, own_copy, tiny[1], "--trace", tiny[2], "--methods", "streaming_llm")
    assert said in message


def test_cells_that_the_lists_lack_are_refused_before_a_model_is_loaded(tiny, own_copy, capsys, no_model):
    with h5py.File(own_copy / "kept.h5", "r+") as file:
        for key in list(file):
            del file[key]
    message = refused(capsys, own_copy, tiny[1], "--trace", tiny[2])
    assert "layer 0, kv head 0): not in the file; run kvreplay again with output.save: [kept]" in message


def test_files_of_older_versions_without_a_label_are_confirmed(tiny, own_copy):
    def forget(group):
        for name in ("method", "given", "budget_tokens"):
            group.attrs.pop(name, None)

    change_kept(own_copy, forget)
    assert confirm(own_copy, tiny[1], "--trace", tiny[2], "--layers", 0, "--methods", "streaming_llm") == 0


def test_missing_steps_fail_the_instance_and_no_other(tiny, own_copy):
    def cut(group):
        if "kept_off" in group and not group.attrs.get("oneshot"):
            del group["kept_off"]
            group["kept_off"] = np.array([0, group["kept_flat"].shape[0]])

    change_kept(own_copy, cut)
    assert confirm(own_copy, tiny[1], "--trace", tiny[2], "--methods", "h2o,snapkv") == 1
    assert {row["method"] for row in rows(own_copy, status="ok")} == {
        "h2o",
        "snapkv",
    }  # hf_mask stores attended lists
    errors = [row["error"] for row in rows(own_copy, status="failed")]
    assert errors and all("steps are missing" in error for error in errors)


def test_no_results_are_refused(tiny, tmp_path, capsys):
    assert confirm(tmp_path, tiny[1]) == 2
    assert "give the folder that kvreplay run wrote" in capsys.readouterr().err


def test_a_selection_missing_from_the_results_lists_the_available_ones(tiny, own_copy, capsys):
    message = refused(capsys, own_copy, tiny[1], "--trace", tiny[2], "--methods", "h2o,nosuch")
    assert "no method nosuch" in message and "snapkv" in message


def test_a_foreign_table_is_not_changed(tiny, own_copy, capsys):
    (own_copy / "confirm.csv").write_text("key,colour\n1,red\n")
    assert confirm(own_copy, tiny[1], "--trace", tiny[2]) == 2
    assert "colour" in capsys.readouterr().err
    assert (own_copy / "confirm.csv").read_text() == "key,colour\n1,red\n"


# --- Resumed runs ---------------------------------------------------------------------------------


def test_running_again_does_only_what_is_missing(tiny, own_copy, capsys):
    words = ("--trace", tiny[2], "--methods", "h2o,tova")
    assert confirm(own_copy, tiny[1], "--trace", tiny[2], "--methods", "tova") == 0
    first = rows(own_copy)
    assert confirm(own_copy, tiny[1], *words) == 0
    assert "6 to run" in capsys.readouterr().err  # six instances of h2o
    assert rows(own_copy)[: len(first)] == first
    before = (own_copy / "confirm.csv").read_bytes()
    assert confirm(own_copy, tiny[1], *words) == 0
    assert "0 to run" in capsys.readouterr().err
    assert (own_copy / "confirm.csv").read_bytes() == before


def test_an_interrupted_run_keeps_what_is_finished(tiny, own_copy, monkeypatch):
    from kvconfirm.prompt_job import PromptJob

    whole_one = PromptJob.confirm

    def interrupted(self, number, key):
        if number == 2:
            raise KeyboardInterrupt
        return whole_one(self, number, key)

    monkeypatch.setattr(PromptJob, "confirm", interrupted)
    assert confirm(own_copy, tiny[1], "--trace", tiny[2]) == 130
    assert len(whole(own_copy)) == 2


def test_checks_of_prompts_that_an_earlier_run_confirmed_stay_on_record(tiny, tmp_path):
    out = replay(tiny[2], tmp_path / "out", [{"name": "window"}])
    for prompt in "ab":
        assert confirm(out, tiny[1], "--trace", tiny[2], "--prompts", prompt) == 0
    assert set(meta(out)["full_model"]) == {"a", "b"}


def test_a_dry_run_writes_nothing(tiny, own_copy, capsys):
    assert confirm(own_copy, tiny[1], "--trace", tiny[2], "--dry-run") == 0
    assert "17 instances on 1 prompts, 17 to run, 3 layers" in capsys.readouterr().err
    assert not (own_copy / "confirm.csv").exists()


KVCONFIRM = "import sys; from front_door import confirm; sys.exit(confirm.main(sys.argv[1:]))"


def test_results_published_by_another_process_are_kept(tiny, own_copy, tmp_path, dumpers, monkeypatch):
    from kvconfirm.prompt_job import PromptJob

    words = ("--trace", tiny[2], "--methods")
    whole_one, others = PromptJob.confirm, []

    def beside(self, number, key):
        if not others:
            others.append(confirm)
            with monkeypatch.context() as patch:
                patch.setattr(PromptJob, "confirm", whole_one)
                given = (own_copy, "--model", tiny[1], *words, "exact")
                with dumpers.run(tmp_path, KVCONFIRM, *given) as other:
                    said = other.printed.read()
                assert other.returncode == 0, said
        return whole_one(self, number, key)

    monkeypatch.setattr(PromptJob, "confirm", beside)
    assert confirm(own_copy, tiny[1], *words, "tova") == 0
    assert {row["method"] for row in whole(own_copy, status="ok")} == {"exact", "tova"}
    assert {row["method"] for row in rows(own_copy, "confirm_layers.csv")} == {"exact", "tova"}


def test_a_table_that_cannot_be_written_is_an_error_and_leaves_the_old_one(
    tiny, own_copy, capsys, monkeypatch
):
    words = ("--trace", tiny[2], "--methods")
    assert confirm(own_copy, tiny[1], *words, "exact") == 0
    before = (own_copy / "confirm.csv").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert confirm(own_copy, tiny[1], *words, "tova") == 2
    assert "cannot be written" in capsys.readouterr().err
    assert (own_copy / "confirm.csv").read_bytes() == before
    assert not list(own_copy.glob("*.part"))
