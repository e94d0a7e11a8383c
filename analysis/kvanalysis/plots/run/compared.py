"""What methods are compared by: the measure, and the budgets where they are shares of the cache."""

from ...answer.measures import MAIN, default_column, words_of
from ...answer.sizes import SIZES, is_share_of
from ...data.shares import shares_of


def compared_words(rows):
    """The measure by which answers rank methods without a gradient, in words."""
    return words_of(rows, default_column(rows))


def order_note(rows):
    """A sentence in a list where relative errors are shown but answers rank by another measure, else []."""
    measure = default_column(rows)
    told = f"The answer ranks by the {words_of(rows, measure)}, so its order of methods can differ."
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
