"""How many tokens of each row a step reads: chosen by how long steps take, and how often drafts were right.

Example: a plain step takes 60 ms, one of 4 tokens 100 ms, and one of 8 tokens 140 ms. Four drafts are forced. A step of
4 tokens makes four tokens, and a plain one makes the fifth: 160 ms. A step of 8 tokens makes all five, so it is taken.
Measured times change how fast texts come, and never what they are.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from weakref import WeakKeyDictionary

from gen.loop.searches.search import Search
from gen.loop.speculation.settings import MOST, Speculate, Speculation, same_in_any_width
from gen.loop.step_times import Costs
from gen.models.base import Model, Rows
from gen.samplers.base import Sampler
from gen.samplers.kinds import draws

logger = logging.getLogger("gen")

WIDTHS = (1, 4, 8)
WIDER = (16, 32, 64)  # for drafts from a text that was made before
_READ = 256  # tokens of all rows in such a step, at most: more are hardly read faster, and their logits take memory
# the part of drafts that are right at first, by kind
_RATES = (0.0, 0.1, 0.5, 0.6, 0.75, 0.85, 0.98, 0.6, 0.65, 0.7, 0.98)
# a wide step must be so many times as fast as a plain one, and a narrower one as a wider one: clocks are not exact, and
# the wider step shows more of how good the drafts are
_BETTER = 1.05
_SURE = 1.6  # tokens for each plain step that a wide one takes, while wide steps have not been worth it
_COMMON = 0.7  # the part of a step's time that any number of rows takes: it is only saved if the last text ends sooner
_NEW = 0.2  # how much the newest draft counts beside all earlier ones
_told = WeakKeyDictionary[Model, set[str]]()
_FEW = 8  # rows, which take little memory
_LOOKS = 2  # steps in a row that find nothing: after each so many, twice as many steps pass before the next look
_MISSES = 12  # more are not counted, so that a few right drafts are enough to look often again


class Agreement:
    """How often the drafts of one text were right.

    Attributes:
        kinds: the kinds of the drafts for its next step, as far as the host knows them.
        drafts: these drafts themselves, on a CPU.
        left: how many more tokens its text may get.
    """

    def __init__(self) -> None:
        self._rates = list(_RATES)
        self.kinds: Sequence[int] = ()
        self.drafts: Sequence[int] = ()
        self.left = 0

    def learn(self, width: int, right: int) -> None:
        """Learn from a step of this width, or from a plain step and the first draft, that so many drafts were right."""
        for place, kind in enumerate(self.kinds[: min(max(1, width - 1), right + 1)]):
            self._rates[kind] += _NEW * ((place < right) - self._rates[kind])

    @property
    def rates(self) -> list[float]:
        """How likely each draft for the next step is right, if those before it are; without drafts that the text has no
        place for."""
        return [self._rates[kind] for kind in self.kinds[: max(0, self.left - 1)]]


def widths_for(
    model: Model, rows: Rows, search: Search, speculate: Speculate, costs: Costs, *, exact: bool
) -> "Widths | None":
    """What chooses the widths of a batch's steps; None if all steps are plain, and then the reason is logged.

    Args:
        costs: how long steps of these rows take.
        exact: whether a row must have the same bits in any batch.
    """
    if speculate is False:
        return None
    same = same_in_any_width(model)
    if rows.widest < WIDTHS[-1]:
        spread = len(model.placement.devices) > 1
        problem = "it is on several devices" if spread else "its rows cannot go back, as far as gen has seen"
        problem = f"{type(model).__name__} reads one token of a row in a step, since {problem}"
    elif not search.picks:
        problem = "a beam search, or a sampler of the caller's, looks at one step after another"
    elif exact:
        problem = "exact=True asks for the same bits in any step"
    elif speculate == "auto" and not same:
        problem = "in half precision, or with quantised weights, a text would depend on which steps are wide"
    else:
        speculation = Speculation() if speculate == "auto" else speculate
        return Widths(speculation, costs, fixed=not same, widest=rows.widest)
    tell(model, f"no step reads drafts: {problem}")
    return None


def columns_for_drafts(model: Model, sampler: Sampler, speculate: Speculate, rows: int) -> int:
    """How many columns rows are made with beside those of their texts, so that the last steps may be wide too.

    0 if they would take much memory, or if no step will be wide, as far as this is known before there are rows.
    """
    wide = model.goes_wide and draws(sampler)
    wanted = speculate is not False and (speculate != "auto" or same_in_any_width(model))
    return 2 * MOST if wide and wanted and rows <= _FEW else 0


def tell(model: Model, line: str) -> None:
    """Log a line, once for each model."""
    try:
        told = _told.setdefault(model, set())
    except TypeError:  # an adapter that allows no weak references
        told = set()
    if line not in told:
        told.add(line)
        logger.info("%s", line)


class Widths:
    """Chooses among `WIDTHS`.

    Args:
        speculation: says how many drafts there may be.
        costs: how long steps take.
        fixed: whether all steps have the largest of `WIDTHS`, so that no clock decides: for models whose numbers depend
            on the width.
        widest: how many tokens of a row a step may read at most.

    Attributes:
        others_wait: whether other texts wait for rows: then each text that ends sooner saves as much as any other.
        widest: the widest step that there may be, except with drafts from a text that was made before.
    """

    def __init__(self, speculation: Speculation, costs: Costs, *, fixed: bool, widest: int = WIDER[-1]) -> None:
        self.speculation, most = speculation, speculation.most
        self._widths = tuple(width for width in WIDTHS if width < 2 * most or width <= 4)
        self.widest = self._widths[-1]
        self._wider = tuple(width for width in WIDER if width <= widest)
        self.fixed, self._costs = fixed, costs
        self.others_wait = False
        self._rests = 0

    def looks(self, rows: int) -> bool:
        """Whether drafts are looked for before a step of so many rows: more seldom after steps without a right one.

        At most as many steps as there are rows pass: a look costs more for many rows, and a wide step saves less."""
        if self._rests and not self.fixed:
            self._rests -= 1
            return False
        self._rests = min(2 ** (self._costs.misses // _LOOKS) - 1, rows)
        return True

    def note(self, found: bool, *, wide: bool) -> None:
        """Learn from a step before which drafts were looked for, whether right ones were found: a wide step that has
        some begins the count of misses anew, a plain one halves it. Later calls go on from there."""
        fewer = 0 if wide else self._costs.misses // 2
        self._costs.misses = fewer if found else min(self._costs.misses + 1, _MISSES)

    def narrower(self, width: int) -> int:
        """The next width below this one."""
        return max(one for one in (*self._widths, *self._wider) if one < width)

    def _for(self, count: int, most: int) -> tuple[int, ...]:
        """The widths that a step of so many rows may have: wider ones only if `most` drafts are for more than half."""
        if most <= MOST:
            return self._widths
        return self._widths + tuple(width for width in self._wider if width <= 2 * most and width * count <= _READ)

    def choose(self, count: int, texts: Sequence[Agreement]) -> int:
        """The width that saves the most time, for a step of so many rows.

        For a single text it is the first step of the fastest way through its drafts. For several texts, if others wait,
        it is the width that makes the most tokens a second. Otherwise most of a step's time is only saved if the last
        text ends sooner; the text with the most tokens left is taken to be the last.
        """
        if self.fixed:
            return self.widest
        if not any(text.kinds for text in texts):
            return 1
        rates = [text.rates for text in texts]
        takes = self._costs.of(count, self._for(count, max(map(len, rates))))
        ways = ways_through(rates[0], takes) if len(texts) == 1 else self._each(texts, rates, takes)
        best = max(width for width, took in ways.items() if took <= _BETTER * min(ways.values()))
        if self._costs.worth < 1 and sum(worth_of(one, best) for one in rates) < _SURE * takes[best] * len(texts):
            return 1
        return best if ways[best] * _BETTER < ways[1] else 1

    def _each(
        self, texts: Sequence[Agreement], rates: Sequence[Sequence[float]], takes: Mapping[int, float]
    ) -> dict[int, float]:
        """How long a step of each width takes, divided by the number of plain steps that it replaces."""
        most, found = max(text.left for text in texts), {}
        for width, took in takes.items():
            worth = [worth_of(one, width) for one in rates]
            mean = sum(worth) / len(worth)
            last = min(one for one, text in zip(worth, texts, strict=True) if text.left == most)
            found[width] = took / (mean if self.others_wait else _COMMON * last + (1 - _COMMON) * mean)
        return found


def worth_of(rates: Sequence[float], width: int) -> float:
    """How many tokens a step of this width is expected to make.

    Args:
        rates: how likely each draft is right, if those before it are.
    """
    return sum(accumulate(rates[: width - 1], mul, initial=1.0))


def ways_through(rates: Sequence[float], takes: Mapping[int, float]) -> dict[int, float]:
    """How long it takes to make the drafted tokens and the one after them, by the width of the first step.

    Each later step has the width that is fastest from there. A wrong draft ends the way with any widths: the step that
    finds it wrong has chosen the token in its place.

    Args:
        rates: how likely each draft is right, if those before it are.
        takes: seconds of a step, by its width.
    """
    left = [0.0] * (1 + len(rates) + max(takes))  # seconds, from each place on
    ways = dict(takes)
    for place in reversed(range(1 + len(rates))):
        ways = {width: took + prod(rates[place : place + width]) * left[place + width] for width, took in takes.items()}
        left[place] = min(ways.values())
    return ways
