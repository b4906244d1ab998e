"""What is written of a row's completions: gen's own form, and that of OpenAI's chat/completions."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gen.errors import ConstraintError
from gen.offline.inputs.rows import Row
from gen.offline.manifest import Manifest
from gen.offline.parts import Result, carried, request_id

if TYPE_CHECKING:
    from gen.completions import Completion
    from gen.models.base import Model


def result_of(row: Row, completions: Sequence["Completion"], *, several: bool, typed: bool) -> Result:
    """A row's result.

    Args:
        several: whether a list of texts was asked for.
        typed: whether an output type was.
    """
    result: Result = {"id": row.id}
    told = [_told(completion, typed) for completion in completions]
    if several:
        names = {"text": "texts", "value": "values", "finish_reason": "finish_reasons", "top_logprobs": "top_logprobs"}
        result |= {plural: [one[name] for one in told] for name, plural in names.items() if name in told[0]}
    else:
        result |= told[0]
    result |= {"tokens": sum(len(one.token_ids) for one in completions), "seed": completions[0].seed}
    return result | carried(row)


def _told(completion: "Completion", typed: bool) -> Result:
    told: Result = {"text": completion.text}
    if typed:
        from pydantic_core import to_jsonable_python

        told["value"] = to_jsonable_python(completion.value, inf_nan_mode="null")
    told["finish_reason"] = completion.finish_reason
    if completion.top_logprobs is not None:
        told["top_logprobs"] = [asdict(one) for one in completion.top_logprobs]
    return told


def answer_of(
    manifest: Manifest, row: Row, completions: Sequence["Completion"], prompt_tokens: int, model: "Model"
) -> Result:
    """A row's result as a line of OpenAI's batch format."""
    made = sum(len(one.token_ids) for one in completions)
    choices = [_choice(index, completion, model) for index, completion in enumerate(completions)]
    body = {
        "id": f"chatcmpl-{row.id}",
        "object": "chat.completion",
        "created": manifest.created,
        "model": manifest.settings["model"],
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": made,
            "total_tokens": prompt_tokens + made,
        },
    }
    response = {"status_code": 200, "request_id": request_id(row), "body": body}
    return {"id": request_id(row), "custom_id": row.id, "response": response, "error": None}


def _choice(index: int, completion: "Completion", model: "Model") -> Result:
    logprobs = None
    if completion.top_logprobs is not None:
        pairs = zip(completion.token_ids, completion.top_logprobs, strict=True)
        logprobs = {"content": [_token(model, token_id, top) for token_id, top in pairs], "refusal": None}
    return {
        "index": index,
        "message": {"role": "assistant", "content": completion.text, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": "length" if completion.finish_reason == "length" else "stop",
    }


def _token(model: "Model", token_id: int, top: Any) -> Result:
    others = [_named(model, *one) for one in zip(top.token_ids, top.logprobs, strict=True)]
    return {**_named(model, token_id, top.logprob), "top_logprobs": others}


def _named(model: "Model", token_id: int, logprob: float) -> Result:
    try:
        data = [*model.tokenizer.token_bytes(token_id)]
    except ConstraintError:  # of a tokenizer that does not tell
        data = None
    return {"token": model.tokenizer.decode([token_id]), "logprob": max(logprob, -9999.0), "bytes": data}
