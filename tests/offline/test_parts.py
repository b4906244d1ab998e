"""A part and the facts beside it say the same, wherever a kill comes between."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_core import from_json

import gen
from gen.offline.files import as_line
from gen.offline.folder import done_parts, part_path, read_meta, write_part
from gen.offline.status import status
from tests.offline.helpers import read_parts, write_rows

GOOD: list[dict[str, Any]] = [
    {"id": "a", "text": "x", "tokens": 3, "seed": 1},
    {"id": "b", "text": "y", "tokens": 2, "seed": 2},
]
FAILED: list[dict[str, Any]] = [GOOD[0], {"id": "b", "error": "boom"}]


class Killed(BaseException):
    """Stands for SIGKILL."""


def kill_before(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Raise `Killed` before the call of this number, from 0, of all that changes names of files."""
    calls = 0

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def changes(*arguments: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number + 1:
                raise Killed
            return call(*arguments, **more)

        return changes

    monkeypatch.setattr(os, "replace", watched(os.replace))
    monkeypatch.setattr(os, "unlink", watched(os.unlink))


@pytest.mark.parametrize("number", range(4))
def test_a_part_that_is_made_again_has_its_own_facts_after_a_kill_at_any_place(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest: Any = SimpleNamespace(parts=[[0, 0, 0, 2]])
    for before, after in ((FAILED, GOOD), (GOOD, FAILED), (None, FAILED)):
        for left in tmp_path.iterdir():
            left.unlink()
        if before is not None:
            write_part(tmp_path, 0, before, {})
        with monkeypatch.context() as patch:
            kill_before(patch, number)
            try:
                write_part(tmp_path, 0, after, {})
                ended = True
            except Killed:
                ended = False
        if done_parts(tmp_path, manifest):
            results = read_parts([part_path(tmp_path, 0)])
            counted = {"rows": 2, "failed": sum(one.get("error") is not None for one in results)}
            counted["tokens"] = sum(one.get("tokens") or 0 for one in results)
            found = read_meta(tmp_path, manifest, 0)
            assert {name: found[name] for name in counted} == counted
            assert counted["failed"] == (after is FAILED) or not ended
        else:
            assert before is None and not ended


def test_a_line_is_json_whatever_is_in_it() -> None:
    """The oracle is pydantic's parser, which takes neither NaN nor infinities."""
    value = {"logprobs": [(-math.inf, 0.5)], "x": {"y": [math.nan, True, None, 2**70]}, "t": "ü 🙂 \n \u2028"}
    assert from_json(as_line(value), allow_inf_nan=False) == {
        "logprobs": [[None, 0.5]], "x": {"y": [None, True, None, 2**70]}, "t": "ü 🙂 \n \u2028",
    }  # fmt: skip
    assert as_line({"\ud800": "a\udcff"}) == b'{"\\ud800": "a\\udcff"}\n'
    assert as_line({"a": "ü"}) == '{"a": "ü"}\n'.encode()


@pytest.mark.usefixtures("workers_here")
def test_a_part_of_rows_that_the_folder_has_lost_is_not_made(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"prompt": "x"}, {"prompt": "y"}, {"prompt": "z"}])
    arguments: Any = {"model": "demo", "max_new_tokens": 2, "part_rows": 2, "seed": 1, "progress": False}
    made = gen.run_batch(source, tmp_path / "out", **arguments)
    rows = tmp_path / "out" / "manifest.rows.jsonl"
    rows.write_bytes(rows.read_bytes().splitlines(keepends=True)[0])
    for part in made.parts:
        part.unlink()
        with pytest.raises(gen.GenError, match="has lost rows of part"):
            gen.run_batch(source, tmp_path / "out", **arguments)


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("left", [b"", b'{"id": "a.jsonl:1"}\n', b'{"id": "a.jsonl:1"}\n{"id": "a.js'])
@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet"])
def test_a_part_that_has_lost_results_is_not_merged(left: bytes, name: str, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"prompt": "x"}, {"prompt": "y"}])
    report = gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=2, progress=False)
    [part] = report.parts
    part.write_bytes(left)
    with pytest.raises(gen.GenError, match=r"part-00000.jsonl has [01] of its 2 results; remove it"):
        report.merge(tmp_path / name)
    part.with_name("part-00000.meta.json").unlink()
    with pytest.raises(gen.GenError, match="remove it"):
        status(tmp_path / "out")


@pytest.mark.usefixtures("workers_here")
def test_rows_that_failed_are_counted_and_tried_again_where_the_facts_of_a_part_are_lost(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"prompt": "x"}, {"prompt": "y", "seed": -1}, {"prompt": "z"}])
    arguments: Any = {"model": "demo", "max_new_tokens": 2, "part_rows": 2, "seed": 1, "progress": False}
    first = gen.run_batch(source, tmp_path / "out", **arguments)
    whole = status(tmp_path / "out")
    for lost in (None, "", "{}", '{"rows": 2'):
        meta = tmp_path / "out" / "part-00000.meta.json"
        meta.unlink() if lost is None else meta.write_text(lost)
        assert status(tmp_path / "out") == whole
        again = gen.run_batch(source, tmp_path / "out", **arguments)
        assert (again.rows, again.failed, again.tokens) == (first.rows, 1, first.tokens)
    made = first.parts[0].stat().st_ino
    assert gen.run_batch(source, tmp_path / "out", retry_failed=True, **arguments).failed == 1
    assert first.parts[0].stat().st_ino != made
    assert json.loads((tmp_path / "out" / "part-00000.meta.json").read_text())["failed"] == 1
