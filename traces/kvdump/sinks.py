"""Where prompts and layers go: one file for all, or one file per (prompt, layer) and an index of links."""

import json
from pathlib import Path

import h5py
import numpy as np

from .errors import UsageError
from .writer import TraceFile


def layer_group(prompt_id, layer):
    """HDF5 path of a layer's group."""
    return f"/prompts/{prompt_id}/layers/{layer:03d}"


def _write_prompt(file, prompt_id, datasets, attributes):
    for name, content in datasets.items():
        add = file.add_texts if isinstance(content, list) else file.add
        add(f"/prompts/{prompt_id}/{name}", content)
    file.set_attributes(f"/prompts/{prompt_id}", attributes)


def _write_layer(file, prompt_id, layer, datasets, attributes):
    group = layer_group(prompt_id, layer)
    for name, (array, dtype) in datasets.items():
        file.add(f"{group}/{name}", array, dtype)
    file.set_attributes(group, attributes)


def is_directory_target(path):
    """True for an output that means a directory: an existing one, or a name without a suffix."""
    return Path(path).is_dir() or (not Path(path).exists() and Path(path).suffix == "")


def published(path, settings):
    """True when `path` is a finished trace made with these settings; UsageError when it is another one."""
    if not Path(path).exists():
        return False
    try:
        with h5py.File(path, "r") as file:
            made_with = json.loads(file.attrs.get("dump_json", "null"))
            if file.attrs.get("complete") == 1 and made_with == settings:
                return True
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a trace that --resume could continue: {error}") from error
    raise UsageError(f"{path}: made with other settings; use --force or another -o")


class FileSink:
    """All prompts and layers in one file."""

    def __init__(self, path, root, compress=False):
        self.root = root
        self.file = TraceFile(path, compress)

    def missing_layers(self, prompt_id, layers):
        """A single file starts anew, so every layer is missing."""
        return list(layers)

    def write_prompt(self, prompt_id, datasets, attributes):
        """Datasets {name: array, or list of str} and attributes of `/prompts/<id>`."""
        _write_prompt(self.file, prompt_id, datasets, attributes)

    def write_layer(self, prompt_id, layer, datasets, attributes):
        """Datasets {name: (stored array, dtype)} and attributes of a layer's group."""
        _write_layer(self.file, prompt_id, layer, datasets, attributes)

    def publish(self):
        """Make the trace visible; returns its path."""
        self.file.publish(self.root)
        return self.file.path

    def abandon(self):
        """Leave only the `.part` file."""
        self.file.abandon()


class DirectorySink:
    """`<dir>/<prompt>/<LLL>.h5`, each a trace of its own, and `<dir>/index.h5` that links to all of them."""

    def __init__(self, folder, root, compress=False, resume=False):
        self.folder = Path(folder)
        self.root = root
        self.compress = compress
        self.resume = resume
        self.index = TraceFile(self.folder / "index.h5", compress)
        self.digests = []
        self.prompt = None
        self.layer_file = None

    def missing_layers(self, prompt_id, layers):
        """The layers of a prompt that have no finished file yet (all of them without resume)."""
        if not self.resume:
            return list(layers)
        settings = json.loads(self.root["dump_json"])
        return [layer for layer in layers if not published(self._path(prompt_id, layer), settings)]

    def write_prompt(self, prompt_id, datasets, attributes):
        """Keep the prompt for its layers' files and write it into the index."""
        self.prompt = (datasets, attributes)
        _write_prompt(self.index, prompt_id, datasets, attributes)

    def write_layer(self, prompt_id, layer, datasets, attributes):
        """Write and publish one layer's file, then link to it."""
        self.layer_file = TraceFile(self._path(prompt_id, layer), self.compress)
        _write_prompt(self.layer_file, prompt_id, *self.prompt)
        _write_layer(self.layer_file, prompt_id, layer, datasets, attributes)
        self.layer_file.publish(self.root)
        self.layer_file = None
        self.link(prompt_id, layer)

    def link(self, prompt_id, layer):
        """Link a finished layer's file into the index; UsageError when it holds other tokens."""
        path = self._path(prompt_id, layer)
        group = layer_group(prompt_id, layer)
        with h5py.File(path, "r") as file:
            if not np.array_equal(file[f"prompts/{prompt_id}/tokens"][...], self.prompt[0]["tokens"]):
                raise UsageError(f"{path}: holds other tokens than this run; use --force or another -o")
            self.digests += [dataset.attrs["sha256"] for dataset in file[group].values()]
        self.index.link(group, path.relative_to(self.folder))

    def publish(self):
        """Make the index visible; returns its path."""
        self.index.publish(self.root, self.digests)
        return self.index.path

    def abandon(self):
        """Leave the finished layers and `.part` files."""
        for file in (self.layer_file, self.index):
            if file is not None:
                file.abandon()

    def _path(self, prompt_id, layer):
        return self.folder / prompt_id / f"{layer:03d}.h5"
