"""Sizes of BalanceKV's single-layer experiment on a trace of any length."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Tokens: the prompt, the rows scored after it, the sinks, and budgets sinks + floor(M/2^T) by T."""

    prompt: int
    scored: int
    sinks: int
    budgets: list[int]

    def uniform(self, rounds, tail):
        """The uniform sample that keeps as many tokens as `rounds` halvings, `tail` of them exactly."""
        return {"name": "uniform", "sinks": self.sinks, "recent": 0, "rounds": rounds, "tail": tail}


def sizes(context):
    """The Sizes of `figure.options` scored, sinks and rounds on the trace's shortest prompt.

    Sinks are at most a sixteenth of the tokens: 256 of 4096, 64 of 1024.
    """
    trace = context.recorded()
    tokens = min(trace.tensor(p, trace.layers(p)[0], "k").shape[1] for p in trace.prompts())
    scored = min(context.option("scored"), tokens // 2)
    sinks = min(context.option("sinks"), tokens // 16)
    middle = tokens - scored - sinks
    return Sizes(tokens - scored, scored, sinks, [sinks + middle // 2**t for t in context.option("rounds")])
