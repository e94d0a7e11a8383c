"""Figure configurations: read, run step by step, drawn."""
