"""`prompt_logprobs`: the log-probabilities of a prompt's tokens, compared with the plain forward in float64."""

from typing import Any

import pytest
import torch

import gen
from gen.samplers import beam_search, greedy, multinomial
from tests.helpers import byte_tokenizer, needs_kernels_that_agree, tiny_model
from tests.helpers.waits import waits
from tests.loop.test_prefix_tree import SAMPLED, some
from virtual_gpus import virtual_gpus

KNOWN = 259  # ids of the tokenizer


@pytest.fixture(scope="module")
def model() -> Any:
    return gen.from_transformers(tiny_model(max_position_embeddings=512), byte_tokenizer())


@torch.inference_mode()
def check(model: Any, prompt: list[int], told: list[gen.TopLogprobs], top: int) -> None:
    logits = model.hf_model.double()(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, :-1, :KNOWN]
    model.hf_model.float()
    logprobs = logits.log_softmax(-1)
    assert len(told) == len(prompt) - 1
    own = logprobs.gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).flatten()
    assert torch.tensor([one.logprob for one in told], dtype=torch.float64).allclose(own, atol=1e-4, rtol=0)
    for place, one in enumerate(told):
        best = logprobs[place].topk(top)
        assert (one.token_ids, len(one.logprobs)) == (best.indices.tolist(), top)
        assert torch.tensor(one.logprobs, dtype=torch.float64).allclose(best.values, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sampler", [greedy(), multinomial(samples=2), beam_search(2)])
def test_every_token_of_every_prompt_is_told(model: Any, sampler: Any) -> None:
    prompts = [some(1, 90), some(1, 60), some(2, 33), [5]]
    arguments: Any = {"sampler": sampler, "max_new_tokens": 4, "seed": 3, "details": True}
    with gen.prefix(model, prompts[0][:50]):
        made = gen.generate(model, prompts, prompt_logprobs=3, **arguments)
    plain = gen.generate(model, prompts, **arguments)
    for prompt, found, other in zip(prompts, made, plain, strict=True):
        for one, two in zip(*(each if isinstance(each, list) else [each] for each in (found, other)), strict=True):
            check(model, prompt, one.prompt_logprobs, 3)
            assert (one.token_ids, one.cached_tokens, two.prompt_logprobs) == (two.token_ids, 0, None)


def test_an_engine_tells_it_of_prompts_that_it_reads_in_parts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gen.loop.decoder._LOGITS", 300 * 20)  # pieces of 20 tokens
    prompt = some(3, 150)
    with gen.Engine(model, rows=4, admit_tokens=33) as engine:
        running = engine.submit(some(4, 40), seed=1, max_new_tokens=300, eos_token_id=[])
        next(running)
        made = engine.submit(prompt, prompt_logprobs=0, **SAMPLED).completion()
        again = engine.submit(prompt, prompt_logprobs=1, **SAMPLED).completion()
        after = engine.submit(prompt, **SAMPLED).completion()
        running.cancel()
    assert (made.cached_tokens, again.cached_tokens, after.cached_tokens) == (0, 0, 149)  # `again` takes nothing
    assert made.token_ids == again.token_ids == after.token_ids
    check(model, prompt, made.prompt_logprobs or [], 0)
    check(model, prompt, again.prompt_logprobs or [], 1)


def test_on_a_gpu_nobody_waits_for_it() -> None:
    prompt = some(5, 70)
    given: dict[str, Any] = {"seed": 1, "max_new_tokens": 6, "details": True}
    with virtual_gpus(1, check_streams=True):
        model: Any = gen.from_transformers(tiny_model().to("cuda"), byte_tokenizer())
        counts, made = waits(lambda top: gen.generate(model, prompt, prompt_logprobs=top, **given), None, 2)
        model.release()
        torch.cuda.synchronize()
    host = gen.from_transformers(tiny_model(), byte_tokenizer())
    check(host, prompt, made.prompt_logprobs or [], 2)
    assert counts[0] == counts[1] <= 2


@pytest.mark.parametrize("shape", ["gpt_neo", "exact"])
def test_rows_that_give_no_logits_in_between_read_the_prompt_once_more(shape: str) -> None:
    exact = shape == "exact"
    model = gen.from_transformers(tiny_model("llama" if exact else shape), byte_tokenizer())
    if exact:
        needs_kernels_that_agree(model)
    arguments: Any = {"seed": 1, "max_new_tokens": 4, "details": True, "exact": exact}
    prompts = [some(6, 40), some(7, 12), [9]]
    made = gen.generate(model, prompts, prompt_logprobs=2, **arguments)
    for prompt, one in zip(prompts, made, strict=True):
        check(model, prompt, one.prompt_logprobs or [], 2)
    assert [one.token_ids for one in made] == [one.token_ids for one in gen.generate(model, prompts, **arguments)]
