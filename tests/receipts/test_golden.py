"""The pytest plugin: a test of a test suite that uses it, run in this process."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gen
import gen.receipts.diffing  # before a suite runs, whose own imports are forgotten when it has ended
from gen.integrations.golden import Golden
from tests.helpers.demo import short_demo

pytest_plugins = ["pytester"]
SUITE = """
import pytest
import gen
import models

SAMPLER = gen.samplers.multinomial(temperature={temperature})


def test_text(gen_golden):
    assert gen_golden(models.demo, "Once upon a time", max_new_tokens=12, sampler=SAMPLER).startswith(" ")


@pytest.mark.parametrize("word", ["one/two", "three"])
def test_several(gen_golden, word):
    first, second = gen_golden(models.demo, [word, "a dog"], seed=[1, 2], max_new_tokens=5)
    assert gen_golden(models.demo, "In", int, max_new_tokens=9, shorten=True) + 1
    assert isinstance(second, str)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs the suite with a temperature and options; the model is this process's."""
    monkeypatch.setitem(sys.modules, "models", SimpleNamespace(demo=short_demo()))

    def run(*options: str, temperature: float = 0.8) -> pytest.RunResult:
        pytester.makepyfile(test_suite=SUITE.format(temperature=temperature))
        return pytester.runpytest_inprocess("-p", "gen.integrations.golden", "-p", "no:randomly", "-n0", *options)

    yield run


def test_texts_are_recorded_and_then_verified(suite: Any, pytester: pytest.Pytester) -> None:
    missing = suite()
    missing.assert_outcomes(failed=3)
    missing.stdout.fnmatch_lines(["*no text is recorded for this test*--update-gen-golden*"])
    suite("--update-gen-golden").assert_outcomes(passed=3)
    files = sorted(path.name for path in (pytester.path / "golden" / "test_suite").iterdir())
    assert files == ["test_several_one_two_.jsonl", "test_several_three_.jsonl", "test_text.jsonl"]
    suite().assert_outcomes(passed=3)


def test_a_difference_says_where_and_what_has_changed(suite: Any, pytester: pytest.Pytester) -> None:
    suite("--update-gen-golden", "-k", "text").assert_outcomes(passed=1)
    path = pytester.path / "golden" / "test_suite" / "test_text.jsonl"
    found = suite("-k", "text", temperature=3.0)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(
        ["*differs at token *: recorded '*, probability *; found *probability*", "*temperature was 0.8, is 3.0*"]
    )
    receipt = json.loads(path.read_text())
    path.write_text(json.dumps({**receipt, "versions": {**receipt["versions"], "torch": "1.0"}}) + "\n")
    suite("-k", "text").assert_outcomes(passed=1)
    path.write_text(json.dumps(receipt) + "\n" + json.dumps(receipt) + "\n")
    more = suite("-k", "text")
    more.assert_outcomes(passed=1, errors=1)
    more.stdout.fnmatch_lines(["*has 1 more texts than the test asks for*"])


def test_a_near_tie_passes_with_a_note(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    suite("--update-gen-golden", "-k", "text").assert_outcomes(passed=1)
    monkeypatch.setattr("gen.receipts.blocks.tolerance", lambda *given: 1e9)
    found = suite("-k", "text", temperature=3.0)
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["gen_golden: test_suite.py::test_text: a near tie at token *"])


def test_what_it_could_not_verify_is_not_recorded(tmp_path: Path) -> None:
    golden = Golden(tmp_path / "texts.jsonl", update=True, note=print)
    for given in ({"num_return_sequences": 2}, {"top_logprobs": 1}, {"prompt_logprobs": 1}, {"max_time": 9.0}):
        with pytest.raises(gen.ArgumentError, match=f"gen_golden takes no {next(iter(given))}"):
            golden(short_demo(), "x", sampler=gen.samplers.greedy(), **given)


def test_the_plugin_is_installed_with_gen() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"gen.integrations.golden": "gen.integrations.golden"}
