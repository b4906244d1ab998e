"""Numbers as texts: within bounds, whole or not, multiples of a number.

Digits are compared with a bound's as they come. Example, at most 12.5: after "12" and "12." the digits are equal so
far, after "12.4" the number is less whatever follows, and "12.6" is greater, so it is not allowed.
"""

from fractions import Fraction
from functools import lru_cache
from math import inf, lcm, nextafter
from typing import NamedTuple

import numpy as np

from gen.constraints.automata.arrays import moved
from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.dfa import Dfa, trimmed
from gen.constraints.automata.limits import MOST_WORK_OF_A_CONSTANT, Budget, TooLarge, Unsupported
from gen.constraints.automata.nfa import Nfa
from gen.constraints.automata.regexes import matched
from gen.constraints.automata.texts import both, listed, of_length
from gen.constraints.schema.parts import Bound, Part

DIGITS = 19
"""The most whole digits, unless a bound has as many; fewer for multiples of large numbers. Without a limit, small
models may never stop writing digits."""

_DECIMALS = 20  # as many as the shortest text of a float may have
_EXACT = 15  # digits that floats tell apart: with so many, the float of a number that is not whole is not whole either
_EXPONENTS = (*range(-99, -4), *range(16, 100))  # with which Python writes floats
ANY_WHOLE = r"-?[1-9][0-9]{0,18}|0"
ANY_NUMBER = r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?"  # finite as a float
_BROKEN = r"-?[0-9]+\.[0-9]*[1-9][0-9]*"  # which is not whole
_MOST_STATES = 8000
_FEWEST_DIGITS = 6  # of multiples of large numbers


def part_numbers(part: Part, whole: bool) -> Dfa | None:
    """The numbers of a part, only the whole ones or all. Raises as `number_texts` does."""
    if whole or "integer" in part.types:
        found = number_texts(part.low, part.high, part.multiples, whole)
        for one in part.no_multiples:
            found = both(found, _multiples_of(int(one)), Budget(), without=True)
        return found
    numbers = number_texts(part.low, part.high, part.multiples, False)
    # with more digits, the float may be whole
    return of_length(both(numbers, matched(_BROKEN, Budget(MOST_WORK_OF_A_CONSTANT)), Budget()), 0, _EXACT + 1)


@lru_cache(1024)
def number_texts(low: Bound | None, high: Bound | None, multiples: tuple[Fraction, ...], whole: bool) -> Dfa | None:
    """The numbers within the bounds that are multiples of all.

    If there is a bound, exponents are those of `json.dumps`; with multiples there are none.

    Raises Unsupported for multiples of zero or less, TooLarge for multiples of large numbers.
    """
    if any(one <= 0 for one in multiples):
        raise Unsupported("multipleOf of zero, or less,")
    if whole:  # a whole multiple of 5/2 is a multiple of 5
        multiples = tuple(Fraction(one.numerator) for one in multiples)
    whole = whole or (bool(multiples) and all(one.denominator == 1 for one in multiples))
    scale = max((len(_digits(one)[1]) for one in multiples), default=0)
    multiple = _Multiple(lcm(*(int(one * 10**scale) for one in multiples)), scale)
    if low is None and high is None and not multiples:
        return matched(ANY_WHOLE if whole else ANY_NUMBER, Budget(MOST_WORK_OF_A_CONSTANT))
    zero = (Fraction(0), whole)  # "-0" is no whole number
    positive = negative = None
    if not whole:
        low, high = _held_by_floats(low, inf), _held_by_floats(high, -inf)
    if high is None or high[0] >= 0:
        positive = _magnitudes(low, high, whole, multiple)
    if low is None or low[0] <= 0:
        negative = _magnitudes(max(_minus(high) or zero, zero), _minus(low), whole, multiple)
    return _signed(positive, negative)


def _multiples_of(number: int) -> Dfa:
    """All digits, perhaps after a minus, that are a multiple of a number: a state for each remainder, behind two."""
    if number > _MOST_STATES:
        raise TooLarge(f"the opposite of multipleOf {number}")
    edges = [(0, 45, 45, 1)]
    for state, rest in ((0, 0), (1, 0), *((2 + rest, rest) for rest in range(number))):
        edges += [(state, 48 + digit, 48 + digit, 2 + (rest * 10 + digit) % number) for digit in range(10)]
    return Dfa(np.array(edges, np.int32), np.arange(number + 2) == 2)


def _held_by_floats(bound: Bound | None, towards: float) -> Bound | None:
    """A bound, as the text of the first float within it if it excludes a number, or is nearest to a float beyond it:
    the float of a longer text may be that number."""
    if bound is None or not bound[0]:
        return bound
    nearest = float(bound[0])
    within = nearest >= bound[0] if towards > 0 else nearest <= bound[0]
    if not bound[1] and (within or Fraction(repr(nearest)) == bound[0]):
        return bound
    return Fraction(repr(nextafter(nearest, towards))), False


def _minus(bound: Bound | None) -> Bound | None:
    return bound and (-bound[0], bound[1])


def _signed(positive: Dfa | None, negative: Dfa | None) -> Dfa | None:
    """Positive texts, and negative ones with a minus."""
    if negative is None:
        return positive
    minus = np.array([[0, 45, 45, 1]], np.int32)
    edges = np.concatenate((minus, moved(negative.edges, 1)))
    final = np.concatenate((np.zeros(1, np.bool_), negative.final))
    if positive is None:
        return Dfa(edges, final)
    behind = moved(positive.edges, len(final) - 1)
    behind[positive.edges[:, 0] == 0, 0] = 0  # nothing leads back there
    return trimmed(np.concatenate((edges, behind)), np.concatenate((final, positive.final[1:])))


class _Multiple(NamedTuple):
    """What a number must be a multiple of, in units of `decimals` decimals."""

    of: int
    decimals: int


def _magnitudes(least: Bound | None, most: Bound | None, whole: bool, multiple: _Multiple) -> Dfa | None:
    """Numbers without a sign, between two bounds."""
    plain = _Magnitudes(least, most, whole, multiple).texts()
    if whole or multiple != (1, 0):
        return plain
    nfa = Nfa()
    start = nfa.state()
    ends = [] if plain is None else [nfa.insert(plain, nfa.after(start))]
    by_digits: dict[tuple[Bound, Bound], list[int]] = {}  # exponents, by the bounds of the digits before them
    low, high = Fraction(0) if least is None else least[0], None if most is None else most[0]
    for exponent in _EXPONENTS:
        unit = Fraction(10) ** exponent
        top = (Fraction(10), True) if high is None or high >= 10 * unit else (high / unit, False)
        by_digits.setdefault(((max(low / unit, Fraction(1)), False), top), []).append(exponent)
    for (first, last), exponents in by_digits.items():
        digits = _Magnitudes(first, last, False, multiple).texts() if first[0] < 10 and last[0] >= 1 else None
        written = listed(f"e{one:{form}}" for one in exponents for form in ("+d", "+03d"))
        if digits is not None and written is not None:
            ends.append(nfa.insert(written, nfa.insert(digits, nfa.after(start))))
    if not ends:
        return None
    end = nfa.state()
    for one in ends:
        nfa.join(one, end)
    return determinise(nfa, start, end, budget=Budget(MOST_WORK_OF_A_CONSTANT))


class _State(NamedTuple):
    whole: int  # digits before the point
    decimals: int  # digits after it; -1: there is no point so far
    least: int  # the digits so far compared with those of the least: -1, 0, 1
    most: int
    rest: int  # the remainder of a division by the divisor
    zero: bool  # the text is "0" so far: no other digit may follow


class _Magnitudes:
    """Numbers without a sign and without an exponent, between two bounds."""

    def __init__(self, least: Bound | None, most: Bound | None, whole: bool, multiple: _Multiple) -> None:
        if least is None or least[0] < 0:
            least = (Fraction(0), False)
        self._whole, self._multiple, self._divisor = whole, multiple, multiple.of
        self._least, self._least_excluded = _digits(least[0]), least[1]
        self._most: tuple[str, str] | None = None if most is None else _digits(most[0])
        self._most_excluded = most is not None and most[1]
        bounds = [self._least, *([self._most] if self._most else [])]
        if self._most is None:
            few = min(DIGITS, max(_FEWEST_DIGITS, _MOST_STATES // self._divisor - multiple.decimals))
            self._digits = max(few, len(self._least[0]) + 1)
        else:
            self._digits = len(self._most[0])
        self._decimals = 0 if whole else max(_DECIMALS, *(len(after) for _, after in bounds))
        self._together: int | None = None
        if multiple.decimals:  # with more digits, the float is no such multiple
            self._decimals, self._together = multiple.decimals, _EXACT

    def texts(self) -> Dfa | None:
        first = _State(0, -1, 0, 0, 0, False)
        number = {first: 0}
        order = [first]
        edges: list[tuple[int, int, int, int]] = []
        for place, state in enumerate(order):
            for code, after in self._steps(state):
                if after not in number:
                    number[after] = len(order)
                    order.append(after)
                edges.append((place, code, code, number[after]))
            if len(order) > _MOST_STATES:
                raise TooLarge("more states than a number may have")
        return trimmed(np.array(edges, np.int32), np.array([self._accepts(state) for state in order]))

    def _steps(self, state: _State) -> list[tuple[int, _State]]:
        pointed = state.decimals >= 0
        room = self._together is None or state.whole + max(state.decimals, 0) < self._together
        out = []
        if state.whole and not pointed and not self._whole and room:
            out.append((46, self._pointed(state)))
        if room and (state.decimals < self._decimals if pointed else state.whole < self._digits and not state.zero):
            out += [(48 + digit, self._digit(state, digit)) for digit in range(10)]
        return [(code, after) for code, after in out if after.decimals < 0 or after.least >= 0 >= after.most]

    def _digit(self, state: _State, digit: int) -> _State:
        pointed = state.decimals >= 0
        at = state.decimals if pointed else state.whole
        least = _compared(state.least, self._least[pointed], at, digit)
        most = _compared(state.most, self._most[pointed], at, digit) if self._most else -1
        rest = (state.rest * 10 + digit) % self._divisor
        if pointed:
            return _State(state.whole, at + 1, least, most, rest, False)
        return _State(at + 1, -1, least, most, rest, at == 0 and digit == 0)

    def _pointed(self, state: _State) -> _State:
        """The state after the point; a number of fewer whole digits is less."""
        least, most = self._against(state)
        return _State(1 if self._together is None else state.whole, 0, least, most, state.rest, False)

    def _against(self, state: _State) -> tuple[int, int]:
        """How the whole part compares with those of the bounds: more digits are more."""
        least, most = (
            -1 if bound is None else _sign(state.whole - len(bound[0])) or so_far
            for bound, so_far in ((self._least, state.least), (self._most, state.most))
        )
        return least, most

    def _accepts(self, state: _State) -> bool:
        rest = state.rest * 10 ** (self._multiple.decimals - max(state.decimals, 0))
        if not state.whole or state.decimals == 0 or rest % self._divisor:
            return False
        least, most = self._against(state) if state.decimals < 0 else (state.least, state.most)
        done = max(state.decimals, 0)
        if least == 0 and len(self._least[1]) > done:
            least = -1
        if most == 0 and self._most is not None and len(self._most[1]) > done:
            most = -1
        return least >= self._least_excluded and most <= -self._most_excluded


def _compared(so_far: int, digits: str, at: int, digit: int) -> int:
    """The comparison after one more digit; a bound goes on with zeros."""
    return so_far or _sign(digit - int(digits[at : at + 1] or 0))


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _digits(number: Fraction) -> tuple[str, str]:
    """The digits before and after the point, without zeros at the end."""
    decimals = 0
    while (number * 10**decimals).denominator != 1:
        decimals += 1
        if decimals > 40:
            raise Unsupported("a bound with more than 40 decimals")
    text = str(int(number * 10**decimals)).rjust(decimals + 1, "0")
    return text[: len(text) - decimals], text[len(text) - decimals :]
