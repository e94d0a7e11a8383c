"""A trace file with its prompts and layers."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from kvbase.engine import _engine
from kvbase.errors import TraceError

from .layer import Layer, heads_text
from .prompt import Prompt
from .write import PromptArrays, fail, write_trace


def open(path: str | Path) -> "Trace":
    """Open the trace at `path`: an HDF5 file, or a folder with an index.h5.

        trace = kv.open(kv.sample())
        trace.prompts, trace.layers()           # ids of prompts, numbers of layers

    Returns a Trace. Raises TraceError if `path` is not a trace.
    """
    trace = Trace(path)
    trace.layers()
    return trace


class Trace:
    """A trace file, or the index.h5 of a trace with one file per layer; a folder means the index.h5 in it.

        layer = kv.Trace("trace.h5").layer(7)
        layer.q.shape                           # (Hq, Tq, D)

    Each call opens the file and closes it again. Used as a context manager, the trace keeps the file open
    until the block ends. A trace can be pickled: the pickle holds its path.

    Arguments called `prompt` are ids. None means the only prompt, or the first one in the order of ids.
    Every method raises TraceError, with the file and the dataset, if the file is damaged or inconsistent.
    """

    def __init__(self, path: str | Path):
        given = Path(path)
        if "\0" in str(given):
            fail(str(given), "no such file")  # no name of the system holds one
        self.path: Path = given / "index.h5" if (given / "index.h5").is_file() else given
        _engine.check_trace_name(self.path)
        self._held: dict[Any, _engine.Trace] | None = None
        self._read: dict[tuple[str, int], _engine.PromptFacts] = {}

    @classmethod
    def write(
        cls,
        path: str | Path,
        layers: Mapping[int, Any] | None = None,
        *,
        prompts: Mapping[str, Any] | None = None,
        prompt: str = "p0",
        n_prompt: int | None = None,
        n_generated: int | None = None,
        n_layers: int | None = None,
        model: str = "",
        revision: str = "",
        rope: Mapping[str, Any] | str | None = None,
        token_ids: Any = None,
        token_classes: Any = None,
        token_text: Any = None,
        position_ids: Any = None,
        source: str = "",
        compress: bool = False,
    ) -> "Trace":
        """Write arrays as a trace file and return it as a Trace.

            kv.Trace.write("mine.h5", {7: (q, k, v)}, n_prompt=768, model="my-model", rope={"theta": 10000.0})

        layers: {number in the model, from 0: (q, k, v)} with q [Hq, Tq, D], k [Hkv, T, D], v [Hkv, T, Dv],
            Hq a multiple of Hkv; q and k as the attention call sees them, after rotary embedding and norms.
            float32, float16 or bfloat16, from numpy (ml_dtypes), torch, jax or cupy.
            Instead of the tuple: a LayerArrays, or a dict with its fields, which adds facts of the layer
            (scaling, sliding window, soft cap, rope, sinks, q_pos, out); or a Layer of another trace.
            A lazy mapping works: each layer is read once, written, and released.
        prompts: {id: PromptArrays, or a dict with its fields}, for several prompts. It replaces `layers`,
            `prompt` and every argument about one prompt.
        prompt: id of the one prompt.
        n_prompt: tokens of the prompt, 1 to T; later tokens were generated. Default: T.
        n_generated: generated tokens. Default: T - n_prompt.
        n_layers: layers of the model. Default: one more than the last layer in `layers`.
        model, revision: of the model; free text.
        rope: rotary embedding of q and k as `rope_json` (docs/formats.md), at least {"theta": ...}; "none" if
            they carry none. Default: not recorded; then methods cannot re-assign positions.
        token_ids, position_ids: integers [T]. token_classes: integers [T], 0 word, 1 punctuation, 2 special.
        token_text: strings [T]. source: where the prompt comes from, free text.
        compress: gzip; saves little.

        The trace's id is a hash of its content: equal arrays and facts give equal ids.

        Raises TraceError, with the layer and the array, if arrays or facts do not fit together, and
        OutputError if the file cannot be written. After an error `path` is as it was before.
        """
        alone = PromptArrays(
            layers=layers if layers is not None else {},
            n_prompt=n_prompt,
            n_generated=n_generated,
            token_ids=token_ids,
            token_classes=token_classes,
            token_text=token_text,
            position_ids=position_ids,
            source=source,
        )
        if (prompts is None) == (layers is None):
            fail(str(path), "give either layers, of one prompt, or prompts")
        of_a_prompt = (value for name, value in vars(alone).items() if name != "layers")
        if prompts is not None and any(value is not None and not _is_empty(value) for value in of_a_prompt):
            fail(str(path), "put the facts of a prompt into its entry in prompts")
        write_trace(
            Path(path),
            {prompt: alone} if prompts is None else prompts,
            {"model": model or None, "revision": revision or None, "n_layers": n_layers},
            rope,
            compress,
        )
        return cls(path)

    @cached_property
    def _facts(self) -> _engine.TraceFacts:
        return _engine.trace_facts(self.path)

    @cached_property
    def _layers(self) -> dict[str, list[int]]:
        """{prompt: numbers of its layers}, both ascending."""
        return {prompt.id: prompt.layers for prompt in self._facts.prompts}

    @property
    def model(self) -> str:
        """Name of the model; "unknown" if not recorded."""
        return self._facts.model

    @property
    def revision(self) -> str:
        """Revision of the model; "" if not recorded."""
        return self._facts.revision

    @property
    def n_layers(self) -> int:
        """Number of layers of the model; the trace may hold fewer."""
        return self._facts.n_layers

    @cached_property
    def trace_id(self) -> str:
        """Hash of the content, as `kvreplay inspect` prints it. If the file does not store it, the whole file
        is read to compute it."""
        return self._facts.trace_id or _engine.trace_id(self.path)

    @property
    def prompts(self) -> list[str]:
        """Ids of the prompts, sorted."""
        return list(self._layers)

    def prompt_of_rank(self, rank: int) -> str:
        """Id of the prompt whose random streams have this number."""
        return next(prompt.id for prompt in self._facts.prompts if prompt.rank == rank)

    def layers(self, prompt: str | None = None) -> list[int]:
        """Numbers of a prompt's recorded layers, ascending, counted from 0 as in the model."""
        return list(self._layers[self._prompt_id(prompt)])

    def prompt(self, prompt: str | None = None) -> Prompt:
        """A prompt with its lengths, tokens and positions. TraceError if the trace does not hold it."""
        found = self._prompt_id(prompt)
        return self.layer(self._layers[found][0], found).prompt

    def layer(self, number: int, prompt: str | None = None) -> Layer:
        """A layer of a prompt. TraceError, with the recorded layers, if the trace does not hold it."""
        found = self._prompt_id(prompt)
        if number not in self._layers[found]:
            held = ", ".join(map(str, self._layers[found]))
            fail(str(self.path), f"prompt {found} holds no layer {number}. It holds {held}")
        key = (found, int(number))
        if key not in self._read:
            self._read[key] = _engine.prompt_facts(self.path, *key)
        return Layer(self, self._read[key])

    def _prompt_id(self, prompt: str | None) -> str:
        held = self._layers
        if prompt is None:
            return next(iter(held))
        if prompt not in held:
            fail(str(self.path), f"holds no prompt {prompt}. It holds {', '.join(held)}")
        return prompt

    def _open(self, prompt: "_engine.PromptFacts | None" = None) -> "_engine.Trace":
        """The open file, for reads of a prompt and of the layer that its facts tell. It closes with its last
        reference, or at the end of the block if the trace is a context manager."""
        held = self._held
        if held is None:
            return _engine.Trace(self.path, prompt)
        key = prompt and (prompt.id, prompt.layer.number)
        if key not in held:
            held[key] = _engine.Trace(self.path, prompt)
        return held[key]

    def __enter__(self) -> "Trace":
        if self._held is None:
            self._held = {}
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._held = None

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (str(self.path),)

    def __repr__(self) -> str:
        try:
            first = self.layer(self.layers()[0])
            prompts = "1 prompt" if len(self.prompts) == 1 else f"{len(self.prompts)} prompts"
            layers = " ".join(map(str, self.layers()))
        except TraceError as error:
            return f"<Trace {error}>"
        return (
            f"<Trace {self.path.name}: {self.model}, {prompts}, layers {layers} of {self.n_layers}, "
            f"{heads_text(first)}, {first.n_tokens} tokens, {first.dtype}>"
        )


def _is_empty(value: Any) -> bool:
    return isinstance(value, str) and not value
