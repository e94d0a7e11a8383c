"""Prompts of a dump: the requests of its passes, joined along tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvtrace.bits import Stored

from ...trace import LayerArrays
from ..sidecar import Sidecar
from .row import fits_together, output_of_row
from .work import Work

# Outputs of 16-bit kernels differ from their result by rounding, about 0.3 %; with another scaling, mask or
# soft cap they differ by far more.
MOST_DIFFERENCE = 0.02


@dataclass(frozen=True, eq=False)
class Part:
    """One request of one pass: the calls of its layers, and its number in each of them."""

    works: list[Work]
    number: int

    @property
    def n_queries(self) -> int:
        return self.works[0].requests[self.number].n_queries

    @property
    def n_tokens(self) -> int:
        return self.works[0].requests[self.number].n_tokens

    @property
    def start(self) -> int:
        """The token of its first query row: query rows are those of the last tokens."""
        return self.n_tokens - self.n_queries

    def key(self, token: int) -> Stored:
        """[1, Hkv, D]: the key of a token in the last layer, which depends on all tokens before it."""
        last = self.works[-1]
        return last.keys_values(last.requests[self.number], token, token + 1)[0]


@dataclass(eq=False)
class Chain:
    """One prompt: parts of it, each of which continues the one before."""

    parts: list[Part]

    @property
    def n_tokens(self) -> int:
        return self.parts[-1].n_tokens

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt. Passes of several query rows are its prefill, which may come in chunks; if
        there is none, these are the tokens before the first query."""
        n_prompt = max(self.parts[0].start, 1)
        for part in self.parts:
            if part.n_queries == 1 and part.start > 0:
                break
            n_prompt = part.n_tokens
        return n_prompt

    def is_continued_by(self, part: Part) -> bool:
        """Whether the part adds tokens to this prompt: it has as many before, and the key of the last one."""
        if part.start != self.n_tokens:
            return False
        mine, its = (each.key(self.n_tokens - 1) for each in (self.parts[-1], part))
        return mine.type is its.type and np.array_equal(mine.array, its.array)


def chains_of(passes: list[list[Work]]) -> list[Chain]:
    """The prompts of all passes, in the order in which they start."""
    chains: list[Chain] = []
    for works in passes:
        free = list(chains)
        for number, request in enumerate(works[0].requests):
            if not request.n_queries or not request.n_tokens:
                continue  # padding of a batch
            part = Part(works, number)
            if part.start < 0:
                works[0].call.fail(
                    f"has {part.n_queries} query rows for {part.n_tokens} tokens: it is not causal, and only "
                    "causal attention can be replayed"
                )
            chain = next((chain for chain in free if chain.is_continued_by(part)), None)
            if chain is None:
                chains.append(Chain([part]))
            else:
                free.remove(chain)
                chain.parts.append(part)
    return chains


class PromptLayers(Mapping[int, LayerArrays]):
    """{number: LayerArrays} of one prompt; each layer is read on access."""

    def __init__(self, chain: Chain, numbers: list[int], sidecar: Sidecar):
        self.chain = chain
        self.numbers = numbers
        self.sidecar = sidecar

    def __getitem__(self, number: int) -> LayerArrays:
        if number not in self.numbers:
            raise KeyError(number)
        at = self.numbers.index(number)
        layer = _layer(self.chain, at) | self.sidecar.facts_of(number, self.numbers)
        _check_output(self.chain.parts[0], at, layer)
        return LayerArrays(**layer)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.numbers))

    def __len__(self) -> int:
        return len(self.numbers)


def _layer(chain: Chain, at: int) -> dict[str, Any]:
    """Arrays and facts of layer `at` of a prompt: the queries of every pass, and the keys and values that
    each pass added, because a cache may have dropped earlier ones since."""
    queries, keys, values, outputs = [], [], [], []
    known = 0
    for part in chain.parts:
        work = part.works[at]
        request = work.requests[part.number]
        queries.append(work.queries(request))
        key, value = work.keys_values(request, known, request.n_tokens)
        keys.append(key)
        values.append(value)
        outputs.append(work.output(request))
        known = request.n_tokens
    first = chain.parts[0].works[at]
    _check_facts([part.works[at] for part in chain.parts])
    positions = np.concatenate([np.arange(part.start, part.n_tokens) for part in chain.parts])
    return {
        "q": _joined(queries, first, "q"),
        "k": _joined(keys, first, "keys"),
        "v": _joined(values, first, "values"),
        "out": None if None in outputs else _joined(outputs, first, "outputs"),
        "q_pos": None if len(positions) == known else positions.astype(np.int32),
        "sinks": first.sinks(),
        "scaling": first.scaling,
        "sliding_window": first.window_left + 1,
        "softcap": first.softcap,
    }


def _joined(pieces: list[Stored], work: Work, name: str) -> Stored:
    """Pieces [n, H, D] of passes as [H, T, D]."""
    first = pieces[0]
    for piece in pieces:
        if piece.type is not first.type or piece.shape[1:] != first.shape[1:]:
            work.call.fail(
                f"has {name} of {first.type.name} with heads {list(first.shape[1:])}, but a later pass has "
                f'{piece.type.name} with {list(piece.shape[1:])} for this layer: correct "n_layers" in the '
                "sidecar"
            )
    whole = np.concatenate([piece.array for piece in pieces])
    return Stored(np.ascontiguousarray(whole.transpose(1, 0, 2)), first.type)


def _check_facts(works: list[Work]) -> None:
    """TraceError if the passes of one layer disagree about it."""
    facts = [(work.scaling, work.window_left, work.softcap) for work in works]
    for work, said in zip(works, facts, strict=True):
        if said != facts[0]:
            work.call.fail(
                f"has scaling, window_left and soft cap {said}, and an earlier pass has {facts[0]} for this "
                'layer: correct "n_layers" in the sidecar'
            )


def _check_output(part: Part, at: int, layer: dict[str, Any]) -> None:
    """TraceError if the output in the dump is not that of causal attention with the facts of the layer.
    forward() of FlashInfer sets mask, scaling and soft cap, and the dump does not hold them."""
    work = part.works[at]
    if layer["out"] is None:
        if part.n_queries > 1 and not work.causal:
            work.plan.fail(
                "says causal=False, and there is no output of its run() that shows the mask: only causal "
                "attention can be replayed. Dump calls that end"
            )
        return
    if not fits_together(layer):
        return  # the writer of traces says what does not fit
    for row in sorted({0, part.n_queries - 1}):
        expected = output_of_row(layer, row, part.start + row)
        found = layer["out"].floats()[:, row].astype(np.float32)
        if np.linalg.norm(found - expected) > MOST_DIFFERENCE * np.linalg.norm(expected):
            work.call.fail(
                f"has an output that is not the causal attention of its q, k and v, at query row {row}: "
                f"scaling {layer['scaling']:.6g}, window {layer['sliding_window']}, soft cap "
                f"{layer['softcap']:g}. If "
                'FlashInfer\'s forward() set others, which the dump does not hold, write "scaling", '
                '"sliding_window" and "softcap" into the sidecar; other masks cannot be replayed'
            )
