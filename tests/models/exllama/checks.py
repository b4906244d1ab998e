"""What exllamav2 and exllamav3 promise alike, checked with a model of either."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import gen
from tests.helpers.waits import waits
from tests.models.exllama.oracle import NEAR, Plain, generated, ids, logits_of, tokens_of

GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")
PROMPTS = ["Ada", "hello there, world", "x", "The quick brown fox jumps over the lazy dog"]
SAMPLERS: dict[str, Any] = {
    "greedy": gen.samplers.greedy(),
    "multinomial": gen.samplers.multinomial(temperature=0.9, top_k=40),
    "several": gen.samplers.multinomial(samples=2),
    "beams": gen.samplers.beam_search(3),
}


def factors_are_chosen_by_the_context(load: Callable[..., Any], folder: Path, oracle: Plain, bound: str) -> None:
    """A model with 40 tokens takes short factors, with 200 long ones; `bound` is the name of that argument."""
    prompts, new = ids("The quick brown fox", "one"), ids("the lazy", "and five")
    whole = ids("The quick brown fox jumps over the lazy dog, one and five")[0]
    short, long = load(folder), load(folder, **{bound: 200})
    assert (short.context_length, long.context_length) == (40, 200)
    for row, found in enumerate(logits_of(short, prompts, new)):
        assert (found - oracle.logits(prompts[row], new[row])).abs().max() < NEAR
    expected = oracle.logits(whole[:1], whole[1:])  # one forward of more than 40 tokens, with long factors throughout
    for start in (2, 20, 50):
        found = logits_of(long, [whole[:start], whole[:1]], [whole[start : start + 3], whole[1:4]])
        assert (found[0] - expected[start - 1 : start + 3]).abs().max() < NEAR
        assert (found[1] - expected[:4]).abs().max() < NEAR
    with pytest.raises(gen.ArgumentError, match=rf"{bound} must be .*at most 256"):
        load(folder, **{bound: 257})


@torch.inference_mode()
def reordered_rows_go_on(model: Any, ancestors: Sequence[int], length: int) -> Any:
    """Rows go on as those that read the reordered prompts; returns the rows."""
    prompts, size = ids("The quick brown fox", "one", "hello"), len(ancestors)
    rows, fresh = model.new_rows(5, length), model.new_rows(size, length)
    rows.prefill(slice(0, 3), prompts)
    rows.reorder(torch.tensor(ancestors, device=GPU1), 32)
    fresh.prefill(slice(0, size), [prompts[ancestor] for ancestor in ancestors])
    tokens = torch.arange(70, 70 + size, device=GPU1).unsqueeze(1)
    for _ in range(2):
        assert torch.equal(rows.step(tokens, 32), fresh.step(tokens, 32))
    return rows


def texts_are_the_same_alone_and_streamed(model: Any, sampler: str) -> None:
    together = tokens_of(generated(model, PROMPTS, SAMPLERS[sampler]))
    assert [tokens_of(generated(model, prompt, SAMPLERS[sampler])) for prompt in PROMPTS] == together
    if sampler in ("greedy", "multinomial"):
        is_streamed(model, sampler)


def is_streamed(model: Any, sampler: str) -> None:
    options: dict[str, Any] = {"sampler": SAMPLERS[sampler], "seed": 3, "max_new_tokens": 6, "eos_token_id": []}
    assert "".join(gen.stream(model, PROMPTS[1], **options)) == gen.generate(model, PROMPTS[1], **options)


def syncs(model: Any, sampler: str, prompts: list[str], *new_tokens: int) -> list[int]:
    """How often the host waits in calls of so many tokens."""
    return waits(partial(generated, model, prompts, SAMPLERS[sampler]), *new_tokens)[0]


def no_token_is_waited_for(model: Any, sampler: str, prompts: list[str], most: int) -> None:
    _, short, long = syncs(model, sampler, prompts, 1, 2, 4)  # copies between GPUs are tested once
    assert long == short
    assert long <= most


def threads_share(model: Any) -> None:
    expected = [tokens_of(generated(model, prompt, SAMPLERS["multinomial"])) for prompt in PROMPTS]

    def work(number: int) -> Any:
        torch.cuda.set_device(number % 2)
        made = generated(model, PROMPTS[number], SAMPLERS["multinomial"])
        assert torch.cuda.current_device() == number % 2
        return tokens_of(made)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == expected


def an_engine_takes_requests_as_they_come(model: Any) -> None:
    expected = [gen.generate(model, prompt, seed=3, max_new_tokens=8) for prompt in PROMPTS]
    with gen.Engine(model, rows=3) as engine:
        streams = [engine.submit(prompt, seed=3, max_new_tokens=8) for prompt in PROMPTS]
        assert ["".join(stream) for stream in streams] == expected
