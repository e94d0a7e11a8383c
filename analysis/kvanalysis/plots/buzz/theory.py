"""Sizes of BUZZ's cache, by the paper's recursion and Remark 1.

k sinks, w recent tokens, segments of s tokens, a middle that triggers a pass at T tokens; natural numbers, s
>= 3.
"""

from math import ceil


def survivors_of_one(stride):
    """s-hat: one of so many old tokens survives a pass."""
    return (stride + 1) // 2


def middle_after_passes(stride, threshold, variant, passes):
    """Middle tokens after each of the first `passes` passes: a_1 = ceil(X/s), then
    ceil(a/s-hat) + ceil((X - a)/s), X = T + 1 for the reference, T for the paper's variant."""
    fires = threshold + (variant == "reference")
    sizes = [ceil(fires / stride)]
    while len(sizes) < passes:
        old = sizes[-1]
        sizes.append(ceil(old / survivors_of_one(stride)) + ceil((fires - old) / stride))
    return sizes[:passes]


def fixed_point(stride, threshold):
    """a*: the recursion's fixed point without ceilings, T / (s (1 - 1/s-hat + 1/s))."""
    return threshold / (stride * (1 - 1 / survivors_of_one(stride)) + 1)


def mean_size(sinks, window, stride, threshold):
    """Time average of the whole cache between passes: k + w + (a* + T)/2."""
    return sinks + window + (fixed_point(stride, threshold) + threshold) / 2


def peak_attended(sinks, window, threshold, variant):
    """The largest number of tokens that a step attends to, including the newest."""
    return sinks + window + threshold + (variant == "reference")


def ratio_rule(stride):
    """T/w by the paper's parameter rule: (s^2 + 1)/(s + 1) for odd s, s - 1 for even s."""
    return (stride**2 + 1) / (stride + 1) if stride % 2 else stride - 1
