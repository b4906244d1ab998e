"""How Kimi writes calls."""

from gen.tools.forms.form import Form


class Kimi(Form):
    """Kimi K2: a text, then between <|tool_calls_section_begin|> and <|tool_calls_section_end|> for each call
    <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>, with an id that counts the
    calls.
    """

    mark = begin = "<|tool_calls_section_begin|>"
    end = "<|tool_calls_section_end|>"
    head = "<|tool_call_begin|>{id}<|tool_call_argument_begin|>"
    id = r"functions\.{name}:(?:0|[1-9][0-9]{0,3})"
    behind = "<|tool_call_end|>"
    without = (begin, end, "<|tool_call_begin|>", "<|tool_call_argument_begin|>", behind)
