"""Where whitespace stands in a JSON text: in one line, compact or indented, as `json.dumps` writes it."""

import json
from typing import Any, NamedTuple

from gen.constraints.automata.limits import Unsupported


class Layout(NamedTuple):
    """Separators of items, and of names and values, and spaces for each level (None: no line breaks)."""

    item: str
    name: str
    indent: int | None

    def around(self, level: int) -> tuple[str, str, str]:
        """What stands after the bracket that opens at a level, between items and before the one that closes."""
        if self.indent is None:
            return "", self.item, ""
        inner, outer = (f"\n{' ' * (self.indent * depth)}" for depth in (level + 1, level))
        return inner, self.item + inner, outer

    def dumps(self, value: Any, level: int) -> bytes:
        """A value as it stands at a level. Raises Unsupported if it is no JSON or no text of Unicode."""
        separators = (self.item, self.name)
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=self.indent, separators=separators)
            return text.replace("\n", f"\n{' ' * ((self.indent or 0) * level)}").encode()
        except (UnicodeEncodeError, ValueError, TypeError) as error:
            raise Unsupported(f"a listed value that JSON cannot write: {error}") from None


LAYOUTS = {
    "line": Layout(", ", ": ", None),
    "compact": Layout(",", ":", None),
    "indent": Layout(",", ": ", 2),
}
