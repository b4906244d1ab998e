"""How the command line ends: Ctrl-C at any moment, a reader of stdout that goes away, one program under two names."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import pytest

import gen
from gen import cli

ROOT = Path(__file__).parents[2]
# a signal that comes just before signal.pause() would leave it waiting for ever
PAUSE = 'import time; print("waiting", flush=True)\nwhile True: time.sleep(0.01)\n'
# importing transformers to set its progress bars takes a second, and no model is loaded here
UNTOLD = "import gen.cli.commands; gen.cli.commands.keep_stderr_tidy = lambda: None\n"
DRIVER = f"""
{UNTOLD}
import sys, time, gen
from gen.cli import main
def pause(*arguments, **settings):
    print("waiting", flush=True)
    while True:
        time.sleep(0.01)
def pieces(*arguments, **settings):
    yield "waiting\\n"
    while True:
        time.sleep(0.01)
moment, command = sys.argv.pop(1), sys.argv[1]
gen.load = lambda *arguments, **settings: None
setattr(gen, moment, pieces if moment == "stream" else pause)
main()
"""


def interrupt(arguments: list[str], path: Path | None = None) -> tuple[int, str]:
    """Exit code and stderr of a program that gets Ctrl-C as soon as it prints a line."""
    search = os.pathsep.join(map(str, [*([path] if path else []), ROOT]))
    program = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": search},
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


@pytest.mark.parametrize("moment", ["generate", "stream"])
def test_ctrl_c_while_a_command_runs(moment: str) -> None:
    command = "stream" if moment == "stream" else "generate"
    assert interrupt(["-c", DRIVER, moment, command, "x"]) == (130, "")


@pytest.mark.parametrize("moment", ["load", "generate"])
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


def test_a_reader_that_goes_away_ends_it_without_a_word() -> None:
    command = [sys.executable, "-m", "gen", "generate", "--file", "-", "--batch-size", "1", "--max-new-tokens", "2"]
    program = subprocess.Popen(
        [*command, "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert program.stdin and program.stdout and program.stderr  # tells mypy
    program.stdin.write("One\n" * 200)
    program.stdin.close()
    assert json.loads(program.stdout.readline())["prompt"] == "One"
    program.stdout.close()
    stderr = program.stderr.read()
    program.stderr.close()
    assert program.wait() == 0
    assert "Error" not in stderr
    assert "200/200" not in stderr


STUBBED = f"""
{UNTOLD}
import gen.cli, gen
gen.load = lambda *a, **k: None
def stream(*a, **k):
    yield "a text"
gen.stream = stream
gen.cli.main()
"""


def run_with(
    arguments: list[str], prepare: Callable[[], object], stdout: int = subprocess.PIPE
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command whose model says "a text"."""
    program = subprocess.run(
        [sys.executable, "-c", STUBBED, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=prepare,
    )
    return program.returncode, program.stdout or "", program.stderr


@pytest.mark.parametrize("arguments", [["stream", "x"], ["--version"], ["--help"]])
def test_a_full_disk_is_told_in_a_line(arguments: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    told = run_with(arguments, lambda: None, stdout=full)
    os.close(full)
    assert told == (1, "", "gen: [Errno 28] No space left on device\n")


def test_texts_are_not_lost_without_a_word_where_stdout_is_closed() -> None:
    code, out, err = run_with(["stream", "x"], partial(os.close, 1))
    assert (code, out, err) == (1, "", "gen: stdout is closed, and texts go there; leave it open.\n")


def test_a_closed_stdin_has_no_prompt() -> None:
    code, out, err = run_with(["stream"], partial(os.close, 0))
    assert (code, out) == (2, "")
    assert err == "gen: stdin is closed; give a prompt as an argument, or with --file.\n"


@pytest.mark.parametrize(
    ("arguments", "told"), [(["stream", "x"], (0, "a text\n")), (["stream", "x", "--stop", "\\q"], (2, ""))]
)
def test_with_stderr_closed_messages_do_not_go_to_stdout(arguments: list[str], told: tuple[int, str]) -> None:
    assert run_with(arguments, partial(os.close, 2))[:2] == told


def test_what_an_encoding_lacks_is_escaped() -> None:
    code = f"{UNTOLD}import gen; gen.load = lambda *a, **k: None; gen.stream = lambda *a, **k: 'ü€'; gen.cli.main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "stream", "x"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert run.stdout == b"\xfc\\u20ac\n"


def test_the_module_and_the_command_are_one_program() -> None:
    module = subprocess.run([sys.executable, "-m", "gen", "--help"], capture_output=True, text=True, check=True)
    assert "generate" in module.stdout
    assert "stream" in module.stdout
    version = subprocess.run([sys.executable, "-m", "gen", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith(f"gen {gen.__version__}, torch 2.")
