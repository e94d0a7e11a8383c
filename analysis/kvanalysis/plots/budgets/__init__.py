"""The budget that an error needs."""
