"""What is wrong with what a user gave. The message of each is for the user: one line, or one a mistake."""


class UserError(Exception):
    """Something that the user can mend; `code`: how to exit."""

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


class ResultsError(UserError):
    """The results are missing, unreadable, or not kvreplay's."""

    def __init__(self, message, code=3):
        super().__init__(message, code)


class FigureError(UserError):
    """A figure's configuration or one of its steps is wrong."""


class SweepError(UserError):
    """A sweep's configuration is wrong, or one of its rounds ended early."""


class StudyError(UserError):
    """A study's configuration is wrong, or one of its steps failed."""


class PackageError(UserError):
    """A Python package is not installed."""
