"""How many threads compute on a CPU, and how long they spin: said to OpenMP before torch is loaded, and never changed.

The bits of a text can depend on the number of threads, so no clock chooses it. Between the parts of a step threads
spin while they wait for each other, by default for milliseconds. If another program holds one of the cores, all others
spin for as long as it runs.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from gen.runtime.control_groups import groups, read

SPINS = "10000"
"""GOMP_SPINCOUNT: steps take about 1.1 times as long on an idle machine, and a third beside two busy programs."""

_CORES = Path("/sys/devices/system/cpu")


def choose(threads: int | None) -> None:
    """Put what torch makes its threads by into the environment, before torch is imported.

    If torch has been imported, as where a program calls the command line, only a given number is set.

    Args:
        threads: how many; None for as many as torch takes itself, or fewer if a container's quota of CPU allows fewer.
            What the environment says already stays, unless a number is given.
    """
    if "torch" not in sys.modules:
        os.environ.update(variables(threads))
    elif threads is not None:
        sys.modules["torch"].set_num_threads(threads)


def variables(threads: int | None) -> dict[str, str]:
    """The variables of the environment that `choose` sets."""
    told = {}
    if threads is not None:
        told = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    elif "OMP_NUM_THREADS" not in os.environ and usable() < _cores():
        told["OMP_NUM_THREADS"] = str(usable())
    if not _spinning_is_chosen():
        told["GOMP_SPINCOUNT"] = SPINS
    return told


def usable() -> int:
    """How many threads can compute side by side: the cores that this process may use, or its quota's whole CPUs."""
    allowed = quota()
    return _cores() if allowed is None else max(1, min(_cores(), int(allowed)))


def quota() -> float | None:
    """How many CPUs' time the process's control groups let it use, as in containers; None for no limit."""
    return min(_quotas(), default=None)


def advice(threads: int) -> str | None:
    """What a program may change so that others slow its steps down less; None if it has chosen already.

    Args:
        threads: how many torch has.
    """
    if threads == 1 or (_spinning_is_chosen() and os.environ.get("GOMP_SPINCOUNT") != SPINS):
        return None
    return (
        f"torch's {threads} threads spin while they wait for each other; beside busy programs one thread is faster: "
        "set OMP_NUM_THREADS=1 in the environment before torch is imported, or GOMP_SPINCOUNT=1000 to keep the threads"
    )


def _spinning_is_chosen() -> bool:
    return bool(os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"})


def _cores() -> int:
    """The cores that the process may use; two threads of one core count once."""
    mine = os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
    shared = {read(_CORES / f"cpu{one}" / "topology/thread_siblings_list").strip() or str(one) for one in mine}
    return max(1, len(shared))


def _quotas() -> Iterator[float]:
    for group in groups("cpu"):
        if group.version == 1:
            told = [group.read(f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        else:
            told = group.read("cpu.max").split()
        if len(told) == 2 and all(number.isdecimal() for number in told):  # "max" and -1 are no limit
            yield int(told[0]) / int(told[1])
