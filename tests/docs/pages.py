"""The pages of docs/, and the one of virtual_gpus/, as programs: their blocks in order, run as a reader would run them.

The `python` blocks of a page run one after the other in one namespace; the `text` block after one has its output. A
block with a title is a file. `console` blocks have commands after "$ ", which run in the folder of those files, and
their output. Commands in `sh` blocks need things that no test has: they are only read.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

import gen
import virtual_gpus
from gen import cli
from virtual_gpus import placements

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$', re.DOTALL | re.MULTILINE
)
_SECONDS = re.compile(r"\bin \d+\.\d+s\b")
NAMES = [*sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")), "../virtual_gpus/README.md"]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its file's name or "", and its text."""

    language: str
    title: str
    body: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [Block(found["language"], found["title"] or "", found["body"]) for found in _FENCE.finditer(text)]


def shown(page: str) -> list[str]:
    """The outputs that the page shows, one for each program or command that prints."""
    found = blocks(page)
    texts = []
    for number, block in enumerate(found):
        if _runs(block):
            texts.append("".join(after.body for after in found[number + 1 : number + 2] if after.language == "text"))
        elif block.language == "console":
            texts.append(block.body)
    return texts


def printed(page: str, names: dict[str, object], folder: Path) -> Iterator[str]:
    """The outputs of a page's programs and commands, one for each.

    Args:
        names: the namespace of its programs, which add their own names.
        folder: where its files are written; it must be the current folder.
    """
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.body, encoding="utf-8")
        elif _runs(block):
            output = StringIO()
            with redirect_stdout(output):
                exec(compile(block.body, "my_test.py", "exec"), names)
            yield output.getvalue()
        elif block.language == "console":
            yield "".join(_session(line) for line in block.body.splitlines() if line.startswith("$ "))


def commands(page: str) -> list[str]:
    """The lines of a page's `sh` blocks."""
    return [line for block in blocks(page) if block.language == "sh" for line in block.body.splitlines() if line]


def without_times(text: str) -> str:
    """A text in which all durations are equal."""
    return _SECONDS.sub("in 0.00s", text)


def _runs(block: Block) -> bool:
    return block.language == "python" and not block.title


def _session(line: str) -> str:
    """A command as a terminal shows it: the line after "$ ", and its output on stdout.

    "..." stands for a line that names a place within gen or virtual_gpus.
    """
    piped, _, command = line.removeprefix("$ ").rpartition(" | ")
    said, before = shlex.split(piped)[1:], sys.stdin  # what an echo writes
    program, *arguments = shlex.split(command)
    output = StringIO()
    sys.stdin = TextIOWrapper(BytesIO("".join(f"{word}\n" for word in said).encode()))
    try:
        with redirect_stdout(output), suppress(SystemExit):
            {"gen": cli.main, "pytest": _pytest, "python": _placements}[program](arguments)
    finally:
        sys.stdin = before
    within = "|".join(re.escape(str(Path(package.__file__ or "").parent)) for package in (gen, virtual_gpus))
    printed = re.sub(rf"^(?:{within}).*$", "...", output.getvalue(), flags=re.MULTILINE)
    return f"{line}\n{printed}"


def _placements(arguments: list[str]) -> None:
    """Run `python -m virtual_gpus.placements` in this process."""
    assert arguments[:2] == ["-m", placements.__name__]
    path = list(sys.path)
    try:
        placements.main(arguments[2:])
    finally:
        sys.path[:] = path


def _pytest(arguments: list[str]) -> None:
    """Run pytest in this process, and forget what it imported."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        options = ("-p", "no:cacheprovider", "--disable-plugin-autoload", "-p", "virtual_gpus.plugin")
        pytest.main([*arguments, *options, "--assert=plain", "--color=no"])
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if not name.startswith(("torch", "gen", "_pytest", "virtual_gpus")):
                del sys.modules[name]
