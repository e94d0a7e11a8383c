"""Row formats: the configuration `row_format:`, the rows as read back, and their bytes.

A format codes the rows of one part (keys or values) of one kv head. The rows may be un-rotated by position
(`keys: pre_rope`) and rotated by a matrix (`rotate`) first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from . import row_codes as codes
from .common import Rope, rotate
from .row_blocks import BLOCK_FORMATS
from .row_formats_calibrated import KVQuant, Pca
from .row_formats_rotated import polar, polar_bits, tq_mse, tq_prod
from .row_formats_third_wave import iq4_nl, q6_0
from .row_rotations import Draws

# --- Configuration ----------------------------------------------------------------------------------------

# Both halves of vLLM's names: format of the keys, bits of the values.
TURBOQUANT = {
    "turboquant_k8v4": ({"name": "fp8_e4m3"}, 4),
    "turboquant_4bit_nc": ({"name": "tq_mse", "bits": 4}, 4),
    "turboquant_k3v4_nc": ({"name": "tq_mse", "bits": 3}, 4),
    "turboquant_3bit_nc": ({"name": "tq_mse", "bits": 3}, 3),
}
PRESETS = {"fp8k_nvfp4v": {"key": "fp8_e4m3", "value": "nvfp4"}}
OF_VLLM = {"rotation": "hadamard", "codebook": "gauss", "norm_correction": True}
OWN_ROTATION = ("tq_mse", "tq_prod", "polar", "kvquant", "pca", "tq_value", *TURBOQUANT)
BEFORE_ROPE = ("kvquant", "pca")
ROTATED_BY_DEFAULT = {"int4_token_head": "hadamard_signed"}


@dataclass(frozen=True)
class PartFormat:
    """The format of keys or of values. word: whether it comes from a turboquant name."""

    name: str
    options: dict = field(default_factory=dict)
    rotate: str = "none"
    rotate_block: int | None = None
    pre_rope: bool = False
    word: bool = False

    @property
    def by_block(self) -> bool:
        return self.name in BLOCK_FORMATS


@dataclass(frozen=True)
class RowFormat:
    key: PartFormat
    value: PartFormat
    sinks: int = 0
    recent: int = 1
    own_row: str = "exact"
    skip_layers: tuple = ()

    def skips(self, layer: int, n_layers: int) -> bool:
        return layer in {i + n_layers if i < 0 else i for i in self.skip_layers}


def parse(row_format: str | dict | None) -> RowFormat:
    """Parses a `row_format:` of a configuration; options next to `key` and `value` apply to both."""
    given = {"name": row_format or "source"} if not isinstance(row_format, dict) else dict(row_format)
    protection = given.pop("full_precision", {})
    frame = {name: given.pop(name) for name in ("own_row", "skip_layers") if name in given}
    if "skip_layers" in frame:
        frame["skip_layers"] = tuple(frame["skip_layers"])
    if "key" in given or "value" in given:
        parts = {part: given.pop(part, "source") for part in ("key", "value")}
    else:
        name = given.pop("name")
        parts = {"key": name, "value": name}
    read = {part: part_format(part, entry, given) for part, entry in parts.items()}
    found = RowFormat(**read, **protection, **frame)
    refuse(found)
    return found


def part_format(part: str, entry: str | dict, beside: dict) -> PartFormat:
    own = {"name": entry} if isinstance(entry, str) else dict(entry)
    options = {**beside, **own}
    name = options.pop("name")
    turn = options.pop("rotate", ROTATED_BY_DEFAULT.get(name, "none"))
    block = options.pop("rotate_block", None)
    keys = options.pop("keys", "pre_rope" if name in BEFORE_ROPE else "post_rope")
    if name in OWN_ROTATION and turn != "none":
        raise ValueError(f"{name} has a rotation of its own")
    if name in BLOCK_FORMATS and part == "key" and turn != "none":
        if "rotate" in own and own is not entry:
            raise ValueError(f"the keys of {name} live by their channels: rotate its values only")
        turn = "none"
    name = PRESETS.get(name, {}).get(part, name)
    word = name in TURBOQUANT
    if word:
        half, bits = TURBOQUANT[name]
        if part == "value":
            name, options = "tq_value", {"bits": bits}
        else:
            name = half["name"]
            options = {**half, **OF_VLLM} if name == "tq_mse" else {}
            options.pop("name", None)
    if name == "source":
        options, turn = {}, "none"
    return PartFormat(name, options, turn, block, part == "key" and keys == "pre_rope", word)


def refuse(f: RowFormat) -> None:
    """Refuses combinations without a meaning."""
    blocks = f.key.by_block or f.value.by_block
    if f.recent > 1 and (blocks or f.own_row == "coded"):
        raise ValueError("recent > 1 goes with neither kivi, gear nor own_row: coded")
    if blocks and f.own_row == "coded":
        raise ValueError("kivi and gear cannot code a row in its own step")


# --- One row ----------------------------------------------------------------------------------------------


@dataclass
class Coder:
    """read: rows [m, d] to rows as read back. sizes: rows to bytes of codes and of scales, each [m].

    static: bytes of the head's calibration, counted once.
    """

    read: Callable
    sizes: Callable
    static: int = 0


def fixed(code_bytes: float, scale_bytes: float) -> Callable:
    """Sizes that do not depend on the row; codes are rounded up to a byte."""
    return lambda x: (np.full(len(x), np.ceil(code_bytes)), np.full(len(x), float(scale_bytes)))


def of_width(change: Callable, width: int) -> Callable:
    """A format of plain numbers."""
    return lambda part, d, prompt, draws: Coder(change, fixed(width * d, 0))


def fp8(element: str) -> Callable:
    def build(part, d, prompt, draws, scale=1.0):
        token, head = scale == "token", scale == "head"
        s = codes.fp8_head_scale(prompt, element) if head else scale
        return Coder(lambda x: codes.fp8(x, element, s), fixed(d, 4 * token), 4 * head)

    return build


def nvfp4(part, d, prompt, draws, scale=1.0, search="max"):
    if d % codes.NVFP4_BLOCK:
        raise ValueError("nvfp4 needs rows of whole blocks of 16")
    head = scale == "head"
    g = codes.nvfp4_head_scale(prompt) if head else scale
    return Coder(lambda x: codes.nvfp4(x, g, search), fixed(d / 2, d / 16), 4 * head)


def mx(bits: int) -> Callable:
    def build(part, d, prompt, draws, element="e4m3", block=32, scale_rounding="floor"):
        element = "e2m1" if bits == 4 else element
        return Coder(
            lambda x: codes.mx(x, element, block, scale_rounding), fixed(d * bits / 8, np.ceil(d / block))
        )

    return build


def integers(bits: int) -> Callable:
    def build(part, d, prompt, draws, group=64):
        return Coder(
            lambda x: codes.quantise_rows(x, group, 2**bits - 1), fixed(d * bits / 8, 4 * np.ceil(d / group))
        )

    return build


def ggml(name: str, scales: int) -> Callable:
    def build(part, d, prompt, draws):
        if d % codes.GGML_BLOCK:
            raise ValueError(f"{name} needs rows of whole blocks of 32")
        return Coder(lambda x: codes.ggml(x, name), fixed(d * codes.GGML_BITS[name] / 8, scales * d / 32))

    return build


def of_iq4_nl(part, d, prompt, draws):
    return Coder(iq4_nl, fixed(d / 2, d / 16))


def of_q6_0(part, d, prompt, draws, scale="fit"):
    return Coder(lambda x: q6_0(x, scale), fixed(d * 6 / 8, d / 16))


def token_head(change: Callable, bits: int) -> Callable:
    return lambda part, d, prompt, draws: Coder(change, fixed(d * bits / 8, 4))


def of_tq_value(part, d, prompt, draws, bits):
    return Coder(lambda x: codes.tq_value(x, bits), fixed(d * bits / 8, 4))


def of_tq_mse(part, d, prompt, draws, bits=3, **options):
    return Coder(lambda x: tq_mse(x, draws, bits, **options), fixed(d * bits / 8, 2))


def of_tq_prod(part, d, prompt, draws, bits=3, **options):
    size = np.ceil(d * (bits - 1) / 8) + np.ceil(d / 8)
    return Coder(lambda x: tq_prod(x, draws, bits, **options), fixed(size, 4))


def of_polar(part, d, prompt, draws, **options):
    if d % 16:
        raise ValueError("polar needs rows of whole blocks of 16")
    bits, radii = polar_bits(d, *([options["levels"]] if "levels" in options else []))
    return Coder(lambda x: polar(x, draws, **options), fixed(bits / 8, 2 * radii))


def of_kvquant(part, d, prompt, draws, bits=4, **options):
    coder = KVQuant(part, prompt, bits, **options)

    def sizes(x):
        plain, _ = fixed(d * bits / 8, 0)(x)
        return plain, 4.0 * coder.outliers_of(x) + (4 if part == "value" else 0)

    return Coder(coder.read, sizes, 2 * 2**bits + (4 * d if part == "key" else 0))


def of_pca(part, d, prompt, draws, bits=2, **options):
    coder = Pca(prompt, bits, **options)
    return Coder(coder.read, fixed(int(bits * d) / 8, 0), 2 * (d * d + 2 * d) + d)


FORMATS = {
    "f32": of_width(codes.float32, 4),
    "f16": of_width(codes.float16, 2),
    "bf16": of_width(codes.to_bfloat16, 2),
    "fp8_e4m3": fp8("e4m3"),
    "fp8_e5m2": fp8("e5m2"),
    "nvfp4": nvfp4,
    "mxfp4": mx(4),
    "mxfp8": mx(8),
    **{f"int{bits}": integers(bits) for bits in (2, 3, 4, 8)},
    **{name: ggml(name, 4 if name.endswith("_1") else 2) for name in codes.GGML_BITS},
    "iq4_nl": of_iq4_nl,
    "q6_0": of_q6_0,
    "int8_token_head": token_head(codes.int8_token_head, 8),
    "int4_token_head": token_head(codes.int4_token_head, 4),
    "tq_value": of_tq_value,
    "tq_mse": of_tq_mse,
    "tq_prod": of_tq_prod,
    "polar": of_polar,
    "kvquant": of_kvquant,
    "pca": of_pca,
}


class Turned:
    """Transforms a part into the space in which it is coded, and back."""

    def __init__(self, f: PartFormat, d: int, rope: Rope | None, draws: Draws):
        self.rope = rope if f.pre_rope else None
        self.m = None if f.rotate == "none" else draws.matrix(f.rotate, d, f.rotate_block)

    def forward(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        y = x if self.rope is None else unrotated(x, positions, self.rope)
        return y if self.m is None else y @ self.m

    def back(self, y: np.ndarray, positions: np.ndarray) -> np.ndarray:
        x = y if self.m is None else y @ self.m.T
        return x if self.rope is None else rotated(x, positions, self.rope)


def unrotated(x: np.ndarray, positions: np.ndarray, rope: Rope) -> np.ndarray:
    """Keys [m, d] rotated back by their positions, the attention factor divided out."""
    return scaled(rotate(x, -np.asarray(positions, dtype=float), rope), rope, 1 / rope.factor)


def rotated(x: np.ndarray, positions: np.ndarray, rope: Rope) -> np.ndarray:
    """The inverse of `unrotated`."""
    return scaled(rotate(x, positions, rope), rope, rope.factor)


def scaled(x: np.ndarray, rope: Rope, factor: float) -> np.ndarray:
    """Multiplies the rotary dimensions by a factor."""
    turning = 2 * len(rope.inv_freq)
    return np.concatenate([x[:, :turning] * factor, x[:, turning:]], axis=1)


def coder_of(f: PartFormat, part: str, d: int, prompt: np.ndarray, draws: Draws) -> Coder:
    """The coder of a row-by-row format; prompt: rows [P, d] in the coding space."""
    return FORMATS[f.name](part, d, prompt, draws, **f.options)


# --- Reading back, and bytes ------------------------------------------------------------------------------


def read_back(
    row_format: str | dict,
    part: str,
    x: np.ndarray,
    *,
    prompt: int,
    rope: Rope | None = None,
    positions: np.ndarray | None = None,
    uniforms: dict | None = None,
    seed: int = 0,
) -> np.ndarray:
    """x [n, d] as read back after every row was coded; keys of kivi and gear in whole blocks of R."""
    f = getattr(parse(row_format), part)
    positions = np.arange(len(x)) if positions is None else positions
    x, draws = np.asarray(x, dtype=np.float64), Draws(seed, uniforms)
    if f.name == "source":
        return x.copy()
    turned = Turned(f, x.shape[1], rope, draws)
    y = turned.forward(x, positions)
    if f.by_block:
        coder = BLOCK_FORMATS[f.name](part, **f.options)
        end = len(x) - len(x) % coder.R if part == "key" else len(x)
        coded = turned.back(coder.read(y[:end])[0], positions[:end])
        return np.concatenate([coded, x[end:]])
    return turned.back(coder_of(f, part, x.shape[1], y[:prompt], draws).read(y), positions)


def row_bytes(
    row_format: str | dict,
    part: str,
    d: int,
    rows: np.ndarray | None = None,
    prompt: np.ndarray | None = None,
) -> tuple[float, float]:
    """Bytes of one coded row: (codes, scales), kivi's share of its groups included.

    kvquant's outliers depend on the rows: the result is the mean over `rows` [m, d] with constants from
    `prompt` [P, d], both in the coding space.
    """
    f = getattr(parse(row_format), part)
    if f.by_block:
        return BLOCK_FORMATS[f.name](part, **f.options).row_bytes(d)
    rows = np.zeros((1, d)) if rows is None else rows
    prompt = some_rows(d) if prompt is None else prompt
    code, scale = coder_of(f, part, d, prompt, Draws()).sizes(rows)
    return float(code.mean()), float(scale.mean())


def static_bytes(row_format: str | dict, part: str, d: int) -> int:
    """Bytes of the calibration of one kv head."""
    f = getattr(parse(row_format), part)
    if f.by_block or f.name == "source":
        return 0
    return coder_of(f, part, d, some_rows(d), Draws()).static


def some_rows(d: int) -> np.ndarray:
    """A random prompt for sizes that do not depend on the prompt."""
    return np.sin(np.arange(16.0 * d)).reshape(16, d)
