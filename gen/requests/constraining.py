"""Gives each prompt's text its constraint, and checks that there is room for a whole text."""

from dataclasses import replace
from typing import Any

from gen.constraints.compiling import carry_out, compile
from gen.constraints.constraint import Constraint
from gen.errors import ArgumentError, ConstraintError
from gen.models.base import Model
from gen.requests.reading import room_in_batch
from gen.requests.request import Request
from gen.requests.truncating import cut_left
from gen.runtime.isolation import isolated


def read_constraints(model: Model, output_type: Any, prompts: int | None) -> list[Constraint | None]:
    """One constraint or None for each prompt; `prompts` is None for one prompt that did not come in a list."""
    types = split_types(output_type, prompts)
    distinct = {id(one): one for one in types}  # a type that several prompts share is compiled once
    made = {key: None if one is None else compile(model, one) for key, one in distinct.items()}
    return [made[id(one)] for one in types]


def split_types(output_type: Any, prompts: int | None) -> list[Any]:
    """The output type of each prompt; `prompts` as for `read_constraints`."""
    if not isinstance(output_type, list | tuple) or prompts is None:
        return [output_type] * (1 if prompts is None else prompts)
    if len(output_type) != prompts:
        raise ConstraintError(
            f"output_type must be one type or one for each of {prompts} prompts, got {len(output_type)}"
        )
    return list(output_type)


def _cut(model: Model, request: Request, least: int, max_batch_tokens: int | None) -> Request:
    """The request with its prompt cut, so that the context has room for `least` new tokens."""
    bos_token_id = model.tokenizer.bos_token_id
    prompt_ids = cut_left(
        request.number, request.prompt_ids, model.context_length, least, bos_token_id=bos_token_id, why=""
    )
    room = least
    if max_batch_tokens is not None:
        room = min(room, max(1, room_in_batch(max_batch_tokens, request.sampler, prompt_ids)))
    return replace(request, prompt_ids=prompt_ids, limit=room)


@isolated
def constrained(
    model: Model, request: Request, constraint: Constraint | None, max_batch_tokens: int | None = None
) -> Request:
    """The request with its constraint, whose tables are on the device of the logits.

    Args:
        max_batch_tokens: as for `gen.requests.reading.read_requests`.
    Raises:
        ArgumentError: a token that ends the text spells characters that the text may need.
        ConstraintError: there is no room for a whole text.
    """
    if constraint is None:
        return request
    thoughts = request.thoughts if constraint.told is not None else None
    if thoughts is not None and thoughts.begun and constraint.told is not None and constraint.told.begun is not None:
        begun = carry_out(model, replace(constraint.told, written=constraint.told.begun))
        constraint = replace(begun, told=constraint.told)
    for token_id in request.eos_token_ids:
        vocabulary = constraint.vocabulary
        if (spelt := vocabulary.tokens[token_id]) and token_id not in vocabulary.names.keys() - constraint.special_ids:
            raise ArgumentError(
                f"eos_token_id {token_id} spells {spelt!r}, which a text of an output type may need; leave it out, or "
                "give the text as stop=."
            )
    least = constraint.least_tokens or 0
    if request.may_be_cut and model.context_length - len(request.prompt_ids) < least < model.context_length - 1:
        request = _cut(model, request, least, max_batch_tokens)
    limit = request.limit
    if least > limit:
        wanted = f"prompt {request.number}: the shortest text of its output type has {least} tokens"
        if request.bound == "context":
            raise ConstraintError(f"{wanted}, the model's context leaves room for {limit}; shorten the prompt.")
        in_batch = max_batch_tokens and room_in_batch(max_batch_tokens, request.sampler, request.prompt_ids)
        if in_batch is not None and limit == max(1, in_batch):
            raise ConstraintError(f"{wanted}, max_batch_tokens leaves room for {in_batch}; give more.")
        raise ConstraintError(f"{wanted}, max_new_tokens is {limit}; give at least {least}.")
    hidden = {token_id: text for token_id, text in request.hidden.items() if token_id not in constraint.special_ids}
    return replace(request, constraint=constraint, hidden=hidden, thoughts=thoughts)
