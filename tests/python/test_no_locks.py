"""File systems without locks: flock() answers "No locks available" (NFS without lockd)."""

import errno
import fcntl

import h5py
import pytest
from kvbase.files import take_lock
from kvtrace.disk_file import open_hdf5


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


def held(*_):
    raise BlockingIOError(errno.EWOULDBLOCK, "held")


def test_a_lock_that_does_not_exist_is_not_taken(monkeypatch, tmp_path):
    with (tmp_path / "lock").open("w") as file:
        monkeypatch.setattr(fcntl, "flock", no_locks)
        take_lock(file.fileno())
        monkeypatch.setattr(fcntl, "flock", held)
        with pytest.raises(BlockingIOError):
            take_lock(file.fileno(), wait=False)


def test_hdf5_opens_without_a_lock_only_where_there_is_none(monkeypatch, tmp_path):
    path = tmp_path / "t.h5"
    with h5py.File(path, "w") as file:
        file["x"] = 1
    opened, real = [], h5py.File

    def file_without_locks(*words, **options):
        opened.append(options)
        return real(*words, **options) if options.get("locking") is False else no_locks()

    monkeypatch.setattr(h5py, "File", file_without_locks)
    with open_hdf5(path) as file:
        assert file["x"][()] == 1
    assert opened == [{}, {"locking": False}]
    monkeypatch.setattr(h5py, "File", real)
    with open_hdf5(path), real(path):  # HDF5 refuses two ways of locking one file
        pass
    with pytest.raises(OSError):
        open_hdf5(tmp_path / "gone.h5")
