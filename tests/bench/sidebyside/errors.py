"""What ends a bench early."""


class Lack(Exception):
    """Something that the bench needs is missing or failed: the message says what, and what to do."""
