"""From tables to numbers: means, intervals, comparisons, exponents, verdicts. Nothing is drawn here."""
