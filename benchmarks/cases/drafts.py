"""Random calls whose steps read drafts: greedy, drawn, penalties, stops, types, samples, engines whose requests join.
Each text is compared with that of plain steps; widths are drawn, whatever they cost. Where a token is another one,
`gen.verify` says whether both texts are near ties, so that rounding may be the cause.
"""

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from pydantic import BaseModel

import gen
from benchmarks.cases import random_sampler
from benchmarks.corpus.models import model
from gen.completions import Completion
from gen.loop.speculation.widths import WIDER, Widths


class Order(BaseModel):
    customer: str
    item: str
    colour: Literal["red", "green", "blue", "black"]
    size: Literal["small", "large"] | None
    count: int


MODELS = ("demo", "demo", "mistral", "qwen3", "mixtral", "gemma3_text", "gpt2")
_EACH = ("sampler", "seed", "max_new_tokens", "draft")  # settings that have a value for each prompt
Outcome = list[Completion] | str
BEGINNINGS = (
    "Once upon a time",
    "Describe Ada as JSON.\n",
    "The quick brown fox. The quick brown fox. The quick",
    "def f(x):\n    return x\ndef f(y):\n",
    "A",
    "Tom said: hello hello hello hello",
)


@dataclass(frozen=True)
class Difference:
    """A text that differs from that of plain steps.

    Attributes:
        place: the first token that differs; the texts' length if they differ in something else; -1 for errors.
        plain, drafted: how each text goes on from there: tokens, log-probabilities, and why it ended.
        near_tie: whether rounding may be the cause of another token.
    """

    place: int
    plain: tuple[object, ...]
    drafted: tuple[object, ...]
    near_tie: bool = False


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[Difference]]]:
    """The demo model and tiny ones with windows, shared keys and experts, or the given one."""
    loaded = gen.load(given.model, dtype=given.dtype) if given.model else None

    def check(seed: int) -> tuple[Counter[str], list[Difference]]:
        own = loaded or model(MODELS[seed % len(MODELS)])
        found, differences = compare_case(own, seed, longest=given.longest or 30, drafts=given.kind == "drafts")
        counts = Counter(texts=len(found), tokens=sum(len(one.token_ids) for one in found))
        counts["drafts read"] = sum(one.drafted for one in found)
        counts["drafts right"] = sum(one.accepted for one in found)
        counts["near-ties"] = sum(one.near_tie for one in differences)
        return counts, [one for one in differences if not one.near_tie]

    return check


@contextmanager
def any_widths(random: Random, *, wider: bool = False) -> Iterator[None]:
    """In the block, widths are drawn at random, whatever they cost; `wider` ones too."""
    choose, looks = Widths.choose, Widths.looks

    def drawn(self: Widths, count: int, texts: object) -> int:
        width: int = random.choice([1, 4, 8, *(WIDER if wider else ())])
        return width if width > 8 else min(width, self.widest)

    Widths.choose, Widths.looks = drawn, lambda self, rows: True  # type: ignore[method-assign]
    try:
        yield
    finally:
        Widths.choose, Widths.looks = choose, looks  # type: ignore[method-assign]


def compare_case(
    model: Any, seed: int, *, longest: int = 30, drafts: bool = False
) -> tuple[list[Completion], list[Difference]]:
    """The texts of a random call, or of an engine's requests, and those that differ from texts of plain steps.

    Args:
        drafts: whether prompts come with drafts: the right text, or a wrong, shortened or foreign one.
    """
    random = Random(seed)
    count = random.choice([1, 3, 6, 12])
    most = 3 if model.context_length >= 512 else 1
    prompts = [" ".join(random.choices(BEGINNINGS, k=random.randint(1, most))) for _ in range(count)]
    if most > 1 and random.random() < 0.2:  # gives a row memory of its own
        prompts[random.randrange(count)] = " ".join(random.choices(BEGINNINGS, k=9))
    penalised, samples = random.choice([0.0, 0.0, 0.6]), random.choice([1, 1, 1, 3])
    samplers = [random_sampler(random, samples, penalised=penalised) for _ in range(count)]
    if random.random() < 0.4:
        samplers = samplers[:1] * count
    types: list[Any] = [
        None,
        None,
        None,
        Order,
        gen.regex(r"(yes|no), (19|20)\d\d-[01]\d"),
        list[Literal["red", "green"]],
    ]
    output_type = random.choice(types)
    least = 1
    if output_type is not None:
        output_type = gen.compile(model, output_type)
        least = output_type.least_tokens or 1
    limits = [random.randint(least, least + longest) for _ in prompts]
    settings: dict[str, Any] = {
        "sampler": samplers,
        "seed": [random.randrange(2**30) for _ in prompts],
        "max_new_tokens": limits,
        "stop": random.choice([["."], ["\n", " and"], None, None]) if least == 1 else None,
        "shorten": True,
    }
    speculation = gen.Speculation(prompt=random.random() < 0.8, most=random.choice([1, 2, 3, 5, 7, 7]))
    if random.random() < 0.2:
        settings["top_logprobs"] = random.choice([0, 2, 5])
    plain = _run(model, prompts, output_type, settings, False)
    given = {"draft": [_draft(random, plain, number) for number in range(count)]} if drafts else {}
    wider = drafts and model.placement.logits_device.type == "cpu"  # elsewhere no step is wider
    with any_widths(random, wider=wider) if not drafts or random.random() < 0.5 else nullcontext():
        through = random.random() < 0.3 and all(sampler.samples == 1 for sampler in samplers)
        run = _through_an_engine if through else _run
        drafted = run(model, prompts, output_type, settings | given, speculation)
    made, differences = list[Completion](), list[Difference]()
    for these, others in zip(plain, drafted, strict=True):
        if isinstance(these, str) or isinstance(others, str):  # the same error, after as many tokens
            differences += [Difference(-1, (these,), (others,))] if these != others else []
            continue
        made += others
        for one, other in zip(these, others, strict=True):
            place = _first_difference(one, other)
            if place is not None:
                receipts = [one.receipt, other.receipt] if one.token_ids != other.token_ids else []
                kinds = {found.kind for found in gen.verify(model, receipts)}
                near_tie = "near tie" in kinds and "different" not in kinds
                differences.append(Difference(place, _from(one, place), _from(other, place), near_tie))
    return made, differences


def _draft(random: Random, plain: list[Outcome], number: int) -> Any:
    """A draft for a prompt, made of its text or of another one's."""
    kind = random.choice(["right", "right", "text", "shortened", "foreign", "edited", "edited", "wrong", None])
    found = plain[random.randrange(len(plain)) if kind == "foreign" else number]
    if isinstance(found, str) or kind is None:
        return None
    token_ids = found[0].token_ids
    if kind in ("right", "text"):
        return found[0] if kind == "right" else found[0].text
    if kind == "shortened":
        first = random.randrange(len(token_ids) + 1)
        return token_ids[first : random.randint(first, len(token_ids))]
    if kind == "edited":
        first = random.randrange(len(token_ids) + 1)
        more = random.choices(token_ids or [1], k=random.randrange(4))
        return [*token_ids[:first], *more, *token_ids[first + random.randrange(4) :]]
    return random.choices(range(200), k=len(token_ids)) if kind == "wrong" else token_ids


def _run(model: Any, prompts: list[str], output_type: Any, settings: dict[str, Any], speculate: Any) -> list[Outcome]:
    found: Any = gen.generate(
        model, prompts, output_type, details=True, speculate=speculate, errors="return", **settings
    )
    return [_outcome(one) for one in found]


def _outcome(found: Any) -> Outcome:
    """A prompt's texts, or the message of its error without the prompt's name."""
    if isinstance(found, Exception):
        return re.sub(r"^prompt \d+", "", str(found))
    return found if isinstance(found, list) else [found]


def _through_an_engine(
    model: Any, prompts: list[str], output_type: Any, settings: dict[str, Any], speculate: Any
) -> list[Outcome]:
    with gen.Engine(model, rows=4, admit_tokens=16, speculate=speculate) as engine:
        streams = []
        for number, prompt in enumerate(prompts):
            own = {name: value[number] if name in _EACH else value for name, value in settings.items()}
            streams.append(engine.submit(prompt, output_type, **own))
        outcomes = list[Outcome]()
        for stream in streams:
            try:
                outcomes.append([stream.completion()])
            except gen.GenError as error:
                outcomes.append(_outcome(error))
        return outcomes


def _first_difference(plain: Completion, drafted: Completion) -> int | None:
    """The first token at which two texts differ, or their log-probabilities by more than rounding; None for none."""
    pairs = zip(plain.token_ids, drafted.token_ids, strict=False)
    told = zip(_logprobs(plain), _logprobs(drafted), strict=False)
    for place, ((one, other), numbers) in enumerate(zip(pairs, told, strict=False)):
        if one != other or any(not abs(a - b) <= 1e-4 for a, b in zip(*numbers, strict=True)):
            return place
    same = _without_numbers(plain) == _without_numbers(drafted)
    return None if same else min(len(plain.token_ids), len(drafted.token_ids))


def _without_numbers(text: Completion) -> Completion:
    return replace(text, logprobs=[0.0] * len(text.logprobs), score=0.0, top_logprobs=None)


def _logprobs(text: Completion) -> list[list[float]]:
    """All log-probabilities of each token; top tokens are compared by rank, since equal ones may change places."""
    if text.top_logprobs is None:
        return [[logprob] for logprob in text.logprobs]
    told = zip(text.logprobs, text.top_logprobs, strict=True)
    return [[own, one.logprob, *(value for value in one.logprobs if value > -50)] for own, one in told]


def _from(text: Completion, place: int) -> tuple[object, ...]:
    return text.token_ids[place : place + 3], text.logprobs[place : place + 3], text.finish_reason
