"""Hermes and Qwen: a text, then a block of three lines for each call, <tool_call>, {"name": ..., "arguments": ...} and
</tool_call>.
"""

from typing import Any

from gen.constraints.output_types import Made, sequence
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool
from gen.tools.forms import form

NAME = r'\{"name": (?P<json>"(?:[^"\\]|\\.)*"), '
LISTED = rf'{NAME}"arguments": '


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    mark, separator = "<tool_call>", "\n"

    def call(self, tool: Tool) -> Any:
        call = sequence("<tool_call>\n", self.json_call("arguments", tool), "\n</tool_call>")
        return Made(call, lambda parts: parts[1])

    def heads(self) -> Heads:
        return Heads(first=f"<tool_call>\n{LISTED}", next=LISTED)
