"""Gradients of a log-likelihood with respect to every attention output, for `--with-gradient`.

L_s = sum over the scored rows t in [P, n - 1) of log p(y_t | tokens <= t). If y_t is drawn from the model's
prediction, the mean square of the product of dL_s/d out and a small error of `out` is twice the KL divergence
that this error causes (Fisher). If y_t are the recorded next tokens, the product is the first-order change of
their log-likelihood. An answer's gradient is that of its tokens' log-odds, log p - log(1 - p): where the
model is certain of them, that of log p is nearly zero.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from kvbase.errors import ConfigError, KvreplayError, TraceError

from .blocks import REMEDY, Chain, LiveOutputs, differentiable, find_blocks
from .labels import draw, uniforms
from .masked_runs import Call
from .plan import CHUNK_LOGITS

# `check_chain`: rows of its test sequence, and how many of them run through the head together.
# Several chunks, each of a few rows: over a large vocabulary the sums of two rows are not exact enough.
PROBE_ROWS, PROBE_CHUNK = 24, 4
# Relative errors of a layer's gradient; a missing path causes more than 0.1.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
TOLERANCE_HALF = 3e-2


@dataclass(frozen=True)
class Scored:
    """Rows `start` <= t < `end` of a prompt over which a loss is summed, and what determines its labels.

    answer_from: first token of an answer that ends the text, behind a scored row; None: there is none.
    needles: token spans (from, to) that the answer needs.
    """

    start: int
    end: int
    n_samples: int
    labels: str
    seed: int
    prompt_id: str
    answer_from: int | None = None
    needles: tuple[tuple[int, int], ...] = ()

    @property
    def recorded(self):
        """Which loss is that of the recorded tokens. Drawn ones come before it, the answer's behind it."""
        return self.n_samples if self.labels == "model" else 0

    @property
    def n_losses(self):
        """All losses: the drawn ones, that of the recorded tokens, and that of the answer if there is one."""
        return self.recorded + 1 + (self.answer_from is not None)

    @property
    def n_rows(self):
        """The number of scored rows."""
        return self.end - self.start

    def n_stored(self, stride):
        """Rows of gradients that a trace stores, over `g`, `g_recorded` and `g_answer`."""
        return (self.n_samples + 1 + (self.answer_from is not None)) * math.ceil(self.n_rows / stride)

    @property
    def answer_rows(self):
        """The scored rows that predict the answer (slice)."""
        return slice(self.answer_from - 1 - self.start, self.n_rows)


class Head:
    """The norm and the head after the last block, run on rows `given` [1, rows, hidden] of its output.

    `log_probs`: [rows, vocabulary] float32.
    """

    def __init__(self, chain, given):
        self.given = given
        self.linear = chain.model.get_output_embeddings()
        self.seen = None
        tap = self.linear.register_forward_hook(self._see) if self.linear is not None else None
        try:
            logits = chain.logits_of(given)
        finally:
            if tap:
                tap.remove()
        self.graph = None if self._is_last(logits) else logits.float().log_softmax(-1)
        self.log_probs = (
            logits.detach().float().log_softmax(-1) if self.graph is None else self.graph.detach()
        )

    def _see(self, _, args, output):
        self.seen = args[0], output.detach()

    def _is_last(self, logits):
        """Are the logits exactly the linear layer's output? Some models scale or cap them."""
        plain = type(self.linear) is torch.nn.Linear and self.linear.bias is None
        return plain and self.seen is not None and torch.equal(self.seen[1][0], logits.detach())

    def gradients(self, labels):
        """Gradients [losses, rows, hidden] of the summed log-probability of labels [losses, rows]."""
        if self.graph is None:
            return self._closed_form(labels)
        found = []
        for of_rows in labels:
            loss = self.graph.gather(1, of_rows[:, None]).sum()
            found.append(torch.autograd.grad(loss, self.given, retain_graph=True)[0][0])
        return torch.stack(found)

    def _closed_form(self, labels):
        """Gradients through the linear map W: that of log p(y) is W[y] - p W, and p W is computed once for
        all labels."""
        weights = self.linear.weight.detach()
        mean = (self.log_probs.exp().to(weights.dtype) @ weights).float()
        return torch.stack([self._back_from(weights[of_rows].float() - mean) for of_rows in labels])

    def _back_from(self, at):
        """Gradient [rows, hidden] of what changes by `at` [rows, hidden] times the linear layer's input."""
        at = at.to(self.seen[0].dtype)[None]
        return torch.autograd.grad(self.seen[0], self.given, at, retain_graph=True)[0][0]

    def odds_gradient(self, labels):
        """Gradient [rows, hidden] of the summed log-odds of labels [rows]. The share of the other tokens is
        summed without the label, so it is exact however small it is."""
        if self.graph is None:
            weights = self.linear.weight.detach()
            others = self.log_probs.scatter(1, labels[:, None], -torch.inf).softmax(-1).to(weights.dtype)
            return self._back_from(weights[labels].float() - (others @ weights).float())
        others = self.graph.scatter(1, labels[:, None], -torch.inf).logsumexp(-1)
        odds = (self.graph.gather(1, labels[:, None])[:, 0] - others).sum()
        return torch.autograd.grad(odds, self.given, retain_graph=True)[0][0]


class Gradients:
    """All gradients of one prompt: those of `n_samples` losses, that of the recorded next tokens' loss, and
    that of the answer's.

    `blocks`: Blocks of the model. Per scored row: `entropy` float32 [rows] of the model's prediction in nats,
    `log_prob` float32 of the recorded next token, and `is_best` bool, whether that is the most probable one.
    """

    def __init__(self, model, blocks, ids, scored, positions=None, chunk=None):
        self.scored = scored
        self.live = LiveOutputs(model)
        self.model = model
        first = 0 if blocks.all_rows else scored.start
        with differentiable(model), self.live:
            # A tensor made in inference mode cannot be saved for a gradient; a copy can.
            self.chain = Chain(model, blocks.blocks, self.live, ids.clone(), positions, first)
            self.rows = slice(scored.start - first, scored.end - first)
            self._through_head(chunk)

    def _through_head(self, chunk):
        scored, last = self.scored, self.chain.last
        n_rows = scored.n_rows
        vocabulary = self.model.config.get_text_config().vocab_size
        self.chunk = chunk or max(CHUNK_LOGITS // vocabulary, 1)
        self.at_output = last.new_zeros((scored.n_losses, n_rows, last.shape[-1]))
        self.entropy = np.empty(n_rows, dtype=np.float32)
        self.log_prob = np.empty(n_rows, dtype=np.float32)
        self.is_best = np.empty(n_rows, dtype=bool)
        # No chunk has a single row: its sum over a large vocabulary would be a hundred times less exact.
        ends = np.linspace(0, n_rows, max(n_rows // self.chunk, 1) + 1).astype(int).tolist()
        for start, end in pairwise(ends):
            self._chunk_through_head(start, end)

    def _chunk_through_head(self, start, end):
        scored = self.scored
        rows = slice(scored.start + start, scored.start + end)
        given = self.chain.last[:, self.rows][:, start:end].detach().requires_grad_()
        head = Head(self.chain, given)
        known = head.log_probs
        recorded = self.chain.ids[0, rows.start + 1 : rows.stop + 1]
        labels = recorded[None]
        if scored.labels == "model":
            numbers = uniforms(scored.seed, scored.prompt_id, scored.n_samples, range(rows.start, rows.stop))
            labels = torch.cat([draw(known, numbers), labels])
        self.entropy[start:end] = -(known.exp() * known).nan_to_num().sum(-1).cpu().numpy()
        self.log_prob[start:end] = known.gather(1, recorded[:, None])[:, 0].cpu().numpy()
        self.is_best[start:end] = (known.argmax(-1) == recorded).cpu().numpy()
        self.at_output[: len(labels), start:end] = head.gradients(labels)
        if scored.answer_from is not None and end > scored.answer_rows.start:
            own = slice(max(scored.answer_rows.start, start), end)
            self.at_output[-1, own] = head.odds_gradient(recorded)[own.start - start :]

    def log_probs(self, stream):
        """Log-probabilities [rows, vocabulary] float32 from rows [1, rows, hidden] of the last block."""
        with torch.no_grad():
            parts = [
                self.chain.logits_of(part).float().log_softmax(-1) for part in stream.split(self.chunk, 1)
            ]
        return torch.cat(parts)

    def reproduces_output(self):
        """Do the blocks, run again on the chain's rows, reproduce their output?"""
        with differentiable(self.model), self.live, torch.no_grad():
            again, last = self.chain.last_block_with(Call.output), self.chain.last
        tolerance = TOLERANCE.get(self.model.dtype, TOLERANCE_HALF)
        return bool((again - last).float().norm() <= tolerance * last.float().norm())

    def run_masked(self, masked):
        """Runs the scored rows under the masks of `masked`, a MaskedRuns. Must come before `of_layers`, which
        drops the blocks' inputs."""
        with differentiable(self.model), self.live:
            masked.run(self.chain, self.log_probs, self.log_probs(self.chain.last[:, self.rows]))

    @property
    def answer(self):
        """(log-probability of the answer in nats, whether the model would say each of its tokens)."""
        rows = self.scored.answer_rows
        return float(self.log_prob[rows].sum(dtype=np.float64)), bool(self.is_best[rows].all())

    def of_layers(self, layers, masked=None):
        """Yields (layer, gradients [losses, Hq, rows, Dv]) from the last layer to the first. Row i is row
        start + i; losses are in the order of Scored. `masked`, a MaskedRuns, also gets them."""
        missing = set(layers)
        for number in reversed(range(len(self.chain.blocks))):
            if not missing:
                return
            found = self._through_block(number, missing, masked)
            missing -= found.keys()
            for layer, g in found.items():
                if masked:
                    masked.add(layer, g)
                yield layer, g

    def _through_block(self, number, layers, masked):
        self.live.look = masked.look if masked else None
        with differentiable(self.model), self.live:
            given, output = self.chain.run_again(number)
            seen = {layer: out for layer, out in self.live.take().items() if layer in layers}
            return self._back(given, output, seen)

    def _back(self, given, output, seen):
        found = {layer: [] for layer in seen}
        back = torch.zeros_like(output)
        for number, at_output in enumerate(self.at_output):
            back[:, self.rows] = at_output
            last = number + 1 == len(self.at_output)
            at = torch.autograd.grad(output, [given, *seen.values()], back, retain_graph=not last)
            # Attention is causal: earlier rows do not depend on scored rows, so their gradient is not needed.
            self.at_output[number] = at[0][0, self.rows]
            for layer, at_out in zip(seen, at[1:], strict=True):
                found[layer].append(at_out[0, self.rows].transpose(0, 1))
        return {layer: torch.stack(parts) for layer, parts in found.items()}


def first_scored(given, n_rows, n_prompt):
    """P, the first scored row: `given` as a row, or as a share of the rows (float below 1). Default: the
    first row after the prompt, or the middle row of a text that is all prompt."""
    if given is None:
        return n_prompt if n_prompt < n_rows else n_rows // 2
    return int(given * n_rows) if isinstance(given, float) else given


def scored_rows(options, prompt_id, n_rows, n_prompt, answer_from=None, needles=()):
    """Scored for a prompt of `n_rows`, from the gradient's options. An answer whose first
    token no scored row predicts is left out. ConfigError if no row is left."""
    start = first_scored(options.gradient_from, n_rows, n_prompt)
    if start >= n_rows - 1:
        raise ConfigError(
            f"prompt {prompt_id}: no row from {start} on predicts one of its {n_rows} tokens: "
            "--gradient-from must be earlier, or the prompt longer"
        )
    labels, seed = options.gradient_labels, options.gradient_seed
    answer = answer_from if answer_from is not None and answer_from > start else None
    spans = tuple((int(begin), int(end)) for begin, end in needles) if answer else ()
    return Scored(start, n_rows - 1, options.gradient, labels, seed, prompt_id, answer, spans)


def kept_rows(scored, stride):
    """Scored rows whose query is recorded, int32 [rows], and the slice that selects them."""
    kept = slice(-scored.start % stride, None, stride)
    return np.arange(scored.start, scored.end, dtype=np.int32)[kept], kept


@dataclass(frozen=True)
class Blocks:
    """The blocks of a model that is a chain of blocks. `all_rows`: rows also affect later rows in other ways
    than through keys and values (a convolution, a state), so blocks must be run again on all rows."""

    blocks: list
    all_rows: bool


def check_chain(model, layers):
    """Blocks of the model. TraceError unless, on a short sequence, backpropagation block by block gives the
    gradients of
    the whole model's graph."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = (torch.arange(PROBE_ROWS, device=model.device)[None] * 37 + vocabulary // 3) % vocabulary
    scored = Scored(PROBE_ROWS // 2, PROBE_ROWS - 1, 1, "recorded", 0, "")
    live = LiveOutputs(model)
    with differentiable(model), live:
        expected = _whole_gradients(model, live, ids.clone(), scored)
    found = find_blocks(model, [live.modules[layer] for layer in layers])
    scored_rows_alone = Blocks(found, False)
    if _differs(scored_rows_alone, model, ids, scored, expected) is None:
        return scored_rows_alone
    blocks = Blocks(found, True)
    if (layer := _differs(blocks, model, ids, scored, expected)) is not None:
        raise TraceError(
            f"layer {layer}: {type(model).__name__} passes on more than the outputs of its blocks, so "
            f"its gradient cannot be computed block by block: {REMEDY}"
        )
    return blocks


def _differs(blocks, model, ids, scored, expected):
    """The last layer whose gradient by `blocks` differs from the expected one; None if none does."""
    tolerance = TOLERANCE.get(model.dtype, TOLERANCE_HALF)
    try:
        gradients = Gradients(model, blocks, ids, scored, chunk=PROBE_CHUNK)
        if not gradients.reproduces_output():
            return max(expected)
        for layer, found in gradients.of_layers(expected):
            off = (found[0].float() - expected[layer].float()).norm()
            if not off <= tolerance * expected[layer].float().norm():
                return layer
    except (KvreplayError, RuntimeError, IndexError, ValueError):
        if blocks.all_rows:
            raise
        return max(expected)
    return None


def _whole_gradients(model, live, ids, scored):
    """Gradients {layer: [Hq, rows, Dv]} from one graph of the whole model, for the recorded next tokens."""
    rows = slice(scored.start, scored.end)
    log_probs = model(input_ids=ids, use_cache=False).logits[0, rows].float().log_softmax(-1)
    loss = log_probs.gather(1, ids[0, rows.start + 1 : rows.stop + 1, None]).sum()
    seen = live.take()
    found = torch.autograd.grad(loss, list(seen.values()))
    return {layer: g[0, rows].transpose(0, 1) for layer, g in zip(seen, found, strict=True)}
