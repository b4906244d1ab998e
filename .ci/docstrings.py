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
_UNPACKS = re.compile(r"Unpack\[(\w+)\]")
_NAME = re.compile(r"`(gen(?:\.\w+)+)`")


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

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        owners: list[Any] = [pkg]
        while owners:
            for member in list(owners.pop().members.values()):
                if not member.is_alias and (member.is_module or member.is_class):
                    owners.append(member)
                elif not member.is_alias and member.is_function:
                    spell_out(member)


def spell_out(function: griffe.Function) -> None:
    """Give a function the keyword arguments of the TypedDict that its last parameter unpacks."""
    for parameter in list(function.parameters):
        if found := _UNPACKS.fullmatch(str(parameter.annotation)):
            del function.parameters[parameter.name]
            for name, annotation in arguments_of(function, found[1]).items():
                kind = griffe.ParameterKind.keyword_only
                function.parameters.add(griffe.Parameter(name, annotation=annotation, kind=kind, default="..."))


def arguments_of(function: Any, name: str) -> dict[str, Any]:
    """The arguments of a TypedDict that a function's file names, with those of its bases before its own."""
    typed = function.modules_collection[function.resolve(name)]
    found: dict[str, Any] = {}
    for base in map(str, typed.bases):
        if base != "TypedDict":
            found |= arguments_of(typed, base)
    return found | {one.name: one.annotation for one in typed.members.values() if one.is_attribute}
