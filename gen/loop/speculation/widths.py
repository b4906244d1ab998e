"""How many tokens of each row a step reads: as many as pay, by what steps have cost and drafts have been worth.

Example: a step of 8 tokens takes 1.9 times as long as a plain one, and of this text's drafts nine of ten were right
where three tokens were found again. With seven drafts a step is worth 5.7 tokens, so it reads 8. What is measured
changes how fast texts come, and never what they are.
"""

import logging
from collections import deque
from collections.abc import Sequence
from statistics import median

from gen.loop.searches.search import Picks, Search
from gen.loop.speculation.settings import Speculate, Speculation, same_in_any_width
from gen.models.base import Model, Rows, WideRows

logger = logging.getLogger("gen")

WIDTHS = (1, 4, 8)
_UNMEASURED = {1: 1.0, 4: 1.3, 8: 1.5}  # times a plain step, where nothing is known: so little that it is tried
_RATES = (0.0, 0.15, 0.35, 0.6, 0.98)  # of drafts that are right, by how many tokens were found, and where forced
_NEW = 0.2  # how much a draft counts beside all before it
_KEPT, _FORGOTTEN = 5, 64  # times of steps that are looked at, and steps after which they are not any more


class Agreement:
    """How often the drafts of one text were right.

    Attributes:
        real, kind: how many drafts there are for its next step and where from, as far as the host knows.
    """

    def __init__(self) -> None:
        self._rates = list(_RATES)
        self.real, self.kind = 0, 0

    def learn(self, width: int, right: int) -> None:
        """A step has read so many drafts, or looked at one beside a plain step, and so many were right."""
        read = min(max(1, width - 1), self.real)
        for place in range(min(read, right + 1)):
            rate = self._rates[self.kind]
            self._rates[self.kind] = rate + _NEW * ((place < right) - rate)

    def worth(self, width: int) -> float:
        """How many tokens a step of this width makes, as far as can be told."""
        rate, drafts = self._rates[self.kind], min(width - 1, self.real)
        return 1 + (drafts if rate > 0.999 else rate * (1 - rate**drafts) / (1 - rate))


def widths_for(model: Model, rows: Rows, search: Search, speculate: Speculate, *, exact: bool) -> "Widths | None":
    """How the widths of a batch's steps are chosen; None where all are plain, and why is logged.

    Args:
        exact: whether a row must have the same bits in any batch.
    """
    if speculate is False:
        return None
    same = same_in_any_width(model)
    if not isinstance(rows, WideRows) or rows.widest < WIDTHS[-1]:
        problem = f"{type(model).__name__} reads one token of a row in a step"
    elif not isinstance(search, Picks):
        problem = "a beam search, or a sampler of the caller's, looks at one step after another"
    elif exact:
        problem = "exact=True asks for the same bits in any step"
    elif speculate == "auto" and not same:
        problem = "in half precision a text would depend on which steps are wide"
    else:
        return Widths(Speculation() if speculate == "auto" else speculate, fixed=not same)
    logger.info("no step reads drafts: %s", problem)
    return None


class Widths:
    """Chooses among `WIDTHS`.

    Args:
        speculation: how many drafts there are at most.
        fixed: always take the widest, so that no clock has a say: where the width changes the numbers of a step.
    """

    def __init__(self, speculation: Speculation, *, fixed: bool) -> None:
        self.speculation, most = speculation, speculation.most
        self._widths = tuple(width for width in WIDTHS if width < 2 * most or width <= 4)
        self._fixed = fixed
        self._seconds: dict[tuple[int, int], deque[float]] = {}
        self._measured: dict[tuple[int, int], int] = {}
        self._steps = 0

    @property
    def widest(self) -> int:
        """The widest step that there may be."""
        return self._widths[-1]

    def narrower(self, width: int) -> int:
        """The next width below this one."""
        return self._widths[self._widths.index(width) - 1]

    def choose(self, count: int, texts: Sequence[Agreement]) -> int:
        """The width that makes the most tokens a second, for a step of so many rows."""
        self._steps += 1
        if self._fixed:
            return self.widest
        if not any(text.real for text in texts):
            return 1
        worth = {width: sum(text.worth(width) for text in texts) / self._cost(count, width) for width in self._widths}
        return max(worth, key=worth.__getitem__)

    def learn(self, count: int, width: int, seconds: float) -> None:
        """A step of so many rows has taken so long."""
        key = count, width
        self._seconds.setdefault(key, deque(maxlen=_KEPT)).append(seconds)
        self._measured[key] = self._steps

    def _cost(self, count: int, width: int) -> float:
        """How long a step takes: as measured, or reckoned from another width, or in plain steps."""
        if (count, width) in self._seconds:
            if self._steps - self._measured[count, width] <= _FORGOTTEN:
                return median(self._seconds[count, width])
            del self._seconds[count, width]
        for other in self._widths:
            if (count, other) in self._seconds:
                return median(self._seconds[count, other]) * _UNMEASURED[width] / _UNMEASURED[other]
        return _UNMEASURED[width]
