"""How many threads compute, by cores, quota and environment, against control groups that are written here as files."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gen.loop import step_times
from gen.loop.step_times import SlowSteps
from gen.runtime import control_groups, cpu_memory, cpu_threads

CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOSEN:
        monkeypatch.delenv(name, raising=False)
    step_times.check_quota.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight cores with two threads each, whose files are in a folder."""
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path / "groups")
    monkeypatch.setattr(control_groups, "_MINE", tmp_path / "mine")
    monkeypatch.setattr(cpu_threads, "_CORES", tmp_path / "cores")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    for core in range(16):
        write(tmp_path / "cores" / f"cpu{core}" / "topology/thread_siblings_list", f"{core % 8},{core % 8 + 8}\n")
    write(tmp_path / "mine", "0::/\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_without_a_quota_torch_chooses_the_number_itself(machine: Path) -> None:
    assert (cpu_threads.quota(), cpu_threads.usable()) == (None, 8)
    assert cpu_threads.variables(None) == {"GOMP_SPINCOUNT": cpu_threads.SPINS}


@pytest.mark.parametrize(
    ("said", "cpus", "threads"), [("200000 100000", 2.0, 2), ("150000 100000", 1.5, 1), ("50000 100000", 0.5, 1)]
)
def test_a_quota_bounds_the_threads(machine: Path, said: str, cpus: float, threads: int) -> None:
    write(machine / "groups/cpu.max", f"{said}\n")
    assert (cpu_threads.quota(), cpu_threads.usable()) == (cpus, threads)
    assert cpu_threads.variables(None)["OMP_NUM_THREADS"] == str(threads)


@pytest.mark.parametrize("said", ["max 100000", "1600000 100000", "no numbers", ""])
def test_a_quota_of_all_cores_or_none_changes_nothing(machine: Path, said: str) -> None:
    write(machine / "groups/cpu.max", said)
    assert "OMP_NUM_THREADS" not in cpu_threads.variables(None)


def test_the_least_quota_of_all_groups_around_counts(machine: Path) -> None:
    write(machine / "mine", "0::/system.slice/server.service\n")
    write(machine / "groups/system.slice/server.service/cpu.max", "max 100000\n")
    write(machine / "groups/system.slice/cpu.max", "300000 100000\n")
    write(machine / "groups/cpu.max", "500000 100000\n")
    assert cpu_threads.usable() == 3


def test_groups_of_version_1_are_read(machine: Path) -> None:
    write(machine / "mine", "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/\n")
    write(machine / "groups/cpu/docker/a/cpu.cfs_quota_us", "-1\n")
    write(machine / "groups/cpu/docker/a/cpu.cfs_period_us", "100000\n")
    assert cpu_threads.quota() is None
    write(machine / "groups/cpu/cpu.cfs_quota_us", "400000\n")  # as a container sees its own group
    write(machine / "groups/cpu/cpu.cfs_period_us", "100000\n")
    assert cpu_threads.quota() == 4


def test_the_groups_of_a_service_bound_its_memory(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd and Slurm bound it, outside any container: the root has no limit, and the process is deep inside."""
    monkeypatch.setattr(cpu_memory, "_INFO", machine / "meminfo")
    write(machine / "meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    write(machine / "mine", "0::/system.slice/server.service\n")
    assert cpu_memory.available_bytes() == 8_000_000 * 1024
    inner, outer = machine / "groups/system.slice/server.service", machine / "groups/system.slice"
    write(inner / "memory.max", "4000000\n")
    write(inner / "memory.current", "1500000\n")
    write(inner / "memory.stat", "inactive_file 500000\n")
    assert (cpu_memory.total_bytes(), cpu_memory.available_bytes()) == (4_000_000, 3_000_000)
    write(outer / "memory.max", "5000000\n")
    write(outer / "memory.current", "4000000\n")
    assert (cpu_memory.total_bytes(), cpu_memory.available_bytes()) == (4_000_000, 1_000_000)


def test_memory_of_groups_of_version_1(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_memory, "_INFO", machine / "meminfo")
    write(machine / "mine", "4:memory:/docker/a\n1:cpu:/docker/b\n")
    group = machine / "groups/memory/docker/a"
    write(group / "memory.limit_in_bytes", "9223372036854771712\n")  # no limit
    assert cpu_memory.total_bytes() is None
    write(group / "memory.limit_in_bytes", "6000\n")
    write(group / "memory.usage_in_bytes", "2000\n")
    write(group / "memory.stat", "inactive_file 1\ntotal_inactive_file 300\n")
    assert (cpu_memory.total_bytes(), cpu_memory.available_bytes()) == (6000, 4300)


def test_what_the_environment_says_stays(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(machine / "groups/cpu.max", "200000 100000\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert cpu_threads.variables(None) == {}
    assert cpu_threads.variables(3) == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}


@pytest.mark.parametrize(
    "command", [["generate", "Once"], ["stream", "Once"], ["score", "Once"], ["serve", "demo"], ["doctor"]]
)
def test_each_command_chooses_before_torch_is_loaded(command: list[str]) -> None:
    """The command's own work does not begin: the import of torch ends the program and says what it found."""
    program = (
        "import os, sys\n"
        "class Look:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch':\n"
        "            print(os.environ.get('OMP_NUM_THREADS'), os.environ.get('GOMP_SPINCOUNT'), flush=True)\n"
        "            os._exit(0)\n"
        "sys.meta_path.insert(0, Look())\n"
        "from gen.cli import main\n"
        f"main({[*command, '--threads', '3']!r})\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    ran = subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, text=True, timeout=300)
    assert ran.stdout == f"3 {cpu_threads.SPINS}\n", ran.stderr


def test_steps_that_take_many_times_what_they_did_are_told_once(
    machine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gen")
    steps = SlowSteps()
    for seconds in [0.01, *[0.2] * 15, 0.01, *[0.05] * 40]:  # some slow ones, then slower steps but not many times
        steps.learn((8, 64, 1), seconds, 2)
    assert caplog.messages == []
    for _ in range(40):
        steps.learn((8, 64, 1), 0.2, 2)
    [told] = caplog.messages
    assert told.startswith("steps take 20 times as long as they did: torch's 2 threads spin")
    assert "OMP_NUM_THREADS=1" in told and "GOMP_SPINCOUNT=1000" in told


@pytest.mark.parametrize(("threads", "chosen"), [(1, {}), (2, {"GOMP_SPINCOUNT": "1000"})])
def test_nothing_is_advised_where_threads_do_not_spin_long(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    threads: int,
    chosen: dict[str, str],
) -> None:
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    steps = SlowSteps()
    for seconds in [0.01] + [1.0] * 40:
        steps.learn((1, 64, 1), seconds, threads)
    assert caplog.messages == []


def test_more_threads_than_the_quota_allows_are_told_once(machine: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(machine / "groups/cpu.max", "200000 100000\n")
    for steps in (SlowSteps(), SlowSteps()):
        steps.learn((1, 64, 1), 0.01, 8)
        steps.learn((1, 64, 1), 0.01, 2)
    [told] = caplog.messages
    assert told.startswith("torch has 8 threads, and this container may use 2 CPUs; set OMP_NUM_THREADS=2")
