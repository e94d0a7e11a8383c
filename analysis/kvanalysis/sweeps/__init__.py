"""Adaptive sweeps: rounds of replays, each where the last ones left a question open."""
