"""Walking through an HDF5 file that may be hostile.

Links are followed here rather than by HDF5, so that they are bounded, stay inside the file's folder, and name
what is missing. h5py's own errors become TraceErrors that name file and object.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
from h5py import h5t
from kvbase.errors import TraceError
from kvbase.files import reason

LONGEST_LINK_CHAIN = 16  # as many as HDF5 itself allows


def fail(where: str, what: str) -> None:
    """Raise TraceError."""
    raise TraceError(f"{where}: {what}")


@contextmanager
def reading(where: str, remedy: str = "Make or copy the file again") -> Iterator[None]:
    """What h5py raises inside becomes a TraceError at `where`."""
    try:
        yield
    except TraceError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError, UnicodeError) as error:
        raise TraceError(f"{where}: is damaged ({error}). {remedy}") from error


def is_printable(text: str) -> bool:
    """Whether a name may end on a terminal: UTF-8 without control characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return all(ord(character) >= 0x20 and character != "\x7f" for character in text)


# What HDF5 says of a file that a writer holds open, or left so when it was killed.
OPEN_FOR_WRITE = "already open for write"
LEFT_OPEN = (
    "a program writes it, or was killed while it did. If none does any more, clear its mark on a copy "
    "(cp FILE COPY && h5clear -s COPY, of the package hdf5-tools), or record it again"
)


class OpenFiles:
    """A trace file and those that its external links led to; `close` closes them all."""

    def __init__(self, path: Path):
        self._opened: dict[Path, h5py.File] = {}
        self.root = Node(self, self.open(path), path, "/")

    @classmethod
    def of(cls, file: h5py.File, path: Path) -> "OpenFiles":
        """A file that somebody else opened and closes."""
        files = cls.__new__(cls)
        files._opened = {}
        files.root = Node(files, file, path, "/")
        return files

    def open(self, path: Path) -> h5py.File:
        """The open file, opened at most once. TraceError where it is no HDF5 file that can be read."""
        if path not in self._opened:
            check_is_hdf5(path)
            try:
                self._opened[path] = _opened(path)
            except (OSError, RuntimeError) as error:
                fail(
                    str(path),
                    LEFT_OPEN
                    if OPEN_FOR_WRITE in str(error)
                    else f"cannot be opened, it is truncated or damaged ({error}). Make or copy it again",
                )
        return self._opened[path]

    def close(self) -> None:
        """Close every file."""
        for file in self._opened.values():
            file.close()
        self._opened.clear()


# Traces lie on network file systems that know no locks; nobody writes under a final name. All ways are tried,
# since a file that a process has open already must be opened again in the same way.
LOCKING = (None, False, True)


def _opened(path: Path) -> h5py.File:
    for locking in LOCKING[:-1]:
        with suppress(OSError):
            return h5py.File(path, "r", locking=locking)
    return h5py.File(path, "r", locking=LOCKING[-1])


def check_is_hdf5(path: Path) -> None:
    """TraceError unless the file is there and is HDF5."""
    if not path.exists():
        fail(str(path), "no such file")
    if path.is_dir():
        fail(str(path), "is a folder. Give a trace file in it, e.g. its index.h5")
    if not path.is_file():
        fail(str(path), "is not a regular file")
    try:
        path.open("rb").close()
    except OSError as error:
        fail(str(path), f"cannot be read ({reason(error)}). Check its permissions")
    if not h5py.is_hdf5(path):
        fail(str(path), "is not an HDF5 file. Traces are HDF5 (docs/formats.md)")


@dataclass(frozen=True)
class Node:
    """A group or dataset: `item` as h5py has it, `file` that holds it at the end of external links, `name` as
    the user knows it, from the root of the file that was opened."""

    files: OpenFiles
    item: Any
    file: Path
    name: str

    @property
    def where(self) -> str:
        return f"{self.file}: {self.name}"

    @property
    def is_group(self) -> bool:
        return isinstance(self.item, h5py.Group)

    @property
    def is_dataset(self) -> bool:
        return isinstance(self.item, h5py.Dataset)

    @property
    def home(self) -> "Node":
        """Root of the file that holds this."""
        return Node(self.files, self.item.file, self.file, "/")

    def has(self, name: str) -> bool:
        """Whether there is a member of this name, be it a link that leads nowhere."""
        with reading(self.where):
            return self.item.id.links.exists(name.encode())

    def members(self) -> list[str]:
        """Names of a group's members, sorted."""
        if not self.is_group:
            fail(self.where, "is not a group")
        with reading(self.where):
            names = sorted(self.item)
        for name in names:
            if name in ("", ".", "..") or not is_printable(name):
                fail(self.where, "holds a member whose name is damaged")
        return names

    def child(self, name: str) -> "Node":
        """A member, at the end of its links. TraceError where it is missing."""
        return self._follow(name, f"{self.name.rstrip('/')}/{name}", 0)

    def at(self, path: str) -> "Node":
        """What stands at "a/b/c" from here."""
        return self._walk(path, f"{self.name.rstrip('/')}/{path}", 0)

    # ---- links

    def _walk(self, path: str, shown: str, links: int) -> "Node":
        node = self.home if path.startswith("/") else self
        for step in path.split("/"):
            if step not in ("", "."):
                node = node._follow(step, shown, links)
        return Node(node.files, node.item, node.file, shown)

    def _follow(self, name: str, shown: str, links: int) -> "Node":
        where = f"{self.file}: {shown}"
        if links > LONGEST_LINK_CHAIN:
            fail(where, f"more than {LONGEST_LINK_CHAIN} links lead to it, or they form a loop")
        if not self.is_group or not self.has(name):
            fail(where, f'is missing (no "{name}")')
        with reading(where):
            link = self.item.get(name, getlink=True)
        if isinstance(link, h5py.SoftLink):
            return self._walk(link.path, shown, links + 1)
        if isinstance(link, h5py.ExternalLink):
            return self._outside(link, shown)._walk(link.path, shown, links + 1)
        with reading(where):
            return Node(self.files, self.item[name], self.file, shown)

    def _outside(self, link: h5py.ExternalLink, shown: str) -> "Node":
        """Root of the file that an external link leads to: one beside or below the file that holds it."""
        where = f"{self.file}: {shown}"
        target = str(link.filename)
        if not target or Path(target).is_absolute():
            fail(
                where,
                f'the external link to "{target}" is not relative to the file. Link to files in its folder',
            )
        with reading(where, "Link to files in its folder"):
            folder = self.file.resolve().parent
            file = (folder / target).resolve()
            there = file.is_file()
        if not file.is_relative_to(folder):
            fail(where, f'the external link to "{target}" leaves the file\'s folder. Link to files in it')
        if not there:
            fail(
                where,
                f"the external link's file {file} is missing. Copy it beside the index, or dump it again",
            )
        root = Node(self.files, self.files.open(file), file, shown)
        if root.number("complete") not in (None, 1):
            fail(root.where, "is in an unfinished dump. Finish it with kvreplay record --resume")
        return root

    # ---- attributes

    def has_attribute(self, name: str) -> bool:
        """Whether there is an attribute of this name."""
        with reading(f"{self.where}: attribute {name}"):
            return name in self.item.attrs

    def number(self, name: str) -> float | None:
        """A finite number; None where the attribute is missing."""
        value = self._attribute(name, {h5t.INTEGER, h5t.FLOAT, h5t.ENUM}, "a number", float)
        if value is not None and not math.isfinite(value):
            fail(self.where, f"attribute {name} is {value}, it must be a finite number")
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """A whole number from `low` to `high`; None where the attribute is missing."""
        value = self.number(name)
        if value is None:
            return None
        if value != math.floor(value) or not low <= value <= high:
            fail(self.where, f"attribute {name} is {value:g}, it must be a whole number from {low} to {high}")
        return int(value)

    def text(self, name: str) -> str | None:
        """UTF-8 text; None where the attribute is missing."""
        value = self._attribute(name, {h5t.STRING}, "a string", _decoded)
        if value is not None and not _is_utf8(value):
            fail(f"{self.where}: attribute {name}", "is not UTF-8 text")
        return value

    def printable_text(self, name: str, missing: str) -> str:
        """Text without control characters."""
        value = self.text(name)
        if value is None:
            return missing
        if not is_printable(value):
            fail(self.where, f"attribute {name} holds control characters")
        return value

    def _attribute(self, name: str, classes: set[int], kind: str, convert: Callable[[Any], Any]) -> Any:
        if not self.has_attribute(name):
            return None
        with reading(f"{self.where}: attribute {name}"):
            identifier = self.item.attrs.get_id(name)
            if identifier.get_space().get_simple_extent_npoints() != 1:
                fail(self.where, f"attribute {name} is not a single value")
            if identifier.get_type().get_class() not in classes:
                fail(self.where, f"attribute {name} is not {kind}")
            value = self.item.attrs[name]
            return convert(value.reshape(-1)[0] if getattr(value, "shape", ()) else value)


def _decoded(value: Any) -> str:
    # A fixed string ends at its first zero; h5py marks bytes that are not UTF-8 by surrogates.
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
    return text.split("\0", 1)[0]


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
