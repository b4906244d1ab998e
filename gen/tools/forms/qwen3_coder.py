"""How Qwen3-Coder writes calls."""

from gen.constraints.schema.writing.writer import Fields
from gen.tools.forms.form import BETWEEN_MARKS, Form


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
    fields = Fields("<parameter=", ">\n", "\n</parameter>\n", "", raw=True, names=BETWEEN_MARKS)
