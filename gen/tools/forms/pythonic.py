"""How Llama 4 and LFM2 write calls."""

from collections.abc import Callable
from keyword import kwlist
from typing import Any

from gen.constraints.schema.writing.writer import Fields
from gen.errors import ConstraintError, show
from gen.tools.argument_readers import ArgumentsReader, PythonReader
from gen.tools.calls import Tool
from gen.tools.forms.form import Form


class Pythonic(Form):
    """Llama 4 and LFM2: calls of Python, [f(x=1), g()]; LFM2 writes <|tool_call_start|> and <|tool_call_end|> around
    them. Without these special tokens a text begins with no bracket, which begins calls.
    """

    separator = ", "
    head, behind = "{name}(", ")"
    names = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
    without = ("<|tool_call_start|>", "<|tool_call_end|>")
    fields = Fields("", "=", "", ", ", raw=False, names=rf"(?!(?:{'|'.join(kwlist)})\Z)[A-Za-z_][A-Za-z0-9_]*")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        start, end = self.without if self.without[0] in self.has else ("", "")
        self.begin, self.end = f"{start}[", f"]{end}"
        self.mark, self.first = start, "" if start else r"[^\[\s]"

    def call(self, tool: Tool) -> Any:
        if not all(one.isidentifier() for one in tool.name.split(".")):
            raise ConstraintError(f"the format 'pythonic' cannot write the name of the tool {show(tool.name)}.")
        return super().call(tool)

    def reader_of(self, tool: Tool, begun: str = "") -> Callable[[], ArgumentsReader]:
        return PythonReader
