"""`gen score`: the library's own scores are the oracle."""

import json
from pathlib import Path
from typing import Any

import pytest

import gen
from tests.cli.test_commands import Capture, run


def test_a_line_for_each_text_says_how_likely_it_is(whole_demo: Any, capsys: Capture) -> None:
    assert run("score", "Once upon", " a time", " a cat", "--device", "cpu") == 0
    scores = gen.score(whole_demo, "Once upon", [" a time", " a cat"])
    lines = [f"{score.sum:.4f}\t{text}" for score, text in zip(scores, (" a time", " a cat"), strict=True)]
    assert capsys.readouterr().out.splitlines() == lines
    assert run("score", "Once upon a time") == 0
    assert capsys.readouterr().out == f"{gen.score(whole_demo, 'Once upon a time').sum:.4f}\tOnce upon a time\n"


def test_json_lines_have_one_or_several_continuations(whole_demo: Any, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"prompt": "One", "continuation": [" day", " night"]}\n{"prompt": "One day"}\n')
    assert run("score", "--file", str(file), "--json") == 0
    first, second, own = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["prompt"], first["text"], second["text"], own["text"]) == ("One", " day", " night", "One day")
    [one, two] = gen.score(whole_demo, "One", [" day", " night"])
    assert [first["sum"], second["sum"]] == pytest.approx([one.sum, two.sum], abs=1e-5)
    assert (first["token_ids"], first["start"]) == (one.token_ids, 3)
    assert own["perplexity"] == pytest.approx(gen.score(whole_demo, "One day").perplexity, rel=1e-5)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("no json", "line 1: no JSON"),
        ('{"prompt": 3}', "line 1: give"),
        ('{"prompt": "a", "continuation": 3}', "got"),
        ('{"prompt": "a", "continuation": []}', "line 1: give"),
    ],
)
def test_lines_that_cannot_be_read_are_named(line: str, problem: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "texts.jsonl").write_text(line)
    assert run("score", "--file", str(tmp_path / "texts.jsonl")) == 2
    assert problem in capsys.readouterr().err


def test_nothing_or_two_places_to_read_from_are_wrong_usage(tmp_path: Path, capsys: Capture) -> None:
    assert run("score") == 2
    assert run("score", "One", "--file", str(tmp_path)) == 2
    assert "not both" in capsys.readouterr().err
