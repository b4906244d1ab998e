"""Forms of calls whose arguments stand between marks of their own: strings as they are and other values as JSON, or all
as in Python.
"""

from collections.abc import Callable
from keyword import kwlist
from typing import Any

from gen.constraints.schema.writing.writer import Fields
from gen.errors import ConstraintError, show
from gen.tools.argument_readers import ArgumentsReader, PythonReader
from gen.tools.calls import Tool
from gen.tools.forms.form import Form

_NAMES = r'[^<>"\n]+'  # that can stand between marks


class Qwen3Coder(Form):
    """Qwen3-Coder: a text, then a block as this one for each call:

    <tool_call>
    <function=weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>
    """

    mark, separator = "<tool_call>", "\n"
    head = "<tool_call>\n<function={name}>\n"
    behind = "</function>\n</tool_call>"
    without = ("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>")
    fields = Fields("<parameter=", ">\n", "\n</parameter>\n", "", raw=True, names=_NAMES)


class Glm(Form):
    """GLM 4.5: a text, then a block as this one for each call; newer models, as GLM 4.7, write it without line breaks:

    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>
    """

    mark = "<tool_call>"
    behind = "</tool_call>"
    without = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        short = "</arg_key><arg_value>" in self.template
        line = self.separator = "" if short else "\n"
        self.begun = "<" if short else ""
        self.head = f"<tool_call>{{name}}{line}"
        between, end = f"</arg_key>{line}<arg_value>", f"</arg_value>{line}"
        self.fields = Fields("<arg_key>", between, end, "", raw=True, names=_NAMES)


class MiniMax(Form):
    """MiniMax M2: a text, then one block as this one for all calls:

    <minimax:tool_call>
    <invoke name="weather">
    <parameter name="city">Oslo</parameter>
    </invoke>
    </minimax:tool_call>
    """

    mark = "<minimax:tool_call>"
    begin, end = "<minimax:tool_call>\n", "</minimax:tool_call>"
    head, behind = '<invoke name="{name}">\n', "</invoke>\n"
    without = ("<minimax:tool_call>", "</minimax:tool_call>", "<invoke", "</invoke>", "<parameter", "</parameter>")
    fields = Fields('<parameter name="', '">', "</parameter>\n", "", raw=True, names=_NAMES)


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
