"""The programs of the pages in docs/ print what the pages show; the export example runs."""

import re
import runpy
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import gen
from tests.helpers import byte_tokenizer, encoder_tokenizer, tiny_encoder, tiny_model

ROOT = Path(__file__).parents[2]
PROGRAM = re.compile(r"```python\n(?P<program>.*?)```\n\n```text\n(?P<printed>.*?)```", re.DOTALL)


def text_model(folder: Path) -> Path:
    tiny_model(max_position_embeddings=160).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def encoder(folder: Path) -> Path:
    tiny_encoder().save_pretrained(folder)
    encoder_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("page", "save"),
    [
        ("exported.md", text_model),
        ("embedding.md", encoder),
        ("chat.md", text_model),
        ("engine.md", text_model),
        ("output_types.md", text_model),
    ],
)
def test_a_page_prints_what_it_shows(page: str, save: object, tmp_path: Path) -> None:
    assert callable(save)
    names = {"checkpoint": save(tmp_path), "folder": tmp_path, "tokenizer": byte_tokenizer()}
    [found] = PROGRAM.finditer((ROOT / "docs" / page).read_text())
    output = StringIO()
    with redirect_stdout(output):
        exec(compile(found["program"], page, "exec"), names)
    assert output.getvalue() == found["printed"]


def test_the_export_example_gives_the_models_own_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = text_model(tmp_path), tmp_path / "model.pt2"
    monkeypatch.setattr(sys, "argv", ["export_demo.py", str(folder), str(file)])
    runpy.run_path(str(ROOT / "examples" / "export_demo.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "the same text as the model's own" in printed
    assert f"{file} on {gen.load(folder).placement}" in printed
