"""Makes one random change to a trace's structure: attributes, shapes, types, storage, numbers, links."""

import random

import h5py
import numpy as np

STRANGE = (
    0, 1, -1, 2**31, -(2**63), 2**63 - 1, 0.5, -0.0, 1e-320, 1e300, np.nan, np.inf, -np.inf, np.float16(0.5),
    np.bool_(True), "", "x", "0", "none", "post", "half_split", "x" * 60_000, "\u00e4\u2028", b"\xff\xfe\x00",
    b"", [], [1, 2], [[0.5]], [1.0] * 5000, h5py.Empty("f"), h5py.Empty("S1"),
    "{}", "[]", "null", "{" * 5000, '{"inv_freq": [1e999]}', '{"inv_freq": [1, 1, 1, 1], "rotary_dims": 8}',
    '{"inv_freq": 1, "layout": []}', '{"theta": "x", "inv_freq": [1, null]}',
)  # fmt: skip
NAMES = (
    "scaling", "sliding_window", "softcap", "rope", "rotary_dims", "q_prescaled", "source_dtype", "rope_json",
    "kvreplay_schema", "complete", "n_layers", "n_q_heads", "n_kv_heads", "head_dim", "v_head_dim", "model",
    "revision", "created_utc", "dumper", "trace_id", "n_prompt", "n_generated", "source", "text", "sha256",
    "question_from", "answer_from", "needle_tokens", "context_tokens", "masked_runs", "g_samples", "g_labels",
    "g_seed",
)  # fmt: skip
DATASETS = (
    "q_pos", "sinks", "out", "k", "tokens", "token_class", "token_text", "o_proj", "resid_norm",
    "resid_in_norm", "repeat_q", "repeat_k", "repeat_in_norm", "g", "g_recorded", "g_answer", "g_rows",
    "junk",
)  # fmt: skip
TYPES = (
    np.float16, np.float32, np.float64, ">f4", np.longdouble, np.int8, np.uint16, np.int32, np.int64,
    np.bool_, np.complex64, "S3", h5py.string_dtype(), h5py.vlen_dtype(np.float32), h5py.ref_dtype,
    np.dtype([("a", "f4"), ("b", "i2")]), h5py.enum_dtype({"a": 0}), np.dtype(("f4", (2,))),
)  # fmt: skip
NUMBERS = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0)


def change_at_random(file, draw: random.Random) -> None:
    """Changes an open file; if HDF5 refuses the change, nothing changes."""
    kinds = (attribute, attribute, shape, shape, storage, type_of, number, link, remove, rename, add)
    try:
        draw.choice(kinds)(file, draw)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, ArithmeticError, MemoryError):
        return


def objects(file, kind) -> list[str]:
    found = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, kind) else None)
    return sorted(found)


def attribute(file, draw):
    target = file[draw.choice(["/", *objects(file, (h5py.Group, h5py.Dataset))])]
    name = draw.choice([*NAMES, *target.attrs])
    if name in target.attrs and draw.random() < 0.2:
        del target.attrs[name]
    else:
        target.attrs[name] = draw.choice(STRANGE)


def replace(file, name, data, **options):
    del file[name]
    file.create_dataset(name, data=data, **options)


def shape(file, draw):
    name = draw.choice(objects(file, h5py.Dataset))
    data = file[name][()]
    axis = draw.randrange(max(np.ndim(data), 1))
    changed = {
        "shorter": lambda: np.delete(data, 0, axis),
        "longer": lambda: np.concatenate([data, data], axis),
        "none": lambda: np.delete(data, slice(None), axis),
        "turned": lambda: np.swapaxes(data, 0, -1),
        "flat": lambda: data.ravel(),
        "deep": lambda: data.reshape((1,) * draw.choice((1, 2, 28)) + np.shape(data)),
        "scalar": lambda: data.ravel()[0],
    }
    replace(file, name, draw.choice(list(changed.values()))())


def storage(file, draw):
    name = draw.choice(objects(file, h5py.Dataset))
    data = file[name][()]
    extent = tuple(draw.choice((n, 1, 2**20, 2**40)) for n in np.shape(data))
    chunks = tuple(max(1, min(n, draw.choice((1, 3, 1024)))) for n in extent)
    options = draw.choice(
        (
            {"data": data, "chunks": tuple(min(n, 7) for n in np.shape(data)), "compression": "gzip"},
            {"data": data, "compression": "lzf"},
            {"data": data, "scaleoffset": 3},
            {"data": data, "maxshape": (None,) * np.ndim(data), "fletcher32": True},
            {"shape": extent, "dtype": np.float32, "chunks": chunks},
            {"shape": extent, "dtype": np.float32, "chunks": chunks, "fillvalue": 1.0, "compression": 9},
            {"shape": extent, "dtype": np.float32},
        )
    )
    del file[name]
    file.create_dataset(name, **options)


def type_of(file, draw):
    name, wanted = draw.choice(objects(file, h5py.Dataset)), draw.choice(TYPES)
    extent = file[name].shape
    del file[name]
    file.create_dataset(name, shape=extent, dtype=wanted)


def number(file, draw):
    name = draw.choice(objects(file, h5py.Dataset))
    data = np.array(file[name][()])
    data.ravel()[draw.randrange(data.size)] = draw.choice(NUMBERS)
    file[name][...] = data


def link(file, draw):
    places = objects(file, (h5py.Group, h5py.Dataset))
    name = draw.choice([*places, "prompts/p0/layers/001", "prompts/p1"])
    other = draw.choice([*places, "/", "/nowhere", name])
    target = draw.choice(
        (
            h5py.SoftLink("/" + other.lstrip("/")),
            h5py.SoftLink("../" + other),
            file.get(other, h5py.SoftLink(other)),
            *(h5py.ExternalLink(to, other) for to in ("layer.h5", "damaged.h5", "gone.h5", "../damaged.h5")),
            *(h5py.ExternalLink(to, "/") for to in ("/etc/passwd", "/dev/zero", ".", "", "x" * 5000)),
        )
    )
    if name in file:
        del file[name]
    file[name] = target


def remove(file, draw):
    del file[draw.choice(objects(file, (h5py.Group, h5py.Dataset)))]


def rename(file, draw):
    name = draw.choice(objects(file, (h5py.Group, h5py.Dataset)))
    last = draw.choice(("0", "000 ", "-01", "1000", "9" * 30, "q", "k", "x" * 3000, "\u00e4", "a\nb"))
    file.move(name, f"{name.rpartition('/')[0]}/{last}")


def add(file, draw):
    where = draw.choice(["/", *objects(file, h5py.Group)])
    name = draw.choice(DATASETS)
    extent = tuple(draw.choice((0, 1, 2, 4, 8, 48)) for _ in range(draw.choice((0, 1, 2, 3))))
    file[where].create_dataset(
        name, data=np.full(extent, draw.choice((0, 1, 47, -1)), draw.choice(TYPES[:9]))
    )
