"""The command line: what goes to stdout and stderr, where prompts come from, exit codes."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gen
from gen import cli
from gen.models.transformers import TransformersModel

Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        cli.main(list(arguments))
    return int(exit_.value.code or 0)


@pytest.fixture(scope="module")
def demo() -> TransformersModel:
    return gen.load("demo", device="cpu")


@pytest.fixture(autouse=True)
def _load_once(demo: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "load", lambda name, device=None, dtype=None: demo if name == "demo" else gen.load(name))


def test_generate_prints_the_text_that_the_library_gives(demo: TransformersModel, capsys: Capture) -> None:
    options = ["--max-new-tokens", "24", "--temperature", "0.8", "--top-k", "40", "--seed", "7"]
    assert run("generate", "Once upon a time", "--model", "demo", "--device", "cpu", *options) == 0
    sampler = gen.samplers.multinomial(temperature=0.8, top_k=40)
    expected = gen.generate(demo, "Once upon a time", sampler=sampler, max_new_tokens=24, seed=7)
    assert capsys.readouterr().out == f"{expected}\n"
    assert run("stream", "Once upon a time", *options) == 0
    assert capsys.readouterr().out == f"{expected}\n"


def test_json_is_an_object_a_line_for_each_text(capsys: Capture) -> None:
    assert run("generate", "One", "Two", "--samples", "2", "--json", "--seed", "1", "--max-new-tokens", "4") == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["prompt"] for line in lines] == ["One", "One", "Two", "Two"]
    assert {"text", "value", "token_ids", "logprobs", "score", "finish_reason", "seed"} < set(lines[0])
    assert "2/2" in captured.err  # the progress bar


def test_prompts_come_from_a_file_or_stdin(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--json", "--seed", "1", "--max-new-tokens", "2"]
    (tmp_path / "prompts.txt").write_text("One day\nTwo\nÜber\n", encoding="utf-8")
    assert run("generate", "--file", str(tmp_path / "prompts.txt"), "--batch-size", "2", *options) == 0
    out = capsys.readouterr().out
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["One day", "Two", "Über"]
    monkeypatch.setattr("sys.stdin", io.StringIO("One\nday\n"))
    assert run("generate", *options) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "One\nday\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("One\nday\n"))
    assert run("generate", "--file", "-", *options) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["generate", "x", "--no-such-option"], 2, "No such option"),
        (["generate", "x", "--max-new-tokens", "many"], 2, "valid integer"),
        (["generate", "x", "--top-p", "3"], 2, "gen: top_p must be a number above 0 and at most 1, got 3.0"),
        (["generate", "x", "--stop", ""], 2, "gen: stop takes strings of at least one character"),
        (["generate", "x", "--file", "y"], 2, "not both"),
        (["generate", "--file", "no/such/file"], 2, "gen: cannot read the prompts"),
        (["generate", "x", "--model", "./no/such/model"], 1, "gen: no directory 'no/such/model'"),
        (["stream", "x", "y"], 2, "unexpected extra argument"),
    ],
)
def test_failures_go_to_stderr_with_their_exit_code(
    arguments: list[str], code: int, message: str, capsys: Capture
) -> None:
    assert run(*arguments) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "generate", interrupted)
    assert run("generate", "x") == 130


def test_the_module_and_the_command_are_one_program() -> None:
    module = subprocess.run([sys.executable, "-m", "gen", "--help"], capture_output=True, text=True, check=True)
    assert "generate" in module.stdout
    assert "stream" in module.stdout
