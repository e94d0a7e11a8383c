"""The model's own loss, if `kvreplay confirm` has run."""
