"""Methods of a run compared with each other: figures of every run, and those that a configuration
requests."""
