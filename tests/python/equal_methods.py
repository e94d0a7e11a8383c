"""Methods that are equal by construction, as a simulation, and rules that tell two of them apart.

The error of a method on a head is what the head is like for every method, an effect of its own on the layer
and one of its own on the head, of equal variance: half of the variance of a difference is shared in a layer.
"""

from itertools import combinations

import numpy as np
from kvanalysis.stats.intervals import FEWEST_BLOCKS, LEVEL, block_errors, holm, mean_intervals
from scipy.special import stdtr

HEAVY = 3  # degrees of freedom of the heavy-tailed noise: the variance is finite, the fourth moment is not
TRIALS, TRIALS_OF_HOLM, TRIALS_OF_BOOTSTRAP, RESAMPLES = 2000, 1000, 400, 500
LAYOUTS = ((1, 3), (3, 1), (5, 1), (5, 3), (15, 1), (30, 3))  # layers, heads of each
FAMILIES, FAMILY_LAYOUTS = (3, 7), ((5, 3), (15, 1), (30, 3))  # methods that are compared with each other
BLOCKS, DEVIATIONS = (5, 10, 15, 30), (0.5, 1, 2)  # of the power
# Of variance 1; a difference of two is symmetric whatever they are.
NOISES = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "Student t, 3 degrees": lambda random, shape: (
        random.standard_t(HEAVY, shape) / np.sqrt(HEAVY / (HEAVY - 2))
    ),
    "log-normal": lambda random, shape: random.lognormal(size=shape) / np.sqrt((np.e - 1) * np.e),
}


def errors(noise, layers, heads, trials=TRIALS, methods=2, seed=0):
    """([methods, units, trials] errors, [units] layer of each unit)."""
    random, draw = np.random.default_rng(seed), NOISES[noise]
    of_head = draw(random, (1, layers * heads, trials))
    of_layer = draw(random, (methods, layers, trials)).repeat(heads, axis=1)
    own = draw(random, (methods, layers * heads, trials))
    return of_head + of_layer + own, np.arange(layers).repeat(heads)


def differences(noise, layers, heads, trials=TRIALS):
    """([units, trials] differences of two methods, [units] layer of each unit)."""
    (first, second), blocks = errors(noise, layers, heads, trials)
    return first - second, blocks


def percentiles_over_heads(values, _blocks):
    """(lows, highs) [trials]: percentiles of means of redrawn heads."""
    return _tails(values.T @ _counts(len(values)).T / len(values))


def student_over_heads(values, _blocks):
    return mean_intervals(values)[1:]


def student_over_layers(values, blocks):
    """The rule of the analysis; NaN where it has no interval."""
    return mean_intervals(values, blocks)[1:]


def studentised_over_layers(values, blocks):
    """(lows, highs) [trials]: quantiles of the studentised mean of redrawn layers of equal size."""
    layers = blocks.max() + 1
    means = values.reshape(layers, -1, values.shape[1]).mean(axis=1).T
    mean, error = means.mean(axis=1), means.std(axis=1, ddof=1) / np.sqrt(layers)
    counts = _counts(layers).T / layers
    redrawn = means @ counts
    spread = np.sqrt(np.maximum(means**2 @ counts - redrawn**2, 0) / (layers - 1))
    # A redrawn sample of one layer alone has no spread, and is infinitely far off.
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
    """[RESAMPLES, size] how often each is drawn among `size` with replacement."""
    return np.random.default_rng(1).multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(float)


def share_decided(bounds):
    low, high = bounds
    return float(((high < 0) | (low > 0)).mean())


def told_apart(noise, layers, heads):
    """{rule: share of trials in which it tells two equal methods apart}, NaN where it has no interval. Rules
    that redraw have the first TRIALS_OF_BOOTSTRAP trials."""
    values, blocks = differences(noise, layers, heads)
    found = {}
    for name, rule in RULES.items():
        trials = TRIALS_OF_BOOTSTRAP if "bootstrap" in name else TRIALS
        short = layers < FEWEST_BLOCKS and "layers" in name
        found[name] = np.nan if short else share_decided(rule(values[:, :trials], blocks))
    return found


def pairs_told_apart(noise, layers, heads, methods):
    """Share of trials in which Holm's correction over all pairs leaves one or more of equal methods apart."""
    made, blocks = errors(noise, layers, heads, TRIALS_OF_HOLM, methods)
    p_values = [p_of(first - second, blocks) for first, second in combinations(made, 2)]
    return float(np.mean([(holm(own) < 1 - LEVEL).any() for own in np.transpose(p_values)]))


def p_of(values, blocks):
    """[trials] two-sided probabilities of differences [units, trials]."""
    means, deviations, freedom = block_errors(values, blocks)
    return 2 * stdtr(freedom, -np.abs(means) / deviations)


def power(blocks, deviations):
    """Share of trials that Student over layers decides if the true difference is `deviations` standard
    deviations of a layer's difference; normal noise, one head a layer."""
    values, layers = differences("normal", blocks, 1)
    deviation = 2.0  # of a difference: two methods, and of each a layer's effect and a head's own
    return share_decided(student_over_layers(values + deviations * deviation, layers))
