"""Reads calls of tools out of a text that comes in pieces.

Example, in the form of Hermes: of 'Hi <tool_' only "Hi" is certain. After 'call>\\n{"name": "f", "arguments": {"x' call
0 has begun: it calls "f", and its arguments begin with '{"x'.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from gen.completions import ToolCallDelta
from gen.constraints.automata.searching import Search, Threads
from gen.tools.argument_readers import ArgumentsReader, JsonReader


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Regexes for the head of a call, which is all before its arguments. The tool's name is in the group "name", or as
    a JSON string in the group "json"; the call's id may be in the group "id".

    Attributes:
        first: for the first call.
        next: for each later call.
        after_text: whether a text may come before the first call.
        arguments: gives what reads the arguments of a call, for the tool's name.
    """

    first: str
    next: str
    after_text: bool = True
    arguments: Callable[[str], ArgumentsReader] = field(default=lambda name: JsonReader(), compare=False)


@lru_cache(32)
def _searches(heads: Heads | None) -> tuple[Search | None, Search | None]:
    """What finds the first head, and each later one."""
    if heads is None:
        return None, None
    first, later = (re.compile(pattern, re.DOTALL) for pattern in (heads.first, heads.next))
    return Search(first, anywhere=heads.after_text), Search(later)


class CallPieces:
    """Separates a text from the calls after it. White space around the text is dropped.

    Args:
        heads: None for a text without calls.
    """

    def __init__(self, heads: Heads | None) -> None:
        self._search, self._next = _searches(heads)
        self._arguments = None if heads is None else heads.arguments
        self._reader: ArgumentsReader | None = None  # of the call that is open
        self._threads: Threads = {} if self._search is None else self._search.start()
        self._held = ""  # characters that may belong to the text or to a call
        self._sought = 0  # in how many of them a head has been sought
        self._space = ""  # white space at the end of the text so far
        self._said = False  # whether there is some text
        self._calls = 0  # how many calls have begun

    def push(self, piece: str, *, last: bool = False) -> tuple[str, list[ToolCallDelta]]:
        """Take a piece; returns the text that has become certain, and what is new of calls.

        Args:
            last: whether this is the last piece.
        """
        self._held += piece if self._held or self._said or self._calls else piece.lstrip()
        text, deltas = "", list[ToolCallDelta]()
        while self._held:
            if self._reader is not None:
                if piece := self._take_arguments():
                    deltas.append(ToolCallDelta(number=self._calls - 1, arguments=piece))
                if self._reader is not None:
                    break
                continue
            begin, end, head = self._find_head(last)
            if not self._calls:
                text += self._say(self._held[:begin])
            self._held, self._sought = self._held[end:], 0 if head else self._sought - end
            if head is None:
                self._threads = {state: place - end for state, place in self._threads.items()}
                break
            assert self._arguments is not None  # there are heads; tells mypy
            name = head.get("name") or json.loads(head["json"])
            self._calls += 1
            self._reader = self._arguments(name)
            self._search = self._next
            self._threads = {} if self._next is None else self._next.start()
            piece = self._take_arguments()
            deltas.append(ToolCallDelta(number=self._calls - 1, name=name, id=head.get("id"), arguments=piece))
        return text, deltas

    def _find_head(self, last: bool) -> tuple[int, int, dict[str, str] | None]:
        """Where a call's head begins and ends, and its groups; if no head is complete, where one may begin, and
        None."""
        end = len(self._held)
        if self._search is None:
            return end, end, None
        self._threads, found = self._search.read(self._threads, self._held, self._sought)
        self._sought = end
        if found is None:
            begin = end if last else next(iter(self._threads.values()), end)
            return begin, begin, None
        match = re.fullmatch(self._search.pattern, self._held[found.begin : found.end], re.DOTALL)
        assert match is not None  # the automaton is made of this pattern; tells mypy
        return found.begin, found.end, match.groupdict()

    def _say(self, piece: str) -> str:
        """A piece of the text, without white space at its end, which is kept until more text comes."""
        said = self._space + piece
        said = said if self._said else said.lstrip()
        sure = said.rstrip()
        self._space, self._said = said[len(sure) :], self._said or bool(sure)
        return sure

    def _take_arguments(self) -> str:
        """The JSON of the held characters that belong to the arguments."""
        assert self._reader is not None  # a call is open; tells mypy
        piece, taken, whole = self._reader.take(self._held)
        self._held = self._held[taken:]
        self._reader = None if whole else self._reader
        return piece
