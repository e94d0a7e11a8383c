"""`python -m kvreplay.host`: hosts the methods of installed packages for the program, over the socket that it
started this process with (file descriptor 3).

A message is two lengths (uint64), a JSON object and numbers. The program asks ("call"); while an answer is
worked out this side may ask for arrays of what it is shown ("show"), and at last it answers, or says what was
raised.
"""

import json
import signal
import socket
import struct
import sys
import traceback
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from .configuration import ENTRY_POINTS, installed_method
from .errors import KvreplayError
from .hosting import Hosted

SOCKET = 3
LENGTHS = struct.Struct("<QQ")


class Connection:
    """The program's end of the line."""

    def __init__(self, line: socket.socket):
        self._line = line.makefile("rwb")

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """(JSON object, numbers behind it). Raises EOFError once the program has hung up."""
        head = self._line.read(LENGTHS.size)
        if len(head) < LENGTHS.size:
            raise EOFError
        text, numbers = LENGTHS.unpack(head)
        said = json.loads(self._line.read(text))
        return said, self._line.read(numbers)

    def send(self, said: dict[str, Any], *arrays: np.ndarray) -> None:
        """A JSON object, and arrays one behind the other."""
        text, numbers = json.dumps(said).encode(), b"".join(array.tobytes() for array in arrays)
        self._line.write(LENGTHS.pack(len(text), len(numbers)) + text + numbers)
        self._line.flush()

    def shown(self, name: str) -> np.ndarray | None:
        """An array of what the call is about."""
        self.send({"show": name})
        said, numbers = self.receive()
        if not said["type"]:
            return None
        return np.frombuffer(numbers, said["type"]).reshape(said["shape"]).copy()


class PromptView:
    """The prompt of a call, as kvreplay._engine shows it."""

    def __init__(self, line: Connection, said: dict[str, Any]):
        self.size, self.scale, self._line = said["size"], said["scale"], line

    def keys(self) -> np.ndarray | None:
        return self._line.shown("keys")

    def values(self) -> np.ndarray | None:
        return self._line.shown("values")

    def queries(self) -> np.ndarray | None:
        return self._line.shown("queries")

    def attention(self) -> np.ndarray | None:
        return self._line.shown("attention")

    def positions(self) -> np.ndarray | None:
        return self._line.shown("positions")


class RowsView:
    """The rows of a cache in a call."""

    def __init__(self, line: Connection, rows: int, numbers: bytes):
        self._line = line
        self._scores = np.frombuffer(numbers, "f8", rows).copy()
        self._tokens = np.frombuffer(numbers[len(numbers) - 4 * rows :], "i4").copy()
        self.probabilities = np.frombuffer(numbers[8 * rows : len(numbers) - 4 * rows], "f8").copy()
        self.changed = np.empty(0)

    def tokens(self) -> np.ndarray:
        return self._tokens

    def scores(self) -> np.ndarray:
        return self._scores

    def set_scores(self, scores: np.ndarray) -> None:
        self.changed = np.ascontiguousarray(scores, "f8")

    def keys(self) -> np.ndarray | None:
        return self._line.shown("keys")

    def values(self) -> np.ndarray | None:
        return self._line.shown("values")


class Host:
    """What the program has opened here."""

    def __init__(self, line: Connection):
        self.line = line
        self.methods: dict[str, Hosted] = {}
        self.caches: dict[int, Any] = {}

    def answer(self, said: dict[str, Any], numbers: bytes) -> None:
        """One call of the program."""
        calls = {
            "methods": self.offer,
            "open": self.open,
            "close": self.close,
            "score": self.score,
            "start": self.start,
            "observe": self.observe,
            "evict": self.evict,
        }
        calls[said["call"]](said, numbers)

    def offer(self, _said: dict[str, Any], _: bytes) -> None:
        """What installed packages offer."""
        for point in entry_points(group=ENTRY_POINTS):
            try:
                method = installed_method(point.name)
            except KvreplayError as error:
                print(f"kvreplay: warning: {error}", file=sys.stderr, flush=True)
                continue
            if method is not None:
                self.methods[point.name] = method
        self.line.send({"methods": [method.facts_json for method in self.methods.values()]})

    def open(self, said: dict[str, Any], _: bytes) -> None:
        method = self.methods.get(said["method"]) or installed_method(said["method"])
        if method is None:
            raise LookupError(f"no installed package offers the method {said['method']}")
        self.methods[said["method"]] = method
        self.caches[said["session"]] = method.open(said["place"])
        self.line.send({})

    def close(self, said: dict[str, Any], _: bytes) -> None:
        self.caches.pop(said["session"], None)
        self.line.send({})

    def score(self, said: dict[str, Any], _: bytes) -> None:
        self.line.send({}, self.caches[said["session"]].score(PromptView(self.line, said)))

    def start(self, said: dict[str, Any], _: bytes) -> None:
        scores = self.caches[said["session"]].start(PromptView(self.line, said))
        self.line.send({}, *([] if scores is None else [scores]))

    def observe(self, said: dict[str, Any], numbers: bytes) -> None:
        view = RowsView(self.line, said["rows"], numbers)
        self.caches[said["session"]].observe(view, view.probabilities.reshape(said["heads"], said["rows"]))
        self.line.send({}, view.changed)

    def evict(self, said: dict[str, Any], numbers: bytes) -> None:
        view = RowsView(self.line, said["rows"], numbers)
        leaving = self.caches[said["session"]].evict(view)
        self.line.send({"scores": view.changed.size > 0, "leaving": leaving.size}, view.changed, leaving)


def main() -> None:
    """Answers until the program hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides what ^C means
    line = Connection(socket.socket(fileno=SOCKET))
    host = Host(line)
    while True:
        try:
            said, numbers = line.receive()
        except EOFError:
            return
        try:
            host.answer(said, numbers)
        except Exception:
            line.send({"raised": traceback.format_exc().rstrip()})


if __name__ == "__main__":
    main()
