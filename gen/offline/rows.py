"""Reads a row of an input: its id, its prompt, its own settings, and the columns that are carried through.

Or it is a line of OpenAI's batch format, for chat/completions, whose body workers read as `gen serve` does. Example:
{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], "seed": 7}}.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from string import Formatter
from typing import Any

from gen.arguments import LARGEST
from gen.errors import ArgumentError, show
from gen.offline.records import Record, plain

URL = "/v1/chat/completions"
_JSON = json.JSONEncoder(ensure_ascii=False)  # json.dumps makes one for each call
_OWN = ("id", "prompt", "messages", "seed", "max_new_tokens")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row.

    Attributes:
        id: its own, or the input's name and its number, from 1.
        prompt: a text, messages or token ids, as it came: `gen.generate` checks it.
        asked: its own settings, in the form of the manifest's settings for all rows.
        body: the body of a line in OpenAI's batch format, instead of a prompt; None for other rows.
        carried: its other columns.
        error: why the row cannot be run; "" if it can.
    """

    id: str
    prompt: Any = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    carried: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    def line(self) -> bytes:
        """The row as a line of JSON, without what is usual; `Row(**json.loads(line))` reads it.

        A number that no float holds is not JSON there.
        """
        given = {name: value for name, value in vars(self).items() if value is not None and value != _USUAL[name]}
        return _JSON.encode(given).encode(errors="backslashreplace") + b"\n"

    @property
    def length(self) -> int:
        """About how long its prompt is, in characters or tokens."""
        prompt = self.prompt if self.body is None else self.body.get("messages")
        return len(prompt if isinstance(prompt, str) else str(prompt))


_USUAL: dict[str, Any] = {one.name: {} if one.name in ("asked", "carried") else one.default for one in fields(Row)}


def read_row(record: Record, default_id: str, template: str | None = None, problem: str = "") -> Row:
    """A record as a row; a problem with it becomes the row's error."""
    body: Mapping[str, Any] | None = {} if "custom_id" in record and "body" in record else None
    carried: Record = {}
    key = record.get("id" if body is None else "custom_id")
    if key in (None, ""):
        key = default_id
    if not isinstance(key, str | int) or isinstance(key, bool):
        key, problem = default_id, problem or f"an id must be a text or a whole number, got {show(key)}"
    key = str(key)
    try:
        if body is None:
            carried = {name: plain(value) for name, value in record.items() if name not in _OWN}
        if problem:
            raise ArgumentError(problem)
        if body is not None:
            return Row(id=key, body=plain(_body(record)))
        asked = {name: _whole(name, record[name]) for name in ("seed", "max_new_tokens") if _given(record, name)}
        return Row(id=key, prompt=plain(_prompt(record, template)), asked=asked, carried=carried)
    except ArgumentError as error:
        problem = str(error)
    except RecursionError:
        problem = "the row has too many values within one another."
    return Row(id=key, error=problem, carried=carried, body=body)


def row_seed(seed: int, row: Row) -> int:
    """A row's seed: its own, or one derived from the job's seed and the row's id."""
    if "seed" in row.asked:
        return int(row.asked["seed"])
    digest = hashlib.blake2b(f"{seed}\0{row.id}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11  # 53 bits, so that it survives JSON


def check_template(template: str) -> None:
    """Raise an ArgumentError unless a template has the names of columns in braces."""
    try:
        parts = list(Formatter().parse(template))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"the prompt template {show(template)} cannot be read: {error}") from error
    names = [name for _, name, _, _ in parts if name is not None]
    if not names or not all(names) or any(form or conversion for _, _, form, conversion in parts):
        raise ArgumentError(
            f'a prompt template has the names of columns in braces, as "Classify: {{text}}", and {{{{ for a brace; got '
            f"{show(template)}"
        )


def _body(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body of a line of OpenAI's format."""
    url, method, body = record.get("url", URL), record.get("method", "POST"), record["body"]
    if url != URL or method != "POST":
        raise ArgumentError(f"gen answers POST {URL} alone, got {show(method)} {show(url)}")
    if not isinstance(body, dict):
        raise ArgumentError(f"body must be an object, got {show(body)}")
    return body


def _prompt(record: Mapping[str, Any], template: str | None) -> Any:
    if template is not None:
        return "".join(
            text + ("" if name is None else _column(record, name)) for text, name, _, _ in Formatter().parse(template)
        )
    given = [name for name in ("prompt", "messages") if _given(record, name)]
    if len(given) != 1:
        others = [str(name) for name, value in record.items() if value is not None]
        has = "both" if given else f"neither, but {', '.join(others) or 'nothing'}"
        raise ArgumentError(f"a row has a prompt or messages; this one has {has}. Or give a prompt template.")
    prompt = record[given[0]]
    messages = isinstance(prompt, list) and bool(prompt) and all(isinstance(one, dict) for one in prompt)
    if messages != (given[0] == "messages") or not isinstance(prompt, str | list):
        wanted = "a list of messages" if given[0] == "messages" else "a text or a list of token ids"
        raise ArgumentError(f"{given[0]} must be {wanted}, got {show(prompt)}")
    return prompt


def _column(record: Mapping[str, Any], name: str) -> str:
    if name not in record:
        raise ArgumentError(f"the prompt template asks for {name!r}, the row has {', '.join(map(str, record))}.")
    if record[name] is None:
        raise ArgumentError(f'the prompt template asks for {name!r}, which is null; give "" to put nothing there.')
    value = record[name] if isinstance(record[name], bytes) else plain(record[name])
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        problem = f"the prompt template asks for {name!r}, which has no form in JSON: {show(value)}"
        raise ArgumentError(problem) from None


def _given(record: Mapping[str, Any], name: str) -> bool:
    """Whether a row has a value; an empty column of a CSV is no value, unless it is the prompt."""
    return record.get(name) is not None and (name == "prompt" or record[name] != "")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return value
    raise ArgumentError(f"{name} must be a whole number at least 0 and below 2**63, got {show(value)}")
