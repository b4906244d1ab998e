"""Lines of OpenAI's batch format: read as `gen serve` reads its requests, and answered as it answers them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import gen
from gen.calls.call import Call
from gen.loop.jobs import Job
from gen.loop.results.events import Events
from gen.models.base import Model
from gen.offline.executors.progress import say
from gen.offline.folder import Manifest, Result, request_id
from gen.offline.rows import Row
from gen.requests.settings import Settings
from gen.samplers import MultinomialSampler, Sampler
from gen.server.errors import in_openai_form, refused, told
from gen.server.protocols.chat import ChatBody, read_chat, whole_chat
from gen.server.texts import Ended


@dataclass(frozen=True, kw_only=True)
class ReadBody:
    """A body that was read.

    Attributes:
        fields: its fields.
        messages: its conversation.
        output_type: its output type; None if it has none.
        settings: its own settings, in the form of `Settings`.
        copies: how often each text is written: several times if the body asks a sampler that does not draw for n texts.
        called: the finish_reason of texts that end with calls of tools.
    """

    fields: ChatBody
    messages: Any
    output_type: Any
    settings: Mapping[str, Any]
    copies: int
    called: str


def read_body(model: Model, body: Mapping[str, Any], usual: Sampler | None, known: set[str]) -> ReadBody:
    """Read the body of a line.

    Args:
        usual: the job's sampler.
        known: unknown fields that were reported already; newly reported ones are added.
    """
    fields = ChatBody.read(body)
    for name in ("stream", "prompt_logprobs", "return_receipt"):
        if (given := getattr(fields, name)) is not None and given is not False:
            raise refused(f"{name} is for gen serve, and jobs have no such answers; leave it out.", name)
    for name in {*fields.ignored} - known:
        known.add(name)
        say(f"bodies have a field {name!r}, which nobody knows; it is left out.")
    asked, called = read_chat(model, fields, math.inf)
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
    return ReadBody(
        fields=fields,
        messages=asked.prompts[0],
        output_type=asked.output_type,
        settings=own | {"sampler": sampler, "shorten": True, "local_files": False, "limits_thoughts": True},
        copies=copies,
        called=called,
    )


def answer_of(manifest: Manifest, row: Row, body: ReadBody, call: Call, job: Job, model: Model) -> Result:
    """The line of a row's answer. It follows from the row and the manifest, so that equal parts are equal bytes."""
    request = job.request
    ended = [
        Ended(made, Events(request, job.told_of_prompt).whole(made)) for made in call.completions(job)
    ] * body.copies
    whole = whole_chat(model.tokenizer, body.fields, ended, len(request.prompt_ids), body.called)
    del whole["usage"]["prompt_tokens_details"]  # which tokens were read before depends on the rows beside this one
    calls = [call for choice in whole["choices"] for call in choice["message"].get("tool_calls", ())]
    for number, one in enumerate(calls):
        one["id"] = "call_" + blake2b(f"{row.id}\0{number}".encode(errors="surrogatepass"), digest_size=12).hexdigest()
    head = {
        "id": f"chatcmpl-{row.id}",
        "created": manifest.created,
        "model": manifest.settings["model"],
        "system_fingerprint": f"gen-{gen.__version__}",
    }
    return _line(row, 200, head | whole)


def refusal_of(row: Row, error: Exception) -> Result:
    """The line of a row that gets no answer."""
    refusal = told(error, ChatBody.words(row.body or {}))
    return _line(row, refusal.status, in_openai_form(refusal))


def _line(row: Row, status: int, body: Mapping[str, Any]) -> Result:
    response = {"status_code": status, "request_id": request_id(row), "body": body}
    return {"id": request_id(row), "custom_id": row.id, "response": response, "error": None}
