"""Methods of a run against each other: what every run shows, and what a configuration asks for."""
