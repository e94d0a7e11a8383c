"""Formats that code each row independently: they take rows [m, d] and return them as read back.

Everything is float64; "float16" and "float32" are float64 numbers rounded half to even to that type. A block
scale or an offset that float16 cannot hold raises `Unstorable`.
"""

import numpy as np


class Unstorable(ValueError):
    """A number beyond the range of its storage type: a reported failure."""


def finite(x: np.ndarray) -> np.ndarray:
    """Returns the numbers unchanged; refuses infinities and NaN."""
    if not np.isfinite(x).all():
        raise Unstorable("a number is not finite")
    return x


def float16(x: np.ndarray) -> np.ndarray:
    """Rounded to float16 and widened again."""
    with np.errstate(over="ignore"):
        return finite(np.asarray(x, dtype=np.float64).astype(np.float16).astype(np.float64))


def float32(x: np.ndarray) -> np.ndarray:
    """Rounded to float32 and widened again."""
    return np.asarray(x, dtype=np.float64).astype(np.float32).astype(np.float64)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounds to nearest even on the upper 16 bits of the float32."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def half_away(x: np.ndarray) -> np.ndarray:
    """Rounded to the nearest integer, ties away from zero."""
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def ratio(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """x / by, and 0 where `by` is 0."""
    return np.divide(x, by, out=np.zeros(np.broadcast(x, by).shape), where=by != 0)


def in_blocks(x: np.ndarray, size: int, change) -> np.ndarray:
    """Applies `change` to every `size` neighbours of the rows; the last ones may be fewer.

    change(parts [any, size]) handles each part independently, so that one call takes all full parts.
    """
    m, whole = len(x), x.shape[1] // size * size
    changed = change(x[:, :whole].reshape(-1, size)).reshape(m, whole) if whole else x[:, :0]
    if whole == x.shape[1]:
        return changed
    return np.concatenate([changed, change(x[:, whole:])], axis=1)


# --- Small floats -----------------------------------------------------------------------------------------

# Mantissa bits, exponent of the smallest normal number, largest number, exponent of the largest number.
SMALL_FLOATS = {"e4m3": (3, -6, 448.0, 8), "e5m2": (2, -14, 57344.0, 15), "e2m1": (1, 0, 6.0, 2)}


def small_float(x: np.ndarray, element: str) -> np.ndarray:
    """The nearest number of the element type, ties to even; saturates beyond the largest number."""
    mantissa, least, greatest, _ = SMALL_FLOATS[element]
    exponent = np.maximum(np.frexp(finite(x))[1] - 1, least) - mantissa
    q = np.ldexp(1.0, exponent)
    return np.clip(np.rint(x / q) * q, -greatest, greatest)


def largest(x: np.ndarray) -> np.ndarray:
    """Largest magnitude of each row: [m, 1]."""
    return np.abs(finite(x)).max(axis=1, keepdims=True)


def fp8(x: np.ndarray, element: str, scale) -> np.ndarray:
    """8-bit floats. scale: a number, or `token` for one scale per row."""
    if scale == "token":
        scale = np.maximum(largest(x) / SMALL_FLOATS[element][2], 1e-6)
    s = float32(scale)
    return small_float(x / s, element) * s


def fp8_head_scale(prompt: np.ndarray, element: str) -> float:
    """The scale of `scale: head` from the prompt rows [P, d]."""
    return max(np.abs(prompt).max() / SMALL_FLOATS[element][2], 1e-6)


NVFP4_BLOCK = 16


def nvfp4(x: np.ndarray, g: float, search: str) -> np.ndarray:
    """E2M1 with an E4M3 scale per 16 channels, times one float32 g; four_over_six also tries 4 as largest."""
    g = float32(g)

    def coded(block, top):
        s = small_float(ratio(largest(block), top * g), "e4m3") * g
        return small_float(ratio(block, s), "e2m1") * s

    def block_of(block):
        six = coded(block, 6.0)
        if search == "max":
            return six
        four = coded(block, 4.0)
        better = ((four - block) ** 2).sum(axis=1) < ((six - block) ** 2).sum(axis=1)
        return np.where(better[:, None], four, six)

    return in_blocks(x, NVFP4_BLOCK, block_of)


def nvfp4_head_scale(prompt: np.ndarray) -> float:
    """The scale of `scale: head`: the largest number divided by 6 * 448."""
    return np.abs(prompt).max() / (6 * 448)


def mx(x: np.ndarray, element: str, block: int, rounding: str) -> np.ndarray:
    """OCP microscaling: one power of two per block, 2^-127 for a block of zeros."""
    _, _, greatest, exponent = SMALL_FLOATS[element]

    def block_of(part):
        top = largest(part)
        if rounding == "floor":
            k = np.frexp(top)[1] - 1 - exponent
        else:
            k = np.frexp(top / greatest)[1]
            k = np.where(top <= np.ldexp(greatest, k - 1), k - 1, k)
        k = np.where(top == 0, -127, np.clip(k, -127, 127))
        return np.ldexp(small_float(np.ldexp(part, -k), element), k)

    return in_blocks(x, block, block_of)


# --- Integer groups ---------------------------------------------------------------------------------------


def quantise_group(x: np.ndarray, levels: int) -> np.ndarray:
    """One group per row of x; codes use the exact extremes, decoding uses offset and step in float16."""
    low, high = finite(x).min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    codes = np.rint(np.clip(ratio((x - low) * levels, high - low), 0, levels))
    return codes * float16((high - low) / levels) + float16(low)


def quantise_rows(x: np.ndarray, group: int, levels: int) -> np.ndarray:
    """Quantises groups of `group` numbers along each row; the last group may be shorter."""
    return in_blocks(x, group, lambda part: quantise_group(part, levels))


def quantise_columns(x: np.ndarray, group: int, levels: int) -> np.ndarray:
    """Quantises groups of `group` consecutive tokens, channel by channel."""
    return quantise_rows(x.T, group, levels).T


# --- llama.cpp --------------------------------------------------------------------------------------------

GGML_BLOCK = 32
GGML_BITS = {"q8_0": 8, "q5_0": 5, "q5_1": 5, "q4_0": 4, "q4_1": 4}


def ggml(x: np.ndarray, name: str) -> np.ndarray:
    """Blocks of 32 channels; coding uses the exact scale, decoding the scale in float16."""
    bits = GGML_BITS[name]

    def symmetric(block):
        s = largest(block) / 127
        return half_away(ratio(block, s)) * float16(s)

    def signed(block):
        half = 2.0 ** (bits - 1)
        extreme = np.take_along_axis(block, np.abs(block).argmax(axis=1)[:, None], axis=1)
        s = extreme / -half
        codes = np.minimum(2 * half - 1, np.trunc(ratio(block, s) + half + 0.5))
        return np.where(s == 0, 0.0, (codes - half) * float16(s))

    def offset(block):
        low, top = block.min(axis=1, keepdims=True), 2.0**bits - 1
        s = (block.max(axis=1, keepdims=True) - low) / top
        codes = np.minimum(top, np.trunc(ratio(block - low, s) + 0.5))
        return codes * float16(s) + float16(low)

    return in_blocks(
        finite(x), GGML_BLOCK, symmetric if name == "q8_0" else offset if name[3] == "1" else signed
    )


# --- vLLM -------------------------------------------------------------------------------------------------


def int8_token_head(x: np.ndarray) -> np.ndarray:
    """One float32 scale per row."""
    s = float32(np.maximum(largest(x) / 127, 1e-6))
    return np.rint(np.clip(x / s, -128, 127)) * s


def int4_token_head(x: np.ndarray) -> np.ndarray:
    """One float32 scale per row; its 4 lowest mantissa bits hold the zero point."""
    low, high = finite(x).min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    s = float32(np.maximum((high - low) / 15, 1e-6))
    zero = np.clip(half_away(-low / s), 0, 15)
    codes = np.clip(half_away(x / s + zero), 0, 15)
    bits = (s.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFFFF0)) | zero.astype(np.uint32)
    return (codes - zero) * bits.view(np.float32).astype(np.float64)


def tq_value(x: np.ndarray, bits: int) -> np.ndarray:
    """Values of the turboquant formats: the row is one group, codes are rounded half up."""
    low, top = finite(x).min(axis=1, keepdims=True), 2.0**bits - 1
    s = np.maximum((x.max(axis=1, keepdims=True) - low) / top, 1e-8)
    codes = np.clip(np.floor((x - low) / s + 0.5), 0, top)
    return codes * float16(s) + float16(low)
