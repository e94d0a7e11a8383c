"""Tiny random models of many architectures, and the expected contents of their traces, written by hand."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import transformers

# Threads do not speed up tiny tensors, and they slow them down where cores are shared.
torch.set_num_threads(1)

PROMPT = torch.tensor([[(7 * i * i + 3 * i + 5) % 61 + 3 for i in range(24)]])
GENERATED = 5
VOCABULARY = 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
# Latent attention, as in DeepSeek V2 and V3: 4 heads of keys 12 + 8 and values 10 share latents of 24.
LATENT_SIZES = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "max_position_embeddings": 256,
}
RELEASE = tuple(int(part) for part in transformers.__version__.split(".")[:2])


@dataclass
class Rope:
    """One rotary table: `dims` leading dims of a head rotate."""

    theta: float
    dims: int
    layout: str = "half_split"
    type: str = "default"
    attention_factor: float = 1.0
    inv_freq: np.ndarray | None = None

    def __post_init__(self):
        if self.inv_freq is None:
            self.inv_freq = self.theta ** (-2.0 * np.arange(self.dims // 2) / self.dims)


@dataclass
class Layer:
    """Expected facts of one layer in a trace; heads = (Hq, Hkv, D, Dv)."""

    heads: tuple
    scaling: float
    rope: Rope | None = None
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: bool = False
    q_prescaled: bool = False


@dataclass
class Architecture:
    """A model, by the prefix of its configuration class, and {layer: Layer} of its recorded layers."""

    prefix: str
    layers: dict
    config: dict = field(default_factory=dict)
    gated: bool = False  # the output is multiplied by a gate before it is projected
    since: tuple = (0, 0)  # the release of transformers from which `layers` holds
    before: str = ""  # description of older releases

    def build(self, seed=0):
        """The model with random weights, in float32 and eval mode; skips if the release is too old."""
        if self.since > RELEASE:
            pytest.skip(f"{self.prefix} of transformers {transformers.__version__} {self.before}")
        return build(self.prefix, seed, **self.config)


def config_class(prefix):
    """The configuration class with this prefix; skips if the release has none."""
    found = getattr(transformers, prefix + "Config", None)
    if found is None:
        pytest.skip(f"transformers {transformers.__version__} has no {prefix}")
    return found


def spelled(changes):
    """Changes of a configuration in the spelling of this release: before transformers 5 the facts of a rotary
    table were in `rope_theta`, `partial_rotary_factor` and `rope_scaling`."""
    if RELEASE >= (5, 0) or "rope_parameters" not in changes:
        return changes
    scaling = dict(changes["rope_parameters"])
    rest = {name: value for name, value in changes.items() if name != "rope_parameters"}
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in scaling:
            rest[name] = scaling.pop(name)
    return rest | ({"rope_scaling": scaling} if scaling["rope_type"] != "default" else {})


def build(prefix, seed=0, **changes):
    """A tiny model with attention far from uniform, in which biases, norms and sinks all have an effect."""
    torch.manual_seed(seed)
    config = config_class(prefix)(**SIZES | spelled(changes))
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.copy_(1 + torch.randn(parameter.shape))
            elif parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


def yarn(theta, dims, factor, original_positions, beta_fast, beta_slow):
    """YaRN's table without truncation: slow pairs are interpolated, fast pairs kept, with a ramp in
    between."""
    pairs = np.arange(dims // 2)
    own = theta ** (-2.0 * pairs / dims)

    def pair_that_turns(times):
        return dims * math.log(original_positions / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(pair_that_turns(beta_fast), 0), min(pair_that_turns(beta_slow), dims - 1)
    interpolated = np.clip((pairs - low) / (high - low), 0, 1)
    inv_freq = own * (1 - interpolated) + own / factor * interpolated
    return Rope(theta, dims, "half_split", "yarn", 0.1 * math.log(factor) + 1, inv_freq)


GEMMA3_LOCAL, GEMMA3_GLOBAL = Rope(1e4, 8), Rope(1e6, 8)
MIMO_LOCAL, MIMO_GLOBAL = Rope(1e4, 4), Rope(5e6, 4)
GPT_OSS = yarn(1.5e5, 16, 4.0, 64, 32.0, 1.0)
WINDOWED, GLOBAL = "sliding_attention", "full_attention"

ARCHITECTURES = {
    "llama": Architecture(
        "Llama",
        {0: Layer((8, 1, 4, 4), 0.5, Rope(5e4, 4)), 1: Layer((8, 1, 4, 4), 0.5, Rope(5e4, 4))},
        {
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
        },
    ),
    "qwen3, norms of q and k": Architecture(
        "Qwen3",
        {i: Layer((4, 2, 16, 16), 0.25, Rope(1e4, 16)) for i in (0, 1)},
        {"num_key_value_heads": 2, "head_dim": 16},
    ),
    "mistral, windows": Architecture(
        "Mistral",
        {i: Layer((4, 4, 8, 8), 8**-0.5, Rope(1e4, 8), window=5) for i in (0, 1)},
        {"num_key_value_heads": 4, "head_dim": 8, "sliding_window": 5},
    ),
    "gemma 2, softcap and own scale": Architecture(
        "Gemma2",
        {
            0: Layer((8, 2, 8, 8), 0.2, Rope(1e4, 8), window=6, softcap=2.0),
            1: Layer((8, 2, 8, 8), 0.2, Rope(1e4, 8), softcap=2.0),
        },
        {
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "query_pre_attn_scalar": 25,
            "attn_logit_softcapping": 2.0,
            "sliding_window": 6,
            "layer_types": [WINDOWED, GLOBAL],
        },
    ),
    "gemma 3, two thetas": Architecture(
        "Gemma3Text",
        {
            0: Layer((4, 2, 8, 8), 0.25, GEMMA3_LOCAL, window=6),
            1: Layer((4, 2, 8, 8), 0.25, GEMMA3_GLOBAL),
            2: Layer((4, 2, 8, 8), 0.25, GEMMA3_LOCAL, window=6),
        },
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "query_pre_attn_scalar": 16,
            "sliding_window": 6,
            "layer_types": [WINDOWED, GLOBAL, WINDOWED],
        },
    ),
    "phi, partial rotation, parallel blocks": Architecture(
        "Phi",
        {i: Layer((4, 2, 8, 8), 8**-0.5, Rope(1e4, 4)) for i in (0, 1)},
        {"num_key_value_heads": 2, "partial_rotary_factor": 0.5},
    ),
    "gpt-neox, parallel blocks": Architecture(
        "GPTNeoX",
        {i: Layer((4, 4, 8, 8), 8**-0.5, Rope(1e4, 4)) for i in (0, 1)},
        {"rotary_pct": 0.5, "use_parallel_residual": True},
    ),
    "gpt-neox, sequential blocks": Architecture(
        "GPTNeoX",
        {i: Layer((4, 4, 8, 8), 8**-0.5, Rope(1e4, 2)) for i in (0, 1)},
        {"rotary_pct": 0.25, "use_parallel_residual": False},
    ),
    "gpt-j, neighbours rotate by a table of sines, parallel blocks": Architecture(
        "GPTJ",
        {i: Layer((4, 4, 8, 8), 8**-0.5, Rope(1e4, 4, "interleaved")) for i in (0, 1)},
        {"rotary_dim": 4},
        since=(5, 24),
        before="never calls the attention interface",
    ),
    "gpt-2, no rotation": Architecture("GPT2", {i: Layer((4, 4, 8, 8), 8**-0.5) for i in (0, 1)}),
    "gpt-2, scales that shrink with the layer": Architecture(
        "GPT2",
        {0: Layer((4, 4, 8, 8), 8**-0.5), 1: Layer((4, 4, 8, 8), 8**-0.5 / 2)},
        {"scale_attn_by_inverse_layer_idx": True},
        since=(5, 5),
        before="leaves the layer's factor out in sdpa",
    ),
    "opt, queries scaled before": Architecture(
        "OPT",
        {i: Layer((4, 4, 8, 8), 1.0, q_prescaled=True) for i in (0, 1)},
        {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3},
    ),
    "opt, norms after the sums": Architecture(
        "OPT",
        {i: Layer((4, 4, 8, 8), 1.0, q_prescaled=True) for i in (0, 1)},
        {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3, "do_layer_norm_before": False},
    ),
    "smollm3, layers without rotation": Architecture(
        "SmolLM3",
        {
            0: Layer((4, 2, 8, 8), 8**-0.5, Rope(2e6, 8)),
            1: Layer((4, 2, 8, 8), 8**-0.5),
            2: Layer((4, 2, 8, 8), 8**-0.5, Rope(2e6, 8)),
        },
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "no_rope_layers": [1, 0, 1],
            "layer_types": [GLOBAL] * 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 2e6},
        },
    ),
    "gpt-oss, sinks and yarn": Architecture(
        "GptOss",
        {
            0: Layer((4, 2, 16, 16), 0.25, GPT_OSS, window=6, sinks=True),
            1: Layer((4, 2, 16, 16), 0.25, GPT_OSS, sinks=True),
        },
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": 6,
            "num_local_experts": 3,
            "num_experts_per_tok": 2,
            "layer_types": [WINDOWED, GLOBAL],
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1.5e5,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3-next, one attention layer of four": Architecture(
        "Qwen3Next",
        {3: Layer((4, 1, 16, 16), 0.25, Rope(1e4, 4))},
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.25,
            },
        },
        gated=True,
    ),
    "cohere 2, neighbours rotate, parallel blocks": Architecture(
        "Cohere2",
        {
            0: Layer((4, 2, 8, 8), 8**-0.5, Rope(1e4, 8, "interleaved"), window=6),
            1: Layer((4, 2, 8, 8), 8**-0.5),
        },
        {"num_key_value_heads": 2, "sliding_window": 6, "layer_types": [WINDOWED, GLOBAL]},
    ),
    "llama 4, chunks": Architecture(
        "Llama4Text",
        {
            0: Layer((4, 2, 8, 8), 8**-0.5, Rope(5e5, 8, "interleaved"), chunk=7),
            1: Layer((4, 2, 8, 8), 8**-0.5),
        },
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_local_experts": 2,
            "intermediate_size_mlp": 48,
            "attention_chunk_size": 7,
            "no_rope_layers": [1, 0],
            "layer_types": ["chunked_attention", GLOBAL],
        },
    ),
    "mimo, narrow values": Architecture(
        "MiMoV2Flash",
        {
            0: Layer((4, 1, 12, 8), 12**-0.5, MIMO_GLOBAL),
            1: Layer((4, 2, 12, 8), 12**-0.5, MIMO_LOCAL, window=6, sinks=True),
        },
        {
            "num_key_value_heads": 1,
            "head_dim": 12,
            "v_head_dim": 8,
            "sliding_window": 6,
            "layer_types": [GLOBAL, WINDOWED],
            "mlp_layer_types": ["dense", "dense"],
        },
    ),
    "granite, multipliers": Architecture(
        "Granite",
        {i: Layer((4, 2, 8, 8), 0.2, Rope(1e4, 8)) for i in (0, 1)},
        {"num_key_value_heads": 2, "attention_multiplier": 0.2, "residual_multiplier": 0.6},
    ),
    "starcoder 2, biases and windows": Architecture(
        "Starcoder2",
        {i: Layer((8, 1, 4, 4), 0.5, Rope(1e4, 4), window=7) for i in (0, 1)},
        {"num_attention_heads": 8, "num_key_value_heads": 1, "sliding_window": 7, "use_bias": True},
    ),
    "qwen2-moe": Architecture(
        "Qwen2Moe",
        {i: Layer((4, 2, 8, 8), 8**-0.5, Rope(1e4, 8)) for i in (0, 1)},
        {
            "num_key_value_heads": 2,
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        since=(5, 0),
        before="never calls the attention interface",
    ),
    "olmo 2, norm behind the attention": Architecture(
        "Olmo2",
        {i: Layer((4, 2, 8, 8), 8**-0.5, Rope(1e4, 8)) for i in (0, 1)},
        {"num_key_value_heads": 2},
    ),
}

# These never call the attention interface of transformers (GPT-J: before 5.24).
SILENT = {
    "Bloom": {"n_layer": 2, "n_head": 4},
    "Falcon": {},
    "GPTJ": {"rotary_dim": 4},
    "Mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4},
}


def silent(prefix):
    """The configuration of a model in SILENT; skips if the release calls the interface."""
    if prefix == "GPTJ" and RELEASE >= (5, 24):
        pytest.skip("GPTJ calls the attention interface from 5.24 on")
    return SILENT[prefix]


def every_architecture(*left_out):
    """Names for pytest.mark.parametrize."""
    return [name for name in ARCHITECTURES if name not in left_out]


def generate(model, n=GENERATED, ids=PROMPT, **options):
    """[1, T + n] ids: the prompt and n greedy tokens."""
    mask = torch.ones_like(ids)
    return model.generate(
        ids, attention_mask=mask, max_new_tokens=n, min_new_tokens=n, do_sample=False, **options
    )


def logits(model, ids=PROMPT):
    """Logits of one prefill."""
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits
