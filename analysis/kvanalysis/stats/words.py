"""Notes below figures: what was compared, over how many heads and texts."""

from .intervals import FEWEST_BLOCKS, LEVEL, UNIT


def count(number, noun):
    return f"{number} {noun}" + ("" if number == 1 else "s")


def heads_words(rows):
    """The heads, texts, trace and model of `rows`, which belong to one trace (a run's or a cluster step's
    rows)."""
    heads, texts = len(rows.drop_duplicates(UNIT)), rows["prompt"].nunique()
    trace, model = str(rows["trace_id"].iloc[0])[:12], rows["model"].iloc[0] or "unnamed model"
    return f"{count(heads, 'kv head')} from {count(texts, 'text')} of trace {trace} ({model})"


def replay_note(rows):
    """What was compared, over how many heads and texts. `rows`: rows of one trace, as `load` returns them."""
    return f"Teacher-forced replay of {heads_words(rows)}; an error never changes later tokens or layers."


def oneshot_notes(rows):
    """[sentence that names the labels of one-shot methods], [] if there are none."""
    pairs = zip(rows["label"], rows["params"], strict=True)
    oneshot = sorted({label for label, params in pairs if params.get("phase") == "oneshot"})
    return [f"One-shot, every later token kept (compare by bytes): {', '.join(oneshot)}."] if oneshot else []


BAND_NOTE = (
    f"Bands: {LEVEL:.0%} intervals over layers (Student; heads of a layer count once, none below"
    f" {FEWEST_BLOCKS}), seeds averaged first."
)
