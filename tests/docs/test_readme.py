"""The README is true: its Python runs and prints what it shows, its commands succeed, its links lead somewhere."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def commands() -> list[str]:
    """The lines of the shell blocks that start with gen; `make` and benchmarks are run by CI and by hand."""
    shell = (body for language, body in BLOCK.findall(README) if language == "sh")
    return [line for body in shell for line in body.splitlines() if line.startswith("gen ")]


def test_python_examples_print_what_the_readme_shows() -> None:
    shown, printed = [], []
    namespace: dict[str, object] = {}
    for language, body in BLOCK.findall(README):
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(body, "README.md", "exec"), namespace)
            printed.append(out.getvalue())
        elif language == "text":
            shown.append(body)
    assert printed
    assert shown == printed


@pytest.mark.parametrize("command", commands())
def test_commands_succeed(command: str) -> None:
    program = [sys.executable, "-m", *shlex.split(command, comments=True)]
    run = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, input="One morning")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def test_links_lead_to_files_of_the_project() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
