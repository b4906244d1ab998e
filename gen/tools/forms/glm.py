"""How GLM writes calls."""

from typing import Any

from gen.constraints.schema.writing.writer import Fields
from gen.tools.forms.form import BETWEEN_MARKS, Form


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
        self.fields = Fields("<arg_key>", between, end, "", raw=True, names=BETWEEN_MARKS)
