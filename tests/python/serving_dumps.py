"""Dumps as serving engines write them: FlashInfer's flight recorder, and saves of vLLM's connector.

A `Dump` writes calls as FlashInfer's api_logging.py does at level 10. A `Server` calls attention as engines
do: it plans a pass, writes the new tokens into its cache, and calls attention once for each layer.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

NHD, HND = "NHD", "HND"
PREFILL, RAGGED = "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper"
DECODE = "BatchDecodeWithPagedKVCacheWrapper"
# The arguments by position and some others, as str(inspect.signature(...)) of FlashInfer shows them.
SIGNATURES = {
    "single_prefill_with_kv_cache": "(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale_q: "
    "Optional[torch.Tensor] = None, causal: bool = False, kv_layout: str = 'NHD') -> Union[torch.Tensor, "
    "Tuple[torch.Tensor, torch.Tensor]]",
    "single_decode_with_kv_cache": "(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_layout: str = "
    "'NHD', pos_encoding_mode: str = 'NONE') -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]",
    f"{PREFILL}.__init__": "(self, float_workspace_buffer: torch.Tensor, kv_layout: str = 'NHD', backend: "
    "<class 'object'> = <object object at 0x7f2b>) -> None",
    f"{PREFILL}.plan": "(self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor, paged_kv_indices: "
    "torch.Tensor, paged_kv_last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: "
    "int, page_size: int, causal: bool = False, sm_scale: Optional[float] = None) -> None",
    f"{PREFILL}.run": "(self, q: torch.Tensor, paged_kv_cache: Union[torch.Tensor, Tuple[torch.Tensor, "
    "torch.Tensor]], *args, k_scale: Optional[float] = None) -> torch.Tensor",
    f"{RAGGED}.plan": "(self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, num_qo_heads: int, "
    "num_kv_heads: int, head_dim_qk: int, causal: bool = False) -> None",
    f"{RAGGED}.run": "(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args) -> torch.Tensor",
    f"{DECODE}.__init__": "(self, float_workspace_buffer: torch.Tensor, kv_layout: str = 'NHD') -> None",
    f"{DECODE}.plan": "(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, "
    "num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, *deprecated_positional_args: Any, "
    "**kwargs: Any) -> None",
    f"{DECODE}.run": "(self, q: torch.Tensor, paged_kv_cache: Union[torch.Tensor, Tuple[torch.Tensor, "
    "torch.Tensor]], *args, k_scale: Optional[float] = None) -> torch.Tensor",
}
SELF = {"type": "Wrapper", "repr": "<Wrapper object at 0x7f2b>"}  # the wrapper, as argument 0


@dataclass
class Dump:
    """A folder of the flight recorder. suffix: ".safetensors" or ".pt". tuples: whether tensors in tuples are
    dumped (FlashInfer 0.7), or only their text (0.6)."""

    folder: Path
    suffix: str = ".safetensors"
    tuples: bool = True
    process: int = 7
    counts: dict[str, int] = field(default_factory=dict)

    def call(self, function, *args, wrapper=None, result=None, **kwargs):
        """Writes one call; returns its folder."""
        number = self.counts[function] = self.counts.get(function, 0) + 1
        time = f"20260108_143216_{sum(self.counts.values()):03d}"
        folder = self.folder / f"{time}_pid{self.process}_{function}_call{number:04d}"
        folder.mkdir(parents=True)
        tensors, values = {}, {}
        given = {f"arg_{at}": value for at, value in enumerate(args)}
        for key, value in (given | {f"kwarg_{name}": value for name, value in kwargs.items()}).items():
            if isinstance(value, np.ndarray):
                tensors[key] = value
            elif isinstance(value, tuple):
                values[key] = self._tuple(key, value, tensors)
            else:
                values[key] = value
        outputs = {} if result is None else {"result": result}
        said = {
            "function_name": function,
            "module": "flashinfer",
            "call_sequence": number,
            "timestamp": time,
            "process_id": self.process,
            "input_metadata": values,
            "output_metadata": {},
            "tensor_info": {"input_tensor_keys": list(tensors), "output_tensor_keys": []},
            "function_signature": SIGNATURES.get(function, "(x: torch.Tensor)"),
            "execution_status": "inputs_saved",
            "graph_capture": False,
            **({} if wrapper is None else {"self_id": wrapper}),
            "dump_dir": f"dumps/{folder.name}",
        }
        self._save(tensors, folder, "inputs")
        self._save(outputs, folder, "outputs")
        ended = said | {"execution_status": "completed"}
        for path in (folder / "metadata.jsonl", self.folder / "session.jsonl"):
            with path.open("a") as file:
                file.write("".join(json.dumps(record) + "\n" for record in (said, ended)))
        return folder

    def _tuple(self, key, value, tensors):
        if not self.tuples:
            return {"type": "tuple", "value": str(value)[:1000]}
        items = []
        for at, item in enumerate(value):
            tensors[f"{key}__{at}"] = item
            items.append({"type": "torch.Tensor", "shape": list(item.shape), "tensor_key": f"{key}__{at}"})
        return {"type": "tuple", "length": len(value), "items": items, "truncated": False}

    def _save(self, arrays, folder, kind):
        if not arrays:
            return
        if self.suffix == ".safetensors":
            save_file(
                {key: np.ascontiguousarray(array) for key, array in arrays.items()},
                folder / f"{kind}.safetensors",
            )
            return
        import torch

        torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, folder / f"{kind}.pt")


def attend(q, k, v, scaling, window=0, softcap=0.0, causal=True):
    """[n, Hq, Dv] of q [n, Hq, D], the last tokens, and k, v [T, Hkv, D], by its definition."""
    out = np.zeros((*q.shape[:2], v.shape[2]))
    group = q.shape[1] // k.shape[1]
    for row in range(q.shape[0]):
        last = k.shape[0] - q.shape[0] + row if causal else k.shape[0] - 1
        first = max(0, last + 1 - window) if window else 0
        for head in range(q.shape[1]):
            keys = k[first : last + 1, head // group].astype(float)
            logits = keys @ q[row, head].astype(float) * scaling
            logits = softcap * np.tanh(logits / softcap) if softcap else logits
            p = np.exp(logits - logits.max())
            out[row, head] = p / p.sum() @ v[first : last + 1, head // group].astype(float)
    return out.astype(q.dtype)


class Server:
    """An engine that serves prompts 0, 1, ... of q, k, v [layers, prompts, tokens, heads, dim].

    layout, page: of its cache. as_tuple: keys and values are two tensors. facts: of plan(), such as sm_scale.
    windows: window_left of each layer; layers with one have wrappers of their own.
    """

    def __init__(
        self, dump, q, k, v, *, layout=NHD, page=4, as_tuple=False, init=True, windows=None, **facts
    ):
        self.dump, self.q, self.k, self.v = dump, q, k, v
        self.layers, self.prompts, _, self.kv_heads, self.dim = k.shape
        self.layout, self.page, self.as_tuple, self.facts = layout, page, as_tuple, facts
        self.windows = windows or [facts.pop("window_left", -1)] * self.layers
        n_pages = self.prompts * -(-k.shape[2] // page)
        # Pages of a prompt are scattered, and some belong to nobody.
        order = np.random.default_rng(1).permutation(n_pages + 2)[:n_pages]
        self.pages = order.reshape(self.prompts, -1)
        shape = (n_pages + 2, page, self.kv_heads, self.dim)
        self.caches = np.full((self.layers, 2, *shape), 7, k.dtype)
        self.lengths = [0] * self.prompts
        if init:
            for kind in (PREFILL, DECODE):
                for window in sorted(set(self.windows)):
                    dump.call(
                        f"{kind}.__init__",
                        SELF,
                        np.zeros(4, np.uint8),
                        layout,
                        wrapper=self._wrapper(kind, window),
                    )

    def _wrapper(self, kind, window):
        return {PREFILL: 100, RAGGED: 200, DECODE: 300}[kind] + window

    def _write(self, layer, prompt, first, last):
        for token in range(first, last):
            at = self.pages[prompt, token // self.page], token % self.page
            self.caches[layer, 0][at] = self.k[layer, prompt, token]
            self.caches[layer, 1][at] = self.v[layer, prompt, token]

    def _cache(self, layer):
        halves = self.caches[layer] if self.layout == NHD else self.caches[layer].swapaxes(2, 3)
        if self.page == 1 and self.as_tuple:
            halves = halves.squeeze(2 if self.layout == NHD else 3)
        return (halves[0].copy(), halves[1].copy()) if self.as_tuple else np.stack(halves, axis=1)

    def _paging(self, prompts, lengths):
        used = [self.pages[p, : -(-n // self.page)] for p, n in zip(prompts, lengths, strict=True)]
        bounds = np.cumsum([0, *map(len, used)], dtype=np.int32)
        indices = np.concatenate([*used, [0, 0]]).astype(np.int32)  # engines pass longer buffers
        return bounds, indices, np.array([(n - 1) % self.page + 1 for n in lengths], np.int32)

    def output(self, layer, prompt, first, last, causal=True):
        window = self.windows[layer] + 1
        scaling = self.facts.get("sm_scale") or self.dim**-0.5
        return attend(
            self.q[layer, prompt, first:last], self.k[layer, prompt, :last], self.v[layer, prompt, :last],
            scaling, window, self.facts.get("logits_soft_cap") or 0.0, causal,
        )  # fmt: skip

    def steps(self, **kinds):
        """One forward pass: prefill=[(prompt, tokens)], ragged=[...], decode=[prompts]. Plans, then "
        "layers."""
        batches = {
            PREFILL: kinds.get("prefill", []),
            RAGGED: kinds.get("ragged", []),
            DECODE: [(prompt, 1) for prompt in kinds.get("decode", [])],
        }
        for kind, batch in batches.items():
            for window in sorted(set(self.windows)) if batch else []:
                self._plan(kind, batch, window)
        for layer in range(self.layers):
            for kind, batch in batches.items():
                if batch:
                    self._run(kind, batch, layer)
        for batch in batches.values():
            for prompt, tokens in batch:
                self.lengths[prompt] += tokens

    def _plan(self, kind, batch, window):
        prompts = [prompt for prompt, _ in batch]
        lengths = [self.lengths[prompt] + tokens for prompt, tokens in batch]
        queries = np.cumsum([0, *(tokens for _, tokens in batch)], dtype=np.int32)
        heads = self.q.shape[3], self.kv_heads, self.dim
        how = {"window_left": window, **self.facts}
        wrapper = self._wrapper(kind, window)
        if kind == RAGGED:
            # SGLang plans without a mask, which forward() sets; it passes one tensor twice.
            self.dump.call(f"{kind}.plan", SELF, queries, queries.copy(), *heads, wrapper=wrapper, **how)
        elif kind == PREFILL:
            pages = self._paging(prompts, lengths)
            self.dump.call(
                f"{kind}.plan", SELF, queries, *pages, *heads, self.page, wrapper=wrapper, causal=True, **how
            )
        else:
            self.dump.call(
                f"{kind}.plan",
                SELF,
                *self._paging(prompts, lengths),
                *heads,
                self.page,
                wrapper=wrapper,
                **how,
            )

    def _run(self, kind, batch, layer):
        spans = [(prompt, self.lengths[prompt], self.lengths[prompt] + tokens) for prompt, tokens in batch]
        for span in spans:
            self._write(layer, *span)
        q = np.concatenate([self.q[layer, p, first:last] for p, first, last in spans])
        out = np.concatenate([self.output(layer, *span) for span in spans])
        wrapper = self._wrapper(kind, self.windows[layer])
        if kind == RAGGED:
            kv = [
                np.concatenate([x[layer, p, first:last] for p, first, last in spans])
                for x in (self.k, self.v)
            ]
            self.dump.call(f"{kind}.run", SELF, q, *kv, wrapper=wrapper, result=out)
        else:
            self.dump.call(
                f"{kind}.run", SELF, q, self._cache(layer), wrapper=wrapper, result=out, k_scale=1.0
            )

    def single(self, prompt, tokens, layout=NHD):
        """One forward pass by the functions for one request."""
        first = self.lengths[prompt]
        last = self.lengths[prompt] = first + tokens
        for layer in range(self.layers):
            k, v = (x[layer, prompt, :last] for x in (self.k, self.v))
            k, v = (k, v) if layout == NHD else (k.swapaxes(0, 1), v.swapaxes(0, 1))
            how = {"kv_layout": layout, "window_left": self.windows[layer], **self.facts}
            q, out = self.q[layer, prompt, first:last], self.output(layer, prompt, first, last)
            if tokens == 1:
                self.dump.call("single_decode_with_kv_cache", q[0], k, v, result=out[0], **how)
            else:
                self.dump.call("single_prefill_with_kv_cache", q, k, v, result=out, causal=True, **how)


def vllm_save(folder, k, v, blocks, token_ids=range(16)):
    """A save of vLLM's ExampleConnector of k, v [layers, tokens, heads, dim]; returns its folder.

    blocks: axes of vLLM's cache: "2BNHD", "B2NHD", "BHNC" (keys and values side by side) or "mla".
    """
    save = folder / hashlib.md5(np.asarray(token_ids, np.int64).tobytes()).hexdigest()
    save.mkdir(parents=True)
    for layer in range(k.shape[0]):
        both = np.stack([k[layer], v[layer]])
        cache = {
            "2BNHD": lambda both: both.reshape(2, both.shape[1], -1),
            "B2NHD": lambda both: both.swapaxes(0, 1),
            "BHNC": lambda both: np.concatenate(both, axis=-1),
            "mla": lambda both: both[0].reshape(both.shape[1], -1),
        }[blocks](both)
        save_file(
            {"kv_cache": np.ascontiguousarray(cache)},
            save / f"model.layers.{layer}.self_attn.attn.safetensors",
        )
    return save
