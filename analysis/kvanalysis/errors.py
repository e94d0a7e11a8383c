"""What is wrong with what a user gave. The message of each is one line for the user."""


class ResultsError(Exception):
    """The results are missing, unreadable, or not kvreplay's. The message is one line for the user."""


class FigureError(Exception):
    """A configuration or a step is wrong. The message is one line for the user; `code`: how to exit."""

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code
