"""docs/five_systems.md: its programs run, and print what the page shows."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.models.transformers.vision_helpers import picture, tiny_processor, tiny_vision_model

PAGE = Path(__file__).parents[2] / "docs" / "five_systems.md"
_BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


def test_its_programs_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_vision_model("llava").save_pretrained(tmp_path / "model")
    tiny_processor("llava").save_pretrained(tmp_path / "model")
    picture(1).save(tmp_path / "cat.png")
    monkeypatch.chdir(tmp_path)
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    names: dict[str, object] = {"path": tmp_path / "model", "picture": picture(2)}
    output = StringIO()
    with redirect_stdout(output):
        for language, program in blocks:
            if language == "python":
                exec(compile(program, str(PAGE), "exec"), names)
    assert output.getvalue() == "".join(text for language, text in blocks if language == "text")
    assert output.getvalue()
