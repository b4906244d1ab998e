"""MiniMax M2: a text, then one block as this one for all calls, with strings as they are and other values as JSON:

<minimax:tool_call>
<invoke name="weather">
<parameter name="city">Oslo</parameter>
</invoke>
</minimax:tool_call>
"""

from typing import Any

from gen.constraints.schema.writing.writer import Fields
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool
from gen.tools.forms import form

_HEAD = r'<invoke name="(?P<name>[^"<>]+)">\n'


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    mark = "<minimax:tool_call>"
    begin, end = "<minimax:tool_call>\n", "</minimax:tool_call>"
    without = ("<minimax:tool_call>", "</minimax:tool_call>", "<invoke", "</invoke>", "<parameter", "</parameter>")
    fields = Fields('<parameter name="', '">', "</parameter>\n", "", raw=True, names=form.NAMES)
    behind = "</invoke>\n"

    def call(self, tool: Tool) -> Any:
        return self.plain_call(tool, f'<invoke name="{tool.name}">\n')

    def heads(self) -> Heads:
        return Heads(first=self.begin + _HEAD, next=_HEAD, arguments=self.readers())
