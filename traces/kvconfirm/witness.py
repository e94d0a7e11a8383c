"""Checks that model and engine attend to the same rows: compares outputs of the first compressed layer, which
still sees the full model's queries, keys and values, with `outputs.h5`."""

import numpy as np
from kvbase.errors import TraceError
from kvbase.files import reason
from kvrecord.verify import TOLERANCE_OUT
from kvtrace.disk_file import open_hdf5


class Outputs:
    """An open outputs.h5. TraceError if it cannot be read."""

    def __init__(self, path):
        self.path = path
        try:
            self.file = open_hdf5(path)
        except OSError as error:
            raise TraceError(
                f"{path}: cannot be read ({reason(error)}): --verify needs it: run kvreplay again with "
                "output.save: [kept, outputs] (--save kept,outputs)"
            ) from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def rows(self, key):
        """(row numbers [n], outputs [G, n, Dv]) of a cell."""
        if key not in self.file:
            raise TraceError(f"{self.path}: /{key}: not in the file; run kvreplay again with outputs saved")
        group = self.file[key]
        return group["rows"][...], group["out"][...].astype(np.float64)


class Witness:
    """Wraps `way` and compares its output in the layer `layer` with the engine's.

    `deviation`: largest |model - engine| / |engine| over query heads and rows. `bound`: the deviation that
    rounding explains, given the trace's stored type.
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
        keys = self.instance.keys_of(self.layer)
        group = len(found) // len(keys)
        worst = []
        for head, key in enumerate(keys):
            rows, expected = self.outputs.rows(key)
            seen = found[head * group : (head + 1) * group, rows - self.instance.n_prefill]
            error = np.linalg.norm(seen - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
            worst.append(error.max())
        return float(np.max(worst))  # NaN if one is NaN

    def check(self):
        """TraceError if the deviation exceeds the bound, so the model's masks are not those of the engine."""
        if self.deviation is None or not self.deviation <= self.bound:
            raise TraceError(
                f"layer {self.layer}: the model's output differs from the engine's by {self.deviation} "
                f"(at most {self.bound:.0e})"
            )
