"""A job's rows have the results of `gen.generate`, once each, in order, whichever worker made them and how often."""

import io
import json
import math
import os
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy
import pyarrow.parquet
import pytest
from pydantic import BaseModel, Field, field_validator
from pydantic_core import from_json
from torch import tensor

import gen
from gen.loop.step_times import Costs
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.rows import TransformersRows
from gen.offline.executors.loop import Workers
from gen.offline.folder import part_path, read_manifest, write_manifest
from gen.offline.reading import OldTexts, Reader
from gen.offline.rows import Row, row_seed
from gen.offline.unchanged import fingerprint
from gen.offline.worker import Worker
from tests.helpers import needs_kernels_that_agree
from tests.helpers.noting import noted
from tests.offline.helpers import WorkerHere, read_parts, write_rows

ROWS: list[dict[str, Any]] = [
    {"prompt": "Once upon a time", "topic": "fairy tales"},
    {"prompt": "One morning", "id": "b", "seed": 11},
    {"prompt": "One night", "id": 3, "max_new_tokens": 2, "nested": {"a": [1]}},
    {"prompt": [40, 41, 42]},
    {"messages": [{"role": "user", "content": "Describe Ada as JSON."}]},
    {"prompt": "One evening", "max_new_tokens": 0},
    {"prompt": ""},
    {"prompt": "One " * 7},
    {"prompt": "The end"},
]
WRONG: list[dict[str, Any]] = [
    {"prompt": 7},
    {"prompt": "x", "messages": []},
    {"text": "x"},
    {"prompt": "x", "seed": -1},
    {"prompt": "x", "id": ["y"]},
    {"prompt": "x " * 1100},
    {"messages": [{"role": "user"}]},
]


pytestmark = pytest.mark.usefixtures("workers_here")


def no_worker() -> Any:
    raise AssertionError("a worker was started")


def test_every_row_has_once_what_generate_gives_for_it(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [*ROWS, *WRONG])
    arguments: Any = {"sampler": gen.samplers.multinomial(temperature=0.7), "max_new_tokens": 9, "stop": "."}
    report = gen.run_batch(source, tmp_path / "out", model="demo", batch_size=2, part_rows=4, seed=5, **arguments)
    results = read_parts(report.parts)
    assert len(report.parts) == 4
    assert (report.rows, report.failed) == (len(results), len(WRONG)) == (16, 7)
    assert report.tokens == sum(result.get("tokens", 0) for result in results)
    model = gen.load("demo")
    for number, (row, result) in enumerate(zip(ROWS, results, strict=False), 1):
        key = str(row.get("id", f"{source}:{number}"))
        seed = row.get("seed", row_seed(5, Row(id=key)))
        own = arguments | {"max_new_tokens": row.get("max_new_tokens", 9)}
        told: Any = gen.generate(
            model, row["prompt"] if "prompt" in row else row["messages"], seed=seed, details=True, **own
        )
        assert result == {
            "id": key,
            "text": told.text,
            "finish_reason": told.finish_reason,
            "tokens": len(told.token_ids),
            "seed": seed,
        } | ({"input": {"topic": "fairy tales"}} if number == 1 else {}) | (
            {"input": {"nested": {"a": [1]}}} if number == 3 else {}
        )
    wrong = ["prompt must be a text", "has both", "has neither", "seed must be", "an id must be", "context", "role"]
    for result, message in zip(results[len(ROWS) :], wrong, strict=True):
        assert message in result["error"]
        assert "text" not in result


def test_results_are_json_whatever_rows_have(tmp_path: Path) -> None:
    """The oracle is pydantic's parser, which takes no NaN, no infinity and no lone surrogate."""
    lines = [
        b'{"id": "a", "prompt": "x", "number": 1e999, "nested": {"n": [-1e999, 1]}}',
        b'{"id": "b", "prompt": "x", "number": NaN}',
        b'{"id": "\\ud800", "prompt": "x"}',
        b'{"id": "d", "prompt": "x", "text": "\\udcff"}',
        b'{"id": "e", "prompt": "x", "text": "ok", "number": 1.5}',
    ]
    source = tmp_path / os.fsdecode(b"\xff.jsonl")
    source.write_bytes(b"\n".join(lines))
    more: Any = {"top_logprobs": 3, "output_type": gen.regex("[ab]{2}")}
    sampler = gen.samplers.greedy(logit_bias={7: -math.inf})
    report = gen.run_batch(source, tmp_path / "out", model="demo", part_rows=2, sampler=sampler, **more)
    assert (report.rows, report.failed) == (5, 3)
    results = read_parts(report.parts)
    assert [result["id"] for result in results] == ["a", "b", f"{tmp_path}/\\xff.jsonl:3", "d", "e"]
    assert [result.get("input") for result in results] == [
        {"number": None, "nested": {"n": [None, 1]}},
        {"number": None},
        None,
        {"text": None},
        {"text": "ok", "number": 1.5},
    ]
    for path in report.parts:
        for line in path.read_bytes().splitlines():
            assert from_json(line, allow_inf_nan=False)
    assert "Infinity" not in (tmp_path / "out" / "manifest.json").read_text()
    report.merge(tmp_path / "all.parquet")
    columns = pyarrow.parquet.read_table(tmp_path / "all.parquet").to_pydict()
    assert columns["input_number"] == [None, None, None, None, 1.5]
    assert json.loads(columns["input_nested"][0]) == {"n": [None, 1]}


def test_all_workers_have_ended_when_a_job_returns(
    workers_here: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running, closing, close_all = set(), Event(), Workers.close

    def begin(self: Any) -> None:
        WorkerHere.__init__(self)
        running.add(self)

    def end(self: Any) -> None:
        assert closing.wait(60)
        running.discard(self)

    def close(self: Any) -> None:
        closing.set()
        close_all(self)

    monkeypatch.setattr("gen.offline.executors.loop._LOOK", 0.01)
    monkeypatch.setattr(Workers, "close", close)
    monkeypatch.setattr(workers_here, "__init__", begin)
    monkeypatch.setattr(workers_here, "end", end)
    source = write_rows(tmp_path / "rows.jsonl", [{"prompt": "Once"}] * 3)
    gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=2, part_rows=1, devices="cpu")
    assert running == set()


class Even(BaseModel):
    number: int = Field(ge=0, le=99)

    @field_validator("number")
    @classmethod
    def _check(cls, number: int) -> int:
        if number % 2:
            raise ValueError("an odd number")
        return number


def test_a_value_that_its_type_refuses_is_a_failed_row_with_its_text(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [{"id": number, "prompt": f"{number}:"} for number in range(12)])
    report = gen.run_batch(source, tmp_path / "out", model="demo", output_type=Even, batch_size=4, seed=1)
    results = read_parts(report.parts)
    odd = [json.loads(result["text"])["number"] % 2 for result in results]
    assert 0 < sum(odd) < 12
    assert ["an odd number" in result.get("error", "") for result in results] == [bool(one) for one in odd]
    assert [result.get("value") is None for result in results] == [bool(one) for one in odd]


def test_chats_whose_value_is_refused_are_asked_again_as_generate_does(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": f"{number} apples"}] for number in range(8)]
    body = {"messages": chats[0], "seed": 3}
    line = {"custom_id": "body", "method": "POST", "url": "/v1/chat/completions", "body": body}
    source = write_rows(tmp_path / "rows.jsonl", [*({"id": n, "messages": one} for n, one in enumerate(chats)), line])
    asked: Any = {"output_type": Even, "retries": 2, "describe": True}
    report = gen.run_batch(source, tmp_path / "out", model="demo", batch_size=4, seed=2, **asked)
    *results, answer = read_parts(report.parts)
    seeds = [row_seed(2, Row(id=str(number))) for number in range(8)]
    expected = gen.generate(
        gen.load("demo"), chats, Even, seed=seeds, retries=2, describe=True, errors="return", details=True
    )
    for result, one in zip(results, expected, strict=True):
        if isinstance(one, gen.ValueRefusedError):
            assert "an odd number" in result["error"]
            assert result["text"] == one.completion.text
        else:
            assert (result["text"], result["attempts"]) == (one.text, one.attempts)
    assert {result.get("attempts", 0) for result in results} > {1}
    text = answer["response"]["body"]["choices"][0]["message"]["content"]
    alone = gen.generate(gen.load("demo"), chats[0], Even, seed=3, retries=2, describe=True)
    assert Even.model_validate_json(text) == alone


@pytest.mark.parametrize(
    "settings", [{"thinking": 5}, {"truncate": "turns"}, {"chat_template_kwargs": {"add_generation_prompt": True}}]
)
def test_what_is_for_chats_alone_may_be_given_to_rows_of_messages(settings: Any, tmp_path: Path) -> None:
    rows: list[Any] = [{"messages": [{"role": "user", "content": "x"}], "seed": 3}, {"prompt": "x"}]
    source = write_rows(tmp_path / "rows.jsonl", rows)
    report = gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=4, **settings)
    chat, text = read_parts(report.parts)
    demo = gen.load("demo")
    assert chat["text"] == gen.generate(demo, rows[0]["messages"], seed=3, max_new_tokens=4, **settings)
    assert "chats" in text["error"]
    for thinking in (settings.get("thinking"), [settings.get("thinking")]):
        given = settings | {"thinking": thinking, "seed": 3, "max_new_tokens": 4}
        assert list(gen.generate_iter(demo, [rows[0]["messages"]], **given)) == [(0, chat["text"])]


def test_what_is_missing_is_made_again_and_no_finished_part_is_touched(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", ROWS)
    run: Callable[..., gen.BatchReport] = lambda **more: gen.run_batch(  # noqa: E731
        source, tmp_path / "out", model="demo", batch_size=2, part_rows=3, max_new_tokens=8, **more
    )
    first = run()
    before = [part.read_bytes() for part in first.parts]
    first.parts[1].unlink()
    (tmp_path / "out" / ".part-00001.jsonl.1234.aside").write_text("what a killed worker has left")
    kept = [first.parts[0].stat(), first.parts[2].stat()]
    again = run()  # the seed was drawn at random; the job keeps it
    assert [part.read_bytes() for part in again.parts] == before
    assert [first.parts[0].stat(), first.parts[2].stat()] == kept
    assert not list((tmp_path / "out").glob(".part*"))
    assert again.rows == first.rows == len(ROWS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_part_made_again_by_a_fresh_worker_in_another_order_is_equal(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": f"One {'very ' * (number % 9)}", "max_new_tokens": 5 + number, "id": f"r{number}"}
        for number in range(13)
    ]
    rows[3]["prompt"] = [40] * 500  # rows have grown for it before the next parts come
    rows[8] |= {"prompt": [41] * 80, "max_new_tokens": 80, "seed": 7}
    source = write_rows(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "out"
    report = gen.run_batch(source, out, model="demo", dtype=dtype, batch_size=4, part_rows=6, top_logprobs=1, seed=17)
    before = [part.read_bytes() for part in report.parts]
    manifest, digest = read_manifest(out)
    worker = Worker(manifest.settings, "cpu", threads=1)
    wide = noted(monkeypatch, TransformersRows, "verify", lambda rows, token_ids, view: token_ids.shape[1])
    monkeypatch.setattr(Costs, "learn", None)  # no clock decides
    for number in reversed(range(len(report.parts))):
        part_path(out, number).unlink()
        worker.run(out, digest, number)
    assert [part.read_bytes() for part in report.parts] == before
    assert bool(wide) == (dtype == "float32")
    settings: Any = {"model": "demo", "dtype": dtype, "batch_size": 4, "part_rows": 6, "seed": 17}
    plain = gen.run_batch(source, tmp_path / "plain", speculate=False, **settings)
    assert [one["text"] for one in read_parts(plain.parts)] == [one["text"] for one in read_parts(report.parts)]


def test_long_prompts_can_be_cut_and_texts_have_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    model = gen.load("demo", context_length=300)
    needs_kernels_that_agree(model)
    prompts: list[Any] = ["One night", [40] * 2000, "Two", "One morning"]
    source = write_rows(tmp_path / "rows.jsonl", [{"prompt": prompt, "seed": 3} for prompt in prompts])
    arguments: Any = {"truncate": "left", "exact": True, "top_logprobs": numpy.int64(1), "max_new_tokens": tensor(60)}
    many: Any = {"batch_size": numpy.int64(3), "part_rows": tensor(24), "seed": tensor(1), "context_length": 300}
    report = gen.run_batch(source, tmp_path / "out", model="demo", **many, **arguments)
    made = [gen.generate(model, prompt, seed=3, details=True, **arguments) for prompt in prompts]
    results = read_parts(report.parts)
    assert [result["text"] for result in results] == [one.text for one in made]
    assert [one["logprob"] for result in results for one in result["top_logprobs"]] == [
        one.logprob for text in made for one in text.top_logprobs
    ]


def test_what_rows_of_a_part_begin_with_alike_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of two documents in turn; two rows run at once."""
    read = noted(monkeypatch, TransformersModel, "forward_all", lambda model, token_ids, *_, **__: token_ids.shape)
    rows = [{"prompt": [40 + number % 2] * 300 + [number], "max_new_tokens": 4} for number in range(12)]
    source = write_rows(tmp_path / "rows.jsonl", rows)
    report = gen.run_batch(source, tmp_path / "out", model="demo", batch_size=2, part_rows=12, seed=1, speculate=False)
    assert report.failed == 0
    assert sum(rows * width for rows, width in read if width > 1) < 3 * 300  # of 12 times 300; plain steps read one


def test_failed_rows_are_tried_again_where_that_is_asked_for(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [*ROWS, WRONG[0]])
    run: Callable[..., gen.BatchReport] = lambda **more: gen.run_batch(  # noqa: E731
        source, tmp_path / "out", model="demo", batch_size=2, part_rows=5, max_new_tokens=4, seed=1, **more
    )
    first = run()
    kept = first.parts[0].stat()
    second, before = first.parts[1].read_bytes(), first.parts[1].stat().st_ino
    assert run().failed == 1
    assert first.parts[1].stat().st_ino == before
    assert run(retry_failed=True).failed == 1
    assert first.parts[1].stat().st_ino != before
    assert first.parts[1].read_bytes() == second
    assert first.parts[0].stat() == kept


def test_a_finished_job_starts_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [ROWS[0], WRONG[0]])
    arguments: Any = {"model": "demo", "max_new_tokens": 2}
    first = gen.run_batch(source, tmp_path / "out", **arguments)
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", no_worker)
    again = gen.run_batch(source, tmp_path / "out", **arguments)
    assert (again.rows, again.failed, again.tokens) == (first.rows, 1, first.tokens) == (2, 1, 2)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_new_tokens": 3}, "has max_new_tokens=2, got 3; give the same, or another folder"),
        ({"sampler": gen.samplers.greedy()}, "has sampler=None, got"),
        ({"batch_size": 7}, "has batch_size="),
        ({"seed": 9}, "has seed="),
        ({"receipts": True}, "has receipts=None, got True"),
    ],
)
def test_a_folder_with_another_job_is_refused(
    more: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_rows(tmp_path / "rows.jsonl", ROWS[:1])
    arguments: Any = {"model": "demo", "max_new_tokens": 2}
    gen.run_batch(source, tmp_path / "out", **arguments)
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", no_worker)
    with pytest.raises(gen.ArgumentError, match=message):
        gen.run_batch(source, tmp_path / "out", **(arguments | more))
    write_rows(source, ROWS[1:2])
    with pytest.raises(gen.ArgumentError, match="has changed since the job began"):
        gen.run_batch(source, tmp_path / "out", **arguments)
    other = write_rows(tmp_path / "other.jsonl", ROWS[:1])
    with pytest.raises(gen.ArgumentError, match="has the inputs"):
        gen.run_batch(other, tmp_path / "out", **arguments)


def test_other_rows_from_stdin_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, prompt in enumerate(("One", "One", "Two")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f'{{"prompt": "{prompt}"}}'.encode())))
        with pytest.raises(gen.ArgumentError, match="has changed since") if number == 2 else nullcontext():
            assert gen.run_batch("-", tmp_path / "out", model="demo", max_new_tokens=2).rows == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_parts_without_a_manifest_are_nobodys(dry_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_rows(tmp_path / "part-00000.jsonl", ROWS[:1])
    before = source.read_bytes()
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", no_worker)
    with pytest.raises(gen.ArgumentError, match=r"part-00000\.jsonl is there, and no manifest"):
        gen.run_batch(source, tmp_path, model="demo", dry_run=dry_run)
    assert source.read_bytes() == before and not (tmp_path / "manifest.json").exists()


def _inner() -> Any:
    class Inner:
        pass

    return Inner


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": []}, "give at least one input"),
        ({"inputs": None}, "inputs must be a file or a list of files, got None"),
        ({"inputs": ["nowhere.jsonl"]}, "is no file"),
        ({"inputs": ["a.jsonl", "a.jsonl"]}, "an input is given twice"),
        ({"inputs": ["empty.jsonl"]}, "has no rows"),
        ({"inputs": ["a.txt"]}, "is none of"),
        ({"inputs": ["twice.jsonl"]}, "two rows have the id 'x'"),
        ({"out": "s3://bucket/out"}, "got the URL"),
        ({"out": "a.jsonl"}, "is a file"),
        ({"batch_size": 0}, "batch_size must be a whole number at least 1, got 0"),
        ({"dry_run": "no"}, "dry_run must be True or False, got 'no'"),
        ({"receipts": 1}, "receipts must be True or False, got 1"),
        ({"devices": "cpu,"}, "devices must be names"),
        ({"devices": 0}, "devices must be names, as .* got 0"),
        ({"prompt_template": "no column"}, "names of columns in braces"),
        ({"prompt_template": "{a!r}"}, "names of columns in braces"),
        ({"prompt_template": "{a"}, "cannot be read"),
        ({"prompt_template": 5}, "template 5 cannot be read: expected str"),
        ({"logits_processors": [print]}, "logits_processors are functions"),
        ({"sampler": object()}, "a job's sampler is written into its manifest"),
        ({"sampler": [gen.samplers.greedy(), None]}, "a job's sampler is written into its manifest"),
        ({"output_type": _inner()}, "cannot be imported"),
        ({"output_type": dict[str, _inner()]}, "cannot be imported"),  # type: ignore[misc]
        ({"max_new_tokens": {1}}, "which has no max_new_tokens"),
        ({"executor": "slurm"}, "executor must be"),
        ({"seed": -1}, "seed must be"),
        ({"describe": True}, "describes the job's output type, and it has none"),
        ({"retries": -1}, "retries must be a whole number at least 0"),
        ({"retries": 1}, "retries ask again for values of the job's output type, and it has none"),
        ({"speculate": True}, 'speculate must be "auto", False or'),
        ({"model": print}, "model must be the name or the folder of a model, which workers load"),
        ({"model": ""}, "model must be the name or the folder of a model, .* got ''"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_worker_starts(
    arguments: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("a.jsonl"), ROWS[:1])
    write_rows(Path("twice.jsonl"), [{"prompt": "a", "id": "x"}, {"prompt": "b"}, {"prompt": "c", "id": "x"}])
    Path("empty.jsonl").write_text("\n\n")
    Path("a.txt").write_text("x")
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", no_worker)
    with pytest.raises(gen.ArgumentError, match=message):
        gen.run_batch(**{"inputs": "a.jsonl", "out": "out", "model": "demo"} | arguments)
    assert not Path("out/manifest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"devices": ["cpu", "cuda:7"]}, gen.DeviceError, "device cuda:7 does not exist"),
        ({"model": "no/such"}, gen.ModelError, "no/such"),
        ({"sampler": ["multinomial", {"top_p": 7}]}, gen.ArgumentError, "top_p must be"),
        ({"output_type": gen.json_schema({"uniqueItems": True})}, gen.ArgumentError, "uniqueItems"),
        ({"output_type": gen.regex("a{9}"), "max_new_tokens": 3}, gen.ArgumentError, "has 9 tokens"),
        ({"top_logprobs": 3, "sampler": gen.samplers.beam_search(2)}, gen.ArgumentError, "top_logprobs"),
        ({"stop": [""]}, gen.ArgumentError, "stop"),
        ({"truncate": "right"}, gen.ArgumentError, 'truncate must be "left"'),
        ({"exact": "yes"}, gen.ArgumentError, "exact"),
    ],
)
def test_what_the_first_worker_refuses_leaves_no_job(
    arguments: Any, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    source = write_rows(tmp_path / "a.jsonl", ROWS[:1])
    with pytest.raises(kind, match=message):
        gen.run_batch(source, tmp_path / "out", **{"model": "demo"} | arguments)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_dry_run_checks_everything_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_rows(tmp_path / "a.jsonl", ROWS)
    report = gen.run_batch(source, tmp_path / "out", model="demo", batch_size=2, part_rows=4, dry_run=True)
    assert report.rows == 0
    assert "9 rows in 3 parts of up to 4, 2 rows at once; 0 parts are done. Nothing was run." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(gen.ArgumentError, match="top_p"):
        gen.run_batch(source, tmp_path / "out", model="demo", dry_run=True, sampler=["greedy", {"top_p": 1}])
    made = gen.run_batch(source, tmp_path / "out", model="demo", part_rows=4, max_new_tokens=1).parts[1]
    made.unlink()
    capsys.readouterr()
    gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=1, dry_run=True)
    assert "2 parts are done. Nothing was run." in capsys.readouterr().err and not made.exists()


def test_another_model_under_the_same_name_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    _copy(Path(gen.models.checkpoints.DEMO), model)
    source = write_rows(tmp_path / "a.jsonl", ROWS[:4])
    arguments: Any = {"model": model, "max_new_tokens": 2, "part_rows": 2}
    report = gen.run_batch(source, tmp_path / "out", **arguments)
    report.parts[0].unlink()
    config = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(config | {"temperature": 0.5}))
    with pytest.raises(gen.ArgumentError, match=r"the model is not what the job began with: generation_config\.json"):
        gen.run_batch(source, tmp_path / "out", **arguments)
    assert not report.parts[0].exists()


@pytest.mark.parametrize("done", [False, True])
def test_a_model_with_one_other_weight_is_refused_finished_or_not(
    done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    _copy(Path(gen.models.checkpoints.DEMO), model)
    source = write_rows(tmp_path / "a.jsonl", ROWS[:1])
    report = gen.run_batch(source, tmp_path / "out", model=model, max_new_tokens=2)
    if not done:
        report.parts[0].unlink()
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[len(weights) // 2] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", no_worker)
    with pytest.raises(gen.ArgumentError, match=r"the model is not what the job began with: model\.safetensors"):
        gen.run_batch(source, tmp_path / "out", model=model, max_new_tokens=2)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("package", ["torch", "transformers", "tokenizers", "llguidance", "pydantic", "jinja2", "peft"])
def test_another_version_of_what_affects_texts_is_refused_finished_or_not(
    package: str, done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_rows(tmp_path / "a.jsonl", ROWS[:1])
    report = gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=1)
    if not done:
        report.parts[0].unlink()
    manifest = read_manifest(tmp_path / "out")[0]
    write_manifest(tmp_path / "out", replace(manifest, versions={**manifest.versions, package: "0.1"}))
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", no_worker)
    with pytest.raises(gen.ArgumentError, match=rf"versions is not what the job began with: {package} differ \("):
        gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=1)


def test_a_package_that_has_been_installed_or_removed_since_does_not_count(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", ROWS[:1])
    report = gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=1)
    report.parts[0].unlink()
    manifest = read_manifest(tmp_path / "out")[0]
    versions = {name: one for name, one in manifest.versions.items() if name != "peft"} | {"exllamav2": "0.3.2"}
    write_manifest(tmp_path / "out", replace(manifest, versions=versions))
    assert gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=1).rows == 1


def test_every_part_of_a_large_file_of_weights_counts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.truncate(2**33)  # no block of it is on the disk
    seen = {json.dumps(fingerprint(str(path)))}
    for place in (0, 3 * 2**30 + 5, 2**33 - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x" * min(2**23, 2**33 - place))
        seen.add(json.dumps(fingerprint(str(path))))
    assert len(seen) == 4


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.suffix in (".json", ".safetensors", ".jinja"):
            (target / path.name).write_bytes(path.read_bytes())


def test_a_worker_that_sees_another_folder_or_manifest_ends_the_job_with_its_name(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", ROWS[:2])
    gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=1)
    manifest, digest = read_manifest(tmp_path / "out")
    worker = Worker(manifest.settings, "cpu", threads=1)
    host = socket.gethostname()
    with pytest.raises(gen.GenError, match=f"{host} sees another manifest in .* than the driver"):
        worker.run(tmp_path / "out", "another digest", 0)
    with pytest.raises(gen.GenError, match=f"{host} does not see the job's folder"):
        worker.run(tmp_path / "elsewhere", digest, 0)


def test_old_texts_are_drafts_and_change_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Any = [{"id": f"r{n}", "prompt": f"Once upon a time {n}"} for n in range(5)]
    arguments: Any = {"model": "demo", "batch_size": 2, "part_rows": 3, "seed": 5, "max_new_tokens": 40}
    old = gen.run_batch(write_rows(tmp_path / "old.jsonl", rows), tmp_path / "old", **arguments)
    rows[1]["prompt"], rows[3]["id"] = "One evening", "new"
    source = write_rows(tmp_path / "rows.jsonl", rows)
    plain = gen.run_batch(source, tmp_path / "plain", **arguments)
    drafts = noted(monkeypatch, Reader, "read", lambda reader, row, draft=None: draft)
    again = gen.run_batch(source, tmp_path / "again", drafts=tmp_path / "old", **arguments)
    assert [part.read_bytes() for part in again.parts] == [part.read_bytes() for part in plain.parts]
    texts = [result["text"] for result in read_parts(old.parts)]
    assert [draft for draft in drafts if draft is not None] == [texts[n] for n in (0, 1, 2, 4)]
    told = gen.run_batch(source, tmp_path / "told", drafts=tmp_path / "old", top_logprobs=0, **arguments)
    results = read_parts(told.parts)
    assert [one["text"] for one in results] == [one["text"] for one in read_parts(plain.parts)]
    apart = gen.run_batch(source, tmp_path / "apart", top_logprobs=0, **arguments)
    for one, other in zip(results, read_parts(apart.parts), strict=True):
        own, others = ([each["logprob"] for each in result["top_logprobs"]] for result in (one, other))
        assert own == pytest.approx(others, abs=1e-4)  # digits beyond are those of wide steps
    with pytest.raises(gen.ArgumentError, match="has none"):
        gen.run_batch(source, tmp_path / "none", drafts=tmp_path / "elsewhere", **arguments)


def test_old_texts_are_those_of_each_form_of_result(tmp_path: Path) -> None:
    body: Any = {"choices": [{"message": {"content": "three"}}, {"message": {"content": "no"}}]}
    results: Any = [
        {"id": "a", "text": "one"},
        {"id": "b", "texts": ["two", "no"]},
        {"id": "batch_req_c", "custom_id": "c", "response": {"body": body}},
        {"id": "d", "error": "it failed"},
        {"id": "batch_req_e", "custom_id": "e", "response": None, "error": {"message": "it failed"}},
    ]
    (tmp_path / "part-00000.jsonl").write_text(json.dumps(results[0]) + "\n")
    (tmp_path / "part-00001.jsonl").write_text("".join(json.dumps(one) + "\n" for one in results[1:]))
    old = OldTexts(tmp_path)
    assert [old.text(name) for name in "abcdef"] == ["one", "two", "three", None, None, None]
    assert not old.has(Row(id="a", prompt="One"))  # not known: a job of an older version has no rows beside it


def test_rows_that_have_not_changed_run_first_where_their_order_changes_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: Any = [{"id": f"r{n}", "prompt": f"Once upon a time {n}", "topic": n} for n in range(4)]
    arguments: Any = {"model": "demo", "batch_size": 2, "seed": 5, "max_new_tokens": 8}
    gen.run_batch(write_rows(tmp_path / "old.jsonl", rows), tmp_path / "old", **arguments)
    rows[0]["prompt"], rows[1]["seed"], rows[3]["id"] = "One evening", 3, "new"
    source = write_rows(tmp_path / "rows.jsonl", rows)
    fit = lambda model, jobs, options: [number for number, job in enumerate(jobs) if job.request.draft_fits]  # noqa: E731
    run = noted(monkeypatch, "gen.offline.worker", "run_all", fit)
    gen.run_batch(source, tmp_path / "again", drafts=tmp_path / "old", **arguments)
    assert run[-1] == [2]
    gen.run_batch(source, tmp_path / "half", drafts=tmp_path / "old", dtype="bfloat16", **arguments)
    assert run[-1] == []
