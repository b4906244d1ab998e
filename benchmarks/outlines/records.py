"""Orders that are read from e-mails, one at a time, by gen and by Outlines 1.3 with transformers, both with defaults.

    python -m benchmarks.outlines.records --model models/SmolLM2-135M-Instruct --records 50

Both load the model as they do if they are not told how, get the same prompts through its chat template, the same type,
compiled once before, and the same limit, since transformers' default of 20 tokens is too small for a record. Of a
float16 checkpoint, transformers computes in float16 on a CPU too, and `gen` in float32 with float16 weights; --dtype
and --peer-dtype name another one. If the checkpoint says nothing about sampling, as SmolLM2's does not, transformers
takes the most likely token and `gen` draws; with --greedy both take the most likely one. Draws have the record's number
as their seed. Times are CPU seconds of the calling thread, on one thread, for whole calls: prompts count too. The two
take turns, record after record. Each has its own order of fields and its own whitespace, so tokens are counted.
"""

from collections.abc import Callable
from random import Random
from statistics import median
from time import thread_time
from typing import Any, Literal

from pydantic import BaseModel, Field

import gen
from benchmarks.measuring import REAL, interleave, publish, read_arguments

LIMIT = 128
NAMES = ("Maria Keller", "Tom Hughes", "Aiko Tanaka", "Pedro Alvarez", "Lena Fischer", "Samuel Okoro", "Ines Duarte")
CITIES = ("Basel", "Leeds", "Osaka", "Madrid", "Hamburg", "Lagos", "Lisbon", "Brno")
ITEMS = ("desk lamp", "garden chair", "coffee mug", "rain coat", "travel bag", "wall clock", "cotton shirt")
COLOURS = ("red", "green", "blue", "black")
LETTERS = (
    "Hello, this is {name} from {city}. Please send me {count} {size} {colour} {item}s.",
    "I would like to order {count} of the {colour} {item} in {size}. Deliver to {city}. Regards, {name}",
    "{name} here. We need {count} {item}s, {colour}, size {size}, at our shop in {city}.",
)


class Order(BaseModel):
    customer: str = Field(max_length=40)
    city: str = Field(max_length=40)
    item: str = Field(max_length=40)
    colour: Literal["red", "green", "blue", "black"]
    size: Literal["small", "medium", "large"]
    count: int = Field(ge=1, le=99)


def prompts(count: int) -> list[str]:
    """E-mails that order something, the same in each run."""
    draw = Random(0)
    letters = [
        draw.choice(LETTERS).format(
            name=draw.choice(NAMES),
            city=draw.choice(CITIES),
            item=draw.choice(ITEMS),
            colour=draw.choice(COLOURS),
            size=draw.choice(("small", "medium", "large")),
            count=draw.randint(2, 40),
        )
        for _ in range(count)
    ]
    return [f"Read the order as JSON with customer, city, item, colour, size and count.\n\n{one}" for one in letters]


def measure(
    folder: str, records: int, *, greedy: bool, dtype: str | None = None, peer_dtype: str | None = None
) -> dict[str, Any]:
    """Seconds and tokens a record, of each program; `greedy`: gen takes the most likely token too."""
    from outlines import Generator, from_transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = gen.load(folder, device="cpu", dtype=dtype)
    kind = gen.compile(model, Order)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    peer = AutoModelForCausalLM.from_pretrained(folder, **({"dtype": peer_dtype} if peer_dtype else {}))
    generator: Any = Generator(from_transformers(peer, tokenizer), Order)
    letters = ["Read: one red mug.", *prompts(records)]  # the first one warms up
    ours, theirs, made, texts = enumerate(letters), iter(letters), list[Any](), list[str]()
    sampler = gen.samplers.greedy() if greedy else None
    cases: dict[str, Callable[[], None]] = {
        "gen": lambda: made.append(_read(model, kind, sampler, *next(ours))),
        "Outlines": lambda: texts.append(generator(next(theirs), max_new_tokens=LIMIT)),
    }
    seconds = interleave(cases, records, clock=thread_time)
    del made[0], texts[0]
    values = {"gen": [one.value for one in made], "Outlines": [*map(_record, texts)]}
    tokens = {
        "gen": sum(len(one.token_ids) for one in made),
        "Outlines": sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts),
    }
    rows = [
        {
            "program": name,
            "seconds a record": round(sum(took) / records, 3),
            "median": round(median(took), 3),
            "tokens a record": round(tokens[name] / records, 1),
            "whole": sum(isinstance(value, Order) for value in values[name]),
        }
        for name, took in seconds.items()
    ]
    return {
        "records": records,
        "models": {"gen": repr(model), "Outlines": str(peer.dtype)},
        "gen": "takes the most likely token" if greedy else "draws",
        "results": rows,
        "gen of Outlines": round(sum(seconds["gen"]) / sum(seconds["Outlines"]), 3),
        "the same tokens' worth": round(
            sum(seconds["gen"]) / tokens["gen"] / (sum(seconds["Outlines"]) / tokens["Outlines"]), 3
        ),
        "equal values": sum(one == other for one, other in zip(*values.values(), strict=True)),
        "drafts read, right": [sum(one.drafted for one in made), sum(one.accepted for one in made)],
    }


def _read(model: Any, kind: Any, sampler: Any, seed: int, prompt: str) -> Any:
    """What `gen` makes of an e-mail; the text that the limit has cut or shaped too, as Outlines gives it."""
    try:
        return gen.generate(
            model, prompt, kind, chat=True, sampler=sampler, seed=seed, max_new_tokens=LIMIT, details=True
        )
    except gen.IncompleteError as error:
        return error.completion


def _record(text: str) -> Order | None:
    """The order in a text; None if the text was cut."""
    try:
        return Order.model_validate_json(text)
    except ValueError:
        return None


def main() -> None:
    given = read_arguments(
        __doc__,
        model=str(REAL),
        records=50,
        greedy=(False, "gen takes the most likely token too, instead of drawing"),
        dtype=(str, "of gen's model; its own choice if not given"),
        peer_dtype=(str, "of transformers' model; its own choice if not given"),
    )
    how = {"greedy": given.greedy, "dtype": given.dtype, "peer_dtype": given.peer_dtype}
    publish(given, **measure(given.model, given.records, **how))


if __name__ == "__main__":
    main()
