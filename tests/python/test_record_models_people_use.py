"""A recorder must notice what other people's models and loops do. Each test is one kind of trouble."""

import csv
import json
import subprocess
import warnings

import h5py
import numpy as np
import pytest
from kvbase.errors import KvreplayWarning, TraceError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import kvrecord  # noqa: E402
import kvrecord.verify  # noqa: E402
import kvreplay as kv  # noqa: E402
from kvrecord.rotary import rotate  # noqa: E402
from kvrecord.verify import verify  # noqa: E402
from kvreplay_cli import BINARY, kvreplay, table  # noqa: E402
from recording import refusal  # noqa: E402
from tiny_models import ARCHITECTURES, PROMPT, build, config_class, generate, logits  # noqa: E402

pytestmark = pytest.mark.torch

SLIDING, FULL = "sliding_attention", "full_attention"


def record(model, path, run):
    """Records `run(model)`; returns the texts of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with kvrecord.record(model, path), torch.no_grad():
            run(model)
    return [str(w.message) for w in caught if issubclass(w.category, KvreplayWarning)]


def attributes(path, name="prompts/0"):
    with h5py.File(path) as file:
        return dict(file[name].attrs)


# ---- rotary tables that change with the length


def long_rope():
    table = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [1.0, 2.0, 8.0, 32.0],
        "original_max_position_embeddings": 32,
    }
    return build(
        "Phi3",
        num_key_value_heads=2,
        max_position_embeddings=512,
        original_max_position_embeddings=32,
        rope_parameters=table,
    )


def error_of_stated_rope(path):
    """Largest relative distance of layer 0's keys of one repeated token from key 0 turned as the trace says,
    by ranges of positions where it has them."""
    with h5py.File(path) as file:
        group = file["prompts/0/layers/000"]
        said = json.loads(group.attrs.get("rope_json", file.attrs["rope_json"]))
        keys = group["k"][()].astype(float)
    ranges = said.get("ranges", [{"from": 0, **said}])
    errors = []
    for position in range(keys.shape[1]):
        inv_freq = np.array([r for r in ranges if r["from"] <= position][-1]["inv_freq"])
        turned = rotate(keys[:, 0], position * inv_freq, said["layout"])
        errors.append(np.linalg.norm(turned - keys[:, position]) / np.linalg.norm(keys[:, 0]))
    return max(errors)


@pytest.mark.parametrize("length", [20, 60])
def test_the_rotary_table_of_a_prompt_is_the_one_that_was_in_use(tmp_path, length):
    model = long_rope()
    same = torch.full((1, length), 17)
    assert record(model, tmp_path / "t.h5", lambda m: m(input_ids=same, use_cache=False)) == []
    assert error_of_stated_rope(tmp_path / "t.h5") < 1e-3


def test_a_cache_that_is_discarded_where_the_table_changes_is_named(tmp_path):
    says = refusal(long_rope(), tmp_path, lambda m: generate(m, 20, ids=torch.full((1, 28), 17)))
    assert "discarded its cache after 32 tokens" in says
    assert "original_max_position_embeddings = 32 (LongRoPE)" in says


def test_a_table_that_changes_within_a_prompt_has_ranges_and_no_method_turns_its_keys(tmp_path):
    """Dynamic NTK: keys in the cache keep the table with which they were turned."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    model = build("Llama", num_key_value_heads=2, max_position_embeddings=40, rope_parameters=rope)
    path = tmp_path / "t.h5"
    record(model, path, lambda m: generate(m, 12, ids=torch.full((1, 36), 17)))
    said = json.loads(attributes(path, "prompts/0/layers/000")["rope_json"])
    assert said["ranges"][0]["from"] == 0
    assert said["ranges"][1]["from"] == 40
    words = [BINARY, "run", path, "--method", "streaming_llm", "--budget", "8", "-o", tmp_path / "out"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "needs one rotary embedding of all rows, which" in done.stderr
    assert "write --set methods.0.positions=original" in done.stderr
    remedy = subprocess.run([*words, "--set", "methods.0.positions=original"], capture_output=True, text=True)
    assert remedy.returncode == 0, remedy.stderr


# ---- where the prompt ends


@pytest.mark.parametrize("chunk", [5, 7, 10, 23])
def test_a_prompt_that_is_read_in_chunks_ends_before_the_first_generated_token(tmp_path, chunk):
    model = build("Llama", num_key_value_heads=2)
    n_prompt = PROMPT.shape[1]
    record(model, tmp_path / "t.h5", lambda m: generate(m, 6, prefill_chunk_size=chunk))
    assert attributes(tmp_path / "t.h5")["n_prompt"] == n_prompt
    assert "generate" not in vars(model)


def test_each_prompt_has_a_length_of_its_own(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    with kvrecord.record(model, tmp_path / "t.h5") as recorder:
        for name, length in (("a", 9), ("b", 5)):
            with recorder.prompt(name):
                generate(model, 4, ids=PROMPT[:, :length])
    found = [attributes(tmp_path / "t.h5", f"prompts/{name}")["n_prompt"] for name in "ab"]
    assert found == [9, 5]


def test_two_passes_over_one_cache_are_one_prompt(tmp_path):
    def run(model):
        cache = transformers.DynamicCache(config=model.config)
        for part in (PROMPT[:, :9], PROMPT[:, 9:20], PROMPT[:, 20:21], PROMPT[:, 21:22]):
            model(input_ids=part, past_key_values=cache, use_cache=True)

    record(build("Llama", num_key_value_heads=2), tmp_path / "t.h5", run)
    assert attributes(tmp_path / "t.h5")["n_prompt"] == 20


def test_a_second_turn_is_not_part_of_the_prompt(tmp_path):
    def run(model):
        cache = transformers.DynamicCache(config=model.config)
        for part in (PROMPT[:, :9], PROMPT[:, 9:10], PROMPT[:, 10:20]):
            model(input_ids=part, past_key_values=cache, use_cache=True)

    record(build("Llama", num_key_value_heads=2), tmp_path / "t.h5", run)
    found = attributes(tmp_path / "t.h5")
    assert (found["n_prompt"], found["n_generated"]) == (9, 11)


# ---- layers that differ, and layers that share


def gemma4(n_shared):
    return build(
        "Gemma4Text",
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        layer_types=[SLIDING, FULL, SLIDING, FULL],
        sliding_window=6,
        num_kv_shared_layers=n_shared,
        hidden_size_per_layer_input=8 if n_shared else 0,
        vocab_size_per_layer_input=64,
    )


def test_layers_with_head_dims_of_their_own_are_recorded_and_verified(tmp_path):
    path = kvrecord.record_texts(gemma4(0), [PROMPT[0].tolist()], tmp_path / "t.h5", verify=True, generate=4)
    with h5py.File(path) as file:
        layers = file["prompts/0/layers"]
        assert [layers[name]["k"].shape[2] for name in layers] == [8, 16, 8, 16]


def test_a_layer_that_reads_the_keys_of_another_says_so_and_is_charged_once(tmp_path):
    model = gemma4(2)
    path = tmp_path / "t.h5"
    record(model, path, lambda m: generate(m, 4))
    owners = [attributes(path, f"prompts/0/layers/{n:03}").get("kv_layer") for n in range(4)]
    assert owners == [None, None, 0, 1]
    with h5py.File(path) as file:
        layers = file["prompts/0/layers"]
        assert layers["002/q"].shape[1] == PROMPT.shape[1] + 3
        assert np.array_equal(layers["000/k"], layers["002/k"])
    words = [BINARY, "run", path, "--method", "exact", "-o", tmp_path / "out", "--force"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert "layers 2, 3 read the keys and values of other layers and are left out" in done.stderr
    cells = (tmp_path / "out/results.csv").read_text().splitlines()[1:]
    assert len(cells) == 4  # two layers of two kv heads
    chosen = subprocess.run([*words, "--layers", "2"], capture_output=True, text=True)
    assert chosen.returncode == 0, chosen.stderr
    assert "left out" not in chosen.stderr


def test_in_the_closed_loop_a_layer_sees_what_is_left_in_the_cache_that_it_reads(tmp_path):
    model, path = gemma4(2), tmp_path / "t.h5"
    model.save_pretrained(tmp_path / "model")
    record(model, path, lambda m: generate(m, 12))
    out = tmp_path / "out"
    words = ("--method", "h2o", "--budget", "8", "--save", "kept,curves", "-o", out)
    assert kvreplay("run", path, *words).returncode == 0
    done = kvreplay("confirm", out, "--model", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    with (out / "confirm_layers.csv").open(newline="", encoding="utf-8") as file:
        (found,) = [float(row["rel_err_out_mean"]) for row in csv.DictReader(file) if row["layer"] == "3"]
    cells = {row["kv_head"]: row["key"] for row in table(out) if row["layer"] == "1"}
    layer, errors = kv.open(path).layer(3), []
    with h5py.File(out / "kept.h5") as kept:
        for head, key in cells.items():
            flat, off = kept[key]["kept_flat"][...], kept[key]["kept_off"][...]
            for step, row in enumerate(range(PROMPT.shape[1], layer.n_tokens)):
                held = np.union1d(flat[off[step] : off[step + 1]], [row])
                errors += errors_of(layer, int(head), row, held)
    assert found == pytest.approx(np.mean(errors), rel=1e-4) and found > 0.1


def errors_of(layer, kv_head, row, held):
    """Relative errors of the query heads of a kv head that attend to the held tokens alone."""
    found = []
    for head in range(kv_head * layer.group, (kv_head + 1) * layer.group):
        outputs = []
        for tokens in (held, np.arange(row + 1)):
            logits_of = layer.scaling * layer.k[kv_head, tokens].astype(float) @ layer.q[head, row]
            weights = np.exp(logits_of - logits_of.max())
            outputs.append(weights @ layer.v[kv_head, tokens] / weights.sum())
        mine, exact = outputs
        found.append(np.linalg.norm(mine - exact) / np.linalg.norm(exact))
    return found


def test_layers_that_share_keys_are_verified_in_all_rows_of_a_long_text(tmp_path, monkeypatch):
    monkeypatch.setattr(kvrecord.verify, "LOGIT_ROWS", 8)
    model = gemma4(2)
    record(model, tmp_path / "t.h5", logits)
    assert all(check.ok for check in kvrecord.verify.verify(model, tmp_path / "t.h5"))


def test_a_module_without_a_layer_index_is_refused(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    model.model.layers[1].self_attn.layer_idx = -1
    assert "LlamaAttention does not know its layer index" in refusal(model, tmp_path)


def test_a_layer_that_calls_attention_twice_a_pass_is_refused_by_its_name(tmp_path):
    model = build("DiffLlama", num_key_value_heads=2, head_dim=8)
    says = refusal(model, tmp_path)
    assert says == (
        "layer 0, DiffLlamaAttention: calls attention more than once a pass, and a trace holds one call for "
        "each layer"
    )


# ---- what arrives


def text_with_rows(positions):
    mask = torch.ones_like(PROMPT)  # without one, positions that start over are read as several texts
    return lambda m: m(input_ids=PROMPT, position_ids=positions, attention_mask=mask, use_cache=False)


def multimodal():
    text = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
    }
    sight = {
        "depth": 1,
        "hidden_size": 16,
        "out_hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 16,
        "fullatt_block_indexes": [0],
    }
    torch.manual_seed(0)
    config = config_class("Qwen2_5_VL")(text_config=text, vision_config=sight)
    return transformers.Qwen2_5_VLForConditionalGeneration(config).float().eval()


@pytest.mark.parametrize("n", [1, 5])
def test_text_of_a_model_with_three_rows_of_positions_is_recorded(tmp_path, n):
    path = tmp_path / "t.h5"
    record(multimodal(), path, lambda m: generate(m, n))
    with h5py.File(path) as file:
        positions = file["prompts/0/position_ids"][()]
    assert np.array_equal(positions, np.arange(PROMPT.shape[1] + n - 1))
    assert subprocess.run([BINARY, "validate", "--deep", path]).returncode == 0


def test_positions_of_images_are_refused(tmp_path):
    rows = torch.arange(PROMPT.shape[1]).expand(3, 1, -1).clone()
    rows[1, 0, 5:9] = 5
    assert "the recorder records text" in refusal(multimodal(), tmp_path, text_with_rows(rows))


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ([1, 1, 1, *range(21)], "position_ids do not rise at row 1 (1, then 1)"),
        ([*range(4), *range(10, 30)], "position_ids jump at row 4 from 3 to 10"),
        (list(range(40, 64)), "position_ids begin at 40"),
    ],
)
def test_positions_that_are_not_those_of_a_whole_text_are_warned_of(tmp_path, positions, said):
    model = build("Llama", num_key_value_heads=2)
    (warned,) = record(model, tmp_path / "t.h5", text_with_rows(torch.tensor([positions])))
    assert warned.startswith(f"prompt 0: {said}")
    deep = subprocess.run([BINARY, "validate", "--deep", tmp_path / "t.h5"], capture_output=True, text=True)
    assert deep.returncode == 0
    assert f"/prompts/0: {said}" in deep.stderr
    run = [BINARY, "run", tmp_path / "t.h5", "--method", "h2o", "--budget", "8"]
    run += ["--prefill", "16", "-o", tmp_path / "out"]
    assert said in subprocess.run(run, capture_output=True, text=True).stderr


def test_a_second_bos_and_padding_tokens_are_warned_of(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    bos, pad = model.config.bos_token_id, model.config.pad_token_id
    twice = torch.cat([torch.full((1, 2), bos), PROMPT], 1)
    (warned,) = record(model, tmp_path / "t.h5", lambda m: logits(m, twice))
    assert (
        warned
        == f"prompt 0: the text begins with two BOS tokens ({bos}): the tokenizer and the text both add one"
    )
    padded = torch.cat([torch.full((1, 3), pad), PROMPT], 1)
    (warned,) = record(model, tmp_path / "p.h5", lambda m: logits(m, padded))
    assert warned == f"prompt 0: the text begins with 3 padding tokens ({pad}), which count as tokens"


class Wrapped(torch.nn.Module):
    """As PEFT wraps a model: `generate` and forward passes go to the model inside."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.config = inside.config

    def get_base_model(self):
        return self.inside

    def generate(self, *args, **options):
        return self.inside.generate(*args, **options)


def test_a_wrapped_model_is_recorded_as_the_model_inside(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    for name, subject in (("own.h5", model), ("wrapped.h5", Wrapped(model))):
        record(
            subject,
            tmp_path / name,
            lambda m: m.generate(PROMPT, max_new_tokens=4, do_sample=False, eos_token_id=None),
        )
    with h5py.File(tmp_path / "own.h5") as own, h5py.File(tmp_path / "wrapped.h5") as wrapped:
        assert own.attrs["trace_id"] == wrapped.attrs["trace_id"]


# ---- causes


def test_two_texts_without_a_name_for_the_second_are_refused(tmp_path):
    def run(model):
        logits(model, PROMPT)
        logits(model, PROMPT[:, :7].flip(1))

    says = refusal(build("Llama", num_key_value_heads=2), tmp_path, run)
    assert says == "layer 0, LlamaAttention: another text began: use rec.prompt(id) for each"


def test_chunked_attention_is_recorded_over_several_chunks(tmp_path):
    """The prompts are shorter and longer than a chunk, and the generations go on into later chunks."""
    model = ARCHITECTURES["llama 4, chunks"].build()
    for n_prompt in (3, 7, 8, 24):
        path = tmp_path / f"{n_prompt}.h5"
        record(model, path, lambda m, n=n_prompt: generate(m, 12, ids=PROMPT[:, :n]))
        assert attributes(path, "prompts/0/layers/000")["attention_chunk"] == 7
        assert all(check.ok for check in verify(model, path))
        done = subprocess.run([BINARY, "validate", "--deep", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


# ---- low precision of large channels


def test_verify_says_that_bf16_keeps_too_few_digits(tmp_path):
    model = build("Qwen2", num_key_value_heads=2)
    generator = torch.Generator().manual_seed(3)
    for layer in model.model.layers:
        bias = layer.self_attn.k_proj.bias
        bias.data = 300 * torch.randn(bias.shape, generator=generator)
    ids = [PROMPT[0].tolist()]
    with pytest.raises(
        TraceError, match=r"bf16 keeps too few digits of these keys .* Record with --dtype f32"
    ):
        kvrecord.record_texts(model, ids, tmp_path / "bf16.h5", verify=True, dtype="bf16", progress=False)
    kvrecord.record_texts(model, ids, tmp_path / "f32.h5", verify=True, dtype="f32", progress=False)
