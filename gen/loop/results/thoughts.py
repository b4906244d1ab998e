"""Separates thoughts from the text that they are in, while it arrives in pieces.

Example: "<think>\\nTwo.\\n</think>\\n\\n2" is the thought "Two." and the text "2".
"""

import re

from gen.constraints.automata.searching import begun_at_end
from gen.tokens.thoughts import Marks

_HEADER_ENDS = "<|message|>"
_BODY_ENDS = ("<|end|>", "<|start|>", "<|call|>", "<|return|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*analysis\b")


def thoughts_of(marks: Marks) -> "_Tagged | _InChannels":
    """An object that separates thoughts that are marked in this way, from a text that comes in pieces.

    `push` takes more text and returns the part that is certainly no thought; `flush` returns the held text that is
    none, when no more will come. `reasoning` is the thought so far, or None; `thinks` is whether the text is within a
    thought now.
    """
    return _Tagged(marks) if marks.kind == "tags" else _InChannels()


class _Tagged:
    """A thought between two strings, with only white space before it; line breaks around it are dropped."""

    def __init__(self, marks: Marks) -> None:
        self._opens, self._closes = marks.opens, marks.closes
        self._state = "thought" if marks.begun else "before"
        self._held = ""
        self.reasoning = "" if marks.begun else None

    @property
    def thinks(self) -> bool:
        return self._state == "thought"

    def push(self, piece: str) -> str:
        self._held += piece
        if self._state == "before":
            begun = self._held.lstrip()
            if begun.startswith(self._opens):
                self._state, self._held, self.reasoning = "thought", begun[len(self._opens) :], ""
            elif not self._opens.startswith(begun):
                self._state = "text"
        if self._state == "thought":
            self._think()
        if self._state == "gap":
            self._held = self._held.lstrip("\n")
            self._state = "text" if self._held else "gap"
        return self._taken() if self._state == "text" else ""

    def flush(self) -> str:
        rest = self._taken()
        if self._state != "thought":
            return rest
        self._add(rest)
        self.reasoning = (self.reasoning or "").rstrip("\n")
        return ""

    def _think(self) -> None:
        thought, closed, after = self._held.partition(self._closes)
        if closed:
            self._add(thought)
            self.reasoning = (self.reasoning or "").rstrip("\n")
            self._state, self._held = "gap", after
        else:
            kept = begun_at_end(self._held, self._closes)
            self._add(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]

    def _add(self, thought: str) -> None:
        self.reasoning = ((self.reasoning or "") + thought).lstrip("\n")

    def _taken(self) -> str:
        taken, self._held = self._held, ""
        return taken


class _InChannels:
    """Messages of gpt-oss: those of the channel "analysis" are thoughts, calls of tools stay as they are."""

    def __init__(self) -> None:
        self._held = self._header = ""
        self.thinks = False
        self.reasoning: str | None = None

    def push(self, piece: str) -> str:
        self._held += piece
        text = ""
        while True:
            if not self._header:
                header, found, rest = self._held.partition(_HEADER_ENDS)
                if not found:
                    return text
                self._header, self._held = header + found, rest
                self.thinks = _CHANNEL.search(header) is not None
                if self.thinks:
                    self.reasoning = "" if self.reasoning is None else f"{self.reasoning}\n"
                elif "to=" in header:
                    text += self._header.removeprefix("<|start|>assistant")
            ends = [(self._held.find(mark), mark) for mark in _BODY_ENDS if mark in self._held]
            if not ends:
                kept = max(begun_at_end(self._held, mark) for mark in _BODY_ENDS)
                text += self._said(len(self._held) - kept)
                return text
            place, mark = min(ends)
            text += self._said(place)
            self._header, self._held = "", self._held[len(mark) if mark != "<|start|>" else 0 :]

    def flush(self) -> str:
        if self._header:
            return self._said(len(self._held))
        rest, self._held = self._held, ""
        return "" if rest.startswith("<|") else rest

    def _said(self, count: int) -> str:
        """Take the first held characters of a message: add them to the thought, or return them as text."""
        said, self._held = self._held[:count], self._held[count:]
        if self.thinks:
            self.reasoning = (self.reasoning or "") + said
        return "" if self.thinks else said
