"""Checks that files under final names are complete, even if their writer was killed."""

import csv
import json
from pathlib import Path

import h5py

UNFINISHED = (".part", ".tmp", ".spool")


def check_whole(folder):
    """Number of files read in a folder; AssertionError, ValueError or OSError if one is incomplete."""
    files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and is_final(path, folder)]
    for path in files:
        READERS.get(path.suffix, Path.read_bytes)(path)
    return len(files)


def is_final(path, folder):
    return not any(part.endswith(UNFINISHED) for part in path.relative_to(folder).parts)


def read_csv(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert None not in row and None not in row.values(), f"{path}: a row is incomplete"
    assert path.read_bytes().endswith(b"\n"), f"{path}: the last line is incomplete"


def read_json(path):
    assert json.loads(path.read_text()), f"{path}: is empty"


def read_hdf5(path):
    with h5py.File(path, "r") as file:
        file.visititems(lambda _, item: item[()] if isinstance(item, h5py.Dataset) else None)


def read_text(path):
    assert path.read_text(encoding="utf-8"), f"{path}: is empty"


READERS = {".csv": read_csv, ".json": read_json, ".h5": read_hdf5, ".html": read_text, ".yaml": read_text}


def arrays(out):
    """All numbers of the HDF5 files of a run, by file and name."""
    found = {}
    for path in sorted(out.glob("*.h5")):
        with h5py.File(path) as file:
            file.visititems(
                lambda name, item, path=path: (
                    found.update({(path.name, name): item[()].tobytes()})
                    if isinstance(item, h5py.Dataset)
                    else None
                )
            )
    return found
