"""Reads a receipt back into the request that made its text."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gen import samplers
from gen.completions import Receipt
from gen.constraints.compiling import carry_out
from gen.constraints.composing.thoughts import thought_automaton
from gen.constraints.constraint import Constraint
from gen.constraints.plans import of_key
from gen.constraints.tables.vocabulary import vocabulary_of
from gen.errors import ArgumentError, GenError, show
from gen.loop.prefixes.columns import common
from gen.models.base import Model
from gen.receipts import versions
from gen.receipts.writing import model_facts
from gen.requests.images import Illustrated, read_image
from gen.requests.prompts import vocabulary
from gen.requests.request import Request, Thinking
from gen.requests.settings import read_stops
from gen.samplers.base import Sampler
from gen.samplers.kinds import NAMES
from gen.tokens.thoughts import Marks


def read_receipt(model: Model, receipt: Receipt, number: int = 0) -> Request:
    """The request of a receipt's text: a call of it alone makes the text again.

    Args:
        number: which receipt it is, for errors.
    Raises:
        ArgumentError: the receipt is not whole, or not for a model like this.
        ConstraintError: neither engine can enforce its output type here.
    """
    known, tokens = vocabulary(model), [*receipt.prompt_ids, *receipt.token_ids]
    own = tokens if receipt.images is None else receipt.token_ids  # images may have tokens that no tokenizer has
    if not receipt.prompt_ids or max(own, default=0) >= known:
        raise ArgumentError(
            f"receipt {number}: its tokens must be at least one of a prompt, and below {known}, as this model's "
            f"tokenizer has them; the largest is {max(own, default='missing')}."
        )
    if len(tokens) > model.context_length:
        raise ArgumentError(
            f"receipt {number} has {len(tokens)} tokens, the context of this model {model.context_length}."
        )
    try:
        return _read(model, receipt, number)
    except GenError as error:
        raise type(error)(f"receipt {number}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"receipt {number} is not whole: {error!r}") from error


def listed(function: str, given: object) -> list[Receipt]:
    """The receipts that a function was given, one or a list. Raises an ArgumentError if they are something else."""
    found: list[Any] = [given]
    if isinstance(given, Sequence | Iterator) and not isinstance(given, str | bytes):
        found = list(given)
    for one in found:
        if not isinstance(one, Receipt):
            raise ArgumentError(f"{function} takes receipts, as gen.Receipt.load gives them, got {show(one)}")
    return found


def changes(model: Model, receipt: Receipt) -> dict[str, tuple[Any, Any]]:
    """What a receipt says of the model and the versions that is not so now, by name: what it was, and what it is."""
    return unlike({**receipt.model, **receipt.versions}, {**model_facts(model), **versions()})


def unlike(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The values that are not the same, by name: what each was, and what it is; None where there is none."""
    return {name: (then.get(name), now.get(name)) for name in {**then, **now} if then.get(name) != now.get(name)}


def read_sampler(given: Mapping[str, Any]) -> Sampler:
    """The sampler of a receipt."""
    name, told = given["name"], {key: value for key, value in given.items() if key != "name"}
    if name not in NAMES.values():
        raise ArgumentError(f"{show(name)} is no sampler that this version of gen knows.")
    if "logit_bias" in told:
        told["logit_bias"] = {key: float("-inf") if bias is None else bias for key, bias in told["logit_bias"]}
    made: Sampler = getattr(samplers, name)(**told)
    return made


def _read(model: Model, receipt: Receipt, number: int) -> Request:
    settings = receipt.settings
    constraint = None if receipt.output_type is None else carry_out(model, of_key(receipt.output_type))
    sampler = read_sampler(receipt.sampler)
    stops = [one if isinstance(one, str) else re.compile(one["regex"], one["flags"]) for one in settings["stops"]]
    texts = model.tokenizer.special_tokens
    marks = None if settings["thoughts"] is None else Marks(**settings["thoughts"])
    return Request(
        prompt_ids=list(receipt.prompt_ids),
        sampler=sampler,
        seeds=(receipt.seed,),
        limit=settings["limit"],
        bound=settings["bound"],
        stops=read_stops(stops),
        include_stop=settings["include_stop"],
        eos_token_ids=tuple(settings["eos_token_ids"]),
        stop_token_ids=frozenset(settings["stop_token_ids"]),
        bad_words=tuple(map(tuple, receipt.sampler.get("bad_words", ()))),
        shown=frozenset(settings["shown"]),
        hidden={one: texts[one] for one in settings["hidden"] if one in texts},
        thoughts=marks,
        thinks=settings["thinks"],
        thinking=_thinking(model, settings, marks, constraint),
        illustrated=None if receipt.images is None else _illustrated(model, receipt, receipt.images),
        constraint=constraint,
        shorten=settings["shorten"],
        number=number,
        sample=receipt.sample,
    )


def _illustrated(model: Model, receipt: Receipt, given: Mapping[str, Any]) -> Illustrated:
    """The prompt with its images; the model must encode it as it did."""
    if not model.reads_images:
        raise ArgumentError("its prompt has images, and this model reads none.")
    images = [read_image(url, f"image {at}", local_files=False) for at, url in enumerate(given["images"])]
    text, special = given["text"], given["add_special_tokens"]
    token_ids, inputs = model.encode(text, images, add_special_tokens=special)
    same, rest = common(token_ids, receipt.prompt_ids), receipt.prompt_ids[len(token_ids) :]
    # a chat's prompt may begin or close a thought after its text
    if same < min(len(token_ids), len(receipt.prompt_ids)) or max(rest, default=0) >= vocabulary(model):
        raise ArgumentError(
            f"this model's processor makes {len(token_ids)} tokens of the prompt and its images, and others than the "
            f"{len(receipt.prompt_ids)} that the text came after."
        )
    return Illustrated(text=text, images=images, add_special_tokens=special, inputs=inputs)


def _thinking(
    model: Model, settings: Mapping[str, Any], marks: Marks | None, constraint: Constraint | None
) -> Thinking | None:
    told = settings["thinking"]
    if told is None or marks is None:
        return None
    grammar = None if constraint is None else constraint.grammar
    must = settings["thinks"] is True and not marks.begun
    automaton = thought_automaton(vocabulary_of(model), constraint, marks, must=must)
    automaton.place(model.placement.logits_device)
    return Thinking(automaton=automaton, most=told["most"], room=told["room"], grammar=grammar)
