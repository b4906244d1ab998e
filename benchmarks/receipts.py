"""What verifying recorded texts takes, over what making them takes.

    python -m benchmarks.receipts --model models/SmolLM2-135M-Instruct
    python -m benchmarks.receipts --model models/SmolLM2-135M-Instruct --rounds 0 --texts 32

Times are CPU seconds of one thread, in which making and verifying take turns: one text of 200 tokens in `--rounds`, and
`--texts` of 100 tokens, made one by one and in 32 rows, in a third of the rounds; 0 leaves one out.
`benchmarks.cases verdicts` says how often a verdict is wrong.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from time import process_time
from typing import Any

import gen
from benchmarks.cases.verdicts import WORDS
from benchmarks.measuring import interleave, publish, ratio, read_arguments, span

TOKENS, OF_MANY = 200, 100
DRAWS: dict[str, gen.samplers.Sampler] = {
    "greedy": gen.samplers.greedy(),
    "top-k, top-p": gen.samplers.multinomial(temperature=0.9, top_k=50, top_p=0.9),
}
Row = dict[str, Any]


class Texts:
    """Texts that do not end before their limit, and their receipts."""

    def __init__(self, model: Any, name: str, tokens: int) -> None:
        self._model, self._name, self._tokens = model, name, tokens
        self.receipts: list[gen.Receipt] = []

    def make(self, numbers: Sequence[int], size: int) -> None:
        """Make these texts, so many at once, in the place of those before."""
        self.receipts = []
        for part in (numbers[first : first + size] for first in range(0, len(numbers), size)):
            found = gen.generate(
                self._model,
                [f"{WORDS[number % 8]} {number}" for number in part],
                sampler=DRAWS[self._name],
                max_new_tokens=self._tokens,
                seed=list(part),
                eos_token_id=[],
                details=True,
                speculate=False,
            )
            self.receipts += [one.receipt for one in found]

    def verify(self) -> None:
        kinds = Counter(one.kind for one in gen.verify(self._model, self.receipts))
        assert not kinds["different"], kinds

    def rows(self, ways: Mapping[str, Callable[[], None]], rounds: int, warm: int) -> Iterator[Row]:
        """A row for each way to make them, all in turns with verifying."""
        seconds = interleave({**ways, "verifying": self.verify}, rounds, clock=process_time, warm=warm)
        verifying = seconds.pop("verifying")
        for what, making in seconds.items():
            yield {
                "what": what,
                "sampler": self._name,
                "making s": span("median", making, 4, ("fastest", "slowest")),
                "verifying s": span("median", verifying, 4, ("fastest", "slowest")),
                "ratio": ratio(verifying, making),
            }


def measure(model: Any, rounds: int, texts: int) -> Iterator[Row]:
    """Rows of one text, and of several; of one text the first round, another text each time, does not count."""
    for name in DRAWS if rounds else ():
        one, numbers = Texts(model, name, TOKENS), count()
        yield from one.rows({"one text": lambda one=one, numbers=numbers: one.make([next(numbers)], 1)}, rounds, 1)  # type: ignore[misc]
    if texts:
        many = Texts(model, [*DRAWS][-1], OF_MANY)
        many.make([0], 1)
        many.verify()  # which makes the digest of the weights
        ways = {"one by one": 1, "in 32 rows": 32}
        made = {f"{texts} texts, made {way}": partial(many.make, range(texts), size) for way, size in ways.items()}
        yield from many.rows(made, max(1, rounds // 3), 0)


def main() -> None:
    given = read_arguments(__doc__, model="demo", rounds=6, texts=100)
    publish(given, model=given.model, times=[*measure(gen.load(given.model, device="cpu"), given.rounds, given.texts)])


if __name__ == "__main__":
    main()
