"""What methods are compared by: the measure, and the budgets where they are shares of the cache."""

from ...answer.measures import DEFAULT, MAIN, words_of
from ...answer.sizes import SIZES, is_share_of
from ...data.shares import shares_of
from ...stats.intervals import used_rows


def measure_of(rows):
    """The measure by which answers rank methods without a gradient; the relative error if rows of an older
    table lack it."""
    return DEFAULT if DEFAULT in rows and used_rows(rows)[DEFAULT].notna().all() else MAIN


def order_note(rows):
    """A sentence in a list where relative errors are shown but answers rank by another measure, else []."""
    measure = measure_of(rows)
    told = f"The answer ranks by the {words_of(measure)}, so its order of methods can differ."
    return [] if measure == MAIN else [told]


def shares_note(rows):
    """A sentence in a list if rows of `load`'s table were requested at shares, else []."""
    told = f"Shares are of {whole_of(rows)}; B is the number of tokens that fit."
    return [told] if shares_of(rows) else []


def whole_of(rows):
    """The bytes that the shares are shares of, in words."""
    meta = rows.attrs.get("meta", {})
    found = [size.of for name, size in SIZES.items() if is_share_of(meta, name)]
    return found[0] if found else "the full cache’s bytes"
