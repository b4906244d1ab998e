"""Reads rows as calls of `gen.generate`, each with the job's settings, overridden by its own; and their results."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gen
from gen.calls.call import Call
from gen.calls.reading import read_call
from gen.completions import Completion
from gen.constraints.constraint import Constraint
from gen.errors import ArgumentError, IncompleteError, ValueRefusedError, show
from gen.loop.jobs import Job
from gen.models.base import Model
from gen.offline.described import made_sampler, made_type
from gen.offline.folder import Manifest, Result, carried, error_result
from gen.offline.inputs import NAME
from gen.offline.rows import Row, row_seed
from gen.requests.settings import Settings
from gen.samplers import Sampler

if TYPE_CHECKING:
    from gen.offline.bodies import ReadBody  # which takes 0.3 s to import


@dataclass(frozen=True, kw_only=True)
class ReadRow:
    """A row as a call.

    Attributes:
        body: the body of a line in OpenAI's batch format; None for other rows.
    """

    row: Row
    call: Call
    body: "ReadBody | None"

    def result(self, manifest: Manifest, job: Job) -> Result:
        """The result of the row."""
        if self.body is not None:
            from gen.offline.bodies import answer_of

            return answer_of(manifest, self.row, self.body, self.call, job)
        found = self.call.result(job)
        several, typed = isinstance(found, list), job.request.constraint is not None
        result = result_of(self.row, found if several else [found], several=several, typed=typed)
        if manifest.settings["retries"]:
            result["attempts"] = job.request.attempt
        if manifest.settings.get("receipts"):
            told = [asdict(one.receipt) for one in (found if several else [found])]
            result |= {"receipts": told} if several else {"receipt": told[0]}
        return result


class Reader:
    """Reads rows.

    Args:
        settings: the manifest's settings.
    """

    def __init__(self, model: Model, settings: Mapping[str, Any]) -> None:
        self._model, self._settings = model, settings
        self._known: set[str] = set()  # fields of bodies that were reported as without effect

    def read(self, row: Row, draft: str | None = None) -> ReadRow:
        """A row as a call.

        Args:
            draft: a text that the row's own may be like.
        """
        prompt, constraint, body = row.prompt, self._constraint, None
        given = {**self._settings, "sampler": self._sampler, **row.asked, "seed": row_seed(self._settings["seed"], row)}
        given["draft"] = draft
        if row.body is not None:
            from gen.offline.bodies import read_body

            body = read_body(self._model, self._settings, row.body, self._sampler, self._known)
            asked = body.writer.asked
            prompt, given = asked.prompts[0], {**given, **body.settings}
            if asked.output_type is not None:
                constraint = gen.compile(self._model, asked.output_type)
        settings = Settings(**{name: value for name, value in given.items() if name in Settings.__annotations__})
        returned = self._settings["num_return_sequences"]
        call = read_call(
            self._model,
            prompt,
            constraint,
            settings,
            details=True,
            num_return_sequences=returned,
            exact=self._settings["exact"],
            retries=self._settings["retries"],
        )
        if call.batch:
            raise ArgumentError(f"a row has one prompt, got {show(prompt)}")
        return ReadRow(row=row, call=call, body=body)

    @cached_property
    def _sampler(self) -> Sampler | None:
        """The sampler of all rows; None is the checkpoint's recommendation."""
        made: Sampler | None = made_sampler(self._settings["sampler"])
        return made

    @cached_property
    def _constraint(self) -> Constraint | None:
        """The constraint of all rows whose bodies have no output type."""
        output_type = made_type(self._settings["output_type"])
        return None if output_type is None else gen.compile(self._model, output_type)


def result_of(row: Row, completions: Sequence[Completion], *, several: bool, typed: bool) -> Result:
    """A row's result.

    Args:
        several: whether the job asks for a list of texts.
        typed: whether it has an output type.
    """
    result: Result = {"id": row.id}
    told = [_told(completion, typed) for completion in completions]
    if several:
        names = {"text": "texts", "value": "values", "finish_reason": "finish_reasons", "top_logprobs": "top_logprobs"}
        names["reasoning"] = "reasonings"
        known = {name for one in told for name in one}
        result |= {plural: [one.get(name) for one in told] for name, plural in names.items() if name in known}
    else:
        result |= told[0]
    result |= {"tokens": sum(len(one.token_ids) for one in completions), "seed": completions[0].seed}
    return result | carried(row)


def _told(completion: Completion, typed: bool) -> Result:
    told: Result = {"text": completion.text}
    if typed:
        from pydantic_core import to_jsonable_python

        told["value"] = to_jsonable_python(completion.value, inf_nan_mode="null")
    told["finish_reason"] = completion.finish_reason
    if completion.reasoning is not None:
        told["reasoning"] = completion.reasoning
    if completion.top_logprobs is not None:
        told["top_logprobs"] = [asdict(one) for one in completion.top_logprobs]
    return told


def failure_of(row: Row, error: Exception) -> Result:
    """The result of a row that has failed."""
    if row.body is not None:
        from gen.offline.bodies import refusal_of

        return refusal_of(row, error)
    text = error.completion.text if isinstance(error, IncompleteError | ValueRefusedError) else None
    return error_result(row, _own_words(error), text)


def _own_words(error: Exception) -> str:
    """An error's message without "prompt 0": the row is the only prompt of its call."""
    return re.sub(r"^prompt 0(: | )", lambda found: "" if found[1] == ": " else "the prompt ", str(error))


class OldTexts:
    """Finds texts in the parts of a job, and which rows asked for them.

    It keeps only where each row's result is, and a hash of the row.
    """

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, tuple[Path, int]] = {}
        self._asked: dict[str, int] = {}
        if (rows := folder / NAME).exists():
            with rows.open("rb") as file:
                self._asked = {json.loads(line)["id"]: hash(line) for line in file}
        for path in sorted(folder.glob("part-*.jsonl")):
            place = 0
            for line in path.read_bytes().splitlines(keepends=True):
                result = json.loads(line)
                row_id = result.get("custom_id", result["id"])
                self._places[row_id] = path, place
                place += len(line)

    def has(self, row: Row) -> bool:
        """Whether the old job had this row, with the same prompt and settings of its own."""
        return self._asked.get(row.id) == hash(row.line())

    def text(self, row_id: str) -> str | None:
        """The text of a row, or the first of several; None if the job has none."""
        if row_id not in self._places:
            return None
        path, place = self._places[row_id]
        with path.open("rb") as file:
            file.seek(place)
            return _text(json.loads(file.readline()))


def _text(result: Result) -> str | None:
    text = result.get("text")
    for first in result.get("texts") or ():
        text = text or first
    body = (result.get("response") or {}).get("body", {})
    for choice in body.get("choices", ()):
        text = text or choice["message"].get("content")
    return text if isinstance(text, str) else None
