"""Writes the tables of docs/models.md: which decoders of transformers the recorder records.

usage: apps/tools/generate_models.py [--check] [NAME...]
Builds a tiny model of random weights of every decoder, generates with it, records and verifies it, with and
without a gradient. --check writes nothing and exits 1 if a model that the page lists as recorded is not.
With names, prints what these do.
"""

import contextlib
import io
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from kvbase.errors import KvreplayError
from kvrecord.recording import record_texts
from kvtrace.trace import Trace
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))

from tiny_models import PROMPT, SIZES  # noqa: E402

PAGE = ROOT / "docs/models.md"
MARK = "<!-- apps/tools/generate_models.py writes what follows -->"
GENERATED = 4
MOST_NUMBERS = 2e7  # weights; some configurations have parts that stay large
SMALL = {
    name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
}
USUAL = SIZES | {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": 2,
    "num_experts": 2,
    "n_routed_experts": 2,
    "moe_num_experts": 2,
    "num_experts_per_tok": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 8,
}
MIXED = {"num_hidden_layers": 4, "full_attention_interval": 2, "num_key_value_heads": 2}
STATES = {"mamba_num_heads": 8, "mamba_n_heads": 8, "mamba_head_dim": 8, "mamba_d_head": 8, "mamba_expand": 2}
KINDS = ["linear_attention", "full_attention"] * 2
# Configurations to try, in turn, until one builds a model that generates.
VARIANTS = (
    USUAL | LATENT | {"num_key_value_heads": 2},
    USUAL,
    USUAL | LATENT,
    USUAL | LATENT | {"head_dim": 16},
    USUAL | MIXED,
    USUAL | MIXED | {"layer_types": KINDS},
    USUAL | MIXED | STATES,
    USUAL | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64, "num_kv_shared_layers": 0},
    SMALL,
    {},
)


@dataclass
class Seen:
    """What a model did. outcome: recorded, unknown (its rotation), or refused."""

    name: str
    outcome: str = ""
    layers: str = ""
    rope: str = ""
    gradient: str = ""
    why: str = ""


def build(name):
    """A tiny model that generates; None if no variant of its configuration does."""
    for changes in VARIANTS:
        try:
            config = CONFIG_MAPPING[name](**changes)
            with torch.device("meta"):
                shape = transformers.AutoModelForCausalLM.from_config(config)
            if sum(p.numel() for p in shape.parameters()) > MOST_NUMBERS:
                continue
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
            disturb_norms(model)
            mask = torch.ones_like(PROMPT)
            with torch.no_grad():
                model.generate(PROMPT, attention_mask=mask, max_new_tokens=2, do_sample=False)
            return model
        except Exception:
            continue
    return None


def disturb_norms(model):
    """Weights of norms that are all 1 would hide a norm behind the rotation."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape))


def record(model, path, **options):
    """ "" or why it was refused."""
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            record_texts(model, PROMPT, path, generate=GENERATED, overwrite=True, **options)
    except KvreplayError as error:
        failed = [line for line in said.getvalue().splitlines() if "FAILED" in line and ": " in line]
        return failed[0].removeprefix("verify: prompt 0: ") if failed else str(error)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        return f"{type(error).__name__} inside the model"
    return ""


def try_out(name, folder):
    """Seen of one model, or None if no tiny one can be built."""
    model = build(name)
    if model is None:
        return None
    seen, path = Seen(name), Path(folder) / f"{name}.h5"
    why = record(model, path, verify=True)
    if why:
        seen.outcome, seen.why = "refused", why.replace(str(path), "trace")
        return seen
    trace = Trace(path)
    layers = [trace.layer(number) for number in trace.layers()]
    seen.layers = f"{len(layers)} of {trace.n_layers}"
    seen.outcome = "recorded" if all(layer.rope_recorded for layer in layers) else "unknown"
    seen.rope = ", ".join(dict.fromkeys(rope_of(layer) for layer in layers))
    refused = record(model, Path(folder) / "gradient.h5", gradient=1)
    seen.gradient = "no" if refused else "yes"
    return seen


def rope_of(layer):
    cached = " of a latent row" if layer.latent else ""
    if not layer.rope_recorded:
        return "unknown" + cached
    return f"{layer.rope['rotary_dims']} of {layer.head_dim} dims{cached}" if layer.rope else f"none{cached}"


def reason(seen):
    """Why a model is refused, without what belongs to one layer or class."""
    text = re.sub(r"^layers? [\d\[\], ]+[,:] ?", "", seen.why)
    text = re.sub(r"\w*(Attention|ForCausalLM|LMHeadModel)\b:? ?", "", text)
    text = re.sub(r"off by [\d.e+-]+", "off", text)
    text = re.sub(r"^.* FAILED: ", "", text)
    return re.split(r"; leave| \(Falcon|: use|: record", text)[0].strip()


def page_of(every):
    """The generated part of the page."""
    tables = [
        f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}; CPU, float32.",
        "",
    ]
    good = [s for s in every if s and s.outcome in ("recorded", "unknown")]
    tables += [f"## Recorded and verified: {len(good)}", "", "| model type | layers | rotation | gradient |"]
    tables += ["|---|---|---|---|"]
    tables += [f"| `{s.name}` | {s.layers} | {s.rope} | {s.gradient} |" for s in good]
    refused = {}
    for seen in every:
        if seen and seen.outcome == "refused":
            refused.setdefault(reason(seen), []).append(f"`{seen.name}`")
    tables += [
        "",
        f"## Refused: {sum(map(len, refused.values()))}",
        "",
        "| reason | model types |",
        "|---|---|",
    ]
    tables += [f"| {why} | {', '.join(names)} |" for why, names in sorted(refused.items())]
    return "\n".join(tables) + "\n"


def main(words):
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    names = [word for word in words if not word.startswith("--")]
    with tempfile.TemporaryDirectory() as folder:
        every = [try_out(name, folder) for name in names or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)]
    if names:
        print("\n".join(map(str, every)))
        return 0
    text = PAGE.read_text()
    if "--check" in words:
        held = set(re.findall(r"^\| `(\w+)` \| \d", text, re.M))
        lost = sorted(held - {s.name for s in every if s and s.outcome in ("recorded", "unknown")})
        print(f"no longer recorded: {', '.join(lost)}" if lost else "up to date")
        return bool(lost)
    PAGE.write_text(text.partition(MARK)[0] + MARK + "\n\n" + page_of(every))
    print(f"{PAGE.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
