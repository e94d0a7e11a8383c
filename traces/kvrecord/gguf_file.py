"""Reads a GGUF file once, however often transformers asks for it.

The configuration, the tokenizer and the weights all need the file's header. transformers parses it again for
each of them, and twice for the weights; with a vocabulary of 150,000 tokens each parse takes ten seconds.
"""

import functools
import importlib
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

# Longer arrays are parsed when the file is opened: vocabularies, merges, scores and kinds of tokens.
LONG = 1000

_kept = {}  # {(path, size, time): reader}, at most one entry


def forget():
    """Releases the file that was read last."""
    _kept.clear()


@contextmanager
def read_once():
    """While entered, transformers gets one shared reader per GGUF file. The reader is kept until `forget`."""
    gguf, loader = _module("gguf"), _module("transformers.modeling_gguf_pytorch_utils")
    parse = getattr(loader, "_gguf_parse_value", None)
    with ExitStack() as stack:
        # A release may lack any of these names; then its own function is used.
        for module, name, stand_in in (
            (gguf, "GGUFReader", lambda reader: functools.partial(_open, _light(reader), parse)),
            (gguf, "get_tensor_name_map", functools.cache),  # called for each module of a model
            (loader, "_gguf_parse_value", lambda own: functools.partial(_value_of, own)),
            (loader, "tqdm", lambda bar: functools.partial(bar, disable=None)),  # bars only on a terminal
        ):
            if hasattr(module, name):
                own = getattr(module, name)
                stack.callback(setattr, module, name, own)
                setattr(module, name, stand_in(own))
        yield


def _module(name):
    """A module, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _light(reader):
    """`reader` on a plain array. A slice of a memmap is a memmap, which takes three times as long to make,
    and a vocabulary needs a million slices."""

    class Light(reader):
        @property
        def data(self):
            return self._plain

        @data.setter
        def data(self, mapped):
            self._plain = np.asarray(mapped)

    return Light


def _open(reader, parse, path, mode="r"):
    """`GGUFReader(path, mode)`, cached for reading."""
    if mode != "r":
        return reader(path, mode)
    about = Path(path).stat()
    key = (Path(path).resolve(), about.st_size, about.st_mtime_ns)
    if key not in _kept:
        forget()
        opened = reader(path)
        if parse:
            opened.fields.update({name: _parsed(field, parse) for name, field in opened.fields.items()})
        _kept[key] = opened
    return _kept[key]


def _parsed(field, parse):
    """The field; a long array holds parsed values instead of bytes."""
    if len(field.data) <= LONG:
        return field
    values = [parse(field.parts[at], field.types) for at in field.data]
    return field._replace(parts=values, data=list(range(len(values))))


def _value_of(parse, part, types):
    """Replaces `_gguf_parse_value`: returns a value that is already parsed, or parses the bytes `part`."""
    return parse(part, types) if isinstance(part, np.ndarray) else part
