"""The entry of the command line, and how it ends.

All imports are inside `main`, so that Ctrl-C works while torch loads, too.
"""

import os
import signal
import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 1 failure, 2 usage, 130 interrupt.

    Args:
        arguments: None stands for the program's own. Then Ctrl-C ends the process at once, without an exception, which
            could make half imported libraries or C++ code hang or abort. No printed text is lost: each is flushed.
    """
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if sys.stderr is None:  # stderr is closed; print would take None for stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays open as long as the process runs
    for stream in (sys.stdout, sys.stderr):  # a text is printed even if an old encoding lacks one of its characters
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
    except OSError as error:  # such as a full disk
        from gen.cli.terminal import forget_output

        forget_output()
        print(f"gen: {error}", file=sys.stderr)
        sys.exit(1)
