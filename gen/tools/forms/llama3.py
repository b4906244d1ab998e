"""Llama 3: {"name": "f", "parameters": {"x": 1}}, perhaps after <|python_tag|>; or a text that begins with no brace."""

from typing import Any

from gen.constraints.output_types import Made, either, sequence
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool
from gen.tools.forms import form
from gen.tools.forms.hermes import NAME

_TAG = "<|python_tag|>"
_HEAD = rf'(?:<\|python_tag\|>)?{NAME}"parameters": '


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    first = r"[^{\s]"

    def call(self, tool: Tool) -> Any:
        return self.json_call("parameters", tool)

    def heads(self) -> Heads:
        return Heads(first=_HEAD, next=_HEAD, after_text=False)

    def whole(self) -> Any:
        call = self.calls()
        if _TAG in self.has:
            call = Made(sequence(either("", _TAG), call), lambda parts: parts[1])
        return Made(call, lambda found: form.value_of("", [found]))
