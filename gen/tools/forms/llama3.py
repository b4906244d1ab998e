"""Llama 3: {"name": "f", "parameters": {"x": 1}}, perhaps after <|python_tag|>; or a text that begins with no brace."""

from typing import Any

from gen.constraints.output_types import Made, either, regex, sequence, text
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool
from gen.tools.forms import form
from gen.tools.forms.hermes import NAME

_TAG = "<|python_tag|>"
_HEAD = rf'(?:<\|python_tag\|>)?{NAME}"parameters": '


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    def call(self, tool: Tool) -> Any:
        return self.json_call("parameters", tool)

    def heads(self) -> Heads:
        return Heads(first=_HEAD, next=_HEAD, after_text=False)

    def write(self) -> Any:
        if not self.asked.tools:
            return Made(text(without=self.left_out), lambda value: form.value_of(value, []))
        said = either("", sequence(regex(r"[^{\s]"), text(without=self.left_out)))  # a brace begins a call
        plain = Made(said, lambda value: form.value_of("".join(value), []))
        call = self.calls()
        if _TAG in self.has:
            call = Made(sequence(either("", _TAG), call), lambda parts: parts[1])
        one = Made(call, lambda found: form.value_of("", [found]))
        return either(one, plain) if self.asked.optional else one
