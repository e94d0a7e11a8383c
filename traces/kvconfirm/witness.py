"""The proof that model and engine attend to the same rows: outputs of the first compressed layer, which sees
the full model's queries, keys and values, beside `outputs.h5`."""

import h5py
import numpy as np
from kvdump.errors import DumpError
from kvdump.verify import TOLERANCE_OUT


class Outputs:
    """An open outputs.h5."""

    def __init__(self, path):
        self.path = path
        try:
            self.file = h5py.File(path, "r")
        except OSError as error:
            raise DumpError(
                f"{path}: cannot be read: {error}; --verify needs output.save: [kept, outputs]"
            ) from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def rows(self, key):
        """(row numbers [n], outputs [G, n, Dv]) of a cell."""
        if key not in self.file:
            raise DumpError(f"{self.path}: /{key}: not in the file; run kvreplay again with outputs saved")
        group = self.file[key]
        return group["rows"][...], group["out"][...].astype(np.float64)


class Witness:
    """A `way` that compares what `way` computes in the layer `layer` with the engine's outputs.

    `deviation`: largest |model - engine| / |engine| over query heads and rows. `bound`: what rounding
    explains, by the trace's storage.
    """

    def __init__(self, way, outputs, instance, layer, stored):
        self.way = way
        self.outputs = outputs
        self.instance = instance
        self.layer = layer
        self.bound = TOLERANCE_OUT[stored]
        self.deviation = None

    def __call__(self, call):
        out = self.way(call)
        if call.layer == self.layer:
            self.deviation = self._compare(out.detach().double().cpu().numpy())
        return out

    def _compare(self, found):
        keys = [key for (layer, _), key in sorted(self.instance.cells.items()) if layer == self.layer]
        group = len(found) // len(keys)
        worst = []
        for head, key in enumerate(keys):
            rows, expected = self.outputs.rows(key)
            seen = found[head * group : (head + 1) * group, rows - self.instance.n_prefill]
            error = np.linalg.norm(seen - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
            worst.append(error.max())
        return float(np.max(worst))  # NaN where one is NaN

    def check(self):
        """DumpError when the model's masks are not what the engine measured."""
        if self.deviation is None or not self.deviation <= self.bound:
            raise DumpError(
                f"layer {self.layer}: the model's output differs from the engine's by {self.deviation} "
                f"(at most {self.bound:.0e})"
            )
