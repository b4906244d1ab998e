"""DeepSeek: a text, then between <|tool_calls_begin|> and <|tool_calls_end|> for each call, as V3.1 writes it,
<|tool_call_begin|>f<|tool_sep|>{"x": 1}<|tool_call_end|>.

V3 and R1 write function<|tool_sep|>f, then the arguments in a block of three backticks. In these special tokens U+FF5C
stands for a bar, and U+2581 for an underscore.
"""

from typing import Any

from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool
from gen.tools.forms import form

_MARKS = tuple(
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "sep", "call\u2581end")
)
_, _, _BEGIN, _SEP, _END = _MARKS


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    mark = begin = _MARKS[0]
    end = _MARKS[1]
    without = _MARKS

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        old = "```json" in self.template
        self.separator = "\n" if old else ""
        self.behind = f"\n```{_END}" if old else _END
        self._before = f"{_BEGIN}function{_SEP}%s\n```json\n" if old else f"{_BEGIN}%s{_SEP}"

    def call(self, tool: Tool) -> Any:
        return self.plain_call(tool, self._before % tool.name)

    def heads(self) -> Heads:
        head = self._before % "(?P<name>[^<>`\n]+)"
        return Heads(first=self.begin + head, next=head)
