"""Simulates methods that are equal by construction, and rules that call two of them significantly different.

A method's error on a head is the sum of three terms of equal variance: the head's, common to all methods; the
method's on the layer; and the method's on the head. Half of a difference's variance is shared in a layer.
"""

from itertools import combinations

import numpy as np
from kvanalysis.stats.intervals import FEWEST_BLOCKS, LEVEL, block_errors, holm, mean_intervals
from scipy.special import stdtr

HEAVY = 3  # degrees of freedom of the heavy-tailed noise: the variance is finite, the fourth moment is not
TRIALS, TRIALS_OF_HOLM, TRIALS_OF_BOOTSTRAP, RESAMPLES = 2000, 1000, 400, 500
LAYOUTS = ((1, 3), (3, 1), (5, 1), (5, 3), (15, 1), (30, 3))  # layers, heads of each
FAMILIES, FAMILY_LAYOUTS = (3, 7), ((5, 3), (15, 1), (30, 3))  # numbers of methods compared with each other
BLOCKS, DEVIATIONS = (5, 10, 15, 30), (0.5, 1, 2)  # layouts of the power analysis
# All have variance 1; the difference of two draws is symmetric for each.
NOISES = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "Student t, 3 degrees": lambda random, shape: (
        random.standard_t(HEAVY, shape) / np.sqrt(HEAVY / (HEAVY - 2))
    ),
    "log-normal": lambda random, shape: random.lognormal(size=shape) / np.sqrt((np.e - 1) * np.e),
}


def errors(noise, layers, heads, trials=TRIALS, methods=2, seed=0):
    """Returns ([methods, units, trials] errors, [units] layer of each unit)."""
    random, draw = np.random.default_rng(seed), NOISES[noise]
    of_head = draw(random, (1, layers * heads, trials))
    of_layer = draw(random, (methods, layers, trials)).repeat(heads, axis=1)
    own = draw(random, (methods, layers * heads, trials))
    return of_head + of_layer + own, np.arange(layers).repeat(heads)


def differences(noise, layers, heads, trials=TRIALS):
    """Returns ([units, trials] differences of two methods, [units] layer of each unit)."""
    (first, second), blocks = errors(noise, layers, heads, trials)
    return first - second, blocks


def percentiles_over_heads(values, _blocks):
    """(lows, highs) [trials]: percentiles of the means of resampled heads."""
    return _tails(values.T @ _counts(len(values)).T / len(values))


def student_over_heads(values, _blocks):
    return mean_intervals(values)[1:]


def student_over_layers(values, blocks):
    """The rule that the analysis uses; NaN where it has no interval."""
    return mean_intervals(values, blocks)[1:]


def studentised_over_layers(values, blocks):
    """(lows, highs) [trials]: quantiles of the studentised mean of resampled layers of equal size."""
    layers = blocks.max() + 1
    means = values.reshape(layers, -1, values.shape[1]).mean(axis=1).T
    mean, error = means.mean(axis=1), means.std(axis=1, ddof=1) / np.sqrt(layers)
    counts = _counts(layers).T / layers
    redrawn = means @ counts
    spread = np.sqrt(np.maximum(means**2 @ counts - redrawn**2, 0) / (layers - 1))
    # A resample that draws one layer every time has no spread: its studentised mean is infinite.
    with np.errstate(divide="ignore"):
        low, high = _tails((redrawn - mean[:, None]) / spread)
    return mean - high * error, mean - low * error


def _tails(draws):
    return np.quantile(draws, [0.025, 0.975], axis=1, method="nearest")


RULES = {
    "percentile bootstrap over heads": percentiles_over_heads,
    "Student over heads": student_over_heads,
    "studentised bootstrap over layers": studentised_over_layers,
    "Student over layers": student_over_layers,
}


def _counts(size):
    """[RESAMPLES, size] how often each of `size` items is drawn with replacement."""
    return np.random.default_rng(1).multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(float)


def share_of_decisions(bounds):
    low, high = bounds
    return float(((high < 0) | (low > 0)).mean())


def significant_shares(noise, layers, heads):
    """{rule: share of trials in which it calls two equal methods different}, NaN where it has no interval.
    Bootstrap rules use only the first TRIALS_OF_BOOTSTRAP trials."""
    values, blocks = differences(noise, layers, heads)
    found = {}
    for name, rule in RULES.items():
        trials = TRIALS_OF_BOOTSTRAP if "bootstrap" in name else TRIALS
        short = layers < FEWEST_BLOCKS and "layers" in name
        found[name] = np.nan if short else share_of_decisions(rule(values[:, :trials], blocks))
    return found


def significant_pair_share(noise, layers, heads, methods):
    """Share of trials in which one or more pairs of equal methods stay significant after Holm's
    correction."""
    made, blocks = errors(noise, layers, heads, TRIALS_OF_HOLM, methods)
    p_values = [p_of(first - second, blocks) for first, second in combinations(made, 2)]
    return float(np.mean([(holm(own) < 1 - LEVEL).any() for own in np.transpose(p_values)]))


def best_called_worse_share(noise, layers, heads, methods):
    """Share of trials in which multiple comparisons with the best call one of equal methods, which is as good
    as the best, significantly worse than the first. The simulated errors stand for logarithms."""
    made, blocks = errors(noise, layers, heads, TRIALS_OF_HOLM, methods)
    first = made.mean(axis=1).argmin(axis=0)
    best = made[first, :, np.arange(TRIALS_OF_HOLM)].T
    means, deviations, freedom = block_errors(made[0] - best, blocks)
    with np.errstate(invalid="ignore"):  # the method itself may be the first
        p_worse = stdtr(freedom, -means / deviations)
    return float(((methods - 1) * p_worse < 1 - LEVEL).mean())


def p_of(values, blocks):
    """[trials] two-sided p values of differences [units, trials]."""
    means, deviations, freedom = block_errors(values, blocks)
    return 2 * stdtr(freedom, -np.abs(means) / deviations)


def power(blocks, deviations):
    """Share of trials that Student over layers finds significant if the true difference is `deviations`
    standard deviations of a layer's difference; normal noise, one head per layer."""
    values, layers = differences("normal", blocks, 1)
    deviation = 2.0  # standard deviation of a difference: two methods, each with a layer term and a head term
    return share_of_decisions(student_over_layers(values + deviations * deviation, layers))
