"""A prompt's recorded answer: what masks of the prompt do to it, and masks that hide what it needs."""

from dataclasses import dataclass

import numpy as np
import torch

from .labels import uniforms

# Tokens that masks leave visible unless they say otherwise: the first ones, and the last ones of the prompt.
SINKS, RECENT = 4, 32


@dataclass(frozen=True)
class Hidden:
    """Rows after the prompt see every token but `tokens`, in all heads and layers. `hides`: what they are."""

    hides: str
    tokens: tuple[int, ...]

    def shown(self, scored, layer, n_heads, n_tokens):
        """bool [Hkv, n]: tokens that each kv head of a layer shows."""
        shown = torch.ones(n_heads, n_tokens, dtype=torch.bool)
        shown[:, list(self.tokens)] = False
        return shown

    def said(self):
        """What a trace says about the mask."""
        return {"hides": self.hides, "tokens": len(self.tokens)}


def needle_masks(scored):
    """A mask that hides the needles of a prompt, and one that hides as many of its other tokens, but no sinks
    and none of its last tokens. None of them without needles."""
    needle = {token for begin, end in scored.needles for token in range(begin, min(end, scored.start))}
    if not needle:
        return ()
    others = np.array([t for t in range(SINKS, scored.start - RECENT) if t not in needle], dtype=int)
    numbers = uniforms(scored.seed, f"{scored.prompt_id}\0masked\0others", 1, others)[0]
    drawn = others[np.argsort(numbers, kind="stable")[: len(needle)]]
    return Hidden("needle", tuple(sorted(needle))), Hidden("others", tuple(sorted(drawn.tolist())))


class AnswerUnderMasks:
    """How masks change an answer, against the model without a mask.

    For each mask: `change` float64, of the log-probability of the answer in nats; `exact` uint8, whether the
    model would say every token of the answer after those before it; `a` float64, the first-order change of
    its log-odds: the sum over layers, query heads and rows of <g, z - out>, g the answer's gradient.
    """

    def __init__(self, scored, n_masks):
        self.rows = scored.answer_rows
        self.change = np.zeros(n_masks)
        self.exact = np.zeros(n_masks, dtype=np.uint8)
        self.a = np.zeros(n_masks)

    def compare(self, number, masked, full, labels):
        """Log-probabilities [rows, vocabulary] under mask `number` and without it; labels [rows]."""
        sums = [rows[self.rows].gather(1, labels[self.rows, None]).double().sum() for rows in (masked, full)]
        self.change[number] = float(sums[0] - sums[1])
        self.exact[number] = bool((masked[self.rows].argmax(-1) == labels[self.rows]).all())

    def add(self, g, errors):
        """Adds a layer: gradient g [Hq, rows, Dv] and the errors [masks, Hq, rows, Dv]."""
        self.a += torch.einsum("htd,mhtd->m", g.float(), errors).double().cpu().numpy()
