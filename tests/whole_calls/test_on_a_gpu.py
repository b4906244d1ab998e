"""Every way to choose tokens gives the same on a GPU as on the CPU: on a virtual GPU, and on the machine's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.samplers import Sampler, beam_search, greedy, multinomial
from tests.helpers import byte_tokenizer, tiny_model

PROMPTS = ["Ada", "hello there", "x = "]
SAMPLERS: dict[str, Sampler | list[Sampler]] = {
    "greedy": greedy(),
    "multinomial": multinomial(),
    "temperature": multinomial(temperature=0.7),
    "top-k": multinomial(top_k=20),
    "top-p": multinomial(top_p=0.8),
    "min-p": multinomial(min_p=0.05),
    "all cuts": multinomial(temperature=1.3, top_k=40, top_p=0.9, min_p=0.01),
    "several samples": multinomial(samples=3),
    "beams": beam_search(3, length_penalty=0.5),
    "penalties": multinomial(repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1),
    "bans": greedy(no_repeat_ngram_size=2, bad_words=["a"], logit_bias={65: 1.0}, min_new_tokens=3),
    "beams with penalties": beam_search(2, repetition_penalty=1.2, no_repeat_ngram_size=2),
    "each its own": [greedy(), multinomial(top_p=0.7), multinomial(temperature=1.4, presence_penalty=0.5)],
}
CONSTRAINTS = {
    "on the device": gen.regex("[a-f]{3,12}(, [0-9]{2})?"),
    "on the host": gen.grammar('start: "(" start? ")"'),
}


def generated(model: Any, **arguments: Any) -> list[gen.Completion]:
    """All completions of the prompts."""
    defaults: dict[str, Any] = {"sampler": greedy(), "seed": 5, "max_new_tokens": 10}
    groups: Any = gen.generate(model, PROMPTS, details=True, **(defaults | arguments))
    return [one for group in groups for one in (group if isinstance(group, list) else [group])]


def stopped(model: Any) -> list[gen.Completion]:
    """Calls with a stop string that is in one text, and an eos that is in another."""
    first, second, _ = generated(model)
    found = generated(model, stop=[first.text[2]], eos_token_id=second.token_ids[5])
    assert {completion.finish_reason for completion in found} >= {"stop", "eos"}
    return found


def constrained(where: str) -> Callable[[Any], list[gen.Completion]]:
    def both(model: Any) -> list[gen.Completion]:
        made: list[gen.Completion] = []
        for sampler in (multinomial(), beam_search(2)):
            found: Any = gen.generate(
                model,
                PROMPTS,
                CONSTRAINTS[where],
                sampler=sampler,
                seed=5,
                max_new_tokens=20,
                details=True,
                errors="return",
            )
            made += [one.completion if isinstance(one, gen.IncompleteError) else one for one in found]
        assert {completion.engine for completion in made} == {where.split()[-1]}
        return made

    return both


def processed(model: Any) -> list[gen.Completion]:
    def every_other(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        return logits - 5 * (torch.arange(logits.shape[1], device=logits.device) % 2)

    return generated(model, logits_processors=[every_other])


def streamed(model: Any) -> list[gen.Completion]:
    made = []
    for prompt in PROMPTS:
        stream = gen.stream(model, prompt, seed=5, max_new_tokens=10)
        text = "".join(stream)
        made.append(stream.completion())
        assert text == made[-1].text
    return made


def served(model: Any) -> list[gen.Completion]:
    with gen.Engine(model, rows=2) as engine:
        streams = [engine.submit(prompt, seed=5, max_new_tokens=10) for prompt in PROMPTS]
        return [stream.completion() for stream in streams]


WAYS: dict[str, Callable[[Any], list[gen.Completion]]] = {
    **{name: partial(generated, sampler=sampler) for name, sampler in SAMPLERS.items()},
    **{f"a constraint {where}": constrained(where) for where in CONSTRAINTS},
    "stop strings and eos": stopped,
    "a user's processor": processed,
    "streams": streamed,
    "an engine": served,
}


def adapter(device: torch.device | str) -> Any:
    hf_model = tiny_model(num_hidden_layers=1).to(device)
    return gen.from_transformers(hf_model, byte_tokenizer(), probe=False)


@pytest.mark.parametrize("way", WAYS)
def test_texts_are_the_cpus(way: str, gpu: torch.device) -> None:
    wanted = WAYS[way](adapter("cpu"))
    model = adapter(gpu)
    assert model.placement.devices == (gpu,)
    found = WAYS[way](model)
    assert [one.token_ids for one in found] == [one.token_ids for one in wanted]
    assert [(one.text, one.finish_reason) for one in found] == [(one.text, one.finish_reason) for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)
