"""Random calls whose prompts begin alike, and engines that keep what was read: trees of shared beginnings, all kinds of
samplers, both engines of constraints, prompts read in parts, salts, pins, and little room for what is kept. Each text
is compared with that of a separate call, in which nothing is shared.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import gen
from benchmarks.corpus.models import new_model
from gen.calls.reading import read_call
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.prefixes import sharing
from gen.loop.prefixes.tree import tree_of
from gen.loop.runner import run_all
from gen.requests.settings import Settings

ARCHITECTURES = (
    *("llama", "gpt2", "bloom", "mpt", "mixtral", "mistral", "gemma3_text", "gemma3n_text", "llama4_text"),
    *("deepseek_v3", "gpt_neo", "qwen3_next", "falcon_h1", "lfm2", "jamba", "zamba2", "nemotron_h", "bamba"),
)
"""Full, sliding, chunked and latent attention, ALiBi, shared keys, experts, aligned rows, hybrids, recurrent layers."""


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """Every second case runs on a tiny model of another architecture, the others on the demo model or the given one."""
    loaded = gen.load(given.model or "demo", device="cpu")

    def check(seed: int) -> tuple[Counter[str], list[str]]:
        architecture = ARCHITECTURES[seed // 2 % len(ARCHITECTURES)] if seed % 2 else "demo"
        model = new_model(architecture) if seed % 2 else loaded
        vocabulary = 250 if seed % 2 else 1900
        case = random_case(seed, vocabulary)
        found = [one for own in run_case(model, case) for one in own]
        kept = [*kept_differences(model, seed, vocabulary)]
        made = [*found, *(one for one in kept if not isinstance(one, str))]
        wrong = [*differences(model, case), *(one for one in kept if isinstance(one, str))]
        shared = sum(one.cached_tokens > 0 for one in made)
        counts = Counter({"texts": len(found) + len(kept), "with shared tokens": shared})
        return counts, [f"{architecture}: {one}" for one in wrong]

    return check


@contextmanager
def nothing_shared() -> Iterator[None]:
    """In the block each prompt is read as a whole."""
    with patch.object(sharing, "LEAST", 2**62):
        yield


@dataclass(frozen=True)
class Case:
    """A call of random prompts whose beginnings form trees: the arguments of `generate`, and how to run it."""

    prompts: list[list[int]]
    output_type: Any
    settings: dict[str, Any]
    options: Options

    def alone(self, number: int) -> "Case":
        """A call of one of its prompts, with as much room as it needs."""
        each = ("seed", "max_new_tokens")
        settings = {name: [value[number]] if name in each else value for name, value in self.settings.items()}
        return Case([self.prompts[number]], self.output_type, settings, Options())


def random_case(seed: int, vocabulary: int, *, tokens: int = 120, longest: int = 0) -> Case:
    """A case of prompts over the ids 10 to vocabulary - 1, whose shared beginnings have up to about `tokens` tokens.

    Args:
        longest: a quarter of the prompts have so many more tokens, or as few as half of that; 0 for none.
    """
    random = Random(seed)

    def some(least: int, most: int) -> list[int]:
        return [random.randrange(10, vocabulary) for _ in range(random.randint(least, most))]

    systems = [some(tokens * 3 // 4, tokens) for _ in range(2)]
    documents = [system + some(tokens // 6, tokens * 3 // 4) for system in systems for _ in range(3)]

    def prompt() -> list[int]:
        begin = random.choice(documents if random.random() < 0.7 else systems)
        if random.random() < 0.2:
            begin = begin[: random.randrange(5, len(begin))]
        return begin + some(1, 29) if random.random() < 0.8 else begin

    prompts = [prompt() for _ in range(random.randint(3, 13))]
    if longest:
        prompts = [prompt + some(longest // 2, longest) if random.random() < 0.25 else prompt for prompt in prompts]
    limits = [random.randint(1, 19) for _ in prompts]
    kinds: list[tuple[Any, Any, dict[str, Any]]] = [
        (gen.samplers.greedy(), None, {}),
        (gen.samplers.multinomial(temperature=0.9, samples=random.randint(1, 3)), None, {}),
        (gen.samplers.multinomial(), None, {"stop": ["a", "the"]}),
        (gen.samplers.beam_search(2), None, {}),
        (gen.samplers.multinomial(repetition_penalty=1.2), None, {"top_logprobs": 2}),
        (gen.samplers.multinomial(top_p=0.9), gen.regex("[a-z ]*"), {}),
        (gen.samplers.multinomial(), gen.grammar('start: ("a".."z" | " ")*'), {}),  # the other engine
    ]
    sampler, output_type, more = random.choice(kinds)
    rows = getattr(sampler, "samples", 1) * getattr(sampler, "beams", 1)
    room = random.choice([None, None, 2, 5])
    options = Options(
        admit_tokens=random.choice([4096, 150, 64]),
        max_batch_tokens=None if room is None else room * rows * (max(map(len, prompts)) + 20),
    )
    settings = {"sampler": sampler, "seed": [*range(len(prompts))], "max_new_tokens": limits, **more}
    return Case(prompts, output_type, settings, options)


def run_case(model: Any, case: Case) -> list[list[gen.Completion]]:
    """The completions of each prompt, from one call."""
    call = read_call(model, case.prompts, case.output_type, Settings(**case.settings), details=True)
    jobs = [new_job(model, request) for request in call.requests]
    run_all(model, jobs, case.options)
    return [job.completions() for job in jobs]


def differences(model: Any, case: Case) -> Iterator[str]:
    """Each text of a case that differs from that of a separate call, with the place where they part."""
    with nothing_shared():
        alone = [run_case(model, case.alone(number)) for number in range(len(case.prompts))]
    for number, ([wanted], found) in enumerate(zip(alone, run_case(model, case), strict=True)):
        for one, other in zip(wanted, found, strict=True):
            if (one.token_ids, one.finish_reason) != (other.token_ids, other.finish_reason):
                yield f"prompt {number}, {other.cached_tokens} tokens not read: {one.token_ids}, {other.token_ids}"


def kept_differences(
    model: Any, seed: int, vocabulary: int, *, tokens: int = 120, longest: int = 0
) -> Iterator[str | gen.Completion]:
    """A random case whose prompts come to an engine one after the other, twice, some with salts, while beginnings are
    pinned and released, and little is kept. Yields each text, or where it parts from that of a separate call."""
    random, case = Random(seed), random_case(seed, vocabulary, tokens=tokens, longest=longest)
    sampler = case.settings["sampler"]
    if getattr(sampler, "beams", 1) > 1 or sampler.samples > 1:  # an engine runs neither
        case.settings["sampler"] = gen.samplers.multinomial(temperature=0.9)
    with nothing_shared():
        alone = [run_case(model, case.alone(number))[0][0] for number in range(len(case.prompts))]
    shared = {name: value for name, value in case.settings.items() if name not in ("seed", "max_new_tokens")}
    shared["shorten"] = True  # values that a limit has changed are compared too
    order = [*range(len(case.prompts))] * 2
    random.shuffle(order)
    with ExitStack() as stack:
        engine = stack.enter_context(
            gen.Engine(
                model,
                rows=random.randint(1, 4),
                max_waiting=99,
                admit_tokens=random.choice([None, 64, 150]),
                prefix_bytes=random.choice([10**5, 10**6, 10**8]),
            )
        )
        for wave in _waves(random, order):
            if random.random() < 0.3:
                begin = case.prompts[wave[0]]
                end = random.randint(1, len(begin))
                stack.enter_context(gen.prefix(model, begin[:end], cache_salt=random.choice([None, "a"])))
            if random.random() < 0.1:
                tree_of(model).give_way()  # type: ignore[union-attr]
            streams = [
                engine.submit(
                    case.prompts[number],
                    case.output_type,
                    seed=case.settings["seed"][number],
                    max_new_tokens=case.settings["max_new_tokens"][number],
                    cache_salt=random.choice([None, None, "a", "b"]),
                    **shared,
                )
                for number in wave
            ]
            for number, stream in zip(wave, streams, strict=True):
                wanted, found = alone[number], _completion(stream)
                same = (wanted.token_ids, wanted.finish_reason) == (found.token_ids, found.finish_reason)
                where = f"prompt {number}, {found.cached_tokens} tokens not read"
                yield found if same else f"{where}: {wanted.token_ids}, {found.token_ids}"


def _completion(stream: gen.Stream) -> gen.Completion:
    """The completion of a text, also if it is no whole value at its limit."""
    try:
        return stream.completion()
    except gen.IncompleteError as error:
        return error.completion


def _waves(random: Random, order: Sequence[int]) -> Iterator[Sequence[int]]:
    """Requests that run at once."""
    at = 0
    while at < len(order):
        count = random.randint(1, 4)
        yield order[at : at + count]
        at += count
