"""`python -m kvreplay.host`: hosts the methods of installed packages for the engine's program.

kvreplay.offering starts it with a socket that listens. Each connection gets a process of its own, a fork of
this one, so that threads of the program do not wait for one interpreter.

A message is two lengths (uint64), a JSON object and numbers. The program asks ("call"); while an answer is
worked out this side may ask for arrays of what it is shown ("show"), and at last it answers, or says what was
raised.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import struct
import sys
import traceback
from contextlib import closing
from importlib.metadata import entry_points
from typing import Any, NoReturn

import numpy as np

from .configuration import ENTRY_POINTS, installed_method
from .hosting import Hosted
from .identity import printable

PR_SET_PDEATHSIG = 1  # an option of prctl
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


class View:
    """Arrays of the present call. They can be read until it returns."""

    def __init__(self, line: Connection):
        self._line: Connection | None = line

    def close(self) -> None:
        """The call is over."""
        self._line = None

    def keys(self) -> np.ndarray | None:
        return self._shown("keys")

    def values(self) -> np.ndarray | None:
        return self._shown("values")

    def _shown(self, name: str) -> np.ndarray | None:
        if self._line is None:
            raise ValueError("this view of the cache was only good during the call that it was given to")
        return self._line.shown(name)


class PromptView(View):
    """The prompt of a call, as kvbase._engine shows it."""

    def __init__(self, line: Connection, said: dict[str, Any]):
        super().__init__(line)
        self.size, self.scale = said["size"], said["scale"]

    def queries(self) -> np.ndarray | None:
        return self._shown("queries")

    def attention(self) -> np.ndarray | None:
        return self._shown("attention")

    def positions(self) -> np.ndarray | None:
        return self._shown("positions")


class RowsView(View):
    """The rows of a cache in a call."""

    def __init__(self, line: Connection, rows: int, numbers: bytes):
        super().__init__(line)
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

    def offer(self, said: dict[str, Any], _: bytes) -> None:
        """What installed packages offer."""
        for point in entry_points(group=ENTRY_POINTS):
            try:
                method = installed_method(point.name)
            except Exception as error:  # whatever a package does, the others are there
                warn(str(error))
                continue
            if point.name in said["known"] or point.name in self.methods:
                warn(
                    f"the method {point.name} of an installed package is left out: there is one of that name"
                )
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
        with closing(PromptView(self.line, said)) as view:
            scores = self.caches[said["session"]].score(view)
        self.line.send({}, scores)

    def start(self, said: dict[str, Any], _: bytes) -> None:
        with closing(PromptView(self.line, said)) as view:
            scores = self.caches[said["session"]].start(view)
        self.line.send({}, *([] if scores is None else [scores]))

    def observe(self, said: dict[str, Any], numbers: bytes) -> None:
        with closing(RowsView(self.line, said["rows"], numbers)) as view:
            p = view.probabilities.reshape(said["heads"], said["rows"])
            self.caches[said["session"]].observe(view, p)
        self.line.send({}, view.changed)

    def evict(self, said: dict[str, Any], numbers: bytes) -> None:
        with closing(RowsView(self.line, said["rows"], numbers)) as view:
            leaving = self.caches[said["session"]].evict(view)
        self.line.send({"scores": view.changed.size > 0, "leaving": leaving.size}, view.changed, leaving)


def warn(text: str) -> None:
    """A line on what the program shows people."""
    print(f"kvreplay: warning: {printable(text)}", file=sys.stderr, flush=True)


def main() -> None:
    """Accepts connections until the program has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides what ^C means
    server, folder, program = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets children that ended
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        while os.getppid() == program:
            end, _ = server.accept()
            if os.fork() == 0:
                _serve_and_exit(server, end)
            end.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve_and_exit(server: socket.socket, end: socket.socket) -> NoReturn:
    """What the fork does. It leaves nothing behind and runs nothing that the host has for its own end."""
    try:
        server.close()
        _serve(end)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _serve(end: socket.socket) -> None:
    """Answers until the program hangs up."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # methods may start processes
    os.register_at_fork(after_in_child=end.close)  # children do not keep the program waiting
    line = Connection(end)
    host = Host(line)
    while True:
        try:
            said, numbers = line.receive()
        except (EOFError, OSError):
            return
        try:
            host.answer(said, numbers)
        except Exception:
            line.send({"raised": printable(traceback.format_exc().rstrip())})


if __name__ == "__main__":
    main()
