"""docs/virtual_gpus.md: its programs run, and print what the page shows."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.helpers import byte_tokenizer, tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "virtual_gpus.md"
_PROGRAM = re.compile(r"```python\n(?P<program>.*?)```\n(?:\n```text\n(?P<printed>.*?)```)?", re.DOTALL)
PROGRAMS = [(found["program"], found["printed"]) for found in _PROGRAM.finditer(PAGE.read_text())]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize(("program", "printed"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_prints_what_the_page_shows(program: str, printed: str | None, checkpoint: Path) -> None:
    output = StringIO()
    with redirect_stdout(output):
        exec(compile(program, "my_test.py", "exec"), {"checkpoint": checkpoint, "__name__": "my_test"})
    assert output.getvalue() == (printed or "")


def test_the_page_has_programs_that_print() -> None:
    assert sum(printed is not None for _, printed in PROGRAMS) >= 3
