"""How DeepSeek's models write calls."""

from typing import Any

from gen.tools.forms.form import Form

_MARKS = tuple(
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "sep", "call\u2581end")
)


class DeepSeek(Form):
    """DeepSeek: a text, then between <|tool_calls_begin|> and <|tool_calls_end|> for each call, as V3.1 writes it,
    <|tool_call_begin|>f<|tool_sep|>{"x": 1}<|tool_call_end|>.

    V3 and R1 write function<|tool_sep|>f, then the arguments in a block of three backticks. In these special tokens
    U+FF5C stands for a bar, and U+2581 for an underscore.
    """

    mark = begin = _MARKS[0]
    end = _MARKS[1]
    without = _MARKS

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        _, _, begin, sep, end = _MARKS
        old = "```json" in self.template
        self.separator = "\n" if old else ""
        self.head = f"{begin}function{sep}{{name}}\n```json\n" if old else f"{begin}{{name}}{sep}"
        self.behind = f"\n```{end}" if old else end
