"""Greedy generation of several answers at once, each over what its method holds of one prompt.

The prompt has been read before, by the full model. The question's tokens come next, as they were recorded;
then the model writes. The model's own cache is not used: each layer's attention holds the rows.
"""

from dataclasses import dataclass, field

import torch
from kvbase.errors import KvreplayError


@dataclass(frozen=True)
class Start:
    """Where the answers begin: the tokens that follow the prompt, int64 [Q], Q >= 1, and the position of the
    first of these."""

    question: torch.Tensor
    position: int


@dataclass
class Written:
    """One answer: the tokens that the model wrote, without the one that ended it; `failure`: why there is
    none. first_logits [vocabulary]: those of its first token."""

    tokens: list = field(default_factory=list)
    failure: str = ""
    first_logits: torch.Tensor | None = None


class Masked:
    """Rows of n answers whose prompt was cut once. layers: {layer: KeptPrompt}."""

    def __init__(self, layers, n):
        self.layers, self.n = layers, n
        self.failures = {}  # {number of an answer: why it ends}

    def attend(self, layer, q, k, v, rule):
        """Outputs [n, Hq, R, Dv] of a layer's new rows."""
        return self.layers[layer].attend(q, k, v, rule)

    def only(self, answers):
        """Drops the answers that are not in this index."""
        self.n = len(answers)
        for rows in self.layers.values():
            rows.only(answers)


class Stepped:
    """Rows of answers whose methods go on: the engine decides and attends for them, token by token.

    steps: for each answer a kvreplay.Stepping of the compressed layers; others: {layer: KeptPrompt} of the
    rest.
    """

    def __init__(self, steps, others):
        self.steps, self.others, self.n = steps, others, len(steps)
        self.alive = list(range(self.n))
        self.failures = {}

    def attend(self, layer, q, k, v, rule):
        """Outputs [n, Hq, R, Dv] of a layer's new rows."""
        if layer in self.others:
            return self.others[layer].attend(q, k, v, rule)
        return torch.stack([self._of_answer(i, layer, q[i], k[i], v[i]) for i in range(self.n)])

    def _of_answer(self, i, layer, q, k, v):
        number = self.alive[i]
        if number not in self.failures:
            rows = (x.float().cpu() for x in (q, k, v))
            try:
                return torch.from_numpy(self.steps[number].step(layer, *rows)).to(q.device, q.dtype)
            except KvreplayError as error:
                self.failures[number] = str(error)
        return q.new_zeros(*q.shape[:-1], v.shape[-1])

    def only(self, answers):
        """Drops the answers that are not in this index."""
        self.alive = [self.alive[i] for i in answers.tolist()]
        self.n = len(self.alive)
        for rows in self.others.values():
            rows.only(answers)


def write(model, attention, rows, start, limit, stops):
    """[Written] of the answers whose attention is `rows` (Masked or Stepped): at most `limit` tokens each,
    ended by one of `stops`. attention: the model's SwitchedAttention."""
    found = [Written() for _ in range(rows.n)]
    alive = list(range(rows.n))
    ids = start.question[None].expand(rows.n, -1).to(model.device)
    position = start.position
    attention.answers = rows.attend
    try:
        for step in range(limit):
            logits = _next_logits(model, ids, position)
            position += ids.shape[1]
            chosen = logits.argmax(-1)
            goes_on = []
            for i, number in enumerate(alive):
                one = found[number]
                if step == 0:
                    one.first_logits = logits[i]
                if number in rows.failures:
                    one.failure = rows.failures[number]
                elif not bool(logits[i].isfinite().all()):
                    one.failure = "the compressed model's logits are not finite"
                elif int(chosen[i]) not in stops:
                    one.tokens.append(int(chosen[i]))
                    goes_on.append(i)
            if not goes_on:
                break
            if len(goes_on) < len(alive):
                rows.only(torch.tensor(goes_on, device=model.device))
                alive = [alive[i] for i in goes_on]
            ids = chosen[goes_on][:, None]
    finally:
        attention.answers = None
    return found


def _next_logits(model, ids, position):
    """Logits [n, vocabulary] behind the last of the new tokens ids [n, R]; position: that of the first."""
    positions = torch.arange(position, position + ids.shape[1], device=ids.device)[None].expand(len(ids), -1)
    with torch.no_grad():
        out = model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=1)
    return out.logits[:, -1].float()
