"""Adaptive sweeps: rounds of replays, each with the cells that the earlier rounds made necessary."""
