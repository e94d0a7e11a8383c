"""A GGUF file is read once for everything loaded from it, with the results of plain transformers."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

from kvrecord import gguf_file  # noqa: E402
from kvrecord.model import load_config, load_model, load_tokenizer, resolve  # noqa: E402
from transformers import modeling_gguf_pytorch_utils as loader  # noqa: E402

pytestmark = pytest.mark.torch

HIDDEN, FEED, HEADS, LAYERS = 32, 64, 4, 2
LETTERS = [chr(code) for code in range(0x21, 0x7F)] + ["\u0120"]  # letters that stand for bytes, as in GPT-2
MERGES = [f"{a} {b}" for a in LETTERS for b in LETTERS[:15]]  # more than gguf_file.LONG
TOKENS = ["<s>", "</s>", *LETTERS, *(merge.replace(" ", "") for merge in MERGES)]
PATCHED = [
    (gguf, "GGUFReader"),
    (gguf, "get_tensor_name_map"),
    (loader, "_gguf_parse_value"),
    (loader, "tqdm"),
]


def write(path, seed=0):
    """A small llama with random weights."""
    file = gguf.GGUFWriter(path, "llama")
    file.add_name("small")
    file.add_context_length(64)
    file.add_embedding_length(HIDDEN)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(FEED)
    file.add_head_count(HEADS)
    file.add_head_count_kv(HEADS)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(len(TOKENS))
    file.add_tokenizer_model("gpt2")
    file.add_token_list(TOKENS)
    file.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    file.add_token_merges(MERGES)
    file.add_bos_token_id(0)
    file.add_eos_token_id(1)
    random = np.random.default_rng(seed)
    square, up, down = (HIDDEN, HIDDEN), (FEED, HIDDEN), (HIDDEN, FEED)
    shapes = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
    for n in range(LAYERS):
        shapes |= {f"blk.{n}.{name}": square for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {f"blk.{n}.{name}": (HIDDEN,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{n}.ffn_gate": up, f"blk.{n}.ffn_up": up, f"blk.{n}.ffn_down": down}
    for name, shape in shapes.items():
        weights = random.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            file.add_tensor(f"{name}.weight", weights)
            continue
        kind = gguf.GGMLQuantizationType.Q8_0
        file.add_tensor(f"{name}.weight", gguf.quantize(weights, kind), raw_dtype=kind)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


@pytest.fixture
def source(tmp_path):
    return resolve(None, str(write(tmp_path / "small.gguf")))


@pytest.fixture
def opened(monkeypatch):
    """A list of the files parsed from here on."""
    seen = []

    class Counted(gguf.GGUFReader):
        def __init__(self, path, *mode):
            seen.append(path)
            super().__init__(path, *mode)

    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    return seen


def load_all(source):
    return [load(source) for load in (load_config, load_tokenizer, load_model)]


def as_values(config, tokenizer, model):
    weights = {name: weight.numpy().tobytes() for name, weight in model.state_dict().items()}
    text = "The ferry leaves at nine."
    words = (tokenizer.get_vocab(), tokenizer(text).input_ids, tokenizer.backend_tokenizer.to_str())
    return config.to_dict(), model.config.to_dict(), words, weights


def test_loaded_models_equal_those_of_plain_transformers_bit_for_bit(source):
    where = {"pretrained_model_name_or_path": source.location, "gguf_file": source.gguf_file}
    alone = as_values(
        transformers.AutoConfig.from_pretrained(**where),
        transformers.AutoTokenizer.from_pretrained(**where),
        transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32),
    )
    assert len(alone[2][1]) > 1 and len(alone[3]) > 9 * LAYERS
    assert as_values(*load_all(source)) == alone


def test_the_vocabulary_equals_that_of_plain_transformers(tmp_path):
    assert len(MERGES) > gguf_file.LONG
    path = write(tmp_path / "small.gguf")
    alone = loader.load_gguf_checkpoint(path)
    assert alone["tokenizer"]["merges"] == MERGES
    with gguf_file.read_once():
        assert loader.load_gguf_checkpoint(path) == alone
    gguf_file.forget()


def test_a_file_is_parsed_once_for_all_three_and_released(source, opened, capfd):
    own = [getattr(module, name) for module, name in PATCHED]
    load_all(source)
    assert len(opened) == 1
    assert gguf_file._kept == {}
    assert [getattr(module, name) for module, name in PATCHED] == own
    assert "GGUF tensors" not in capfd.readouterr().err  # no progress bar off a terminal


def test_a_rewritten_file_is_read_again(tmp_path, opened):
    path = tmp_path / "small.gguf"
    first = load_all(resolve(None, str(write(path))))
    load_config(resolve(None, str(path)))
    write(path, seed=1)
    os.utime(path, ns=(1, 1))
    second = load_all(resolve(None, str(path)))
    assert as_values(*first)[3] != as_values(*second)[3]
    assert len(opened) == 3


def test_a_release_without_these_names_is_not_patched(monkeypatch):
    for module, name in PATCHED:
        monkeypatch.delattr(module, name)
    with gguf_file.read_once():
        assert not any(hasattr(module, name) for module, name in PATCHED)
