"""How Hermes and Qwen write calls."""

from gen.tools.forms.form import Form


class Hermes(Form):
    """Hermes and Qwen: a text, then a block of three lines for each call, <tool_call>, {"name": ..., "arguments": ...}
    and </tool_call>.
    """

    mark, separator = "<tool_call>", "\n"
    head = '<tool_call>\n{"name": {json}, "arguments": '
    behind = "}\n</tool_call>"
