"""A GGUF file read once, however often transformers asks for it.

Its configuration, its tokenizer and its weights all need the file's header. transformers parses that anew for
each of them, and twice for the weights: ten seconds a time where the vocabulary has 150,000 tokens.
"""

import functools
import importlib
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

# Longer arrays are parsed when the file is opened: vocabularies, merges, scores and kinds of tokens.
LONG = 1000

_kept = {}  # {path, size and time: reader}, of one file at most


def forget():
    """Lets go of the file that was read last."""
    _kept.clear()


@contextmanager
def read_once():
    """Within, transformers gets one reader of a GGUF file for all that it loads; kept until `forget`."""
    gguf, loader = _module("gguf"), _module("transformers.modeling_gguf_pytorch_utils")
    parse = getattr(loader, "_gguf_parse_value", None)
    with ExitStack() as stack:
        # A release may lack any of these names: then it goes its own way there.
        for module, name, stand_in in (
            (gguf, "GGUFReader", lambda reader: functools.partial(_open, _light(reader), parse)),
            (gguf, "get_tensor_name_map", functools.cache),  # each module of a model asks for it
            (loader, "_gguf_parse_value", lambda own: functools.partial(_value_of, own)),
            (loader, "tqdm", lambda bar: functools.partial(bar, disable=None)),  # drawn on a terminal alone
        ):
            if hasattr(module, name):
                own = getattr(module, name)
                stack.callback(setattr, module, name, own)
                setattr(module, name, stand_in(own))
        yield


def _module(name):
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _light(reader):
    """`reader` on a plain array. Each slice of a memmap is a memmap, which takes thrice as long to make, and
    a vocabulary is a million slices."""

    class Light(reader):
        @property
        def data(self):
            return self._plain

        @data.setter
        def data(self, mapped):
            self._plain = np.asarray(mapped)

    return Light


def _open(reader, parse, path, mode="r"):
    """What `GGUFReader(path, mode)` gives, or gave before."""
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
    """The field with the values of a long array in place of their bytes."""
    if len(field.data) <= LONG:
        return field
    values = [parse(field.parts[at], field.types) for at in field.data]
    return field._replace(parts=values, data=list(range(len(values))))


def _value_of(parse, part, types):
    """What `_gguf_parse_value` gives: a value that was parsed before, or that of the bytes `part`."""
    return parse(part, types) if isinstance(part, np.ndarray) else part
