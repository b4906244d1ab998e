"""The README is true: its Python prints what it shows, its commands succeed, its numbers were measured, and its links
work."""

import contextlib
import doctest
import io
import json
import re
import runpy
import shlex
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import gen
from gen import cli

ROOT = Path(__file__).parents[2]
REAL = ROOT / "models" / "SmolLM2-135M-Instruct"
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_LINE, ELSEWHERE, DRAWING = (
    (ROOT / "docs" / page).read_text(encoding="utf-8")
    for page in ("command_line.md", "guides/elsewhere.md", "inside/drawing.md")
)
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def commands(program: str) -> list[str]:
    """The lines of shell blocks, of the README and of the command line's page, that run one program."""
    shell = (body for language, body in BLOCK.findall(README + COMMAND_LINE) if language == "sh")
    lines = (line.partition("    #")[0].strip() for body in shell for line in body.splitlines())
    return [line for line in dict.fromkeys(lines) if line.startswith(f"{program} ")]


def measured(file: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{file}-2core-epyc.json").read_text())


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


def test_make_demo_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "demo.py"))["main"]()
    [shown] = [body for language, body in BLOCK.findall(README) if language == "console"]
    printed = capsys.readouterr().out
    assert [line for line in shown.splitlines()[1:] if line.removesuffix("...") not in printed] == []


@pytest.mark.real_model
@pytest.mark.skipif(not REAL.is_dir(), reason="run `make real` first: it fetches the model")
def test_the_chat_prints_what_the_readme_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    [session] = [body for language, body in BLOCK.findall(README) if language == "pycon"]
    test = doctest.DocTestParser().get_doctest(session, {"gen": gen, "BaseModel": BaseModel}, "README", None, 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_all_names_that_the_readme_shows_are_there() -> None:
    found = re.findall(r"(?<![/\w])gen\.(?!md)([a-zA-Z_][\w.]*)", README + ELSEWHERE)
    names = {*found} - {"integrations.lm_eval"}
    missing = []
    for name in names:
        try:
            attrgetter(name.rstrip("."))(gen)
        except AttributeError:
            missing.append(name)
    assert missing == []


@pytest.mark.usefixtures("short_examinations")
@pytest.mark.parametrize("command", commands("gen"))
def test_commands_succeed(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They run in this process: `tests/cli/test_main.py` shows that a separate process runs the same program."""
    monkeypatch.setattr("sys.stdin", io.StringIO("One morning"))
    with pytest.raises(SystemExit) as end:
        cli.main(shlex.split(command)[1:])
    printed = capsys.readouterr()
    assert end.value.code in (0, None), printed.err
    assert printed.out.strip()


def test_make_has_every_target_that_is_named() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:^|`)make ([\w-]+)", README, re.MULTILINE)
    assert {"demo", "test", "real", "gpu"} <= set(named) <= set(targets)


def test_the_numbers_of_throughput_are_the_measured_ones() -> None:
    def row(title: object, programs: dict[str, Any]) -> str:
        ours, theirs = programs["gen"], programs["transformers"]
        return f"| {title} | {ours['tokens/s']} | {theirs['tokens/s']} | {ours['time / transformers']} |"

    rows = measured("throughput")["rows"]
    for batch in (1, 8, 32):
        assert row(batch, {found["program"]: found for found in rows if found["batch"] == batch}) in README
    mixed = measured("throughput")["mixed"]
    assert row("200, each with a limit of its own", {found["program"]: found for found in mixed}) in README


def test_the_numbers_of_the_samplers_are_the_measured_ones() -> None:
    ratios = {found["case"]: found["/ argmax"] for found in measured("samplers")["rows"]}
    rows = re.findall(
        r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]*) ?\| ([\d.]*) ?\|$", DRAWING.partition("`torch.argmax`")[2], re.M
    )
    assert [name for name, *_ in rows] == [
        "greedy",
        "temperature",
        "temperature, top-k, top-p",
        "top-p",
        "beam search, 4 beams",
    ]
    for name, *cells in rows:
        for maker, cell in zip(("gen", "Outlines", "transformers"), cells, strict=True):
            assert cell == str(ratios.get(f"{maker}: {name}", "")), (maker, name)


def test_the_share_of_a_real_models_time_is_the_measured_one() -> None:
    shares = {row["batch"]: row["measured"] for row in measured("decode")["answers"] if row["question"] == "real"}
    text = " ".join(README.split())
    assert f"`gen` takes {shares[1]:.2f} of transformers' time at batch 1 and {shares[8]:.2f} at batch 8" in text
