"""From tables to numbers: means, intervals, comparisons, fits, verdicts."""
