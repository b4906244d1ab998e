"""The size of the code: what counts as a line and a token of code, and that a part above its limit fails."""

import runpy
from pathlib import Path
from typing import Any

import pytest

SIZE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "size.py"))
MODULE = '''"""A module
of two lines."""

# a comment
VALUE = (1 +

         2)  # another one


def two(name: str) -> str:
    """A docstring."""
    return f"{name}: {f'{VALUE}'}" """
    text"""
'''


def tree(root: Path) -> Path:
    for name in (
        "gen/a.py",
        "gen/loop/deep/b.py",
        "virtual_gpus/src/virtual_gpus/c.py",
        "tests/test_a.py",
        "benchmarks/d.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(MODULE)
    (root / "tests" / "no_code.txt").write_text("x\n" * 9)
    return root


def test_comments_docstrings_and_empty_lines_are_no_code(tmp_path: Path) -> None:
    found = SIZE["sizes"](tree(tmp_path))
    # VALUE = ( 1 + 2 ) on two lines; def two ( name : str ) -> str : on one; return, an f-string and a text on two
    one = {"files": 1, "lines": 13, "lines of code": 5, "tokens": 7 + 10 + 3}
    assert all(found[name] == one for name in ("gen", "gen/loop", "virtual GPUs", "tests", "benchmarks"))
    assert found["gen without virtual GPUs"] == {name: 2 * count for name, count in one.items()}
    assert found["all of gen"] == {name: 3 * count for name, count in one.items()}


def test_a_part_above_its_limit_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert SIZE["main"](tree(tmp_path)) == 0
    limits = SIZE["main"].__globals__["LIMITS"]
    limits["virtual GPUs", "lines"] = (12, 7_200)
    assert SIZE["main"](tmp_path) == 1
    assert "virtual GPUs has 13 lines, the limit is 12: make it smaller" in capsys.readouterr().err
