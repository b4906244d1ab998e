"""Kimi K2: a text, then between <|tool_calls_section_begin|> and <|tool_calls_section_end|> for each call
<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>, with an id that counts the calls.
"""

import re
from dataclasses import replace
from typing import Any

from gen.constraints.output_types import Made, regex, sequence
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool
from gen.tools.forms import form

_BEGIN, _SEP, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_MARKS = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", _BEGIN, _SEP, _END)
_HEAD = rf"{re.escape(_BEGIN)}(?P<id>functions\.(?P<name>[\w.-]+?):[0-9]+){re.escape(_SEP)}"


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    mark = begin = "<|tool_calls_section_begin|>"
    end = "<|tool_calls_section_end|>"
    without = _MARKS
    behind = _END

    def call(self, tool: Tool) -> Any:
        rest = self.plain_call(tool, _SEP)
        named = sequence(f"{_BEGIN}functions.{tool.name}:", regex("0|[1-9][0-9]{0,3}"), rest)
        return Made(named, lambda parts: replace(parts[2], id=f"functions.{tool.name}:{parts[1]}"))

    def heads(self) -> Heads:
        return Heads(first=re.escape(self.begin) + _HEAD, next=_HEAD)
