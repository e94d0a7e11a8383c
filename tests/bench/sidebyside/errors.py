"""The error that ends a bench early."""


class Lack(Exception):
    """Something that the bench needs is missing or failed. The message names it and the remedy."""
