"""English about Python that ships with every CPython: docstrings and the help topics (PSF licence)."""

import ast
import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from training.demo.words import words

_SKIP = words("__pycache__ encodings ensurepip idlelib lib2to3 msilib site-packages test tests turtledemo")
_C_MODULES = words(
    "_bisect _collections _datetime _decimal _functools _heapq _io _operator _struct array builtins gc "
    "itertools math sys time zlib"
)
_SHORTEST = 40


def clean(text: str) -> str:
    """Keep printable ASCII, tabs and newlines; shorten ruled lines; leave out lines with an address of any sort."""
    text = re.sub(r"[*=\-~^#_.+]{5,}", "---", text.expandtabs(4))
    text = re.sub(r"[^\n\x20-\x7e]", "", text)
    lines = (line.rstrip() for line in text.split("\n") if not re.search(r"://|www\.|\w@\w", line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _from_source(path: Path) -> Iterator[str]:
    """The docstrings of one file; those of functions with their signature."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if len(text) < _SHORTEST:
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = ", ".join(argument.arg for argument in node.args.args)
                text = f"def {node.name}({arguments}):\n" + textwrap.indent(f'"""{text}"""', "    ")
            yield text


def _from_c_module(name: str) -> Iterator[str]:
    """The docstrings of a module written in C, as "name: text"."""
    for key, value in vars(importlib.import_module(name)).items():
        members = vars(value).items() if inspect.isclass(value) else ()
        for path, item in [(key, value), *((f"{key}.{k}", v) for k, v in members)]:
            text = getattr(item, "__doc__", None)
            if isinstance(text, str) and len(text) >= _SHORTEST:
                yield f"{path}: {text}"


def docstrings() -> list[str]:
    """All docstrings of the running interpreter's standard library, cleaned, without repeats, in a fixed order.

    The order and the text depend on the version of CPython and on nothing else that changes from run to run.
    """
    library = Path(os.__file__).parent
    found = [topics[key] for key in sorted(topics)]
    for folder, folders, files in os.walk(library):
        folders[:] = sorted(set(folders).difference(_SKIP))
        for file in sorted(files):
            if file.endswith(".py"):
                found.extend(_from_source(Path(folder) / file))
    for name in _C_MODULES:
        found.extend(_from_c_module(name))
    return [text for text in dict.fromkeys(map(clean, found)) if len(text) >= _SHORTEST]
