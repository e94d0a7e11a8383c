"""The first section of a run's page: the best method at equal bytes, its lead, and what remains undecided."""

import pandas as pd

from ..answer.compare import compare_at, shares_of_all
from ..answer.measures import NATS
from ..answer.sizes import PEAK, default_size
from ..answer.table import cells
from ..answer.words import basis, capital, caveats, headline, left_out, verdict
from ..data.confirmed import confirmed, whole_rows
from ..data.shares import shares_of
from ..errors import KvreplayError
from ..predict.instances import LOSS
from ..stats.families import spread
from ..stats.format import percent, significant
from ..stats.words import count
from .html import Html, folded, html, paragraph, sortable_table

TITLE = "The best method at equal bytes"
SHARES = (0.1, 0.2, 0.4)  # default shares of the full cache's bytes, if a run was asked for none
SAME = 1 + 1e-9  # tolerance: a share that is reached up to rounding
SCOPE = "Shares are of {}. {}. {}."
MOST_REASONS = 2  # more reasons for leaving methods out are counted instead
UNKNOWN = Html(
    "This is the error of the attention output, not the model’s own loss: <code>kvreplay confirm</code> runs"
    " the model with the tokens that each method kept."
)


def answer_section(frame, summary, predicted=None):
    """Parts of the section: a sentence for each share of _found; below, folded, the ranking and its limits.
    `predicted`: the table's Losses, or None."""
    found = _found(frame, predicted)
    answers = [each for each in found.values() if not isinstance(each, str)]
    answers = [each for each in answers if len(each.compared)] or answers
    losses = _losses(frame, summary)
    lines = [_line(share, each, losses) for share, each in found.items()]
    of_attention = any(each.measure != NATS for each in answers)
    known = [paragraph(UNKNOWN)] if of_attention and losses is None else []
    return [
        *(paragraph(SCOPE.format(each.size.of, *map(capital, basis(each)))) for each in answers[-1:]),
        Html(f'<ol class="answers">{"".join(lines)}</ol>'),
        *known,
        *(_ranking(each) for each in answers),
    ]


def _found(frame, predicted):
    """{share: its Answer, or why there is none}: for the shares that the run was asked for, of the bytes that
    it was asked for; else for SHARES, or where all methods have a number if none has one there."""
    of, asked = default_size(frame), spread([each.value for each in shares_of(frame)], len(SHARES))
    found = {share: _answer(frame, share, of, predicted) for share in asked or SHARES}
    if asked or any(isinstance(each, str) or len(each.compared) for each in found.values()):
        return found
    return {share: _answer(frame, share, of, predicted) for share in shares_of_all(frame, of) or SHARES}


def _answer(frame, share, of, predicted):
    """The Answer, or a sentence that says why there is none."""
    try:
        return compare_at(frame, share, of=of, losses=predicted)
    except KvreplayError as problem:
        return f"No answer: {problem}."


def _line(share, answer, losses):
    if isinstance(answer, str):
        return f"<li><b>{100 * share:g} %</b><span>{html(answer)}</span></li>"
    found = headline(answer)
    rest = verdict(answer).removeprefix(found)
    words = f"<strong>{html(_title(answer, found))}</strong>{html(rest)}."
    model = _model_words(answer, losses) if answer.best and losses is not None else ""
    aside = f"<small>{html(''.join(f' {text}' for text in left_out(answer, MOST_REASONS)))}</small>"
    return f"<li><b>{100 * share:g} %</b><span>{words}{html(model)}{aside}</span></li>"


def _title(answer, found):
    """Names of methods keep their letters."""
    return found if answer.winner_decided or len(answer.compared) == 1 else capital(found)


def _losses(frame, summary):
    """Loss increase in nats a token of every instance that the closed loop ran, with the share of the full
    cache's bytes that it takes: columns label, budget_tokens, share, loss, n_texts; None if it ran none."""
    found = confirmed(frame)
    rows = None if found is None else whole_rows(found.losses)
    if rows is None or rows.empty:
        return None
    texts = rows.groupby(["label", "budget_tokens", "prompt"], dropna=False)[LOSS].mean()
    means = texts.groupby(["label", "budget_tokens"], dropna=False).agg(["mean", "size"]).reset_index()
    means.columns = ["label", "budget_tokens", "loss", "n_texts"]
    shares = summary.groupby(["label", "budget_tokens"], dropna=False)["bytes_ratio"].mean()
    return means.merge(shares.rename("share").reset_index(), on=["label", "budget_tokens"])


def _model_words(answer, losses):
    """The model's loss with the best method, at its largest budget within the share."""
    if answer.size.name != PEAK:
        return ""
    own = losses[(losses["label"] == answer.best) & (losses["share"] <= answer.share * SAME)]
    if own.empty:
        return f" The model was not run with {answer.best} at that size."
    row = own.loc[own["share"].idxmax()]
    size = "" if pd.isna(row["budget_tokens"]) else f" at budget {row['budget_tokens']:.0f}"
    return (
        f" The model itself lost {significant(row['loss'])} nats a token with {answer.best}{size}"
        f" ({percent(row['share'])} % of the bytes, {count(int(row['n_texts']), 'text')})."
    )


def _ranking(answer):
    title = f"At {100 * answer.share:g} %: {count(len(answer.compared), 'method')} ranked, and limits"
    listed = Html("<ul>" + "".join(f"<li>{html(text)}</li>" for text in caveats(answer)) + "</ul>")
    return folded(title, sortable_table(*cells(answer)), listed)
