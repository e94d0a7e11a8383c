"""Cases that are easy to confuse: windows that are not full yet, unequal lists, streamed prompts, tokens
without weight, replaced results, interrupted runs."""

import stat

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import h5py  # noqa: E402
import numpy as np  # noqa: E402
from confirm_fixture import (  # noqa: E402
    PREFILL,
    SIZES,
    TOKENS,
    confirm,
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
from front_door import confirm as cli  # noqa: E402
from kvbase.errors import ConfigError, KvreplayError  # noqa: E402
from kvbase.program import program_path  # noqa: E402
from kvconfirm import cli as closed_loop  # noqa: E402
from kvconfirm import losses, recorded  # noqa: E402
from kvconfirm.prompt_job import PromptJob  # noqa: E402
from kvconfirm.witness import Witness  # noqa: E402
from kvreplay_cli import table  # noqa: E402

pytestmark = pytest.mark.torch
KIVI = {"name": "kivi", "bits": 4, "g": 4, "R": 8}


# --- Attended tokens ------------------------------------------------------------------------------


def test_a_window_that_the_prompt_does_not_fill_is_followed(tmp_path):
    torch.manual_seed(0)
    window = PREFILL + 10
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=window)).eval()
    trace, folder = record(model, tmp_path / "trace.h5"), saved(model, tmp_path / "model")
    out = replay(trace, tmp_path / "out", [{"name": "exact"}, {"name": "h2o"}])
    for layer in range(3):
        assert confirm(out, folder, "--trace", trace, "--layers", layer, "--verify") == 0
    assert confirm(out, folder, "--trace", trace, "--methods", "exact") == 0
    assert float(whole(out, method="exact", layers="0-2")[0]["loss_increase"]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("chunk", [16, 48])  # the prompt is 40 tokens long, and 32 follow
def test_chunks_are_followed_from_one_to_the_next(tmp_path, chunk):
    model = llama4(chunk)
    trace, folder = record(model, tmp_path / "trace.h5"), saved(model, tmp_path / "model")
    out = replay(
        trace, tmp_path / "out", [{"name": "exact"}, {"name": "h2o"}, {"name": "snapkv", "window": 4}]
    )
    for layer in range(3):
        assert confirm(out, folder, "--trace", trace, "--layers", layer, "--verify") == 0
    assert confirm(out, folder, "--trace", trace, "--methods", "exact") == 0
    assert float(whole(out, method="exact", layers="0-2")[0]["loss_increase"]) == pytest.approx(0, abs=1e-6)


def llama4(chunk):
    """Two layers in chunks, and one that sees all tokens and rotates nothing."""
    if not hasattr(transformers, "Llama4TextConfig"):
        pytest.skip(f"transformers {transformers.__version__} has no Llama4Text")
    torch.manual_seed(0)
    kinds = ["chunked_attention", "chunked_attention", "full_attention"]
    experts = {"num_local_experts": 2, "intermediate_size_mlp": 48, "head_dim": 8}
    layers = {"no_rope_layers": [1, 1, 0], "layer_types": kinds, "attention_chunk_size": chunk}
    return transformers.Llama4ForCausalLM(
        transformers.Llama4TextConfig(**SIZES | experts | layers, pad_token_id=0)
    ).eval()


def per_head(group, heads):
    """Replaces a cell's lists by those of its first query head, repeated `heads` times."""
    off = group["attended_off"][...]
    one = off[: (TOKENS - PREFILL) + 1]
    flat = group["attended_flat"][: one[-1]]
    del group["attended_off"], group["attended_flat"]
    group["attended_flat"] = np.tile(flat, heads)
    group["attended_off"] = np.concatenate([one[:1], *(one[1:] + i * one[-1] for i in range(heads))])


def test_a_kv_head_with_equal_reads_of_its_query_heads_is_stored_once(tiny, own_copy):
    """kv head 0 has one series for its two query heads, kv head 1 two."""
    found = []
    cells = [row for row in table(own_copy) if row["method"] == "topk_oracle" and row["kv_head"] == "0"]
    for heads in (2, 1):
        with h5py.File(own_copy / "kept.h5", "r+") as file:
            for cell in cells:
                per_head(file[cell["key"]], heads)
        words = ("--trace", tiny[2], "--methods", "topk_oracle", "--force")
        assert confirm(own_copy, tiny[1], *words) == 0
        found.append(whole(own_copy, method="topk_oracle")[0]["loss"])
    assert found[0] == found[1]


def test_lists_for_another_number_of_heads_fail_the_instance(tiny, own_copy, capfd):
    with h5py.File(own_copy / "kept.h5", "r+") as file:
        for row in table(own_copy):
            if row["method"] == "topk_oracle":
                per_head(file[row["key"]], 3)
    capfd.readouterr()
    assert confirm(own_copy, tiny[1], "--trace", tiny[2], "--methods", "topk_oracle", "-q") == 1
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("kvreplay: error: 1 of 1 instances failed: ")
    assert "lists of 6 caches, 2 or 4 are needed" in rows(own_copy, status="failed")[0]["error"]


def test_codes_that_depend_on_rows_which_left_a_window_are_not_rebuilt(tmp_path):
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=24)).eval()
    trace, folder = record(model, tmp_path / "trace.h5"), saved(model, tmp_path / "model")
    formats = ("int4", KIVI, {"name": "kvquant", "bits": 3})
    methods = [{"name": "window", "row_format": row_format} for row_format in formats]
    out = replay(trace, tmp_path / "out", methods)
    assert confirm(out, folder, "--trace", trace, "--verify") == 1
    assert ["int4" in row["params"] for row in whole(out, status="ok")] == [True]
    told = [row["error"] for row in rows(out, status="failed")]
    assert [error.split(" in a layer with a window")[0] for error in told] == [
        "layer 0: kivi",
        "layer 0: kvquant",
    ]


@pytest.mark.parametrize("way", [{"prompt": "stream"}, {"variant": "alg1"}])
def test_blocks_that_were_coded_while_the_prompt_came_in_are_in_no_list(tiny, tmp_path, way):
    methods = [{"name": "h2o", "row_format": row_format, **way} for row_format in (KIVI, "int8")]
    out = replay(tiny[2], tmp_path / "out", methods, select={"prompts": ["b"]})
    assert confirm(out, tiny[1], "--trace", tiny[2], "--layers", 0, "--verify") == 1
    [failed] = rows(out, status="failed")
    assert "kivi" in failed["params"] and "--select own" in failed["error"]
    assert len(whole(out, status="ok")) == 1


def test_a_listed_token_without_weight_shifts_later_tokens(tiny, tmp_path):
    lists = tmp_path / "lists.h5"
    with h5py.File(lists, "w") as file:
        for layer in range(3):
            for head in range(2):
                group = file.create_group(f"b/{layer:03d}/{head}")
                group["kept_flat"] = np.arange(0, 24, 2)
                group["kept_off"] = [0, 12]
                group["num"] = group["den"] = np.float32(np.arange(12) != 5)
    methods = [{"name": "external", "kept": str(lists), "positions": way} for way in ("cache", "original")]
    out = replay(tiny[2], tmp_path / "out", methods, select={"prompts": ["b"]})
    assert confirm(out, tiny[1], "--trace", tiny[2], "--layers", 0, "--verify") == 0
    assert max(verified(out)) < 1e-5


def test_heads_whose_lists_differ_in_kind_are_one_instance(tiny, tmp_path):
    lists = tmp_path / "lists.h5"
    with h5py.File(lists, "w") as file:
        for layer in range(3):
            for head in range(2):
                count = 1 if head else TOKENS - PREFILL + 1
                group = file.create_group(f"b/{layer:03d}/{head}")
                group["kept_flat"] = np.tile(np.arange(8), count)
                group["kept_off"] = 8 * np.arange(count + 1)
                group.attrs["attends"] = int(layer == 1)
    out = replay(
        tiny[2], tmp_path / "out", [{"name": "external", "kept": str(lists)}], select={"prompts": ["b"]}
    )
    assert {row["given"] for row in table(out)} == {'{"kept":"lists.h5"}'}
    assert len({row["params"] for row in table(out)}) == 3
    assert confirm(out, tiny[1], "--trace", tiny[2], "--layers", 0, "--verify") == 0
    assert len(whole(out)) == 1


def granite():
    config = transformers.GraniteConfig(**SIZES, residual_multiplier=0.25)
    return transformers.GraniteForCausalLM(config)


@pytest.mark.parametrize("build", [granite, gemma2])
def test_an_error_is_measured_where_its_block_adds_it_to_the_stream(build, tmp_path):
    torch.manual_seed(0)
    model = build().eval()
    trace, folder = record(model, tmp_path / "trace.h5"), saved(model, tmp_path / "model")
    out = replay(trace, tmp_path / "out", [{"name": "streaming_llm"}, {"name": "snapkv", "window": 4}])
    assert confirm(out, folder, "--trace", trace) == 0
    first = rows(out, "confirm_layers.csv", layer="0")
    assert len(first) == 2
    for row in first:
        assert float(row["drift_mean"]) == pytest.approx(float(row["rel_err_resid_mean"]), rel=1e-4)
        assert float(row["drift_mean"]) > 1e-3


# --- Missing and infinite numbers -----------------------------------------------------------------


def test_logits_that_are_not_finite_fail_the_instance(tiny, own_copy, monkeypatch):
    real = recorded.RecordedRows.__call__

    def overflows(self, call):
        out = real(self, call)
        return out * torch.inf if self.instance.method == "tova" else out

    monkeypatch.setattr(recorded.RecordedRows, "__call__", overflows)
    assert confirm(own_copy, tiny[1], "--trace", tiny[2], "--methods", "tova,exact") == 1
    [failed] = rows(own_copy, status="failed")
    assert failed["method"] == "tova" and "not finite" in failed["error"]


def test_a_nan_in_one_head_fails_the_verification():
    class Same:
        instance = type("", (), {"keys_of": lambda layer: ["a", "b"], "n_prefill": 0})

        @staticmethod
        def rows(key):
            return np.arange(2), np.ones((1, 2, 3))

    witness = Witness(None, Same, Same.instance, 0, "f32")
    found = np.ones((2, 2, 3))
    assert witness._compare(found) == 0
    found[0, 1, 2] = np.nan
    witness.deviation = witness._compare(found)
    with pytest.raises(KvreplayError, match="differs from the engine's by nan"):
        witness.check()


def test_tokens_of_equal_probability_share_a_rank():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0]])
    assert losses.answer_of(logits, torch.tensor([2]), 0).rank == 1
    assert losses.answer_of(logits, torch.tensor([0]), 0).rank == 3


# --- Resumed runs ---------------------------------------------------------------------------------


def test_verify_compares_prompts_that_an_earlier_run_skipped(tiny, own_copy, capsys):
    words = ("--trace", tiny[2], "--methods", "tova", "--layers", 0)
    assert confirm(own_copy, tiny[1], *words) == 0
    assert meta(own_copy)["verified"] == {}
    assert confirm(own_copy, tiny[1], *words, "--verify") == 0
    assert len(meta(own_copy)["verified"]) == 1
    capsys.readouterr()
    assert confirm(own_copy, tiny[1], *words, "--verify") == 0
    assert "0 to run" in capsys.readouterr().err
    assert confirm(own_copy, tiny[1], "--trace", tiny[2], "--methods", "h2o", "--layers", 0) == 0
    assert len(meta(own_copy)["verified"]) == 1


def test_an_interrupted_run_has_the_checks_of_finished_prompts_on_record(tiny, tmp_path, monkeypatch):
    out = replay(tiny[2], tmp_path / "out", [{"name": "window"}])
    real = PromptJob.confirm

    def interrupted(self, number, key):
        if self.prompt == "b":
            raise KeyboardInterrupt
        return real(self, number, key)

    monkeypatch.setattr(PromptJob, "confirm", interrupted)
    assert confirm(out, tiny[1], "--trace", tiny[2]) == 130
    assert set(meta(out)["full_model"]) == {"a"}


def test_confirmations_of_replaced_results_are_replaced(tiny, tmp_path):
    methods = [{"name": "window"}, {"name": "tova"}]
    out = replay(tiny[2], tmp_path / "out", methods, select={"prompts": ["b"]})
    assert confirm(out, tiny[1], "--trace", tiny[2]) == 0
    before = {row["method"]: row for row in whole(out)}
    later = replay(
        tiny[2], tmp_path / "b", methods, select={"prompts": ["b"]}, replay={"prefill": PREFILL + 4}
    )
    for name in ("results.csv", "results.meta.json", "kept.h5"):
        (out / name).write_bytes((later / name).read_bytes())
    assert confirm(out, tiny[1], "--trace", tiny[2], "--methods", "window") == 0
    after = {row["method"]: row for row in whole(out, n_prefill=str(PREFILL + 4))}
    assert set(after) == {"window"} and after["window"]["cells"] != before["window"]["cells"]
    assert [row["method"] for row in rows(out, n_prefill=str(PREFILL)) if row["method"] == "window"] == []
    assert whole(out, n_prefill=str(PREFILL))[0] == before["tova"]
    assert {row["cells"] for row in rows(out, "confirm_layers.csv", method="window")} == {
        after["window"]["cells"]
    }


def test_an_answer_truncated_by_the_replay_is_refused(tmp_path, capsys):
    model = tiny_llama()
    import kvrecord

    trace = tmp_path / "trace.h5"
    where = {"n_prompt": PREFILL, "n_generated": TOKENS - PREFILL, "answer_from": 60}
    with kvrecord.record(model, trace) as recorder, torch.no_grad(), recorder.prompt("p", where):
        model(input_ids=tokens_of(0), use_cache=False)
    out = replay(trace, tmp_path / "out", [{"name": "window"}], replay={"prefill": "trace", "tokens": 62})
    assert confirm(out, saved(model, tmp_path / "model"), "--trace", trace) == 2
    assert "its answer is tokens 60 to 71, the replay compressed 40 of 62 tokens" in capsys.readouterr().err


# --- Failures of the machine ----------------------------------------------------------------------


def test_an_engine_must_be_executable_and_is_found_in_the_working_folder(tmp_path, monkeypatch):
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="engine cannot be run"):
        program_path("engine")
    engine.chmod(engine.stat().st_mode | stat.S_IXUSR)
    assert program_path("engine") == "engine"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError("8 GB"), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"), "out of memory"),
    ],
)
def test_a_full_disk_and_too_little_memory_are_errors(own_copy, capsys, monkeypatch, problem, message):
    def fails(args, rows):
        raise problem

    monkeypatch.setattr(closed_loop, "_run", fails)
    assert cli.main([str(own_copy), "--model", "recorded"]) == 3
    assert message in capsys.readouterr().err


def test_an_unexpected_error_keeps_its_traceback(own_copy, monkeypatch):
    def fails(args, rows):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(closed_loop, "_run", fails)
    with pytest.raises(RuntimeError, match="shapes"):
        cli.main([str(own_copy), "--model", "recorded"])
