"""The errors that a user is meant to read.

In: nothing. Out: `NormtuneError` (something failed, exit code 1), `UsageError` (the call was wrong, exit code 2) and
`Terminated` (the process was asked to end, exit code 143).
The command line prints their text on stderr without a traceback; every text says what happened, names the value, and
says what to do.
"""


class NormtuneError(RuntimeError):
    """A failure that the user can act on."""

    exit_code = 1


class UsageError(NormtuneError, ValueError):
    """An argument, option or environment variable has a value that cannot work."""

    exit_code = 2


class Terminated(BaseException):
    """The process was asked to end, by SIGTERM; like an interrupt, nothing but the command line catches it."""
