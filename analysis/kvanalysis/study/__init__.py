"""A study over models: recorded, replayed, confirmed and predicted by one command."""
