"""What hiding tokens costs the model: a few runs that put a scale to the recorded gradient.

A gradient tells the loss of a small error, to second order. Errors of compressed caches are not small: those
of a layer reach the next one, and a model can only be so wrong. Each run hides most of the prompt's tokens at
random, in every layer and kv head, and records both what it really costs (KL divergence of the predictions)
and what the gradient says of the same masks (its products with the errors at the undisturbed inputs).
"""

from dataclasses import dataclass

import numpy as np
import torch

from .hook import NamedAttention, layer_of
from .labels import uniforms

CHUNK_ROWS = 256  # of logits that are compared at a time


@dataclass(frozen=True)
class Mask:
    """Of the prompt, rows behind it see its first `sinks` and last `recent` tokens, and each other one with
    probability `share`. Tokens behind the prompt are seen."""

    share: float
    sinks: int
    recent: int


# From mild to severe; without sinks a model is disturbed far more. Six predict no better than these four.
MASKS = (
    Mask(1 / 2, 4, 32),
    Mask(1 / 4, 4, 32),
    Mask(1 / 32, 4, 32),
    Mask(1 / 32, 0, 0),
)


class MaskedRuns:
    """The runs of one prompt, whose rows from `scored.start` on are disturbed and scored.

    `kl` float32 [masks]: mean over the scored rows, nats a token. `a` float32 [masks, rows, S]: sums over
    layers and query heads of <g_s, z - out>, which `look` and `add` collect layer by layer.
    """

    def __init__(self, scored):
        self.scored = scored
        self.masks = MASKS
        self.errors = {}
        self.a = np.zeros((len(MASKS), scored.end - scored.start, scored.n_samples), dtype=np.float32)
        self.kl = np.zeros(len(MASKS), dtype=np.float32)

    def look(self, call, output):
        """Notes what each mask would change in a call's attention output [1, n, Hq, Dv] at its inputs."""
        rows = slice(self.scored.start, self.scored.end)
        with torch.no_grad():
            out = output[0, rows].float()
            self.errors[call.layer] = torch.stack(
                [call.behind(self.scored, mask)[: len(out)].float() - out for mask in self.masks]
            )

    def add(self, layer, g):
        """Gradients g [S, Hq, rows, Dv] of a layer that was looked at."""
        errors = self.errors.pop(layer)
        self.a += torch.einsum("shtd,mthd->mts", g.float(), errors).cpu().numpy()

    def run(self, model, ids, full, positions=None):
        """Fills `kl`: the model once under each mask, against what it predicts without, `full` [rows,
        vocabulary]: log-probabilities."""
        where = {} if positions is None else {"position_ids": positions}
        kept = ids.shape[1] - self.scored.start

        def log_probs():
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=kept, **where).logits[0, :-1]
            return logits.float().log_softmax(-1)

        with torch.no_grad():
            for number, mask in enumerate(self.masks):
                with MaskedAttention(model, self.scored, mask):
                    self.kl[number] = _mean_kl(full, log_probs())


def _mean_kl(full, other):
    total = 0.0
    for p, q in zip(full.split(CHUNK_ROWS), other.split(CHUNK_ROWS), strict=True):
        total += float((p.exp() * (p - q)).nan_to_num().sum(dtype=torch.float64))
    return total / len(full)


@dataclass(frozen=True)
class Call:
    """One attention call on a whole sequence, as NamedAttention.attend has it."""

    own: object
    module: object
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attention_mask: torch.Tensor | None
    scaling: float | None
    options: dict

    @property
    def layer(self):
        return layer_of(self.module)

    def before(self, scored):
        """[start, Hq, Dv]: what the rows before scored.start see; they come before whatever is masked."""
        end = scored.start
        mask = None if self.attention_mask is None else self.attention_mask[:, :, :end, :end]
        rows = (x[:, :, :end] for x in (self.query, self.key, self.value))
        return self.own(self.module, *rows, mask, scaling=self.scaling, **self.options)[0][0]

    def behind(self, scored, mask):
        """[n - start, Hq, Dv]: what the rows from scored.start on see under `mask`."""
        start, n_tokens = scored.start, self.key.shape[2]
        seen = self._seen(start)
        shown = shown_tokens(scored, mask, self.layer, self.key.shape[1], n_tokens).to(seen.device)
        heads = shown.repeat_interleave(self.query.shape[1] // self.key.shape[1], 0)
        least = torch.finfo(self.query.dtype).min
        bias = torch.where(seen & heads[None, :, None], 0.0, least).to(self.query.dtype)
        rows = self.query[:, :, start:]
        return self.own(self.module, rows, self.key, self.value, bias, scaling=self.scaling, **self.options)[
            0
        ][0]

    def _seen(self, start):
        """bool [1, 1, n - start, n]: the layer's own mask."""
        mask, n_tokens = self.attention_mask, self.key.shape[2]
        if mask is None:
            return torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=self.key.device).tril()[
                None, None, start:
            ]
        rows = mask[:, :, start:, :n_tokens]
        return rows if rows.dtype == torch.bool else rows > torch.finfo(rows.dtype).min / 2


class MaskedAttention(NamedAttention):
    """While it is entered, rows from scored.start on see what `mask` shows."""

    def __init__(self, model, scored, mask):
        super().__init__(model)
        self.scored = scored
        self.mask = mask

    def attend(self, own, module, query, key, value, attention_mask, scaling=None, **kwargs):
        call = Call(own, module, query, key, value, attention_mask, scaling, kwargs)
        parts = [call.before(self.scored)] if self.scored.start else []
        return torch.cat([*parts, call.behind(self.scored, self.mask)])[None], None


def shown_tokens(scored, mask, layer, n_heads, n_tokens):
    """bool [Hkv, n]: what each kv head of a layer shows; a larger share shows what a smaller one does."""
    drawn = uniforms(scored.seed, f"{scored.prompt_id}\0masked\0{layer}", n_heads, range(scored.start))
    shown = torch.ones(n_heads, n_tokens, dtype=torch.bool)
    shown[:, : scored.start] = torch.from_numpy(drawn < mask.share)
    shown[:, : mask.sinks] = True
    shown[:, max(scored.start - mask.recent, 0) : scored.start] |= mask.recent > 0
    return shown
