"""One driver works at a time, and a driver that is gone keeps no other out."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gen
from gen.offline.lock import Lock, held_by


def owned(folder: Path, **changes: Any) -> None:
    """Write a lock as another driver does."""
    with Lock(folder):
        mine = json.loads((folder / "lock.json").read_text())
    (folder / "lock.json").write_text(json.dumps(mine | changes))


def test_a_second_driver_is_told_who_has_the_folder(tmp_path: Path) -> None:
    with Lock(tmp_path) as lock:
        assert lock.held
        told = f"another gen batch run, process {os.getpid()} on {socket.gethostname()}, works in"
        with pytest.raises(gen.GenError, match=told), Lock(tmp_path):
            raise AssertionError("two have it")
    assert held_by(tmp_path) is None
    with Lock(tmp_path):
        pass


def test_a_process_of_this_machine_that_is_gone_keeps_nobody_out(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for changes in ({"pid": gone.pid}, {"begun": "1"}):  # the pid may be another process by now
        owned(tmp_path, **changes)
        assert held_by(tmp_path) is None
        with Lock(tmp_path) as lock:
            assert lock.held


def test_one_on_another_machine_keeps_it_for_as_long_as_it_beats(tmp_path: Path) -> None:
    owned(tmp_path, host="another", pid=1)
    with pytest.raises(gen.GenError, match="process 1 on another"), Lock(tmp_path):
        pass
    path = tmp_path / "lock.json"
    os.utime(path, (path.stat().st_mtime - 61,) * 2)
    with Lock(tmp_path) as lock:
        assert lock.held


def test_who_has_lost_the_folder_knows_it_and_takes_nothing_away(tmp_path: Path) -> None:
    with Lock(tmp_path) as lock:
        lock.check()
        other = {"host": "another", "pid": 2, "begun": None, "token": "other"}
        (tmp_path / "lock.json").write_text(json.dumps(other))
        assert not lock.held
        with pytest.raises(gen.GenError, match="is no longer this driver's: process 2 on another has taken it over"):
            lock.check()
    assert json.loads((tmp_path / "lock.json").read_text()) == other
