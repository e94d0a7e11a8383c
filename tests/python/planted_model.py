"""A tiny Llama with one planted head, and its way from recording over replay to confirmation and
prediction."""

import json

import h5py
import numpy as np
import pandas as pd
import torch
import transformers
from front_door import confirm, record
from kvreplay.program import main as kvanalysis
from kvreplay_cli import kvreplay
from tiny_model_folder import folder_of

GROUP, KV_HEADS, DIM, HIDDEN, LAYERS = 2, 4, 8, 32, 3
PREFILL, TOKENS, SAMPLES = 64, 160, 32
START = 0  # id of the sink token, which occurs only once
SIZES = {
    "vocab_size": 64,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": GROUP * KV_HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "max_position_embeddings": 256,
    "attention_bias": True,
}


def random_model(seed=0):
    """A model with equal weights in every release of torch and transformers, and attention far from
    uniform."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).float().eval()
    normal = np.random.default_rng(seed).normal
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            drawn = torch.from_numpy(normal(scale=0.3, size=weights.shape))
            weights.copy_(1 + drawn if "norm" in name else drawn)
    return model


def columns_of(head):
    """The columns of the output projection that belong to the query heads of a kv head."""
    return slice(head * GROUP * DIM, (head + 1) * GROUP * DIM)


def ignore(model, layer, head):
    """Makes the model ignore the attention output of a kv head."""
    with torch.no_grad():
        model.model.layers[layer].self_attn.o_proj.weight[:, columns_of(head)] = 0


def plant_sink(model, layer, head):
    """Makes the queries of a kv head's group attend only to the start token, and scales their share of the
    output projection by 1.5.

    The last number of the residual stream marks that token: it is large there, and no layer writes to it. The
    slowest rotating dimension of the head's keys copies that number; the queries are constant there.
    """
    own, slow, logit, query = HIDDEN - 1, DIM // 2 - 1, 10.0, 4.0
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding[:, own] = 0
        embedding[START] = 0
        embedding[START, own] = 1000
        for block in model.model.layers:
            for written in (block.self_attn.o_proj.weight, block.self_attn.o_proj.bias):
                written[own] = 0
            block.mlp.down_proj.weight[own] = 0
        block = model.model.layers[layer]
        block.self_attn.o_proj.weight[:, columns_of(head)] *= 1.5
        q, k = block.self_attn.q_proj, block.self_attn.k_proj
        for first in range(head * GROUP * DIM, (head + 1) * GROUP * DIM, DIM):
            for numbers in (q.weight, q.bias):
                numbers[first : first + DIM] *= 0.3
            q.weight[first + slow], q.bias[first + slow] = 0, query
        k.weight[head * DIM + slow], k.bias[head * DIM + slow] = 0, 0
        # After the norm, the start token's last number is sqrt(HIDDEN) times the norm's weight.
        normed = HIDDEN**0.5 * block.input_layernorm.weight[own]
        k.weight[head * DIM + slow, own] = logit * DIM**0.5 / query / normed


def tokens_of(seed=0):
    """[TOKENS] ids: the start token, then random ones."""
    return [START, *np.random.default_rng(1000 + seed).integers(3, 64, TOKENS - 1).tolist()]


class Chain:
    """Runs the programs on one model and one text, all in `folder`."""

    def __init__(self, model, folder, seed=0):
        self.model = model
        self.ids = tokens_of(seed)
        self.trace, self.out = folder / "trace.h5", folder / "out"
        self.saved = folder_of(model, folder / "model")
        prompts = folder / "prompts.jsonl"
        prompts.write_text(json.dumps({"id": "p", "tokens": self.ids}))
        asked = ("--with-gradient", SAMPLES, "--gradient-from", PREFILL)
        self._run(record.main, "--model", self.saved, "--prompts", prompts, "-o", self.trace, *asked)

    def replay(self, methods, budgets, save=()):
        """Replays `methods` at `budgets` and predicts their losses; returns self for chained calls."""
        config = {
            "schema": 1,
            "name": "planted",
            "traces": [str(self.trace)],
            "replay": {"prefill": PREFILL},
            "methods": methods,
            "budget": {"tokens": budgets},
            "seeds": {"first": 0, "count": 1},
            "output": {"dir": str(self.out), "save": ["projections", *save]},
        }
        path = self.out.with_suffix(".yaml")
        path.write_text(json.dumps(config))
        done = kvreplay("run", path)
        assert done.returncode == 0, done.stderr
        return self

    def confirm(self, *words):
        self._run(confirm.main, self.out, "--model", self.saved, "--trace", self.trace, *words)
        return self

    def predicted(self):
        """The table of `kvreplay predict`."""
        self._run(kvanalysis, "predict", self.out)
        return pd.read_csv(self.out / "predicted.csv")

    def cells(self, **where):
        """Rows of results.csv, sorted by method, layer and kv head."""
        found = pd.read_csv(self.out / "results.csv").sort_values(["method", "layer", "kv_head"])
        for name, value in where.items():
            found = found[found[name] == value]
        return found

    def true_kl(self, cell, heads=range(GROUP), part=1.0):
        """The model's KL divergence in nats per token when `part` of a cell's replayed error is added to
        these query heads of the group."""
        projection = self.model.model.layers[cell.layer].self_attn.o_proj
        full = self._log_probs()
        handle = projection.register_forward_pre_hook(self._with_errors(cell, heads, part))
        try:
            disturbed = self._log_probs()
        finally:
            handle.remove()
        return float((full.exp() * (full - disturbed)).sum(-1).mean())

    def _with_errors(self, cell, heads, part):
        """Returns the hook of the output projection."""
        with h5py.File(self.out / "outputs.h5") as file:
            out, rows = torch.from_numpy(file[cell.key]["out"][()]), file[cell.key]["rows"][()]

        def hook(module, inputs):
            given = inputs[0].clone()
            of_heads = given.view(TOKENS, KV_HEADS, GROUP, DIM)[:, cell.kv_head]
            for head in heads:
                of_heads[rows, head] += part * (out[head] - of_heads[rows, head])
            return (given,)

        return hook

    def _log_probs(self):
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([self.ids]), use_cache=False).logits
        return logits[0, PREFILL:-1].double().log_softmax(-1)

    def products(self, cell):
        """[GROUP, rows, SAMPLES] from projections.h5, without the last token's row."""
        with h5py.File(self.out / "projections.h5") as file:
            return file[cell.key]["a"][:, :-1].astype(float)

    def _run(self, main, *words):
        code = main([str(word) for word in words])
        assert code == 0
