"""A file on disk that HDF5 writes through.

When a write fails, HDF5 neither closes nor forgets the file: it tries again while the interpreter ends, and
crashes. So it never hears of a failure; the writer asks for it instead.
"""

import os
from pathlib import Path


class DiskFile:
    """What h5py asks of a file object. `error` is the first OSError; after it everything is thrown away."""

    def __init__(self, path):
        self.file = Path(path).open("w+b", buffering=0)  # noqa: SIM115 (close ends it)
        self.error = None

    def seek(self, offset, whence=os.SEEK_SET):
        """The new position."""
        return self.file.seek(offset, whence)

    def tell(self):
        """The position."""
        return self.file.tell()

    def read(self, size=-1):
        """Bytes from the position on."""
        return self.file.read(size)

    def readinto(self, buffer):
        """Bytes read into the buffer; what was never written reads as zeros."""
        view = memoryview(buffer).cast("B")
        done = 0
        # One read may give less than there is; only the end gives nothing.
        while done < len(view) and (count := self._attempt(self.file.readinto, view[done:])):
            done += count
        view[done:] = bytes(len(view) - done)
        return len(view)

    def write(self, data):
        """Takes all bytes of data, whatever becomes of them."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and self.error is None:
            done += self._attempt(self.file.write, view[done:]) or 0
        return len(view)

    def truncate(self, size=None):
        """The size asked for."""
        self._attempt(self.file.truncate, size)
        return size

    def flush(self):
        """Nothing waits here."""

    def close(self):
        """Close the file, once, synced to disk unless a write failed."""
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
