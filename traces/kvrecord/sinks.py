"""Outputs of a recording: one file for all, or one file per (prompt, layer) and an index of links."""

import json
from pathlib import Path

import h5py
import numpy as np
from kvbase.errors import ConfigError
from kvbase.files import reason
from kvtrace.disk_file import open_hdf5
from kvtrace.writer import TraceFile, fsync_path


def layer_group(prompt_id, layer):
    """HDF5 path of a layer's group."""
    return f"/prompts/{prompt_id}/layers/{layer:03d}"


def _write_prompt(file, prompt_id, datasets, attributes, groups):
    for part, (data, notes) in {"": (datasets, attributes), **groups}.items():
        where = f"/prompts/{prompt_id}/{part}".removesuffix("/")
        for name, content in data.items():
            add = file.add_texts if isinstance(content, list) else file.add
            add(f"{where}/{name}", content)
        file.set_attributes(where, notes)


def branch_layer_group(prompt_id, branch, layer):
    """HDF5 path of a layer's group in a branch."""
    return f"/prompts/{prompt_id}/branches/{branch}/layers/{layer:03d}"


def _write_layer(file, prompt_id, layer, datasets, attributes, branches):
    groups = {branch_layer_group(prompt_id, branch, layer): of for branch, of in (branches or {}).items()}
    for group, of_group in {layer_group(prompt_id, layer): datasets, **groups}.items():
        for name, (array, dtype) in of_group.items():
            file.add(f"{group}/{name}", array, dtype)
        file.set_attributes(group, attributes)


def _content(dataset):
    """Content of a prompt's dataset: an array, or a list of str."""
    texts = h5py.check_string_dtype(dataset.dtype)
    return list(dataset.asstr()[()]) if texts else dataset[()]


def _parts(group):
    """Content of a group: its datasets {name: content} and its attributes."""
    found = {name: item for name, item in group.items() if isinstance(item, h5py.Dataset)}
    return {name: _content(dataset) for name, dataset in found.items()}, dict(group.attrs)


def is_directory_target(path):
    """True if an output path means a directory: an existing one, or a new name without suffix or with a slash
    at its end."""
    new = not Path(path).exists()
    return Path(path).is_dir() or (new and (Path(path).suffix == "" or str(path).endswith("/")))


def existing_trace(path):
    """An existing trace at `path`: its file, its index, or a finished layer of a run that was interrupted
    before it wrote an index. None if there is none."""
    folder = Path(path)
    index = folder / "index.h5"
    finished = index if folder.is_dir() else folder
    if folder.is_dir() and not index.exists():
        finished = next(folder.glob("*/[0-9]*.h5"), index)
    return finished if finished.exists() else None


def published(path, settings):
    """True if `path` is a finished trace with these settings, False if there is no file; ConfigError if it
    has other settings or is no trace."""
    if not Path(path).exists():
        return False
    try:
        with open_hdf5(path) as file:
            made_with = json.loads(file.attrs.get("dump_json", "null"))
            if file.attrs.get("complete") == 1 and made_with == settings:
                return True
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: not a trace that --resume could continue ({reason(error)}): use --force or another -o"
        ) from error
    raise ConfigError(f"{path}: made with other settings; use --force or another -o")


def all_linked_published(path, settings):
    """True if every file that a trace links to exists; ConfigError if one has other settings."""
    with open_hdf5(path) as file:
        groups = [prompt.get("layers", {}) for prompt in file.get("prompts", {}).values()]
        links = [group.get(layer, getlink=True) for group in groups for layer in group]
    targets = [link.filename for link in links if isinstance(link, h5py.ExternalLink)]
    return all(published(Path(path).parent / target, settings) for target in targets)


def _is_trace(path):
    try:
        with open_hdf5(path) as file:
            return "dump_json" in file.attrs
    except OSError:
        return False


class FileSink:
    """All prompts and layers in one file."""

    def __init__(self, path, root, compress=False):
        self.root = root
        self.file = TraceFile(path, compress)

    def missing_layers(self, prompt_id, layers):
        """All layers: a single file is always written from the start."""
        return list(layers)

    def write_prompt(self, prompt_id, datasets, attributes, groups=None):
        """Datasets {name: array, or list of str} and attributes of `/prompts/<id>`, and of groups in it
        {name: (datasets, attributes)}."""
        _write_prompt(self.file, prompt_id, datasets, attributes, groups or {})

    def write_layer(self, prompt_id, layer, datasets, attributes, branches=None):
        """Datasets {name: (stored array, dtype)} and attributes of a layer's group; `branches`: such datasets
        of the layer in each branch."""
        _write_layer(self.file, prompt_id, layer, datasets, attributes, branches)

    def publish(self):
        """Renames the file to its final name. Returns its path."""
        self.file.publish(self.root)
        return self.file.path

    def abandon(self):
        """Closes the file without publishing; the `.part` file stays."""
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
        self.old_is_there = not resume
        self.prompt = None
        self.layer_file = None

    def missing_layers(self, prompt_id, layers):
        """Layers of a prompt without a finished file (all layers unless resuming)."""
        if not self.resume:
            return list(layers)
        settings = json.loads(self.root["dump_json"])
        return [layer for layer in layers if not published(self._path(prompt_id, layer), settings)]

    def write_prompt(self, prompt_id, datasets, attributes, groups=None):
        """Writes the prompt into the index, and keeps it to write it into its layers' files."""
        self.prompt = (datasets, attributes, groups or {})
        _write_prompt(self.index, prompt_id, *self.prompt)

    def adopt_prompt(self, prompt_id, layers):
        """Adds a prompt whose layers are all finished to the index; its data come from these files."""
        with open_hdf5(self._path(prompt_id, layers[0])) as file:
            group = file[f"prompts/{prompt_id}"]
            own = {name for name, item in group.items() if isinstance(item, h5py.Group)} - {"layers"}
            own |= {f"branches/{branch}" for branch in group.get("branches", ())}
            groups = {name: _parts(group[name]) for name in sorted(own)}
            datasets, attributes = _parts(group)
        self.write_prompt(prompt_id, datasets, attributes, groups)
        for layer in layers:
            self.link(prompt_id, layer)

    def write_layer(self, prompt_id, layer, datasets, attributes, branches=None):
        """Writes and publishes one layer's file, then links to it."""
        if self.old_is_there:
            self._remove_old()
        self.layer_file = TraceFile(self._path(prompt_id, layer), self.compress)
        _write_prompt(self.layer_file, prompt_id, *self.prompt)
        _write_layer(self.layer_file, prompt_id, layer, datasets, attributes, branches)
        self.layer_file.publish(self.root)
        self.layer_file = None
        self.link(prompt_id, layer)

    def link(self, prompt_id, layer):
        """Links a finished layer's file into the index. ConfigError if it holds other tokens."""
        path = self._path(prompt_id, layer)
        groups = [layer_group(prompt_id, layer)]
        with open_hdf5(path) as file:
            if not np.array_equal(file[f"prompts/{prompt_id}/tokens"][...], self.prompt[0]["tokens"]):
                raise ConfigError(f"{path}: holds other tokens than this run; use --force or another -o")
            branches = file[f"prompts/{prompt_id}"].get("branches", ())
            groups += [branch_layer_group(prompt_id, branch, layer) for branch in branches]
            for group in groups:
                self.digests += [dataset.attrs["sha256"] for dataset in file[group].values()]
        for group in groups:
            self.index.link(group, path.relative_to(self.folder))

    def publish(self):
        """Renames the index to its final name. Returns its path."""
        self.index.publish(self.root, self.digests)
        return self.index.path

    def abandon(self):
        """Closes without publishing; finished layers and `.part` files stay."""
        for file in (self.layer_file, self.index):
            if file is not None:
                file.abandon()

    def _remove_old(self):
        """Removes an earlier run's files: the index first, so that no index links to rows of two runs."""
        self.index.path.unlink(missing_ok=True)
        fsync_path(self.folder)
        for path in filter(_is_trace, self.folder.glob("*/[0-9]*.h5")):
            path.unlink()
        self.old_is_there = False

    def _path(self, prompt_id, layer):
        return self.folder / prompt_id / f"{layer:03d}.h5"
