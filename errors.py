"""The errors whose text is for users: it says what happened, names the value, and says what to do.

The command line prints it on stderr without a traceback.
"""


class NormtuneError(RuntimeError):
    """A failure that the user can act on; exit code 1."""

    exit_code = 1


class UsageError(NormtuneError, ValueError):
    """An argument, option or environment variable has a wrong value; exit code 2."""

    exit_code = 2


class Terminated(BaseException):
    """The process was ended by SIGTERM, exit code 143; only the command line catches it, like an interrupt."""


class OutputClosed(BaseException):
    """Stdout cannot be written; only the command line catches it.

    The text is the reason, exit code 1; empty if the reader has ended, as `head` does, exit code 141.
    """


class DataWarning(UserWarning):
    """Stored measurements are left out or in doubt; the command line prints the text as a line on stderr."""


def shortened(text: str, most: int = 60) -> str:
    """The first characters of an untrusted text, for a message."""
    return text if len(text) <= most else text[:most] + "..."


def reason_of(error: Exception) -> str:
    """The text of another library's error, in one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]
