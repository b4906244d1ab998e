"""One driver works at a time, and a driver that is gone keeps no other out."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gen
from gen.offline.files import held_by, locked
from gen.offline.status import status

# Takes the lock and says so. A program that has it and is killed is a zombie until somebody waits for it.
DRIVER = """
import signal, sys
from pathlib import Path
from gen.offline.files import locked

with locked(Path(sys.argv[1])):
    print("has it", flush=True)
    signal.pause()
"""


@contextmanager
def driver(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock."""
    command = [sys.executable, "-c", DRIVER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has it\n"
        yield process
        process.kill()


def test_a_second_driver_is_told_who_has_the_folder(tmp_path: Path) -> None:
    with driver(tmp_path) as other:
        name = f"process {other.pid} on {socket.gethostname()}"
        assert held_by(tmp_path) == name
        with pytest.raises(gen.GenError, match=f"another gen batch run, {name}, works in"), locked(tmp_path):
            raise AssertionError("two have it")
        with pytest.raises(gen.GenError, match=f"{name} prepares the job in .*, and has begun no part yet"):
            status(tmp_path)
    with pytest.raises(gen.GenError, match="give the folder of a job"):
        status(tmp_path)
    with locked(tmp_path):
        assert held_by(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
    assert held_by(tmp_path) is None
    with locked(tmp_path):
        pass


def test_a_driver_that_was_killed_and_that_nobody_waits_for_keeps_nobody_out(tmp_path: Path) -> None:
    with driver(tmp_path) as killed:
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert Path(f"/proc/{killed.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        assert held_by(tmp_path) is None
        with locked(tmp_path):
            pass


def test_what_the_file_says_about_a_process_does_not_matter(tmp_path: Path) -> None:
    """As if by a driver of another namespace of processes, whose numbers mean nothing here."""
    for left in (f"process {os.getpid()} on {socket.gethostname()}", '{"host": "x", "pid": 1}', ""):
        (tmp_path / "driver.lock").write_text(left)
        assert held_by(tmp_path) is None
        with locked(tmp_path):
            assert held_by(tmp_path) is not None


def test_workers_do_not_hold_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child, locked(tmp_path):
        assert child.poll() is None


def test_who_asks_for_the_status_keeps_no_driver_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(tmp_path):
        pass
    asking = (tmp_path / "driver.lock").open("rb")
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda _: asking.close())  # it has its answer
    with locked(tmp_path):
        assert held_by(tmp_path) is not None


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused_by_name(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", failing)
    told = f"the file system of {tmp_path} has no locks .{os.strerror(code)}., .* give a folder on another one"
    with pytest.raises(gen.GenError, match=told), locked(tmp_path):
        raise AssertionError("nobody has it")
    assert held_by(tmp_path) is None
