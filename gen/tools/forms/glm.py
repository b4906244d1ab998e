"""GLM 4.5: a text, then a block as this one for each call, with strings as they are and other values as JSON:

    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>

Newer models, as GLM 4.7, write it without line breaks.
"""

from typing import Any

from gen.constraints.schema.writing.writer import Fields
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool
from gen.tools.forms import form


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    mark = "<tool_call>"
    without = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    behind = "</tool_call>"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        short = "</arg_key><arg_value>" in self.template
        line = self.separator = "" if short else "\n"
        self.begun = "<" if short else ""
        between, end = f"</arg_key>{line}<arg_value>", f"</arg_value>{line}"
        self.fields = Fields("<arg_key>", between, end, "", raw=True, names=form.NAMES)

    def call(self, tool: Tool) -> Any:
        return self.plain_call(tool, f"<tool_call>{tool.name}{self.separator}")

    def heads(self) -> Heads:
        head = rf"<tool_call>(?P<name>[^<>\n]+){self.separator or self.begun}"
        return Heads(first=head, next=head, arguments=self.readers())
