"""How MiniMax writes calls."""

from gen.constraints.schema.writing.writer import Fields
from gen.tools.forms.form import BETWEEN_MARKS, Form


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
    fields = Fields('<parameter name="', '">', "</parameter>\n", "", raw=True, names=BETWEEN_MARKS)
