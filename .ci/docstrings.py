"""How docstrings become the reference: an extension of griffe, which mkdocstrings reads them with.

gen's docstrings have their sections one under the other. griffe takes "Args:" and its kin for a section only after an
empty line, so it gets one here. And a name in backticks becomes a link, if the reference has a place for it.
"""

import re
from pathlib import Path
from typing import Any

import griffe

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
_SECTION = re.compile(r"\n(?=(?:Args|Attributes|Raises|Returns|Yields):\n)")
_NAME = re.compile(r"`((?:gen|virtual_gpus)(?:\.\w+)+)`")


def described() -> set[str]:
    """The names that the reference has a place for."""
    pages = (page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    return {name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}


def for_reference(docstring: str, names: set[str]) -> str:
    """A docstring whose sections griffe finds, and whose public names are links."""

    def link(found: re.Match[str]) -> str:
        name = found[1]
        known = name in names or name.rpartition(".")[0] in names - {"gen.models.base"}  # a member of a class
        return f"[{found[0]}][{name}]" if known else found[0]

    return _NAME.sub(link, _SECTION.sub("\n\n", docstring))


class Docstrings(griffe.Extension):
    """Prepares each docstring once."""

    def __init__(self) -> None:
        self._names = described()

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = for_reference(obj.docstring.value, self._names)
