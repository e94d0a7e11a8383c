"""The replays of a live run: one part after the other in a thread, and the Run that they make."""

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbase.engine import _engine
from kvbase.errors import KvreplayError
from kvbase.progress import Bar

from .hosting import Hosted
from .layer_inputs import InputsOf
from .replaying import Replay
from .run import Cell, Run, cell_of
from .sources import Sources

if TYPE_CHECKING:
    from kvanalysis.data.arrays import Recorded

GONE = 'the arrays of a live run are gone: pass save="{}", or save_trace, to kvreplay.live'


class LiveReplays:
    """Replays parts of a run, one after the other, in a thread of its own."""

    def __init__(self, config: dict[str, Any], own: list[Hosted], progress: bool | None):
        self.config, self.own = config, own
        self.told: list[str] = []
        self._bar = Bar(progress)
        self._rows: list[tuple[str, Cell]] = []  # with the engine's text
        self._said: list[dict[str, Any]] = []
        self._engine_s = 0.0
        self._ranks: dict[str, int] = {}  # {prompt: its place in their order}
        self.responses: dict[str, Any] = {}  # {prompt: its Response to hidden tokens}
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvreplay")
        self._running: Future[None] | None = None

    def submit(
        self,
        given: dict[str, Any],
        prompts: Iterable[str],
        inputs_of: InputsOf,
        on_error: Callable[[KvreplayError], None],
    ) -> None:
        """Replays a trace in memory, once the part before is done."""
        self.wait()
        for prompt in prompts:
            self._ranks.setdefault(prompt, len(self._ranks))
        if not self._stop.is_set():
            self._running = self._pool.submit(self._replay, given, inputs_of, on_error)

    def _replay(
        self, given: dict[str, Any], inputs_of: InputsOf, on_error: Callable[[KvreplayError], None]
    ) -> None:
        own = [method.bound(inputs_of) for method in self.own]

        def on_plan(count: int, said: list[str], _: float) -> None:
            self.told.extend(said)
            self._bar.start(count)

        def on_cell(row: str, place: int, arrays: dict[str, Any]) -> None:
            self._rows.append((row, cell_of(row, arrays, place)))
            self._bar.advance(self._rows[-1][1].row["status"] != "ok")

        try:
            seconds, said = _engine.replay(
                json.dumps(self.config), given, own, on_plan, on_cell, self._stop.is_set
            )
        except Exception as error:  # whatever it is, the model's call goes on
            on_error(error if isinstance(error, KvreplayError) else KvreplayError(_named(error)))
            return
        self._engine_s += seconds
        self._said.append(json.loads(said))

    def wait(self) -> None:
        """Waits for the part that is being replayed."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def stop(self) -> None:
        """Ends the part that is being replayed soon; no other begins."""
        self._stop.set()

    def close(self, stop: bool) -> None:
        """Waits for the last part, or stops it."""
        if stop:
            self.stop()
        try:
            self.wait()
        finally:
            self._pool.shutdown()
            self._bar.__exit__()

    def cells(self, failed: Mapping[str, str]) -> list[Cell]:
        """All cells of prompts that have not failed, sorted by prompt and layer."""
        return [cell for _, cell in self._sorted(failed)]

    def _sorted(self, failed: Mapping[str, str]) -> list[tuple[str, Cell]]:
        kept = [pair for pair in self._rows if pair[1].row["prompt"] not in failed]
        kept.sort(key=lambda pair: (self._ranks[pair[1].row["prompt"]], pair[1].row["layer"], pair[1].place))
        return kept

    def run(self, failed: Mapping[str, str], saved: Path | None) -> Run:
        """The Run of these cells. saved: the trace that holds their arrays."""
        pairs = self._sorted(failed)
        said = {
            **(self._said[0] if self._said else {"traces": []}),  # the trace, and which bytes shares bound
            "notes": json.loads(_engine.notes_on([row for row, _ in pairs], self.own)),
            "unreachable": _distinct(entry for said in self._said for entry in said["unreachable"]),
        }

        def again(row: Mapping[str, Any], kind: str) -> list[Cell]:
            if saved is None or not saved.exists():
                raise KvreplayError(GONE.format(kind))
            return Replay(Sources.of_trace(saved), self.config, self.own).again(row, kind)

        def recorded(row: Mapping[str, Any]) -> "Recorded":
            from kvanalysis.data.arrays import Recorded

            if saved is None or not saved.exists():
                raise KvreplayError(GONE.format("kept"))
            return Recorded(saved)

        cells = [cell for _, cell in pairs]
        return Run(cells, self.warnings(), self._engine_s, json.dumps(said), again, recorded, self.responses)

    def warnings(self) -> list[str]:
        """What parts have warned of, each once: those of other layers differ by their numbers."""
        return list({re.sub(r"[0-9.]+", "#", line): line for line in reversed(self.told)}.values())[::-1]


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _distinct(entries: Iterable[Any]) -> list[Any]:
    return list({json.dumps(entry, sort_keys=True): entry for entry in entries}.values())
