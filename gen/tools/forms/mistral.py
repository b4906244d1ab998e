"""How Mistral's models write calls."""

from typing import Any

from gen.tools.forms.form import Form


class Mistral(Form):
    """Mistral: a text, then [TOOL_CALLS] and a list of {"name": "f", "arguments": {"x": 1}, "id": "9 letters"}.

    Newer models write [TOOL_CALLS]f[CALL_ID]9 letters[ARGS]{"x": 1} for each call, perhaps without the id.
    """

    specials = ("[TOOL_CALLS]",)
    mark = "[TOOL_CALLS]"
    id = "[a-zA-Z0-9]{9}"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if "[ARGS]" in self.template:
            self.head = f"[TOOL_CALLS]{{name}}{'[CALL_ID]{id}' if '[CALL_ID]' in self.template else ''}[ARGS]"
        else:
            gap = " " if "[TOOL_CALLS] [" in self.template else ""
            self.begin, self.separator, self.end = f"[TOOL_CALLS]{gap}[", ", ", "]"
            self.head, self.behind = '{"name": {json}, "arguments": ', ', "id": "{id}"}'
