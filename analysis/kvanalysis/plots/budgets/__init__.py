"""The budget needed for an error."""
