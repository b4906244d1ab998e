"""Mistral: a text, then [TOOL_CALLS] and a list of {"name": "f", "arguments": {"x": 1}, "id": "9 letters"}.

Newer models write [TOOL_CALLS]f[CALL_ID]9 letters[ARGS]{"x": 1} for each call, perhaps without the id.
"""

from typing import Any

from gen.constraints.output_types import Made, regex, sequence
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool, ToolCall
from gen.tools.forms import form
from gen.tools.forms.hermes import LISTED

_NAMED = r"\[TOOL_CALLS\](?P<name>.+?)(?:\[CALL_ID\]\w{9})?\[ARGS\]"
_ID = regex("[a-zA-Z0-9]{9}")


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    specials = ("[TOOL_CALLS]",)
    mark = "[TOOL_CALLS]"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if "[ARGS]" not in self.template:
            gap = " " if "[TOOL_CALLS] [" in self.template else ""
            self.begin = f"[TOOL_CALLS]{gap}["
            self.separator, self.end = ", ", "]"

    def call(self, tool: Tool) -> Any:
        if "[ARGS]" not in self.template:
            return self.json_call("arguments", tool, after=sequence(', "id": "', _ID, '"}'))
        if "[CALL_ID]" in self.template:
            parts = sequence(f"[TOOL_CALLS]{tool.name}[CALL_ID]", _ID, "[ARGS]", tool.arguments)
            return Made(parts, lambda found: ToolCall(name=tool.name, arguments=found[3], id=found[1]))
        plain = sequence(f"[TOOL_CALLS]{tool.name}[ARGS]", tool.arguments)
        return Made(plain, lambda found: ToolCall(name=tool.name, arguments=found[1]))

    def heads(self) -> Heads:
        return Heads(first=rf"\[TOOL_CALLS\] ?\[{LISTED}|{_NAMED}", next=f"{LISTED}|{_NAMED}")
