"""An error at a later token ends only the prompt that caused it: the others have the same texts as alone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.samplers import Sampler, beam_search, greedy, multinomial
from tests.helpers import ScriptedModel, ScriptedRows, byte_tokenizer, tiny_model
from tests.helpers.engines import text_of
from virtual_gpus import virtual_gpus

PROMPTS = ["once upon", "a", "the cat sat on the mat", "xy", "to be or not to be", "12", "ab"]
LIMITS = [7, 12, 6, 9, 8, 3, 11]
BAD = 3  # which prompt has an error, at its fifth token


class Planted(Exception):
    pass


def fails(prompt: str, length: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A processor that fails if a row begins with this prompt and has `length` tokens."""

    def processor(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        for tokens, own in zip(token_ids.tolist(), lengths.tolist(), strict=True):
            if own == length and bytes(token % 256 for token in tokens[:own]).startswith(prompt.encode()):
                raise Planted(prompt)
        return logits

    return processor


FAILS = fails(PROMPTS[BAD], len(PROMPTS[BAD]) + 4)


def told(result: Any) -> Any:
    if isinstance(result, list):
        return [told(one) for one in result]
    return result if isinstance(result, Exception) else (result.text, result.token_ids, result.seed)


SEARCHES = [greedy(), multinomial(temperature=0.9), multinomial(3), beam_search(3)]


@pytest.mark.parametrize(("sampler", "replay"), [*((sampler, True) for sampler in SEARCHES), (greedy(), False)])
def test_a_processor_that_fails_at_a_later_token_ends_its_prompt_alone(
    llama: Any, sampler: Sampler, replay: bool
) -> None:
    arguments: Any = {"sampler": sampler, "details": True, "replay": replay}
    alone = [
        gen.generate(llama, prompt, seed=seed, max_new_tokens=limit, **arguments)
        for seed, (prompt, limit) in enumerate(zip(PROMPTS, LIMITS, strict=True))
    ]
    with pytest.raises(gen.BatchError, match=rf"of 7 prompts prompt {BAD} failed: xy") as caught:
        gen.generate(
            llama, PROMPTS, seed=range(7), max_new_tokens=LIMITS, logits_processors=[FAILS], progress=True, **arguments
        )
    results = caught.value.results
    assert type(results[BAD]) is Planted
    assert [told(one) for one in results[:BAD] + results[BAD + 1 :]] == told(alone[:BAD] + alone[BAD + 1 :])
    assert told(gen.generate(llama, PROMPTS[0], seed=0, max_new_tokens=LIMITS[0], **arguments)) == told(alone[0])


def test_the_error_of_the_only_prompt_is_raised_itself(llama: Any) -> None:
    arguments: Any = {"sampler": greedy(), "max_new_tokens": 12, "logits_processors": [FAILS]}
    with pytest.raises(Planted, match="xy"):
        gen.generate(llama, PROMPTS[BAD], **arguments)
    stream = gen.stream(llama, PROMPTS[BAD], **arguments)
    pieces: list[str] = []
    with pytest.raises(Planted, match="xy"):
        pieces.extend(stream)
    whole = gen.generate(llama, PROMPTS[BAD], sampler=greedy(), max_new_tokens=12)
    assert pieces and whole.startswith("".join(pieces))
    with pytest.raises(gen.GenError, match="no completion: xy"):
        stream.completion()
    with pytest.raises(Planted, match="xy"):
        asyncio.run(gen.agenerate(llama, PROMPTS[BAD], **arguments))


class Choosy:
    """A user's sampler that fails if the likeliest token is a forbidden one."""

    penalties = None

    def __init__(self, bad: int, samples: int = 1) -> None:
        self.bad, self.samples = bad, samples

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Any:
        if logits.argmax(-1).eq(self.bad).any():
            raise Planted("choosy")
        token_ids, ancestors, logprobs = greedy().step(logits, weights, keys)
        return token_ids, ancestors, weights + logprobs


@pytest.mark.parametrize("samples", [1, 2])
def test_a_sampler_of_the_users_that_fails_at_a_later_token_ends_its_prompt_alone(llama: Any, samples: int) -> None:
    alone: Any = gen.generate(llama, PROMPTS, sampler=greedy(), max_new_tokens=LIMITS, details=True)
    others = {token for number, one in enumerate(alone) for token in one.token_ids if number != BAD}
    late = next(token for token in alone[BAD].token_ids[3:] if token not in others)
    with pytest.raises(gen.BatchError, match=rf"prompt {BAD} failed: choosy") as caught:
        gen.generate(llama, PROMPTS, sampler=Choosy(late, samples), max_new_tokens=LIMITS)
    results = caught.value.results
    assert type(results.pop(BAD)) is Planted
    expected = [one.text for number, one in enumerate(alone) if number != BAD]
    assert results == (expected if samples == 1 else [[text] * 2 for text in expected])


def test_requests_of_an_engine_are_not_harmed_by_each_others_functions(llama: Any) -> None:
    def naive(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        """Looks at all rows, not only at its own."""
        if lengths.max() > 12:
            raise Planted("naive")
        return logits

    def wrong(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Any:
        return logits[:, :5] if (lengths == len("ab") + 4).any() else logits

    processors: list[Any] = [[], [], [], [FAILS], [naive], [], [wrong]]
    expected = [
        gen.generate(llama, prompt, sampler=greedy(), max_new_tokens=limit)
        for prompt, limit in zip(PROMPTS, LIMITS, strict=True)
    ]
    with gen.Engine(llama, rows=7) as engine:
        for _ in range(2):
            streams = [
                engine.submit(prompt, sampler=greedy(), max_new_tokens=limit, logits_processors=own)
                for prompt, limit, own in zip(PROMPTS, LIMITS, processors, strict=True)
            ]
            for number in (0, 1, 2, 5):
                assert "".join(streams[number]) == streams[number].completion().text == expected[number]
            for number, error in ((3, Planted), (4, Planted), (6, gen.ArgumentError)):
                with pytest.raises(error):
                    streams[number].completion()
        shared = [
            engine.submit(prompt, sampler=greedy(), max_new_tokens=limit, logits_processors=[FAILS])
            for prompt, limit in zip(PROMPTS, LIMITS, strict=True)
        ]
        for number, stream in enumerate(shared):
            if number == BAD:
                with pytest.raises(Planted):
                    "".join(stream)
            else:
                assert stream.completion().text == expected[number]


def test_agenerate_tells_who_failed_at_a_later_token(llama: Any) -> None:
    arguments: Any = {"sampler": greedy(), "max_new_tokens": LIMITS}
    expected: Any = gen.generate(llama, PROMPTS, **arguments)
    with pytest.raises(gen.BatchError, match=rf"prompt {BAD} failed: xy") as caught:
        asyncio.run(gen.agenerate(llama, PROMPTS, logits_processors=[FAILS], **arguments))
    results = caught.value.results
    assert type(results.pop(BAD)) is Planted
    assert results == expected[:BAD] + expected[BAD + 1 :]


@pytest.mark.parametrize("sampler", SEARCHES)
def test_on_a_gpu_the_late_token_is_not_lost(sampler: Sampler) -> None:
    with virtual_gpus(1):
        model = gen.from_transformers(tiny_model(vocab_size=259, num_hidden_layers=1).to("cuda"), byte_tokenizer())
        arguments: Any = {"sampler": sampler, "seed": range(7), "max_new_tokens": LIMITS}
        expected: Any = gen.generate(model, PROMPTS, **arguments)
        with pytest.raises(gen.BatchError) as caught:
            gen.generate(model, PROMPTS, logits_processors=[FAILS], **arguments)
    results = caught.value.results
    assert type(results.pop(BAD)) is Planted
    assert results == expected[:BAD] + expected[BAD + 1 :]


class Breaking(ScriptedModel):
    """Writes its prompt; after a number of letters no step can be made."""

    def __init__(self, most: int) -> None:
        super().__init__(lambda prompt: prompt.encode())
        self.most = most

    class rows(ScriptedRows):
        _model: "Breaking"

        def step(self, token_ids: Tensor, view: int) -> Tensor:
            if max(self._said[: len(token_ids)]) >= self._model.most:
                raise ZeroDivisionError("no step")
            return super().step(token_ids, view)


def test_a_model_that_fails_leaves_what_was_done() -> None:
    prompts = ["abcdefgh", "ab", "ijklmnop", "k", ""]
    for sampler in (greedy(), multinomial(2), beam_search(2)):
        with pytest.raises(gen.BatchError, match="2 prompts, the first of them prompt 0 failed: no step") as caught:
            gen.generate(Breaking(4), prompts, sampler=sampler)
        kinds = [type(one) for one in caught.value.results]
        assert kinds[0] is kinds[2] is ZeroDivisionError
        texts = [one[0] if isinstance(one, list) else one for one in caught.value.results[1::2]]
        assert texts == ["ab", "k"]
    with pytest.raises(ZeroDivisionError, match="no step"):
        gen.generate(Breaking(0), prompts[:1])


def test_batches_of_other_samplers_go_on_where_one_fails() -> None:
    class Wrong(Choosy):
        def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Any:
            return logits

    model = ScriptedModel(lambda prompt: prompt.encode())
    samplers: list[Any] = [greedy(), Wrong(0), beam_search(2), Wrong(0)]
    with pytest.raises(gen.BatchError, match=r"the first of them prompt 1 failed: Wrong\.step must give") as caught:
        gen.generate(model, ["ab", "cd", "ef", "gh"], sampler=samplers)
    assert caught.value.results[::2] == ["ab", "ef"]


def test_functions_that_give_no_logits_are_not_tried_prompt_by_prompt() -> None:
    def nothing(*_: Tensor) -> Any:
        return None

    model = ScriptedModel("hello")
    with pytest.raises(gen.ArgumentError, match="a logits processor must return logits"):
        gen.generate(model, ["x"] * 100, logits_processors=[nothing])
    assert model.steps <= 2


def test_a_text_that_cannot_be_decoded_fails_alone(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gen.tokens.tokenizers import Detokenizer

    push = Detokenizer.push
    expected: Any = gen.generate(llama, PROMPTS, sampler=greedy(), max_new_tokens=LIMITS, stop="\0never")
    alone = gen.generate(llama, PROMPTS[BAD], sampler=greedy(), max_new_tokens=LIMITS[BAD], details=True)
    bad = alone.token_ids[:5]

    def limited(self: Detokenizer, *token_ids: int, last: bool = False) -> str:
        seen = self.__dict__.setdefault("seen", [])
        seen += token_ids
        if seen == bad:
            raise Planted("no text")
        return push(self, *token_ids, last=last)

    monkeypatch.setattr(Detokenizer, "push", limited)
    with pytest.raises(gen.BatchError, match=rf"prompt {BAD} failed: no text") as caught:
        gen.generate(llama, PROMPTS, sampler=greedy(), max_new_tokens=LIMITS, stop="\0never")
    results = caught.value.results
    assert type(results.pop(BAD)) is Planted
    assert results == expected[:BAD] + expected[BAD + 1 :]


def test_prompts_that_are_read_again_alone_have_no_cached_tokens(llama: Any) -> None:
    left = iter([True])

    def once(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        if next(left, False):
            raise Planted("once")
        return logits

    prompts = ["the cat sat on the mat, " * 2 + name for name in "ab"]
    arguments: Any = {"details": True, "seed": 1}
    expected = gen.generate(llama, prompts, max_new_tokens=4, **arguments)
    with gen.prefix(llama, prompts[0][:-1]) as prefix:
        made: Any = gen.generate(llama, prompts, max_new_tokens=4, logits_processors=[once], **arguments)
        assert told(made) == told(expected) and [one.cached_tokens for one in made] == [0, 0]
        made = gen.generate(llama, prompts, max_new_tokens=4, logits_processors=[once], **arguments)
        assert told(made) == told(expected) and [one.cached_tokens for one in made] == [len(prefix.token_ids)] * 2


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_a_function_that_ends_an_iteration_ends_no_stream_in_silence(kind: type[Exception], llama: Any) -> None:
    def processor(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        if lengths.max() > 4:
            raise kind("no more")
        return logits

    arguments: Any = {"sampler": greedy(), "logits_processors": [processor]}
    with pytest.raises(gen.GenError, match=f"a function has raised {kind.__name__}: no more"):
        "".join(gen.stream(llama, "ab", **arguments))

    async def read() -> None:
        await text_of(gen.astream(llama, "ab", **arguments))

    with pytest.raises(gen.GenError, match=f"a function has raised {kind.__name__}: no more"):
        asyncio.run(read())
    llama.release()


@pytest.mark.parametrize("call", [0, 2, 7])
def test_memory_that_runs_out_in_a_users_function_is_no_fault_of_its_prompt(llama: Any, call: int) -> None:
    calls = [call]

    def large(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        calls[0] -= 1
        if calls[0] < 0 and len(logits) > 2:
            raise torch.OutOfMemoryError("planted")
        return logits

    arguments: Any = {"sampler": greedy(), "max_new_tokens": LIMITS, "replay": False}
    expected = gen.generate(llama, PROMPTS, **arguments)
    assert gen.generate(llama, PROMPTS, logits_processors=[large], **arguments) == expected
