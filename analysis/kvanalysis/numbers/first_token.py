"""Which methods hold the first token of their prompt, on which attention sinks."""

from pathlib import Path

from ..data.first_token import holds_first_token

MOST_HEADS = 0.5  # of the heads at the smallest budget: a blind sample holds the token as often as any other


def sink_holders(frame):
    """{label: whether it holds its prompts' first token in more than MOST_HEADS of its heads at its smallest
    budget}; None where the run saved no kept sets (`output.save: [kept]`). A protected sink and one that a
    score finds are the same to the loss."""
    folders = frame.attrs.get("folders", ())
    rows = frame[frame["status"] == "ok"]
    smallest = rows.groupby("label")["budget_tokens"].transform("min")
    rows = rows[(rows["budget_tokens"] == smallest).fillna(True).astype(bool)]
    held = holds_first_token(Path(folders[0]) / "kept.h5", rows["key"]) if len(folders) else None
    if held is None:
        return None
    shares = rows.assign(held=held).groupby("label")["held"].mean().dropna()
    return (shares > MOST_HEADS).to_dict()
