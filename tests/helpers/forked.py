"""Programs in a fork of the test's process: like a new process, but torch and transformers are imported already."""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

_SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # in a new process


class Forked:
    """A program that runs in a fork.

    Args:
        program: what it runs. SystemExit and errors end it as they end a Python program.
        prepare: runs before the program's streams are opened, as `preexec_fn` of subprocess.
        stdin: where its stdin comes from; None is empty.
        stdout: where its stdout goes; None is a pipe, from which `stdout` reads.
        encoding: of its streams.
    """

    stdout: IO[bytes]

    def __init__(
        self,
        program: Callable[[], object],
        *,
        prepare: Callable[[], object] = lambda: None,
        stdin: int | None = None,
        stdout: int | None = None,
        encoding: str = "utf-8",
    ) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - until `end`
        read, write = os.pipe()
        self.stdout = os.fdopen(read, "rb")
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of forks beside threads
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, 0)
                os.dup2(write if stdout is None else stdout, 1)
                os.dup2(self._stderr.fileno(), 2)
                self.stdout.close()
                os.close(write)
                prepare()
                code = _run(program, encoding)
            finally:
                os._exit(code)
        os.close(write)

    def line(self) -> bytes:
        """The next line that it writes to stdout; fails with its exit code and stderr if it ends before that."""
        line = self.stdout.readline()
        if not line:
            code, _, stderr = self.end()
            raise AssertionError(f"it ended with {code} and wrote no line; its stderr: {stderr}")
        return line

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: the exit code, and what it has yet written to stdout and stderr."""
        with self._stderr, nullcontext() if self.stdout.closed else self.stdout:
            out = b"" if self.stdout.closed else self.stdout.read()
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._stderr.seek(0)
            return code, out.decode(), self._stderr.read().decode()


def run_module(
    command: list[str], *, env: dict[str, str], cwd: Path = Path(), **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a module as `subprocess.run` would do it, but in a fork."""
    assert command[1] == "-m"

    def program() -> None:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.path[:0] = env["PYTHONPATH"].split(os.pathsep)
        sys.argv = command[2:]
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)

    return subprocess.CompletedProcess(command, *Forked(program).end())


def _run(program: Callable[[], object], encoding: str) -> int:
    """Run a program as Python runs its own one, and return the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.resetwarnings()
    for category in _SILENT:
        warnings.simplefilter("ignore", category)
    sys.stdin, sys.stdout, sys.stderr = (_opened(number, encoding) for number in range(3))
    code: Any = 0
    try:
        program()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        return 120
    return int(code)


def _opened(number: int, encoding: str) -> Any:
    """A standard stream as Python opens it at its start; None if it is closed."""
    try:
        return open(number, "w" if number else "r", encoding=encoding, closefd=False)
    except OSError:
        return None
