"""Claims that the methods and budgets of one run allow to test."""

from .claims import Claim
from .run_rules import BoundHolds, FallsWithBudget, GreedyRatio, Lack, Order

RULES = (
    Order(
        "H2O",
        "Heavy hitters and recent tokens together lose less than either alone",
        "Fig. 1 right, Fig. 4, Table 6 (as attention error)",
        (("h2o", "h2o_heavy"), ("h2o", "local")),
    ),
    Order(
        "H2O",
        "Heavy hitters and recent tokens lose less than recent tokens only",
        "Fig. 4 (as attention error)",
        (("h2o", "window"),),
    ),
    GreedyRatio(),
    Order(
        "StreamingLLM",
        "A few first tokens (sinks) rescue the window",
        "sections 3.1 and 3.2",
        (("streaming_llm", "window"),),
    ),
    Order(
        "SubGen",
        "SubGen loses less than H2O and attention sinks",
        "Table 1 (there: line retrieval)",
        (("subgen", "h2o"), ("subgen", "streaming_llm")),
    ),
    BoundHolds("SubGen", "The error stays within ε‖x‖₂‖V‖_op", "Theorem 1, equation (4)", "subgen_stream"),
    Order(
        "BUZZ",
        "BUZZ loses less than H2O",
        "Fig. 5, Table 2 (there: ROUGE, at equal average sizes)",
        (("buzz", "h2o"),),
        "Budgets are peaks here; the paper compares average sizes.",
    ),
    Order(
        "BUZZ",
        "Recent tokens only lose most, attention sinks next",
        "Fig. 5, Table 2 (there: ROUGE)",
        (("streaming_llm", "local"), ("h2o", "streaming_llm"), ("buzz", "streaming_llm")),
    ),
    Order(
        "BalanceKV",
        "BalanceKV loses less than a weighted uniform sample",
        "Fig. 2, section 4.1",
        (("balancekv", "uniform"),),
        "An unbalanced walk keeps a longer exact tail; only a run with the tail matched tells the two apart.",
    ),
    FallsWithBudget(),
)


def run_claims(frame):
    """([Claim], [Lack]) of every rule on `load`'s table."""
    judged = [rule.judge(frame) for rule in RULES]
    return [j for j in judged if isinstance(j, Claim)], [j for j in judged if isinstance(j, Lack)]
