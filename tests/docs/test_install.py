"""How gen is installed: what its page says about it, and what the check of the pins finds."""

import runpy
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


def check_of(pins: str, tmp_path: Path) -> tuple[Callable[[], int], dict[str, Any]]:
    """`main` of .ci/resolve.py for a project with these pins and one extra."""
    (tmp_path / "constraints.txt").write_text(pins)
    (tmp_path / "pyproject.toml").write_text("[project.optional-dependencies]\ntools = ['Ruff']\n")
    main = runpy.run_path(str(ROOT / ".ci" / "resolve.py"))["main"]
    main.__globals__["ROOT"] = tmp_path
    return main, main.__globals__


def test_the_page_names_the_distribution_and_every_extra() -> None:
    assert f"The distribution is `{PROJECT['name']}`" in INSTALL
    for extra in PROJECT["optional-dependencies"]:
        assert f"\n| `{extra}` | " in INSTALL, f"the page does not say what {extra} is for"


def test_make_demo_says_what_it_fetches_and_installs_what_the_demo_needs_alone() -> None:
    make = ["make", "--no-print-directory", "-n", "-B"]
    made = subprocess.run([*make, "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = made.splitlines()
    assert lines[0].startswith("echo ")
    assert "GB" in "".join(line for line in lines if line.startswith("echo "))
    assert [line for line in lines if " install " in line] == [
        ".venv/bin/pip install --constraint constraints.txt --editable . --editable virtual_gpus"
    ]
    tests = subprocess.run([*make, "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".[dev]" in tests


@pytest.mark.parametrize(
    ("pins", "code"), [("# tools\nruff==1.0\nA_b.c==2 # a name in another form\n", 0), ("ruff==1.0\n", 1)]
)
def test_the_check_lists_what_is_not_pinned(
    pins: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, names = check_of(pins, tmp_path)
    names["resolve"] = lambda extra, python: names["pins"]("ruff==1.0\na-b-c==2\n")
    assert main() == code
    assert ("a-b-c==2" in capsys.readouterr().err) == bool(code)


def test_the_check_fails_where_an_extra_does_not_resolve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, names = check_of("ruff==1.0\n", tmp_path)

    def resolve(extra: str, python: str) -> set[str]:
        raise subprocess.CalledProcessError(1, "uv")

    names["resolve"] = resolve
    assert main() == 1
    assert "[tools] does not resolve for Python 3.11" in capsys.readouterr().err
