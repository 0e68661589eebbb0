"""The command line as a process: `normtune`, or `python -P -m normtune` without an installed script."""

import os
import signal
import sys
from typing import TextIO, cast


def main() -> None:
    """Run the command line on `sys.argv` and exit.

    From the first line on an interrupt ends the process with one line; commands that measure take it as an exception.
    """
    if not os.path.isfile(__file__):
        sys.exit(
            "normtune: error: it cannot run from a zip archive, where its tables and recordings are no files: unpack it"
        )
    started = os.getpid()

    def end(*_: object) -> None:
        if os.getpid() == started:  # not a line from each process that it started
            sys.stderr.write("\nnormtune: interrupted\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, end)
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file that is opened would be taken for it
            os.open(os.devnull, os.O_RDWR)
    from normtune.results.terminal import Stream

    sys.stdout = cast(TextIO, Stream(sys.stdout))
    sys.stderr = cast(TextIO, Stream(sys.stderr, is_for_errors=True))

    from normtune.cli import main as run

    run()


if __name__ == "__main__":
    main()
