"""Qwen3-Coder: a text, then a block as this one for each call, with strings as they are and other values as JSON:

<tool_call>
<function=weather>
<parameter=city>
Oslo
</parameter>
</function>
</tool_call>
"""

from typing import Any

from gen.constraints.schema.writing.writer import Fields
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool
from gen.tools.forms import form

_HEAD = r"<tool_call>\n<function=(?P<name>[^<>]+)>\n"


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    mark, separator = "<tool_call>", "\n"
    without = ("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>")
    fields = Fields("<parameter=", ">\n", "\n</parameter>\n", "", raw=True, names=form.NAMES)
    behind = "</function>\n</tool_call>"

    def call(self, tool: Tool) -> Any:
        return self.plain_call(tool, f"<tool_call>\n<function={tool.name}>\n")

    def heads(self) -> Heads:
        return Heads(first=_HEAD, next=_HEAD, arguments=self.readers())
