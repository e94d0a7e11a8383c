"""Files that h5py reads, and a file object through which HDF5 writes to disk.

After a failed write HDF5 neither closes nor drops the file: it tries again at interpreter exit and crashes.
So this object hides failures from HDF5; the writer reads `error` instead.
"""

import os
from pathlib import Path

import h5py
from kvbase.files import NO_LOCKS


def open_hdf5(path, mode="r", **options):
    """h5py.File; without a lock where the file system has none (NFS without lockd)."""
    try:
        return h5py.File(path, mode, **options)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return h5py.File(path, mode, locking=False, **options)


class DiskFile:
    """The file methods that h5py needs. `error`: the first OSError; later writes are discarded."""

    def __init__(self, path):
        self.file = Path(path).open("w+b", buffering=0)  # noqa: SIM115 (close ends it)
        self.error = None

    def seek(self, offset, whence=os.SEEK_SET):
        """Returns the new position."""
        return self.file.seek(offset, whence)

    def tell(self):
        """Returns the position."""
        return self.file.tell()

    def read(self, size=-1):
        """Returns bytes from the position on."""
        return self.file.read(size)

    def readinto(self, buffer):
        """Fills the buffer and returns its size; bytes after the end of the file are zeros."""
        view = memoryview(buffer).cast("B")
        done = 0
        # A read may return fewer bytes than there are; it returns none only at the end.
        while done < len(view) and (count := self._attempt(self.file.readinto, view[done:])):
            done += count
        view[done:] = bytes(len(view) - done)
        return len(view)

    def write(self, data):
        """Writes the data and returns its size, even if the write fails."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and self.error is None:
            done += self._attempt(self.file.write, view[done:]) or 0
        return len(view)

    def truncate(self, size=None):
        """Truncates to `size` and returns it."""
        self._attempt(self.file.truncate, size)
        return size

    def flush(self):
        """Does nothing: writes are not buffered."""

    def close(self):
        """Closes the file once; syncs it to disk first unless a write failed."""
        if self.file.closed:
            return
        if self.error is None:
            self._attempt(os.fsync, self.file.fileno())
        self._attempt(self.file.close)

    def _attempt(self, action, *arguments):
        try:
            return action(*arguments)
        except OSError as error:
            self.error = self.error or error
            return None
