"""What replay cannot tell, in the words that every page says early."""

TEACHER_FORCING = (
    "Replay is teacher-forced: the recorded queries, keys and values are fixed. Every number is the error of "
    "a single attention output, and an approximation error never changes later tokens or deeper layers."
)
NO_TASKS = (
    "Task accuracy, ROUGE, perplexity and throughput cannot be read off these numbers. Where a paper reports "
    "them, the same comparison in attention error stands as a proxy and is called one."
)
ONE_TEXT = (
    "{data}. Intervals cover the choice of heads, not other texts or models; differences below 10 % between "
    "layers are not established."
)
LIMITS_TITLE = "What these numbers can and cannot say"


def limits(data):
    """The items of the note; `data` says in words what was replayed."""
    return TEACHER_FORCING, NO_TASKS, ONE_TEXT.format(data=data.rstrip("."))
