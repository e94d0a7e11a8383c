"""The attention that a call computes: which query rows of which request read which keys and values.

Layout NHD has tokens before heads, HND heads before tokens. A cache of pages is one tensor [pages, 2, ...] of
keys and values, or a tuple (keys, values) of [pages, ...]. Pages of one token may lack their axis of tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvtrace.bits import Stored

from .call import Call

NHD, HND = "NHD", "HND"
CACHE = "paged_kv_cache"
PREFILL, RAGGED, DECODE = "paged prefill", "ragged prefill", "decode"
SINGLE_PREFILL, SINGLE_DECODE = "single prefill", "single decode"


@dataclass(frozen=True, eq=False)
class Request:
    """One request of a call. Rows `first_query` to `first_query + n_queries` - 1 of q are those of its last
    tokens. Its `n_tokens` keys and values fill `pages`, or follow each other from row `first_token` on."""

    first_query: int
    n_queries: int
    n_tokens: int
    first_token: int = 0
    pages: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Work:
    """What one call computes.

    call: of run() or of a function. plan: the call that says how; for a function the call itself.
    kind: PREFILL, RAGGED, DECODE, SINGLE_PREFILL or SINGLE_DECODE. page_size: tokens of a page.
    scaling: factor of the logit. window_left: earlier tokens that a row sees besides its own, -1: all.
    softcap: 0: none. causal: whether the plan says so.
    """

    call: Call
    plan: Call
    kind: str
    layout: str
    page_size: int
    requests: tuple[Request, ...]
    scaling: float
    window_left: int
    softcap: float
    causal: bool

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(query rows, tokens) of each request: equal for all layers of a forward pass."""
        return tuple((request.n_queries, request.n_tokens) for request in self.requests)

    def queries(self, request: Request) -> Stored:
        """[n_queries, Hq, D] of a request."""
        return self._rows(self.call.part, "q", self.call.shape("q"), request)

    def output(self, request: Request) -> Stored | None:
        """[n_queries, Hq, Dv] of a request; None if the call did not return."""
        if (found := self.call.output()) is None:
            return None
        file, key = found
        return self._rows(file.part, key, file.shape(key), request)

    def sinks(self) -> np.ndarray | None:
        """float32 [Hq]: logits that join the denominator; None if there are none."""
        return self.call.all_floats("sinks").astype(np.float32) if self.call.has("sinks") else None

    def keys_values(self, request: Request, first: int, last: int) -> tuple[Stored, Stored]:
        """Keys [n, Hkv, D] and values [n, Hkv, Dv] of the tokens `first` to `last` - 1 of a request."""
        if request.pages is None:
            start = request.first_token
            k, v = (self._flat(name, start + first, start + last) for name in "kv")
            return k, v
        for name in self._cache_names():
            self._check_pages(name, request.pages)
        tokens = np.arange(first, last)
        pages, at = np.unique(request.pages[tokens // self.page_size], return_inverse=True)
        within = tokens % self.page_size
        k, v = (Stored(half.array[at, within], half.type) for half in self._halves(pages))
        return k, v

    def _rows(self, read: Callable[..., Any], name: str, shape: tuple[int, ...], request: Request) -> Stored:
        """The query rows of a request, of q or of the output."""
        if len(shape) != (2 if self.kind == SINGLE_DECODE else 3):
            self.call.fail(f"{name} has shape {list(shape)}, which {self.call.function} does not have")
        if self.kind == SINGLE_DECODE:
            return self.call.floats(read(name, 0, shape[0])[None], name)
        end = request.first_query + request.n_queries
        if shape[0] < end:
            self.call.fail(f"{name} has {shape[0]} rows, but its plan() has {end}: it is of another call")
        return self.call.floats(read(name, request.first_query, end), name)

    def _flat(self, name: str, first: int, last: int) -> Stored:
        """Rows `first` to `last` - 1 of k or v, as [n, Hkv, D]."""
        shape = self.call.shape(name)
        axis = 1 if self.layout == HND else 0
        if len(shape) != 3 or shape[axis] < last:
            self.call.fail(
                f"{name} has shape {list(shape)} in layout {self.layout}, it must be three axes of {last} "
                "tokens"
            )
        if axis == 0:
            return self.call.floats(self.call.part(name, first, last), name)
        return self.call.floats(self.call.part(name, 0, shape[0])[:, first:last].swapaxes(0, 1), name)

    # ---- pages

    def _cache_names(self) -> tuple[str, ...]:
        return (CACHE,) if CACHE in self.call.tensors else (f"{CACHE}.0", f"{CACHE}.1")

    def _check_pages(self, name: str, pages: np.ndarray) -> None:
        """TraceError unless a tensor of the cache has these pages, of the size that plan() says."""
        shape = self.call.shape(name)
        half = shape[:1] + shape[2:] if name == CACHE else shape
        if len(half) not in (3, 4) or (name == CACHE and shape[1] != 2):
            self.call.fail(f"{name} has shape {list(shape)}, which {self.call.function} does not take")
        size = 1 if len(half) == 3 else half[2 if self.layout == HND else 1]
        if size != self.page_size:
            self.call.fail(
                f"{name} has pages of {size} tokens in layout {self.layout}, but its plan() has "
                f"{self.page_size}: "
                'write the other layout into the sidecar as "kv_layout"'
            )
        if not 0 <= pages.min() <= pages.max() < shape[0]:
            self.call.fail(
                f"{name} has {shape[0]} pages, but its plan() names {pages.min()} to {pages.max()}: that "
                "plan() is of another call"
            )

    def _halves(self, pages: np.ndarray) -> Iterator[Stored]:
        """Keys, then values, of ascending pages, as [pages, page_size, Hkv, D]."""
        starts = np.flatnonzero(np.diff(pages, prepend=-2) != 1)
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(pages, starts[1:])]
        for half in (0, 1):
            name = self._cache_names()[half * (CACHE not in self.call.tensors)]
            pieces = [self.call.floats(self.call.part(name, *run), CACHE) for run in runs]
            array = np.concatenate([piece.array for piece in pieces])
            if name == CACHE:
                array = array[:, half]
            if array.ndim == 3:
                array = array[:, None]  # pages of one token, without their axis
            elif self.layout == HND:
                array = array.swapaxes(1, 2)
            yield Stored(array, pieces[0].type)
