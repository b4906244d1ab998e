"""How Llama 3 writes calls."""

import re
from dataclasses import replace
from typing import Any

from gen.constraints.output_types import Made, either, sequence
from gen.tools.call_pieces import Heads
from gen.tools.forms.form import Form, value_of


class Llama3(Form):
    """Llama 3: {"name": "f", "parameters": {"x": 1}}, perhaps after <|python_tag|>; or a text that begins with no
    brace.
    """

    first = r"[^{\s]"
    head = '{"name": {json}, "parameters": '
    behind = "}"
    _tag = "<|python_tag|>"

    def heads(self) -> Heads:
        heads = super().heads()
        return replace(heads, first=f"(?:{re.escape(self._tag)})?{heads.first}")

    def whole(self) -> Any:
        call = self.calls()
        if self._tag in self.has:
            call = Made(sequence(either("", self._tag), call), lambda parts: parts[1])
        return Made(call, lambda found: value_of("", [found]))
