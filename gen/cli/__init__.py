"""The command line's entry and how it ends.

All is imported inside of `main`, so that Ctrl-C is heard while torch loads, too.
"""

import os
import signal
import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 1 failure, 2 usage, 130 interrupt.

    Args:
        arguments: None are the program's own. Then Ctrl-C ends the process at once: where an exception meets libraries
            that are half imported, or C++, they hang or abort. Each text is flushed when it is printed.
    """
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if sys.stderr is None:  # it is closed, and print takes None for stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process runs
    for stream in (sys.stdout, sys.stderr):  # a character that an old encoding lacks is no reason to lose a text
        getattr(stream, "reconfigure", lambda errors: None)(errors="backslashreplace")

    from gen.errors import ArgumentError, GenError

    try:
        from gen.cli.commands import app

        app(arguments, prog_name="gen")
    except KeyboardInterrupt:
        sys.exit(130)
    except GenError as error:
        print(f"gen: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ArgumentError) else 1)
    except OSError as error:  # as of a disk that is full
        from gen.cli.printing import forget_output

        forget_output()
        print(f"gen: {error}", file=sys.stderr)
        sys.exit(1)
