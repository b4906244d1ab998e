"""The corpus of fixed calls: what one change of gen changes in it is found, and nothing else is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gen
from benchmarks.corpus import __main__ as corpus
from benchmarks.corpus.later import G, S, later
from benchmarks.corpus.telling import differences, told

ONLY = r"^(stops: .*stop='\.'|made_with: .*greedy\(repetition_penalty=|types: compiled\(regex\('a\{3)"
SHARE = """
import json, sys
text = open("gen/__init__.py").read()
share = sys.argv[-1]
print(json.dumps([f"case: {share}", text]))
print(json.dumps([f"other: {share}", 1.0]))
"""


def test_calls_have_names_and_are_made_with_the_gen_that_is_there() -> None:
    kind = later(isinstance)(S.multinomial(top_k=3), G.samplers.MultinomialSampler)
    assert repr(kind) == "isinstance(samplers.multinomial(top_k=3), samplers.MultinomialSampler)"
    assert kind.find_() is True
    names = [name for name, _ in corpus.cases("")]
    assert len(names) == len({*names}) > 600
    assert sum(name.startswith("types: ") for name in names) >= 400
    assert not [name for name in names if "0x7" in name]  # an address


def test_what_a_change_changes_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(corpus.outcomes(ONLY))
    assert dict(corpus.outcomes(ONLY)) == before
    assert not corpus.report(before, before, 0.0)
    assert any(isinstance(one, dict) and "ArgumentError" in one.get("error", "") for one in before.values())
    regex = gen.regex
    monkeypatch.setattr(gen, "regex", lambda pattern: regex(f"{pattern}|b"))
    differ = corpus.report(before, dict(corpus.outcomes(ONLY)), 0.0)
    assert differ == {"types": 1}
    printed = capsys.readouterr().out
    assert "types: compiled(regex('a{3,5}'), " in printed
    assert ".demo.least_tokens: " in printed and " -> " in printed


def test_numbers_may_differ_a_little_and_times_and_places_do_not_count() -> None:
    assert list(differences([0.5, {"a": "x"}], [0.5 + 1e-5, {"a": "y"}], 1e-4)) == [("[1].a", "x", "y")]
    assert list(differences({"a": 1}, {"b": 1}, 1e-4)) == [(".a", 1, "nothing"), (".b", "nothing", 1)]
    assert [path for path, _, _ in differences([1.0, [1]], [1.1, [1, 2]], 1e-4)] == ["[0]", "[1]"]
    made = gen.Completion(
        text="a",
        value=object(),
        token_ids=[1],
        logprobs=[-float("inf")],
        score=0.5,
        finish_reason="eos",
        seed=3,
        drafted=2,
    )
    shown: Any = told([made, ZeroDivisionError("/home/x/gen/api.py at 0x7f0123456789")], "/home/x")
    assert shown[0]["value"] == "object: <object object at 0x>" and shown[0]["logprobs"] == ["-inf"]
    assert "drafted" not in shown[0] and json.dumps(shown)
    assert shown[1] == {"error": "ZeroDivisionError: ROOT/gen/api.py at 0x"}


def test_a_commit_is_compared_with_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The processes only tell the text of a file of the gen that they would have called."""
    for name in ("gen", "benchmarks", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("before\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "--quiet"], ["add", "gen"], [*who, "commit", "--quiet", "--message", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    monkeypatch.setattr(corpus, "PROGRAM", [sys.executable, "-c", SHARE])
    kept = tmp_path / "kept.jsonl"
    for text, against, differ in (
        ("before\n", "HEAD", {}),
        ("after\n", "HEAD", {"case": 2}),
        ("after\n", str(kept), {}),
    ):
        (tmp_path / "gen" / "__init__.py").write_text(text)
        monkeypatch.setattr(sys, "argv", ["corpus", "--against", against, "--out", str(kept)])
        with pytest.raises(SystemExit) as end:
            corpus.main()
        printed = capsys.readouterr().out
        assert json.loads(printed.splitlines()[-1])["differ"] == differ and end.value.code == bool(differ)
        assert ("'before\\n' -> 'after\\n'" in printed) == bool(differ)
