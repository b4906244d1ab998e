"""Comparisons of recorded texts, in Python and on the command line."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import gen
from tests.cli.test_commands import run
from tests.offline.helpers import WorkerHere, write_rows

SAMPLERS = gen.samplers
PROMPTS = ["Once upon a time", "There was a dog", "In the garden"]


def receipts_of(model: Any, temperature: float = 0.8) -> list[gen.Receipt]:
    samplers: Any = [SAMPLERS.greedy(), SAMPLERS.greedy(), SAMPLERS.multinomial(temperature=temperature)]
    found: Any = gen.generate(
        model, PROMPTS, sampler=samplers, seed=[1, 2, 3], max_new_tokens=16, eos_token_id=[], details=True
    )
    return [one.receipt for one in found]


def test_two_runs_are_compared_text_by_text(demo: Any) -> None:
    old = receipts_of(demo)
    assert gen.diff(old, old[::-1]).same
    new = receipts_of(demo, temperature=1.5)
    found = gen.diff(old, new[1:])
    assert (found.missing, found.added, found.same) == (1, 0, False)
    assert found.counts == {"equal": 1, "different": 1}
    assert found.by_setting == {"greedy()": {"equal": 1}, "multinomial(temperature=0.8)": {"different": 1}}
    one = found.texts[1]
    assert one.number == 2 and one.difference is not None
    at = one.difference.at
    assert old[2].token_ids[:at] == new[2].token_ids[:at]
    assert (one.difference.recorded, one.difference.found) == (old[2].token_ids[at], new[2].token_ids[at])
    assert one.difference.logprobs == (old[2].logprobs[at], new[2].logprobs[at])
    assert [*one.changed] == ["sampler"]
    assert "1 of the texts are only in the old set" in str(found)
    both = [old[0], replace(old[2], prompt_ids=old[0].prompt_ids, seed=old[0].seed)]
    for kept in both:  # the other one is missing, and not different
        assert gen.diff(both, [kept]).counts == {"equal": 1}
    shorter = replace(old[0], token_ids=old[0].token_ids[:3], logprobs=old[0].logprobs[:3])
    [ended] = gen.diff([shorter], old[:1]).texts
    assert ended.difference is not None
    assert (ended.difference.at, ended.difference.recorded) == (3, None)


def test_a_model_is_compared_with_what_was_recorded(demo: Any) -> None:
    old = receipts_of(demo)
    assert gen.diff(old, demo).same
    wrong = replace(old[1], token_ids=[*old[1].token_ids[:5], 60, *old[1].token_ids[6:]])
    found = gen.diff([old[0], wrong, old[2]], demo)
    one = found.texts[1]
    assert found.counts == {"equal": 2, "different": 1}
    assert one.verification == gen.verify(demo, wrong)
    assert "at token 5" in one.words
    assert repr(demo.tokenizer.decode([60])) in one.words
    assert repr(demo.tokenizer.decode([old[1].token_ids[5]])) in one.words
    lines = str(found).splitlines()
    assert lines[0].split() == ["setting", "equal", "near", "tie", "different"]
    assert lines[1].split() == ["greedy()", "1", "0", "1"]
    assert json.loads(str(one))["difference"]["at"] == 5


def test_a_plot_is_drawn(demo: Any, tmp_path: Path) -> None:
    old = receipts_of(demo)
    gen.diff(old, receipts_of(demo, temperature=1.5)).plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_not_compared(demo: Any) -> None:
    with pytest.raises(gen.ArgumentError, match="takes receipts"):
        gen.diff(["x"], demo)  # type: ignore[list-item]


def test_the_command_line(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen, "load", lambda *given, **settings: demo)
    old, new = receipts_of(demo), receipts_of(demo, temperature=1.5)
    gen.Receipt.dump(old, tmp_path / "old")
    gen.Receipt.dump(new, tmp_path / "new")
    assert run("verify", str(tmp_path / "old"), "--model", "demo") == 0
    assert run("diff", str(tmp_path / "old"), str(tmp_path / "old")) == 0
    capsys.readouterr()
    assert run("diff", str(tmp_path / "old"), str(tmp_path / "new"), "--json") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["equal", "equal", "different"]
    gen.Receipt.dump([replace(old[0], seed=5), replace(old[2], seed=5)], tmp_path / "wrong")
    assert run("verify", str(tmp_path / "wrong")) == 1
    assert "different" in capsys.readouterr().out
    (tmp_path / "broken").write_text("{}\n")
    assert run("diff", str(tmp_path / "broken"), str(tmp_path / "old")) == 2
    assert run("diff", str(tmp_path / "missing"), str(tmp_path / "old")) == 2
    (tmp_path / "empty").write_text("\n")
    assert run("verify", str(tmp_path / "empty")) == 2
    assert run("diff", str(tmp_path / "empty"), str(tmp_path / "empty")) == 2
    assert "has no receipts" in capsys.readouterr().err
    job = tmp_path / "job"
    job.mkdir()
    assert run("diff", str(job), str(tmp_path / "old")) == 2
    assert "a folder without parts of a job" in capsys.readouterr().err

    for number, receipts in enumerate((old[:2], old[2:])):
        results = [{"id": "a", "receipt": asdict(one)} for one in receipts]
        (job / f"part-{number:05d}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in results))
    assert run("diff", str(job), str(tmp_path / "old")) == 0


def test_what_a_job_has_not_made_is_told(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen, "load", lambda *given, **settings: demo)
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", WorkerHere)
    source = write_rows(
        tmp_path / "a.jsonl", [{"prompt": "One"}, {"prompt": "Two"}, {"text": "Three"}, {"prompt": "a"}]
    )
    arguments: Any = {"model": "demo", "max_new_tokens": 2, "part_rows": 2, "receipts": True, "progress": False}
    report = gen.run_batch(source, tmp_path / "out", **arguments)
    assert run("verify", str(tmp_path / "out")) == 0
    assert "4 of 4 rows are done, 1 of them failed" in capsys.readouterr().err
    report.parts[1].unlink()
    assert run("verify", str(tmp_path / "out")) == 0
    assert "2 of 4 rows are done, 0 of them failed" in capsys.readouterr().err
