"""What a step within a thought takes, over one of plain text, and one of an answer of a type after a thought, over one
without: in CPU seconds, in turns.

    python -m benchmarks.thoughts --rounds 9 --model demo

`benchmarks.cases thoughts` compares the texts.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gen
from benchmarks.measuring import interleave, publish, ratio, read_arguments

STEPS = 96


def main() -> None:
    given = read_arguments(__doc__, model="demo", rounds=9)
    publish(given, rounds=given.rounds, **steps(gen.load(given.model), given.rounds))


def steps(model: Any, rounds: int) -> dict[str, Any]:
    """The CPU time of a step, with a thought and without: of plain text, and of an answer."""
    template = model.tokenizer.chat_template()
    model.tokenizer.use_chat_template(template + "{{ '<think>\\n' }}{# '</think>' #}")
    letters = gen.regex(f"[a-z ]{{{STEPS}}}")
    answer: dict[str, Any] = {"chat": True, "details": True, "sampler": gen.samplers.greedy(), "speculate": False}
    made: dict[str, list[int]] = {}

    def case(name: str, kind: Any, **given: Any) -> Callable[[], object]:
        def run() -> None:
            one: Any = gen.generate(model, "What is the weather like?", kind, **answer, **given)
            made[name] = one.token_ids

        return run

    cases = {
        "plain": case("plain", None, thinking=False, max_new_tokens=STEPS, eos_token_id=[]),
        "thought": case("thought", None, thinking=STEPS, max_new_tokens=1, eos_token_id=[]),
        "answer": case("answer", letters, thinking=False),
        "answer after a thought": case("answer after a thought", letters, thinking=1),
    }
    seconds = interleave(cases, rounds, clock=time.process_time)
    each = {name: [one / len(made[name]) for one in seconds[name]] for name in cases}
    return {
        "tokens": {name: len(made[name]) for name in cases},
        "milliseconds of a step": {name: round(1000 * median(each[name]), 3) for name in cases},
        "a thought's step over a plain one": round(ratio(each["thought"], each["plain"]), 3),
        "an answer's step after a thought over one without": round(
            ratio(each["answer after a thought"], each["answer"]), 3
        ),
    }


if __name__ == "__main__":
    main()
