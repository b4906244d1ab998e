"""How the command line ends: Ctrl-C at any moment, a reader of stdout that goes away, one program under two names."""

import errno
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

import gen
from gen import cli
from tests.helpers.forked import Forked

ROOT = Path(__file__).parents[2]
# a signal that comes just before signal.pause() would leave it waiting for ever
PAUSE = 'import time; print("waiting", flush=True)\nwhile True: time.sleep(0.01)\n'


def interrupt(arguments: list[str], path: Path) -> tuple[int, str]:
    """Exit code and stderr of a program that gets Ctrl-C as soon as it prints a line."""
    program = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # as in a terminal
    )
    assert isinstance(program.stdout, IO | io.TextIOBase)
    assert program.stdout.readline() == "waiting\n"
    program.send_signal(signal.SIGINT)
    _, stderr = program.communicate()
    return program.returncode, stderr


@pytest.mark.parametrize("module", ["typer", "tqdm", "torch"])
@pytest.mark.parametrize("program", [["-m", "gen"], ["-c", "from gen.cli import main; main()"]])
def test_ctrl_c_while_a_library_is_imported(module: str, program: list[str], tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(PAUSE)
    assert interrupt([*program, "generate", "x"], tmp_path) == (130, "")


@pytest.mark.parametrize("moment", ["generate_iter", "stream"])
def test_ctrl_c_while_a_command_runs(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces() -> Iterator[str]:
        yield "waiting\n"
        while True:
            time.sleep(0.01)

    def pause() -> None:
        print("waiting", flush=True)
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(gen, moment, lambda *arguments, **settings: (pieces if moment == "stream" else pause)())
    program = command([moment.removesuffix("_iter"), "x"], monkeypatch)
    assert program.line() == b"waiting\n"
    os.kill(program.pid, signal.SIGINT)
    assert program.end() == (130, "", "")


def command(arguments: list[str], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Forked:
    """The `gen` command with these arguments in a fork, with None as its model."""
    monkeypatch.setattr(gen, "load", lambda *arguments, **settings: None)
    monkeypatch.setattr(sys, "argv", ["gen", *arguments])
    return Forked(cli.main, **settings)


@pytest.mark.parametrize("moment", ["load", "generate_iter"])
def test_an_interrupt_in_a_program_that_calls_main_exits_with_130(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gen, "load", lambda *arguments, **options: None)
    monkeypatch.setattr(gen, moment, interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as end:
        cli.main(["generate", "x"])
    assert end.value.code == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_a_reader_that_goes_away_ends_it_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts").write_text("One\n" * 200)
    arguments = ["generate", "--file", "-", "--batch-size", "1", "--max-new-tokens", "2", "--json"]
    arguments += ["--device", "cpu"]  # CUDA cannot be used in a fork
    monkeypatch.setattr(sys, "argv", ["gen", *arguments])
    with (tmp_path / "prompts").open() as prompts:
        program = Forked(cli.main, stdin=prompts.fileno())
    assert json.loads(program.line())["prompt"] == "One"
    program.stdout.close()
    code, _, stderr = program.end()
    assert code == 0
    assert "Error" not in stderr
    assert "200/200" not in stderr


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize(
    "arguments", [["generate", "x", "y"], ["batch", "run", "x.jsonl", "out"], ["verify", "x"], ["doctor"]]
)
def test_what_has_failed_is_a_failure_when_the_reader_has_gone(
    arguments: list[str], failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt: Any = object()
    text = gen.Completion(text="y", value="y", token_ids=[], logprobs=[], score=0.0, finish_reason="eos", seed=1)
    report = gen.BatchReport(rows=2, failed=int(failed), tokens=3, seconds=0.0, parts=[])
    results = [(0, gen.GenError("no") if failed else text), (1, text)]
    monkeypatch.setattr(gen, "generate_iter", lambda *arguments, **settings: iter(results))
    monkeypatch.setattr("gen.offline.job.run_batch", lambda *arguments, **settings: report)
    monkeypatch.setattr(gen.Receipt, "load", lambda path: [receipt])
    monkeypatch.setattr(gen, "diff", lambda *arguments: gen.Diff(texts=[], missing=int(failed)))
    diagnosis = SimpleNamespace(problems=["no"] * failed, as_dict=dict)
    monkeypatch.setattr("gen.doctor.diagnose", lambda *arguments, **settings: diagnosis)
    read, write = os.pipe()
    os.close(read)
    code, _, stderr = command(arguments, monkeypatch, stdout=write).end()
    os.close(write)
    assert code == failed and "Error" not in stderr


@pytest.fixture
def a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gen stream` says "a text"."""
    monkeypatch.setattr(gen, "stream", lambda *arguments, **settings: iter(["a text"]))


@pytest.mark.usefixtures("a_text")
@pytest.mark.parametrize("arguments", [["stream", "x"], ["--version"], ["--help"]])
def test_a_full_disk_is_told_in_a_line(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    told = command(arguments, monkeypatch, stdout=full).end()
    os.close(full)
    assert told == (1, "", "gen: [Errno 28] No space left on device\n")


@pytest.mark.usefixtures("a_text")
def test_texts_are_not_lost_without_a_word_where_stdout_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = command(["stream", "x"], monkeypatch, prepare=partial(os.close, 1)).end()
    assert (code, out, err) == (1, "", "gen: stdout is closed, and texts go there; leave it open.\n")


def test_a_full_disk_is_told_where_stdout_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(*arguments: object, **settings: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gen.offline.status.merge", merge)
    told = command(["batch", "merge", "a", "b"], monkeypatch, prepare=partial(os.close, 1)).end()
    assert told == (1, "", "gen: [Errno 28] No space left on device\n")


def test_a_closed_stdin_has_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = command(["stream"], monkeypatch, prepare=partial(os.close, 0)).end()
    assert (code, out) == (2, "")
    assert err == "gen: stdin is closed; give a prompt as an argument, or with --file.\n"


@pytest.mark.usefixtures("a_text")
@pytest.mark.parametrize(
    ("arguments", "told"), [(["stream", "x"], (0, "a text\n")), (["stream", "x", "--stop", "\\q"], (2, ""))]
)
def test_with_stderr_closed_messages_do_not_go_to_stdout(
    arguments: list[str], told: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(arguments, monkeypatch, prepare=partial(os.close, 2)).end()[:2] == told


def test_what_an_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen, "stream", lambda *arguments, **settings: iter(["\u00fc\u20ac"]))
    program = command(["stream", "x"], monkeypatch, encoding="latin-1")
    assert program.stdout.read() == b"\xfc\\u20ac\n"
    assert program.end() == (0, "", "")


def test_the_module_and_the_command_are_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    module = subprocess.run([sys.executable, "-m", "gen", "--help"], capture_output=True, text=True, check=True)
    assert "generate" in module.stdout
    assert "stream" in module.stdout
    monkeypatch.setattr(sys, "argv", ["gen", "--version"])
    code, out, err = Forked(partial(runpy.run_path, str(ROOT / "gen" / "__main__.py"), run_name="__main__")).end()
    assert (code, err) == (0, "")
    assert out.startswith(f"gen {gen.__version__}, torch 2.")
