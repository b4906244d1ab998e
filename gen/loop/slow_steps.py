"""Notices that other programs slow the steps of a CPU down, and says once in the log what helps.

Nothing else follows from these times: the same steps run, with the same threads.
"""

import logging
from collections.abc import Hashable
from functools import cache

from gen.runtime import cpu_threads

logger = logging.getLogger("gen")

_MANY = 8  # times as long as the fastest step of the same shape
_IN_A_ROW = 16


class SlowSteps:
    """The fastest step of each shape, and how many steps in a row were slow."""

    def __init__(self) -> None:
        self._fastest: dict[Hashable, float] = {}
        self._slow = 0
        self._told = False

    def learn(self, shape: Hashable, seconds: float, threads: int) -> None:
        """Note how long a step has taken by the clock on the wall.

        Args:
            shape: what steps must have in common to take the same time.
            threads: how many torch has.
        """
        check_quota(threads)
        fastest = self._fastest[shape] = min(seconds, self._fastest.get(shape, seconds))
        self._slow = self._slow + 1 if seconds > _MANY * fastest else 0
        if self._slow < _IN_A_ROW or self._told:
            return
        self._told = True
        if helps := cpu_threads.advice(threads):
            logger.warning("steps take %.0f times as long as they did: %s", seconds / fastest, helps)


@cache
def check_quota(threads: int) -> None:
    """Say in the log, once, if torch has more threads than the process's control groups let compute."""
    allowed = cpu_threads.quota()
    if allowed is not None and threads > max(1, int(allowed)):
        logger.warning(
            "torch has %d threads, and this container may use %g CPUs; set OMP_NUM_THREADS=%d in the environment "
            "before torch is imported: more threads stop each other",
            threads,
            allowed,
            max(1, int(allowed)),
        )
