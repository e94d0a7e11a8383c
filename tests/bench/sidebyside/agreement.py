"""Checks that both sides compute equal errors, before any ratio is shown: a fast wrong answer has none."""

from .engine import LAST, mean_errors

TOLERANCE = 1e-4  # relative
SAME_RULES = ("streaming_llm", "h2o")  # the other methods draw or break ties differently


def engine_errors(runs, last_rows):
    """{(method, budget, protocol): {rel, eps}} of a round's runs; `last_rows`: rows of streaming methods."""
    found = {}
    for config, run in runs.items():
        protocol = "last" if config == LAST else "decode"
        found |= {(*key, protocol): errors for key, errors in mean_errors(run.rows).items()}
    return found | {(*key, "last"): errors for key, errors in mean_errors(last_rows).items()}


def compare(ours, peer):
    """One row per (method, budget, protocol, measure) that both have."""
    rows = []
    for (method, budget, protocol), errors in sorted(ours.items()):
        theirs = peer.get(method, {}).get(str(budget), {}).get(protocol, {})
        for measure in sorted(errors.keys() & theirs.keys()):
            difference = abs(errors[measure] - theirs[measure]) / max(abs(theirs[measure]), 1e-300)
            rows.append(
                {
                    "method": method,
                    "budget_tokens": budget,
                    "protocol": protocol,
                    "measure": measure,
                    "engine": errors[measure],
                    "peer": theirs[measure],
                    "relative_difference": difference,
                    "compared": method in SAME_RULES,
                }
            )
    return rows


def verdict(rows, budgets):
    """(agrees, sentence): both methods of one rule, every budget, both protocols, both measures."""
    compared = [row for row in rows if row["compared"]]
    expected = len(SAME_RULES) * len(budgets) * 2 * 2
    if len(compared) < expected:
        return False, f"only {len(compared)} of {expected} errors can be compared"
    worst = max(compared, key=lambda row: row["relative_difference"])
    where = f"{worst['method']}, budget {worst['budget_tokens']}, {worst['protocol']}, {worst['measure']}"
    agrees = all(row["relative_difference"] <= TOLERANCE for row in compared)  # false for NaN
    told = "agree" if agrees else "do NOT agree"
    return agrees, (
        f"{expected} errors of {' and '.join(SAME_RULES)} {told} within {TOLERANCE:g}: "
        f"the largest relative difference is {worst['relative_difference']:.2g} ({where})"
    )
