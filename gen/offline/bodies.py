"""Lines of OpenAI's batch format: read as `gen serve` reads its requests, and answered as it answers them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from gen.calls.call import Call
from gen.completions import Completion
from gen.loop.jobs import Job
from gen.loop.results.events import Events
from gen.loop.results.values import valued
from gen.models.base import Model
from gen.offline.executors.progress import say
from gen.offline.folder import Manifest, Result, request_id
from gen.offline.rows import Row
from gen.requests.request import Request
from gen.requests.settings import Settings
from gen.samplers import MultinomialSampler, Sampler
from gen.server.errors import in_openai_form, refused, told
from gen.server.protocols.chat import ChatBody, ChatWriter
from gen.server.texts import WITHOUT_VALUE, Ended

_WITHOUT = {"receipts": "receipts", "prompt_template": "prompt of the template: they have their own"}


@dataclass(frozen=True, kw_only=True)
class ReadBody:
    """A body that was read.

    Attributes:
        writer: writes its answer.
        settings: its own settings, in the form of `Settings`.
        copies: how often each text is written: several times if the body asks a sampler that does not draw for n texts.
    """

    writer: ChatWriter
    settings: Mapping[str, Any]
    copies: int


def read_body(
    model: Model, settings: Mapping[str, Any], body: Mapping[str, Any], usual: Sampler | None, known: set[str]
) -> ReadBody:
    """Read the body of a line.

    Args:
        settings: the job's, which decide what the body leaves out.
        usual: the job's sampler.
        known: fields that change nothing and were reported already; newly reported ones are added.
    """
    fields = ChatBody.read(body)
    for name in ("stream", "prompt_logprobs", "return_receipt"):
        if (given := getattr(fields, name)) is not None and given is not False:
            raise refused(f"{name} is for gen serve, and jobs have no such answers; leave it out.", name)
    for name, words in _WITHOUT.items():
        if settings.get(name) and f"--{name}" not in known:
            known.add(f"--{name}")
            say(f"lines of OpenAI's format get no {words}.")
    alone = fields.model_fields_set & {"cache_salt", "priority"}  # a job has its rows for itself
    for name in sorted({*fields.ignored, *alone} - known):
        known.add(name)
        say(f"bodies have a field {name!r}, which changes nothing; it is left out.")
    if (top := settings["top_logprobs"]) is not None and not {"logprobs", "top_logprobs"} & fields.model_fields_set:
        fields = fields.model_copy(update={"logprobs": True, "top_logprobs": top})
    writer = ChatWriter(model, fields, settings["model"], math.inf)
    asked = writer.asked
    sampler = fields.sampler(model, usual)
    copies = fields.n
    if isinstance(sampler, MultinomialSampler):
        samples, copies = fields.n if "n" in fields.model_fields_set else sampler.samples, 1
        sampler = replace(sampler, samples=samples)
    given = asked.arguments | {"max_new_tokens": asked.cap, "seed": asked.seed}
    said = {name for name in fields.model_fields_set if getattr(fields, name) is not None}
    own = {
        name: value
        for name, value in given.items()
        if value != getattr(Settings, name, value) or (value is not None and said & {*fields.renamed.get(name, [name])})
    }
    if "chat_template_kwargs" in own:
        own["chat_template_kwargs"] = {**(settings["chat_template_kwargs"] or {}), **own["chat_template_kwargs"]}
    return ReadBody(
        writer=writer,
        settings=own | {"sampler": sampler, "shorten": True, "local_files": False, "limits_thoughts": True},
        copies=copies,
    )


def answer_of(manifest: Manifest, row: Row, body: ReadBody, call: Call, job: Job) -> Result:
    """The line of a row's answer. It follows from the row and the manifest, so that equal parts are equal bytes."""
    request = job.request
    completions = [_with_value(request, made) for made in call.completions(job)]
    ended = [Ended(made, Events(request, job.told_of_prompt).whole(made)) for made in completions] * body.copies
    whole = body.writer.whole(ended, len(request.prompt_ids))
    del whole["usage"]["prompt_tokens_details"]  # which tokens were read before depends on the rows beside this one
    calls = [call for choice in whole["choices"] for call in choice["message"].get("tool_calls", ())]
    for number, one in enumerate(calls):
        one["id"] = "call_" + blake2b(f"{row.id}\0{number}".encode(errors="surrogatepass"), digest_size=12).hexdigest()
    return _line(row, 200, whole | {"id": f"chatcmpl-{row.id}", "created": manifest.created})


def _with_value(request: Request, made: Completion) -> Completion:
    """A text with its value, if it has one."""
    try:
        return valued(request, made)
    except WITHOUT_VALUE as error:
        return error.completion


def refusal_of(row: Row, error: Exception) -> Result:
    """The line of a row that gets no answer."""
    refusal = told(error, ChatBody.words(row.body or {}))
    return _line(row, refusal.status, in_openai_form(refusal))


def _line(row: Row, status: int, body: Mapping[str, Any]) -> Result:
    response = {"status_code": status, "request_id": request_id(row), "body": body}
    return {"id": request_id(row), "custom_id": row.id, "response": response, "error": None}
