"""Reads the stops, which end a text: strings and compiled regexes, for all prompts or for each of them."""

import re
from collections.abc import Sequence, Set
from typing import Any

from gen.arguments import check_text
from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.automata.searching import Search, search_of
from gen.errors import ArgumentError, show

Stop = str | Search
GivenStop = str | re.Pattern[str]
Stops = GivenStop | Sequence[GivenStop] | None  # for one prompt


def is_list_for_each(stop: object) -> bool:
    """Whether `stop` has stops for each prompt of a list: it is a list with lists or None in it."""
    return isinstance(stop, list | tuple) and any(one is None or _is_list(one) for one in stop)


def read_stops_of_each(stop: Stops | Sequence[Stops], prompts: int) -> list[tuple[Stop, ...]]:
    """The stops of each prompt.

    Raises:
        ArgumentError: as for `read_stops`, or there are not as many lists as prompts.
    """
    if not is_list_for_each(stop):
        return [read_stops(stop)] * prompts
    lists: Any = stop
    for number, one in enumerate(lists):
        if one is not None and not _is_list(one):
            raise ArgumentError(
                f"stop has a list for each prompt, but {show(one)} for prompt {number}; write [{show(one)}] there."
            )
    if len(lists) != prompts:
        raise ArgumentError(f"stop must have one list or None for each of {prompts} prompts, got {len(lists)}")
    return [read_stops(one) for one in lists]


def read_stops(stop: Any) -> tuple[Stop, ...]:
    """The stops of one prompt as a tuple.

    Raises:
        ArgumentError: a stop is neither a string nor a compiled regex, or would end an empty text, or is a regex that
            no automaton can say, or that takes too large a one.
    """
    given = (stop,) if isinstance(stop, str | re.Pattern) else () if stop is None else stop
    if not _is_list(given):
        raise ArgumentError(f"stop must be a string, a compiled regex or a list of those, got {show(stop)}")
    return tuple(_read_stop(number, one) for number, one in enumerate(given))


def _read_stop(number: int, stop: Any) -> Stop:
    """One stop."""
    if isinstance(stop, re.Pattern) and isinstance(stop.pattern, str):
        try:
            search = search_of(stop)
        except (Unsupported, TooLarge) as error:
            raise ArgumentError(
                f"stop {show(stop)}: {error}. A stop runs as an automaton, which takes no longer for one text than for "
                "another: write it without references to groups, look-around, atomic groups and possessive repeats, "
                "and with small counts."
            ) from None
        if search.empty:
            raise ArgumentError(
                f"stop {show(stop)} matches a text of no characters, and would end every text at once; write a regex "
                "that matches at least one character."
            )
        return search
    if not isinstance(stop, str) or not stop:
        raise ArgumentError(f"stop takes strings of at least one character and compiled regexes, got {show(stop)}")
    check_text(f"stop string {number}", stop)
    return stop


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | Set) and not isinstance(value, str | bytes | bytearray | memoryview)
