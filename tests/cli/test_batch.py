"""`gen batch`: its options are those of `gen.run_batch`, and its exit codes those of all commands."""

import errno
import inspect
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import gen
from gen.cli.commands import app
from tests.cli import test_commands
from tests.cli.test_commands import Capture
from tests.offline.helpers import WorkerHere, read_parts, write_rows

ROWS: list[dict[str, Any]] = [{"prompt": "One morning"}, {"prompt": "One evening"}, {"prompt": "One night"}]


run = partial(test_commands.run, "batch")


@pytest.fixture(autouse=True)
def workers_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", WorkerHere)
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", ROWS)


def test_options_are_arguments_of_the_library(capsys: Capture) -> None:
    options = ["--batch-size", 2, "--part-rows", 2, "--seed", 3, "--max-new-tokens", 6, "--temperature", 0.5]
    options += ["--stop", r"\n"]
    assert run("run", "rows.jsonl", "out", *options, "--devices", "cpu", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    sampler = gen.samplers.multinomial(temperature=0.5)
    arguments: Any = {"stop": ["\n"], "seed": 3, "max_new_tokens": 6, "batch_size": 2, "part_rows": 2}
    report = gen.run_batch("rows.jsonl", "library", model="demo", sampler=sampler, **arguments)
    results = read_parts(report.parts)
    assert read_parts([Path(part) for part in told["parts"]]) == results
    assert (told["rows"], told["failed"], told["tokens"]) == (3, 0, report.tokens)
    assert run("run", "rows.jsonl", "out", *options, "--devices", "cpu") == 0  # all is done already
    assert capsys.readouterr().out == f"3 rows, 0 failed, {report.tokens} tokens\n"
    assert run("merge", "out", "all.jsonl") == 0
    assert read_parts([Path("all.jsonl")]) == results
    capsys.readouterr()
    assert run("status", "out") == 0
    assert capsys.readouterr().out == f"parts: 2 of 2\nrows: 3 of 3\nfailed: 0\ntokens: {report.tokens}\n"
    assert run("status", "out", "--json") == 0
    counts = {"parts": "2 of 2", "rows": "3 of 3", "failed": 0, "tokens": report.tokens}
    assert json.loads(capsys.readouterr().out) == {**counts, "driver": None}


def test_every_sampler_and_type_of_the_options_reaches_the_worker(capsys: Capture) -> None:
    Path("s.json").write_text('{"type": "integer"}')
    cases: list[list[Any]] = [
        ["--greedy", "--repetition-penalty", 1.1, "--regex", "[a-z]{3}"],
        ["--beams", 3, "--samples", 2, "--length-penalty", 0.5],
        ["--beams", 3, "--regex", "[a-z]{3}"],
        ["--samples", 2, "--top-k", 5, "--schema", "s.json"],
        ["--choice", "yes", "--choice", "no", "--bad-word", "x"],
    ]
    for number, options in enumerate(cases):
        assert run("run", "rows.jsonl", f"out{number}", "--max-new-tokens", 30, *options) == 0
        results = read_parts(sorted(Path(f"out{number}").glob("part-*.jsonl")))
        assert len(results) == 3
        for result in results:
            if "--samples" in options:
                assert len(result["texts"]) == 2
                assert "--schema" not in options or all(isinstance(value, int) for value in result["values"])
            else:
                assert len(result["text"]) == 3 if "--regex" in options else result["value"] in ("yes", "no")


PEOPLE = "from pydantic import BaseModel, Field\n\nclass Person(BaseModel):\n    name: str = Field(max_length=5)\n"


def test_a_class_of_a_module_beside_the_command_is_an_output_type(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("people_of_a_command.py").write_text(f"{PEOPLE}\nPeople = list[Person]\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "people_of_a_command", raising=False)
    for name, schema in (("Person", {"name": str}), ("People", list)):
        options = ["--type", f"people_of_a_command:{name}", "--max-new-tokens", 200]
        assert run("run", "rows.jsonl", name, *options) == 0
        for result in read_parts(sorted(Path(name).glob("part-*.jsonl"))):
            assert isinstance(result["value"], list) if schema is list else [*result["value"]] == ["name"]
    assert run("run", "rows.jsonl", "out", "--type", "people_of_a_command:Nobody") == 2
    assert "the output type people_of_a_command:Nobody cannot be imported here" in capsys.readouterr().err
    assert run("run", "rows.jsonl", "out", "--type", "x:Y", "--regex", "a") == 2
    assert "a text has one output type; give --regex or --type." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "rows.jsonl"], 2, "give the inputs, and then the job's folder"),
        (["run", "none.jsonl", "out"], 2, "is no file"),
        (["run", "rows.jsonl", "out", "--greedy", "--top-k", 3], 2, "--greedy makes one text"),
        (["run", "rows.jsonl", "out", "--regex", "("], 2, "("),
        (["run", "rows.jsonl", "out", "--top-p", 3], 2, "top_p must be"),
        (["run", "rows.jsonl", "out", "--devices", "cuda:9"], 1, "device cuda:9 does not exist"),
        (["run", "rows.jsonl", "out", "--model", "no/such"], 1, "no/such"),
        (["status", "out"], 1, "has no manifest.json"),
        (["merge", "out", "x.jsonl"], 1, "has no manifest.json"),
    ],
)
def test_exit_codes_tell_usage_from_failure(arguments: list[Any], code: int, message: str, capsys: Capture) -> None:
    assert run(*arguments) == code
    assert message in capsys.readouterr().err


def test_failed_rows_are_a_failure_each_time(capsys: Capture) -> None:
    write_rows(Path("rows.jsonl"), [*ROWS, {"text": "x"}])
    for _ in range(2):
        assert run("run", "rows.jsonl", "out", "--max-new-tokens", 2) == 1
        assert "1 of 4 rows failed; their errors are in out." in capsys.readouterr().err
    Path("out/part-00000.jsonl").unlink()
    assert run("merge", "out", "x.jsonl") == 1
    assert "1 of 1 parts are missing; run the job to its end first, or" in capsys.readouterr().err


def test_ctrl_c_loses_nothing(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    options = ["run", "rows.jsonl", "out", "--batch-size", 1, "--part-rows", 1, "--max-new-tokens", 3]
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.join", interrupt)
        assert run(*options) == 130
    assert "interrupted; the same command goes on where it stopped" in capsys.readouterr().err
    assert run(*options) == 0
    assert len(read_parts(sorted(Path("out").glob("part-*.jsonl")))) == 3


def test_a_full_disk_is_told_and_can_be_gone_on_from(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, full = os.replace, [True]

    def replaced(source: Path, target: Path) -> None:
        if full and Path(target).name == "part-00001.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    options = ["run", "rows.jsonl", "out", "--batch-size", 1, "--part-rows", 1, "--max-new-tokens", 3]
    assert run(*options) == 1
    assert "No space left on device: 'out/part-00001.jsonl'" in capsys.readouterr().err.replace(f"{Path.cwd()}/", "")
    first = Path("out/part-00000.jsonl").stat()
    assert not Path("out/part-00001.jsonl").exists()
    full.clear()
    assert run(*options) == 0
    assert Path("out/part-00000.jsonl").stat() == first
    assert not list(Path("out").glob("*.aside"))


def test_every_argument_of_the_library_that_a_line_can_have_is_an_option() -> None:
    command: Any = get_command(app)
    options = {option.name for option in command.commands["batch"].commands["run"].params}
    python = {"inputs", "out", "output_type", "executor", "sampler", "num_return_sequences", "progress"}
    python |= {"include_stop", "skip_special_tokens", "eos_token_id", "chat_template_kwargs", "logits_processors"}
    python |= {"exact", "truncate"}
    assert {*inspect.signature(gen.run_batch).parameters} - python <= options


def test_what_shapes_a_text_of_generate_is_an_argument_of_jobs_and_of_iterators() -> None:
    generate, job, iterator = (
        {*inspect.signature(function).parameters} for function in (gen.generate, gen.run_batch, gen.generate_iter)
    )
    one_call = {"prompt", "images", "details", "replay", "cuda_graph", "max_batch_tokens"}
    one_call |= {"max_time", "local_files", "prompt_logprobs", "errors", "draft"}
    assert generate - job == one_call
    assert generate - iterator == {"prompt", "progress", "errors"}
