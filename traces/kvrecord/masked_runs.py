"""Masked runs: the model's loss when tokens are hidden, to calibrate the recorded gradient.

A gradient predicts the loss of a small error, to second order. Errors of compressed caches are not small:
they reach the next layer, and the loss saturates. Each run hides most of the prompt's tokens at random, in
every layer and kv head. It records the actual loss (KL divergence of the predictions) and the gradient's
estimate for the same masks (products of the gradient with the errors at the undisturbed inputs).
"""

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

from .answer import RECENT, SINKS, AnswerUnderMasks, needle_masks
from .hook import layer_of
from .labels import uniforms

CHUNK_ROWS = 256  # rows of logits that are compared at a time


@dataclass(frozen=True)
class Mask:
    """Rows after the prompt see its first `sinks` and last `recent` tokens, every other token of it with
    probability `share`, and every token after it. Each kv head draws its own tokens; if `shared`, all heads
    of all layers hide the same tokens, so that no head can compensate for another."""

    share: float
    sinks: int
    recent: int
    shared: bool = False

    def shown(self, scored, layer, n_heads, n_tokens):
        """bool [Hkv, n]: tokens that each kv head of a layer shows. A larger share shows a superset."""
        whose = "all" if self.shared else layer
        numbers = 1 if self.shared else n_heads
        drawn = uniforms(scored.seed, f"{scored.prompt_id}\0masked\0{whose}", numbers, range(scored.start))
        shown = torch.ones(n_heads, n_tokens, dtype=torch.bool)
        shown[:, : scored.start] = torch.from_numpy(drawn < self.share)
        shown[:, : self.sinks] = True
        shown[:, max(scored.start - self.recent, 0) : scored.start] |= self.recent > 0
        return shown

    def said(self):
        """What a trace says about the mask."""
        return asdict(self)


# From mild to severe. A model is disturbed far more without sinks, or if all heads hide the same tokens.
MASKS = (
    Mask(1 / 2, SINKS, RECENT),
    Mask(1 / 4, SINKS, RECENT),
    Mask(1 / 32, SINKS, RECENT),
    Mask(1 / 32, 0, 0),
    Mask(1 / 2, SINKS, RECENT, shared=True),
    Mask(1 / 4, SINKS, RECENT, shared=True),
    Mask(1 / 32, SINKS, RECENT, shared=True),
)


class MaskedRuns:
    """The masked runs of one prompt: under MASKS, and of an answer also under `needle_masks`. Rows from
    `scored.start` on are disturbed and scored. `general` (slice): which masks are MASKS. `answer`:
    AnswerUnderMasks, or None without an answer.

    `kl_rows` float32 [masks, rows]: divergence of each scored row's prediction, in nats.
    `a` float32 [masks, rows, S]: sum over layers and query heads of <g_s, z - out>, where z is the masked
    output. `distance2` float32 [masks, rows]: mean over layers and query heads of the squared cosine distance
    of z and out. `look` and `add` collect both layer by layer.
    """

    def __init__(self, scored):
        self.scored = scored
        has_answer = scored.answer_from is not None
        self.masks = MASKS + (needle_masks(scored) if has_answer else ())
        self.general = slice(len(MASKS))
        self.answer = AnswerUnderMasks(scored, len(self.masks)) if has_answer else None
        self.errors = {}
        n_rows, n_masks = scored.n_rows, len(self.masks)
        self.a = np.zeros((n_masks, n_rows, scored.n_samples), dtype=np.float32)
        self.kl_rows = np.zeros((n_masks, n_rows), dtype=np.float32)
        self._distances = np.zeros((n_masks, n_rows))
        self._heads = 0

    @property
    def kl(self):
        """float32 [masks]: mean divergence over the scored rows, in nats per token."""
        return self.kl_rows.mean(axis=1, dtype=np.float64).astype(np.float32)

    def look(self, call, output):
        """Stores how each mask changes a call's attention output [1, rows, Hq, Dv] at the call's inputs."""
        rows = slice(self.scored.start - call.first, self.scored.end - call.first)
        with torch.no_grad():
            out = output[0, rows].float()
            masked = torch.stack([call.behind(self.scored, mask)[: len(out)].float() for mask in self.masks])
            self.errors[call.layer] = masked - out
            distance = 1 - torch.nn.functional.cosine_similarity(masked, out[None], dim=-1)
            self._distances += distance.square().sum(-1, dtype=torch.float64).cpu().numpy()
            self._heads += out.shape[1]

    @property
    def distance2(self):
        """float32 [masks, rows]: mean squared cosine distance, see the class."""
        return (self._distances / max(self._heads, 1)).astype(np.float32)

    def add(self, layer, g):
        """Adds the products with gradients g [losses, Hq, rows, Dv] of a layer that `look` has seen."""
        errors = self.errors.pop(layer)
        self.a += torch.einsum("shtd,mthd->mts", g[: self.scored.n_samples].float(), errors).cpu().numpy()
        if self.answer:
            self.answer.add(g[-1], errors.transpose(1, 2))

    def run(self, chain, log_probs, full):
        """Fills `kl_rows` and `answer`: runs the rows of `chain` from scored.start on under each mask and
        compares them with `full`, the log-probabilities [rows, vocabulary] without a mask. log_probs(stream
        [1, rows, hidden]) computes the masked ones."""
        rows = slice(self.scored.start - chain.first, self.scored.end - chain.first)
        with torch.no_grad():
            for number, mask in enumerate(self.masks):
                last = chain.last_block_with(partial(self._masked, mask))
                masked = log_probs(last[:, rows])
                self.kl_rows[number] = _row_kl(full, masked)
                if self.answer:
                    self.answer.compare(number, masked, full, chain.ids[0, self.scored.start + 1 :])

    def _masked(self, mask, call):
        """Output [1, rows, Hq, Dv] of a call under a mask."""
        parts = [call.before(self.scored)] if self.scored.start > call.first else []
        return torch.cat([*parts, call.behind(self.scored, mask)])[None]


def _row_kl(full, other):
    parts = zip(full.split(CHUNK_ROWS), other.split(CHUNK_ROWS), strict=True)
    rows = [(p.exp() * (p - q)).nan_to_num().sum(-1, dtype=torch.float64) for p, q in parts]
    return torch.cat(rows).cpu().numpy()


@dataclass(frozen=True)
class Call:
    """One attention call with the arguments of NamedAttention.attend: queries of the rows from `first` on,
    keys and values of the whole sequence."""

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

    @property
    def first(self):
        """Index of the first query row in the sequence."""
        return self.key.shape[2] - self.query.shape[2]

    def output(self):
        """The call's attention output [1, rows, Hq, Dv]."""
        # Without a mask, implementations apply a causal rule that assumes that the first query is row 0.
        mask = self.attention_mask
        return self._attend(self.query, self._bias(self._seen(0)) if mask is None and self.first else mask)

    def before(self, scored):
        """Outputs [start - first, Hq, Dv] of the rows before scored.start, which no mask affects."""
        count = scored.start - self.first
        mask = None if self.attention_mask is None else self.attention_mask[:, :, :count, : scored.start]
        rows = self.query[:, :, :count], self.key[:, :, : scored.start], self.value[:, :, : scored.start]
        return self.own(self.module, *rows, mask, scaling=self.scaling, **self.options)[0][0]

    def behind(self, scored, mask):
        """Outputs [n - start, Hq, Dv] of the rows from scored.start on, under `mask`."""
        skipped, n_tokens = scored.start - self.first, self.key.shape[2]
        seen = self._seen(skipped)
        shown = mask.shown(scored, self.layer, self.key.shape[1], n_tokens).to(seen.device)
        heads = shown.repeat_interleave(self.query.shape[1] // self.key.shape[1], 0)
        return self._attend(self.query[:, :, skipped:], self._bias(seen & heads[None, :, None]))[0]

    def _attend(self, query, mask):
        return self.own(self.module, query, self.key, self.value, mask, scaling=self.scaling, **self.options)[
            0
        ]

    def _bias(self, seen):
        least = torch.finfo(self.query.dtype).min
        return torch.zeros_like(seen, dtype=self.query.dtype).masked_fill_(~seen, least)

    def _seen(self, skipped):
        """bool [1, 1, rows - skipped, n]: the layer's mask for its rows from `skipped` on."""
        mask, n_tokens = self.attention_mask, self.key.shape[2]
        if mask is None:
            rows = self.first + skipped
            ones = torch.ones(n_tokens - rows, n_tokens, dtype=torch.bool, device=self.key.device)
            return ones.tril(rows)[None, None]
        rows = mask[:, :, skipped:, :n_tokens]
        return rows if rows.dtype == torch.bool else rows > torch.finfo(rows.dtype).min / 2
