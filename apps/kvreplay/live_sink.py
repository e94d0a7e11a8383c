"""Where a live recorder writes to: layers go to the engine, and to a trace file if one is asked for."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvbase.errors import KvreplayError

from .layer_inputs import LayerInputs
from .live_replays import LiveReplays
from .live_trace import RecordedPrompt, as_stored, trace_in_memory

LIVE = "live"  # name of a trace that never was a file


class LiveSink:
    """A LiveRecorder writes to this. A layer of one or several prompts is replayed at once, or waits for the
    other layers or prompts that the methods compare it with. With `saved` it is also written to a trace
    file."""

    def __init__(
        self,
        root: Mapping[str, Any],
        replays: LiveReplays,
        *,
        saved: Path | None,
        save_layers: set[int] | None,
        all_layers: bool,
        all_prompts: bool,
        failed: dict[str, str],
    ):
        self.root = root
        self._replays, self._failed = replays, failed
        self._save_layers, self._all_layers, self._all_prompts = save_layers, all_layers, all_prompts
        self._prompts: dict[str, RecordedPrompt] = {}
        self._waiting: dict[str, RecordedPrompt] = {}  # what is not yet replayed
        self._held = int(all_prompts)  # groups that are not complete
        self._trace_id = ""
        self._file = _SavedTrace(saved, root) if saved is not None else None

    def missing_layers(self, prompt: str, layers: Iterable[int]) -> list[int]:
        """All layers: nothing was replayed before."""
        return list(layers)

    def write_prompt(
        self,
        prompt: str,
        datasets: Mapping[str, Any],
        attributes: Mapping[str, Any],
        groups: Mapping[str, Any],
    ) -> None:
        """Takes a prompt's datasets and attributes, those of its layers left out."""
        if not self._trace_id:
            identity = [self.root.get("model"), self.root.get("config_json"), datasets["tokens"].tolist()]
            self._trace_id = f"{LIVE}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]}"
        self._prompts[prompt] = RecordedPrompt(datasets, attributes, groups)
        if self._file is not None:
            self._file.write_prompt(prompt, datasets, attributes, groups)

    def write_layer(
        self,
        prompt: str,
        layer: int,
        datasets: Mapping[str, Any],
        attributes: Mapping[str, Any],
        seen: Any = None,
    ) -> None:
        """A layer's datasets {name: (tensor or array, stored type)}, its attributes, and its ModuleInputs."""
        if self._file is not None and (self._save_layers is None or layer in self._save_layers):
            self._file.write_layer(prompt, layer, datasets, attributes)
        known = self._prompts[prompt]
        waiting = self._waiting.setdefault(
            prompt, RecordedPrompt(known.datasets, known.attributes, known.groups)
        )
        waiting.layers[layer] = (datasets, attributes)
        if "masked_a" in known.datasets and prompt not in self._replays.responses:
            from kvanalysis.loss.response import response_in

            self._replays.responses[prompt] = response_in(known.datasets, datasets["g_rows"][0])
        if "k" in datasets:
            more = () if seen is None else (seen.module, seen.hidden, seen.position_embeddings)
            waiting.inputs[layer] = LayerInputs(*(datasets[name][0] for name in "qkv"), *more)
        self._flush()

    @contextlib.contextmanager
    def layer_group(self) -> Iterator[None]:
        """A layer of all prompts of a batch, which is replayed at once."""
        self._held += 1
        yield  # after an exception nothing is replayed: the prompts have failed
        self._held -= 1
        self._flush()

    def prompt_group(self) -> "contextlib.AbstractContextManager[None]":
        """All layers of the prompts of a batch."""
        return self.layer_group() if self._all_layers else contextlib.nullcontext()

    def _flush(self) -> None:
        if self._held or not self._waiting:
            return
        prompts, self._waiting = self._waiting, {}
        given = trace_in_memory(LIVE, self._trace_id, self.root, prompts)
        ranks = {prompt.attributes["rank"]: prompt for prompt in prompts.values()}

        def inputs_of(rank: int, layer: int) -> LayerInputs:
            return ranks[rank].inputs[layer]

        def on_error(error: KvreplayError) -> None:
            self._failed.update({prompt: str(error) for prompt in prompts})

        self._replays.submit(given, prompts, inputs_of, on_error)

    def drop(self, prompt: str) -> None:
        """Forgets a prompt that has failed."""
        self._held = int(self._all_prompts)
        self._waiting.pop(prompt, None)
        if self._file is not None:
            self._file.drop(prompt)

    def publish(self) -> None:
        """Replays what has waited for other prompts, and publishes the trace."""
        self._held = 0
        self._flush()
        if self._file is not None:
            self._file.publish()

    def abandon(self) -> None:
        """Leaves no trace file behind."""
        self._waiting.clear()
        if self._file is not None:
            self._file.abandon()


class _SavedTrace:
    """The trace file of a live replay."""

    def __init__(self, path: Path, root: Mapping[str, Any]):
        from kvrecord.sinks import FileSink

        self._sink = FileSink(path, root)
        self._digests: dict[str, int] = {}  # how many there were when a prompt began

    def write_prompt(self, prompt: str, datasets: Any, attributes: Any, groups: Any) -> None:
        """As in kvrecord.sinks."""
        self._digests[prompt] = len(self._sink.file.digests)
        self._sink.write_prompt(prompt, datasets, attributes, groups)

    def write_layer(self, prompt: str, layer: int, datasets: Mapping[str, Any], attributes: Any) -> None:
        """As in kvrecord.sinks, of tensors or arrays."""
        stored = {name: (as_stored(data, kind), kind) for name, (data, kind) in datasets.items()}
        self._sink.write_layer(prompt, layer, stored, attributes)

    def drop(self, prompt: str) -> None:
        """Removes a prompt that has failed. Those of its batch fail with it."""
        if prompt in self._digests:
            del self._sink.file.digests[self._digests.pop(prompt) :]
            del self._sink.file.file[f"prompts/{prompt}"]

    def publish(self) -> None:
        """Gives the file its name, unless no prompt was recorded."""
        if self._digests:
            self._sink.publish()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Removes the unfinished file."""
        self._sink.abandon()
        self._sink.file.part.unlink(missing_ok=True)
