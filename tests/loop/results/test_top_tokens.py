"""Log-probabilities under the model's own distribution. Oracle: transformers' forward over whole texts in float64."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.samplers import Sampler, greedy, multinomial
from tests.helpers import ScriptedModel, byte_tokenizer, tiny_model
from tests.helpers.waits import waits
from tests.loop.calls import new_jobs
from virtual_gpus import virtual_gpus

KNOWN = 259  # the tokenizer's tokens; the model has 300
PROMPTS = ["once upon", "a", "the cat sat on the mat", "xy", "to be or not to be"]
LIMITS = [9, 12, 4, 7, 10]


@pytest.fixture(scope="module")
def llama() -> Any:
    return gen.from_transformers(tiny_model(), byte_tokenizer())


@pytest.fixture(scope="module")
def check(llama: Any) -> Callable[[str, gen.Completion, int], None]:
    exact = deepcopy(llama.hf_model).double()

    def compare(prompt: str, completion: gen.Completion, most: int) -> None:
        prompt_ids = llama.tokenizer.encode(prompt)
        with torch.no_grad():
            logits = exact(torch.tensor([prompt_ids + completion.token_ids])).logits[0, len(prompt_ids) - 1 :, :KNOWN]
        logprobs = logits.log_softmax(-1)
        told: Any = completion.top_logprobs
        assert len(told) == len(completion.token_ids)
        for token_id, one, row in zip(completion.token_ids, told, logprobs, strict=False):
            best = row.topk(most)
            assert one.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
            assert one.token_ids == best.indices.tolist()
            assert one.logprobs == pytest.approx(best.values.tolist(), abs=1e-4)

    return compare


class Resampler:
    """Two texts a prompt, which change places at every step; neither takes the likeliest token."""

    samples, penalties = 2, None

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row = torch.arange(len(logits))
        ancestors = row ^ 1
        best = logits[ancestors].topk(3).indices
        return best.gather(1, (1 + row % 2).unsqueeze(1)), ancestors, weights[ancestors]


class Spoiler:
    """Changes the logits in place, also the chosen token's."""

    samples, penalties = 1, None

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        token_ids = logits.topk(2).indices[:, 1:]
        logits.fill_(-1.0).scatter_(1, token_ids, 5.0)
        return token_ids, torch.arange(len(logits)), weights


def spoils(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    """Changes the logits in place."""
    logits[:, 97:123] += 3.0
    return logits


SAMPLERS: list[Sampler] = [
    greedy(repetition_penalty=1.5, no_repeat_ngram_size=2),
    multinomial(temperature=0.6, top_k=4),
    multinomial(3, temperature=1.4, bad_words=[[97], [98]]),
    Resampler(),
    multinomial(top_p=0.8, logit_bias={101: 4.0}),
]


OPTIONS = [Options(), Options(rows=3, admit_tokens=5), Options(replay=False)]


@pytest.mark.parametrize(
    ("options", "most", "processors"),
    [
        pytest.param(options, most, [[], [spoils]][(place + turn) % 2], id=f"{options}-{most}")
        for place, options in enumerate(OPTIONS)
        for turn, most in enumerate((0, 3, 5))
    ],
)
def test_they_are_the_models_own_whatever_chooses(
    llama: Any, check: Any, options: Options, processors: Any, most: int
) -> None:
    jobs = new_jobs(
        llama,
        PROMPTS,
        sampler=SAMPLERS,
        seed=range(5),
        max_new_tokens=LIMITS,
        logits_processors=processors,
        top_logprobs=most,
    )
    run_all(llama, jobs, options)
    for prompt, job in zip(PROMPTS, jobs, strict=True):
        for completion in job.completions():
            check(prompt, completion, most)


def test_a_sampler_of_the_users_may_change_the_logits_in_place(llama: Any, check: Any) -> None:
    completions = gen.generate(llama, PROMPTS, sampler=Spoiler(), max_new_tokens=6, details=True, top_logprobs=2)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        check(prompt, completion, 2)


def test_recorded_steps_tell_them_too(llama: Any, check: Any) -> None:
    llama.release()
    arguments: Any = {"sampler": multinomial(temperature=0.7), "seed": 3, "max_new_tokens": 40}
    plain = gen.generate(llama, PROMPTS, **arguments)
    told = gen.generate(llama, PROMPTS, top_logprobs=2, details=True, **arguments)
    kept: Any = llama.idle.take()
    assert {key[-1] for key in kept.recordings} == {0, 2}
    for prompt, text, completion in zip(PROMPTS, plain, told, strict=True):
        assert completion.text == text
        check(prompt, completion, 2)


def test_without_changes_the_drawn_logprob_is_the_models_own(llama: Any) -> None:
    made = gen.generate(llama, "x", sampler=multinomial(), seed=2, max_new_tokens=20, details=True, top_logprobs=0)
    told: Any = made.top_logprobs
    assert [one.logprob for one in told] == pytest.approx(made.logprobs, abs=1e-4)
    assert all(one.token_ids == one.logprobs == [] for one in told)


def test_requests_of_an_engine_have_each_their_own_number(llama: Any, check: Any) -> None:
    wanted = [3, None, 0, 9, None, 1, 17]
    with gen.Engine(llama, rows=2) as engine:
        streams = [
            engine.submit("a" * (1 + number), sampler=greedy(), max_new_tokens=6 + number, top_logprobs=most)
            for number, most in enumerate(wanted)
        ]
        for number, (most, stream) in enumerate(zip(wanted, streams, strict=True)):
            if most is None:
                assert stream.completion().top_logprobs is None
            else:
                check("a" * (1 + number), stream.completion(), most)


def test_eos_and_stop_strings_end_them_as_they_end_the_tokens(llama: Any, check: Any) -> None:
    text = gen.generate(llama, "once upon", sampler=greedy(), max_new_tokens=12, details=True)
    token_ids = text.token_ids
    for options in ({"eos_token_id": token_ids[7]}, {"stop": chr(token_ids[6])} if token_ids[6] < 128 else {}):
        made = gen.generate(
            llama, "once upon", sampler=greedy(), max_new_tokens=12, details=True, top_logprobs=1, **options
        )
        check("once upon", made, 1)


def test_on_a_gpu_the_host_does_not_wait_for_them(llama: Any) -> None:
    arguments: Any = {"sampler": multinomial(temperature=0.8), "seed": 1, "details": True, "top_logprobs": 3}
    expected = gen.generate(llama, PROMPTS, max_new_tokens=12, **arguments)
    with virtual_gpus(2):
        model = gen.from_transformers(tiny_model().to("cuda:1"), byte_tokenizer())
        counts, made = waits(lambda most: gen.generate(model, PROMPTS, max_new_tokens=most, **arguments), 4, 12)
    assert counts[0] == counts[1] <= 2
    for one, other in zip(made, expected, strict=True):
        assert one.token_ids == other.token_ids
        for told, wanted in zip(one.top_logprobs, other.top_logprobs, strict=True):
            assert told.token_ids == wanted.token_ids
            assert told.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)


def test_what_the_model_rules_out_has_minus_infinity() -> None:
    def turned(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        return torch.zeros_like(logits).index_fill_(1, torch.tensor([97]), 5.0)

    model = ScriptedModel("hello")
    made = gen.generate(
        model, "x", sampler=greedy(), max_new_tokens=3, logits_processors=[turned], details=True, top_logprobs=2
    )
    assert made.text == "aaa"
    told: Sequence[gen.TopLogprobs] = made.top_logprobs or []
    assert [(one.logprob, one.token_ids[0], one.logprobs) for one in told] == [
        (-math.inf, letter, [0.0, -math.inf]) for letter in b"hel"
    ]
