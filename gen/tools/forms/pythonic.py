"""Llama 4 and LFM2: calls of Python, [f(x=1), g()]; LFM2 writes <|tool_call_start|> and <|tool_call_end|> around them.

Without these special tokens a text begins with no bracket, which begins calls.
"""

import json
import re
from collections.abc import Callable
from keyword import kwlist
from typing import Any

from gen.constraints.schema.writing.writer import Fields
from gen.errors import ConstraintError, show
from gen.tools.argument_readers import ArgumentsReader
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool
from gen.tools.forms import form

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    separator = ", "
    without = (_START, _END)
    fields = Fields("", "=", "", ", ", raw=False, names=rf"(?!(?:{'|'.join(kwlist)})\Z){_NAME}")
    behind = ")"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        tagged = _START in self.has
        self.begin = f"{_START}[" if tagged else "["
        self.end = f"]{_END}" if tagged else "]"
        self.mark, self.first = (_START, "") if tagged else ("", r"[^\[\s]")

    def call(self, tool: Tool) -> Any:
        if not all(one.isidentifier() for one in tool.name.split(".")):
            raise ConstraintError(f"the format 'pythonic' cannot write the name of the tool {show(tool.name)}.")
        return self.plain_call(tool, f"{tool.name}(")

    def heads(self) -> Heads:
        name = rf"(?P<name>{_NAME}(?:\.{_NAME})*)\("
        first, tagged = re.escape(self.begin) + name, _START in self.has
        return Heads(first=first, next=f", {name}", after_text=tagged, arguments=self.readers())

    def reader_of(self, tool: Tool, begun: str = "") -> Callable[[], ArgumentsReader]:
        return _PythonReader


class _PythonReader:
    """Reads keyword arguments up to the bracket that closes them, as JSON."""

    def __init__(self) -> None:
        self._began = self._quoted = self._escaped = False
        self._word, self._depth = "", 0

    def take(self, held: str) -> tuple[str, int, bool]:
        written = "" if self._began or not held else "{"
        self._began = self._began or bool(held)
        for place, character in enumerate(held):
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
                written += character
                continue
            if character == "_" or character.isalnum():
                self._word += character
                continue
            named = character == "=" and not self._depth
            written += f"{json.dumps(self._word)}: " if named else _CONSTANTS.get(self._word, self._word)
            self._word, self._quoted = "", character == '"'
            if character == ")":
                return written + "}", place, True
            self._depth += (character in "[{") - (character in "]}")
            written += "" if named else character
        return written, len(held), False
