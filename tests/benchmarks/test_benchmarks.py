"""The benchmarks run at small size and report what they promise; no test looks at times."""

import json
import os
import sys
import threading
from argparse import Namespace
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import gen
from benchmarks import context, decode, samplers, throughput
from benchmarks.architectures import sweep
from benchmarks.architectures.comparisons import DifferenceError, ImageComparison, Oracle, TextComparison
from benchmarks.architectures.image_inputs import each_alone, image_inputs
from benchmarks.architectures.tiny_models import Group, model_types, tiny_model
from benchmarks.cases import engines
from benchmarks.constraints import coverage, generation, suite
from benchmarks.constraints.schema_order import SchemaOrder
from benchmarks.corpus.models import model as loaded
from benchmarks.random_model import random_model
from tests.helpers import needs_kernels_that_agree
from tests.helpers.demo import short_demo


def test_throughput_reports_every_program_and_leaves_out_devices_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    sizes = ["--batch", "1", "2", "--new-tokens", "2", "--rounds", "1", "--prompts", "3"]
    monkeypatch.setattr(throughput, "LONGEST", 10)
    monkeypatch.setattr(sys, "argv", ["throughput", "--devices", "cuda:63", "cpu", *sizes, "--json", str(report)])
    throughput.main()
    captured = capsys.readouterr()
    assert "left out: device cuda:63 does not exist" in captured.err
    assert "batch 2, same seed: one device only" in captured.out
    rows = json.loads(report.read_text())["rows"]
    assert [(row["batch"], row["program"]) for row in rows] == [
        (batch, program) for batch in (1, 2) for program in ("gen", "transformers", "bare")
    ]
    mixed = json.loads(report.read_text())["mixed"]
    assert [(row["program"], row["prompts"], row["same texts"]) for row in mixed] == [
        ("gen", 3, 3),
        ("transformers", 3, 3),
    ]
    for row in rows + mixed:
        assert row["program"] in captured.out
        assert row["tokens/s"] > 0


def test_decode_answers_every_question_and_says_which_goals_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few tokens, a tiny model instead of the real one, a demo model of one layer, and threads instead of processes."""
    needs_kernels_that_agree(gen.load("demo", device="cpu"))
    report = tmp_path / "report.json"
    monkeypatch.setattr(decode, "ProcessPoolExecutor", lambda workers, context: ThreadPoolExecutor(workers))
    monkeypatch.setattr(decode, "random_model", lambda vocab_size, *shape, **where: random_model(1001, **where))
    monkeypatch.setattr(decode, "_demo", lambda setup: short_demo(1, setup.device))
    shorter = {"LONG": 4, "SHORT": 2, "LIMIT": 12, "COLUMNS": 110, "MORE": 120, "FEW": 10, "STEPS": 2, "WARM": 3}
    for name, tokens in shorter.items():
        monkeypatch.setattr(decode, name, tokens)
    monkeypatch.setattr(context, "WARM", 3)  # as in decode
    sizes = ["--batch", "2", "--new-tokens", "2", "--rounds", "1", "--real", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["decode", "--device", "cpu", *sizes, "--json", str(report)])
    decode.main()
    answers = json.loads(report.read_text())["answers"]
    asked = {question: [row for row in answers if row["question"] == question] for question in decode.QUESTIONS}
    assert {question: [row["batch"] for row in rows] for question, rows in asked.items()} == {
        "demo": [2, 2, 2, 2],
        "long": [1, 1, 8, 8],
        "limit": [1, 8],
        "vocabulary": [2, 2],
        "real": [1, 8],
        "first": [1, 1, 8, 8],
        "exact": [1, 8],
        "context": [1, 1, 8, 8, 16, 16],
    }
    assert {(row["case"], row["peer"], row["goal"]) for row in asked["demo"]} == {
        ("gen sampled", "transformers sampled", 0.85),
        ("gen sampled", "bare", 1.15),
        ("gen greedy", "transformers greedy", 1.0),
        ("gen greedy", "bare", 1.15),
    }
    assert all(row["met"] == (row["measured"] <= row["goal"]) and row["step"] > 0 for row in answers)
    assert f"{sum(row['met'] for row in answers)} of {len(answers)} goals met" in capsys.readouterr().out


def test_samplers_reports_every_case_of_every_shape_with_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, summary = tmp_path / "report.json", tmp_path / "summary.md"
    shapes = ["--batch", "4", "--vocab", "1001", "--dtype", "float32", "bfloat16", "--kind", "zipf", "demo"]
    outputs = ["--json", str(report), "--summary", str(summary)]
    monkeypatch.setattr(sys, "argv", ["samplers", *shapes, "--threads", "1", "--rounds", "1", *outputs])
    samplers.main()
    rows = json.loads(report.read_text())["rows"]
    assert {(row["logits"], row["dtype"], row["vocab"]) for row in rows} == {
        (kind, dtype, vocab) for kind, vocab in (("zipf", 1001), ("demo", 2000)) for dtype in ("float32", "bfloat16")
    }
    cases = {row["case"] for row in rows}
    for name in ("temperature", "top-k", "top-p", "min-p", "temperature, top-k, top-p"):
        assert {f"gen: {name}", f"gen, a value each row: {name}", f"transformers: {name}"} <= cases
    assert {"torch.argmax", "read", "gen: greedy"} <= cases
    printed = capsys.readouterr().out
    for row in rows:
        assert row["case"] in printed
        assert row["memory"] > 0 or row["case"] in ("torch.argmax", "read"), row
    slowest = max(row["/ argmax"] for row in rows if row["case"] == "gen: top-p" and row["vocab"] == 1001)
    [line] = [line for line in summary.read_text().splitlines() if "4 x 1001 " in line and " top-p  " in line]
    assert f" {slowest:.3g} " in line


def test_constraints_reports_what_every_engine_reaches_and_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}, "required": ["b"]}
    tests = [({"a": None, "b": 1}, True), ({"b": 1, "c": 2}, True), ({"b": "x"}, False)]
    lines = [
        {"name": "numbers", "schema": numbers, "tests": [{"data": data, "valid": valid} for data, valid in tests]},
        {"name": "circle", "schema": {"items": {"$ref": "#"}}, "tests": [{"data": [[]], "valid": True}]},
    ]
    schemas, report = tmp_path / "schemas.jsonl", tmp_path / "report.json"
    schemas.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    options = ["--schemas", str(schemas), "--model", "demo", "--refused", "--json", str(report)]
    monkeypatch.setattr(sys, "argv", ["coverage", *options])
    coverage.main()
    printed = capsys.readouterr().out
    assert "gen, open: circle: ConstraintError: $ref" in printed
    rows = {row["engine"]: row for row in json.loads(report.read_text())["rows"]}
    assert {"gen, closed", "gen, open", "gen or host, closed", "gen or host, open", "llguidance, open"} <= rows.keys()
    closed, open_ = rows["gen, closed"], rows["gen, open"]
    assert closed["of 2 schemas"] == open_["of 2 schemas"] == "1 (50.0%)"
    assert rows["gen or host, open"]["of 2 schemas"] == "2 (100.0%)"
    assert (closed["valid rejected"], closed["listed only"], open_["valid rejected"]) == ("1 of 2", "0 of 1", "0 of 2")
    assert all(row["invalid accepted"] == "0 of 1" for row in (closed, open_))


def test_the_suite_of_json_schema_is_counted_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [{"data": 1.0, "valid": True}, {"data": "a", "valid": False}, {"data": {"b": 1, "a": 2}, "valid": True}]
    schemas = [{"enum": [1, {"a": 2, "b": 1}]}, {"$ref": "other.json"}, {"type": "string"}]
    groups = [{"description": "one", "schema": schema, "tests": cases} for schema in schemas]
    for name in ("enum.json", "optional/enum.json", "format.json"):
        (tmp_path / "json/tests/draft7" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "json/tests/draft7" / name).write_text(json.dumps(groups))
    check = suite.checker(Namespace(material=tmp_path))
    found = [check(number) for number in range(10)]
    assert "refused: draft7/enum: one: $ref 'other.json'" in capsys.readouterr().out
    counts = sum((counts for counts, _ in found), Counter[str]())
    said = {"schemas": 3, "refused": 1, "valid accepted": 2, "valid rejected": 2}
    said |= {"invalid accepted": 1, "invalid rejected": 1}
    for kind in ("required", "remarks", "optional"):
        assert {name: counts[f"{kind}: {name}"] for name in said} == said
    assert sum(len(wrong) for _, wrong in found) == 8  # the invalid ones in both readings, and two of required tests


def test_a_folder_of_schemas_is_drawn_by_family(tmp_path: Path) -> None:
    for name in ("BFCL_a_1", "BFCL_b_20", "JME_3", "Github_easy---o1", "Github_easy---o2", "Github_hard---o3"):
        (tmp_path / f"{name}.json").write_text('{"schema": {}}')
    found = [*coverage.read_schemas(tmp_path, 1)]
    assert [name[:9] for name in found] == [found[0], "Github_ea", "Github_ha", "JME_3"] and found[0][:5] == "BFCL_"


def test_instances_are_written_in_the_order_of_their_schema() -> None:
    schema = {
        "properties": {"b": {}, "a": {"$ref": "#/$defs/x"}},
        "anyOf": [{"required": ["z"]}, {"properties": {"y": {}}, "required": ["w"]}],
        "$defs": {"x": {"items": {"properties": {"d": {}, "c": {}}}}},
    }
    order = SchemaOrder(schema | {"if": {"required": ["q"]}, "then": {"properties": {"p": {}}}})
    assert order.text({"z": 1, "q": 2, "p": 3, "a": []}) == '{"a":[],"p":3,"z":1,"q":2}'
    assert order.text({"a": [{"c": 1, "d": 2}], "w": 3, "b": 4, "y": 5}) == '{"b":4,"a":[{"d":2,"c":1}],"y":5,"w":3}'
    assert not order.undeclared
    order.text({"a": [{"e": 1}], "z": 1})
    assert order.undeclared


def test_constrained_generation_reports_every_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"
    sizes = ["--vocab", "300", "--types", "a string", "--batch", "2", "--room", "12", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["generation", *sizes, "--json", str(report)])
    generation.main()
    rows = json.loads(report.read_text())["rows"]
    assert [(row["vocabulary"], row["type"]) for row in rows] == [(300, "a string")]
    assert rows[0]["step with / without, room for 12"]["median"] > 0


def test_the_sweep_gives_each_architecture_a_verdict_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, page = tmp_path / "report.json", tmp_path / "page.md"
    only = ["--only", "llama", "gemma3_text", "musicgen", "bert", "qwen2_vl", "instructblip"]
    arguments = ["--groups", "decoders", "images", "encoders", *only, "--json", str(report), "--markdown", str(page)]
    monkeypatch.setattr(sys, "argv", ["sweep", *arguments])
    sweep.main()
    printed = capsys.readouterr().out
    assert "decoders: 3 run, 3 right, 0 refused, 0 wrong, 1 not made" in printed
    assert "images: 2 run, 1 right, 1 refused, 0 wrong, 0 not made" in printed
    assert "encoders: 1 run, 1 right, 0 refused, 0 wrong, 0 not made" in printed
    rows = {row["architecture"]: row for row in json.loads(report.read_text())["decoders"]["rows"]}
    assert list(rows) == ["bert", "gemma3_text", "llama", "musicgen"]
    assert [rows[name]["verdict"] for name in ("llama", "gemma3_text", "musicgen")] == ["right", "right", "not made"]
    assert all(row["reason"] for row in rows.values() if row["verdict"] != "right")
    assert rows["llama"]["cases"]["a batch of unequal lengths"] == "right"
    assert "Right: bert, gemma3_text, llama." in page.read_text() and "| musicgen " in page.read_text()
    assert rows["llama"]["tokens"] > 20  # texts vary; otherwise the comparison would show nothing


OWN_WAYS = [  # each has something of its own; older versions of transformers lack some of them
    "moshi",  # a window in its config that it does not look at
    "mllama",  # layers for images alone
    "moss_transcribe_diarize",  # positions that its forward passes on without a name
    "whisper",
    "inkling2_text",  # distances that are counted from the end of the cache, and convolutions
    "qwen4_exp_text",  # positions of earlier tokens in the cache
]


@pytest.mark.parametrize("architecture", [name for name in OWN_WAYS if name in model_types("decoders")])
@pytest.mark.usefixtures("soon_worth_it")
def test_architectures_with_ways_of_their_own_have_right_texts(architecture: str) -> None:
    cases = dict(TextComparison(tiny_model(architecture), new_tokens=9).cases())
    cases["a batch of unequal lengths"]()


def test_the_sweep_sees_a_window_that_is_left_out_in_prompts_and_in_new_tokens() -> None:
    model = tiny_model("mistral")
    window = model.config.sliding_window
    model.config.sliding_window = None
    comparison = TextComparison(model)
    comparison._oracle = Oracle(tiny_model("mistral"))
    cases = dict(comparison.cases())
    with pytest.raises(DifferenceError, match=f"new token {window - 4} of the prompt of 5"):
        cases["a prompt of 5 alone"]()
    with pytest.raises(DifferenceError, match="new token 0 of the prompt of 29"):
        cases["a prompt of 29 alone"]()
    for name in ("a prompt of 1 alone", "a batch of equal lengths", "a batch of unequal lengths", "samples", "beams"):
        with pytest.raises(DifferenceError):
            cases[name]()


def test_the_sweep_sees_a_text_that_does_not_know_its_image() -> None:
    model = tiny_model("qwen2_vl", "images")
    comparison = ImageComparison(model, each_alone(image_inputs(model)))
    comparison._oracles.reverse()
    for _, run in comparison.cases():
        with pytest.raises(DifferenceError, match="new token 0 "):
            run()


def test_the_sweep_goes_on_when_a_model_crashes_or_hangs() -> None:
    [crashed] = sweep.sweep(["llama"], "decoders", examiner=_crash)
    assert (crashed.verdict, crashed.reason) == ("wrong", "its process ended with code 3")
    [hung] = sweep.sweep(["llama"], "decoders", examiner=_hang, limit=0.1)
    assert (hung.verdict, hung.reason) == ("wrong", "no answer within 0.1 s")


def test_the_sweep_covers_what_transformers_lists() -> None:
    assert {"llama", "qwen3_next", "gpt_neo", "bart", "rwkv"} <= set(model_types("decoders"))
    assert {"qwen2_vl", "llava"} <= set(model_types("vision"))
    assert {"bert", "fnet", "t5", "xlnet"} <= set(model_types("encoders"))


def _crash(architecture: str, group: Group) -> sweep.Verdict:
    os._exit(3)


def _hang(architecture: str, group: Group) -> sweep.Verdict:
    threading.Event().wait()
    raise AssertionError("it waits for ever")


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_random_requests_through_an_engine_are_what_each_is_alone(name: str) -> None:
    counts, wrong = engines.check(name, 0, count=25)
    assert wrong == []
    assert counts["requests"] == 25 and counts[f"{name}: ended"] > 10


def test_a_request_that_is_not_what_it_is_alone_is_told() -> None:
    model = loaded("llama")
    made, other = (
        engines.outcome(partial(gen.generate, model, "a", seed=seed, max_new_tokens=5, top_logprobs=2, details=True))
        for seed in (1, 2)
    )
    assert engines.differences(made, made | {"logprobs": [one + 1e-5 for one in made["logprobs"]]}) == []
    found = {path.partition("[")[0] for path in engines.differences(made, other)}
    assert found >= {".text", ".token_ids", ".logprobs", ".seed", ".top_logprobs"}
    assert engines.differences(made, made | {"finish_reason": "stop"}) == [".finish_reason"]
