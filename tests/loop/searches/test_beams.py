"""Beam search: tokens and scores equal transformers' over random cases, also in rows that are filled again."""

import math
import random
import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, TemperatureLogitsWarper, TopPLogitsWarper

import gen
from gen.samplers import BeamSearchSampler, beam_search, greedy
from tests.helpers import EOS, SHAPES, ScriptedModel, byte_tokenizer, tiny_model
from tests.loop.calls import run_in_rows

LIKELY = 20  # the model writes only these ids; any of them may be an eos, so texts end at different steps


@pytest.fixture(scope="module")
def hf_model() -> PreTrainedModel:
    model = tiny_model(vocab_size=259, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    with torch.no_grad():
        model.get_output_embeddings().weight[LIKELY:] *= 0.05  # not 0, since the order of equal tokens is open
        model.get_output_embeddings().weight[:LIKELY] *= 2
    return model


def transformers_beams(
    model: PreTrainedModel, prompts: list[list[int]], sampler: BeamSearchSampler, eos: list[int], **options: Any
) -> list[tuple[list[int], float]]:
    """transformers' texts up to their eos, and their scores."""
    width = max(map(len, prompts))
    token_ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        token_ids,
        attention_mask=mask,
        num_beams=sampler.samples,
        length_penalty=sampler.length_penalty,
        early_stopping=sampler.early_stopping,
        eos_token_id=eos,
        pad_token_id=0,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    texts = []
    for row, score in zip(output.sequences[:, token_ids.shape[1] :].tolist(), output.sequences_scores, strict=True):
        end = next((i for i, token in enumerate(row) if token in eos), len(row))
        texts.append((row[:end], float(score)))
    return texts


def test_texts_and_scores_equal_transformers_over_random_cases(hf_model: PreTrainedModel) -> None:
    rng = random.Random(0)
    model = gen.from_transformers(hf_model, byte_tokenizer())
    texts = ended = 0
    for number in range(30):
        beams = rng.randint(2, 8)
        sampler = beam_search(
            beams,
            length_penalty=rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0]),
            early_stopping=rng.choice([True, False, "never"]),
        )
        eos = rng.sample(range(LIKELY), rng.randint(1, 4))
        new_tokens, count = rng.randint(1, 12), rng.randint(1, beams)
        prompts = [[rng.randrange(259) for _ in range(rng.randint(1, 40))] for _ in range(rng.randint(1, 7))]
        options: Any = {"max_new_tokens": new_tokens, "num_return_sequences": count}
        expected = transformers_beams(hf_model, prompts, sampler, eos, **options)
        if number % 2:
            groups: Any = gen.generate(model, prompts, sampler=sampler, eos_token_id=eos, details=True, **options)
        else:  # in rows that are filled anew
            rows = beams * rng.randint(1, 2) + rng.randint(0, 1)
            found = run_in_rows(model, prompts, rows, sampler=sampler, eos_token_id=eos, max_new_tokens=new_tokens)
            groups = [group[:count] for group in found]
        ours = [one for group in groups for one in (group if isinstance(group, list) else [group])]
        assert [completion.token_ids for completion in ours] == [token_ids for token_ids, _ in expected]
        scores = [score for _, score in expected]
        assert [completion.score for completion in ours] == pytest.approx(scores, rel=1e-6, abs=2e-5)
        texts += len(ours)
        ended += sum(completion.finish_reason == "eos" for completion in ours)
    assert 0.2 < ended / texts < 0.9, "the cases should have texts that end early and texts that do not"


class Counting:
    """Presence and frequency penalties, which transformers does not have."""

    def __init__(self, prompt: int, presence: float, frequency: float) -> None:
        self.prompt, self.presence, self.frequency = prompt, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        new = input_ids[:, self.prompt :]
        counts = torch.zeros_like(scores).scatter_add_(1, new, torch.ones_like(new, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


class Allowing:
    """Texts of one to some of these letters; where only the end may come, it comes with probability 1."""

    def __init__(self, prompt: int, letters: list[int], most: int) -> None:
        self.prompt, self.letters, self.most = prompt, letters, most

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        count = input_ids.shape[1] - self.prompt
        changed = torch.full_like(scores, -math.inf)
        allowed = [*self.letters * (count < self.most), *[EOS] * (count > 0)]
        changed[:, allowed] = 0.0 if count == self.most else scores[:, allowed]
        return changed


@pytest.mark.parametrize("seed", range(2))
def test_with_penalties_bans_processors_and_masks_texts_and_scores_equal_transformers(
    hf_model: PreTrainedModel, seed: int
) -> None:
    """All of them change log-probabilities, and nothing makes probabilities of the results again."""
    rng = random.Random(seed)
    model = gen.from_transformers(hf_model, byte_tokenizer())
    used = Counter[str]()
    for _ in range(30):
        prompt, limit = [rng.randrange(LIKELY) for _ in range(rng.randint(1, 9))], rng.randint(1, 12)
        eos, letters = rng.sample(range(LIKELY), rng.randint(1, 3)), rng.sample(range(LIKELY), rng.randint(2, 8))
        words = [[rng.randint(20, 255)], *([rng.sample(range(LIKELY), 2)] * rng.randint(0, 1))]
        bias = {token_id: rng.uniform(-5, 5) for token_id in rng.sample(range(LIKELY), 4)}
        counted = rng.uniform(-1, 3), rng.uniform(-1, 2)
        longest = rng.randint(1, 8)
        ways = [TopPLogitsWarper(rng.uniform(0.5, 0.9)), TemperatureLogitsWarper(rng.uniform(0.5, 2))]
        same: dict[str, dict[str, Any]] = {
            "repetition": {"repetition_penalty": rng.uniform(0.7, 2)},
            "ngrams": {"no_repeat_ngram_size": rng.randint(1, 3)},
            "least": {"min_new_tokens": rng.randint(1, limit)},
        }
        ours: dict[str, dict[str, Any]] = {
            "bias": {"logit_bias": bias},
            "words": {"bad_words": words},
            "counts": {"presence_penalty": counted[0], "frequency_penalty": counted[1]},
        }
        theirs: dict[str, dict[str, Any]] = {
            "bias": {"sequence_bias": {(token_id,): value for token_id, value in bias.items()}},
            "words": {"bad_words_ids": words},
        }
        processors: dict[str, list[Any]] = {
            "counts": [Counting(len(prompt), *counted)],
            "functions": ways,
            "mask": [Allowing(len(prompt), letters, longest)],
        }
        asked = rng.sample([*same, *theirs, *processors], rng.randint(1, 4))
        used.update(asked)
        if "mask" in asked:
            eos, limit = [EOS], 20
            del ways[0]  # it may drop all that the mask allows
        sampler = beam_search(
            rng.randint(2, 5),
            length_penalty=rng.choice([-1.0, 0.0, 1.0, 2.0]),
            early_stopping=rng.choice([True, False, "never"]),
            **{key: value for name in asked for key, value in (same | ours).get(name, {}).items()},
        )
        options: Any = {"max_new_tokens": limit, "num_return_sequences": sampler.samples}
        expected = transformers_beams(
            hf_model,
            [prompt],
            sampler,
            eos,
            logits_processor=[one for name, some in processors.items() if name in asked for one in some],
            **{key: value for name in asked for key, value in (same | theirs).get(name, {}).items()},
            **options,
        )
        expected = [one for one in expected if one[1] > -1e6]  # where few texts are left, transformers gives others too
        if "mask" in asked:  # gen gives a text once
            best = {tuple(token_ids): score for token_ids, score in reversed(expected)}
            expected = [(list(token_ids), score) for token_ids, score in reversed(best.items())]
        made: Any = gen.generate(
            model,
            prompt,
            gen.regex(f"[{re.escape(bytes(letters).decode())}]{{1,{longest}}}") if "mask" in asked else None,
            sampler=sampler,
            eos_token_id=eos,
            details=True,
            logits_processors=ways if "functions" in asked else None,
            **options,
        )
        assert [one.token_ids for one in made] == [token_ids for token_ids, _ in expected], asked
        assert [one.score for one in made] == pytest.approx([score for _, score in expected], rel=1e-5, abs=5e-5), asked
    assert min(used[name] for name in (same | theirs | processors)) >= 5


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_searches_as_transformers_does(shape: str) -> None:
    hf_model = tiny_model(shape, vocab_size=259)
    prompts, sampler = [[*b"a"], [*b"to be or not"]], beam_search(3)
    expected = transformers_beams(hf_model, prompts, sampler, [7], max_new_tokens=10, num_return_sequences=3)
    groups: Any = gen.generate(
        gen.from_transformers(hf_model, byte_tokenizer()),
        prompts,
        sampler=sampler,
        eos_token_id=7,
        max_new_tokens=10,
        num_return_sequences=3,
        details=True,
    )
    assert [c.token_ids for group in groups for c in group] == [token_ids for token_ids, _ in expected]


def test_logprobs_add_up_to_the_score(hf_model: PreTrainedModel) -> None:
    model = gen.from_transformers(hf_model, byte_tokenizer())
    completion: Any = gen.generate(
        model, "x", sampler=beam_search(4, length_penalty=0.0), eos_token_id=[], max_new_tokens=8, details=True
    )
    token_ids = torch.tensor([[*b"x", *completion.token_ids]])
    with torch.no_grad():
        logprobs = hf_model(token_ids).logits[0, :-1].log_softmax(-1).gather(1, token_ids[0, 1:, None]).flatten()
    assert completion.logprobs == pytest.approx(logprobs.tolist(), abs=1e-4)
    assert completion.score == pytest.approx(sum(completion.logprobs), abs=1e-4)


def test_one_beam_is_transformers_greedy_search_with_a_score(hf_model: PreTrainedModel) -> None:
    rng = random.Random(1)
    model = gen.from_transformers(hf_model, byte_tokenizer())
    for _ in range(40):
        penalty, eos = rng.choice([-1.0, 0.0, 1.0, 2.0]), rng.sample(range(LIKELY), 3)
        prompt, new_tokens = [rng.randrange(259) for _ in range(rng.randint(1, 9))], rng.randint(1, 12)
        output: Any = hf_model.generate(
            torch.tensor([prompt]),
            max_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        token_ids = output.sequences[0, len(prompt) :].tolist()
        steps = zip(output.logits, token_ids, strict=True)
        score = sum(float(logits.log_softmax(-1)[0, token]) for logits, token in steps) / len(token_ids) ** penalty
        sampler = beam_search(1, length_penalty=penalty)
        ours: Any = gen.generate(
            model, prompt, sampler=sampler, eos_token_id=eos, max_new_tokens=new_tokens, details=True
        )
        assert ours.token_ids == [token for token in token_ids if token not in eos]
        assert ours.score == pytest.approx(score, rel=1e-6, abs=2e-5)


def test_fewer_texts_than_beams_gives_those_that_there_are_and_no_masked_token() -> None:
    model = ScriptedModel("only this")  # every other token is masked
    groups: Any = gen.generate(model, ["x"], sampler=beam_search(4), num_return_sequences=4, details=True)
    [[completion]] = groups
    assert (completion.text, completion.finish_reason, completion.score) == ("only this", "eos", 0.0)
    assert gen.generate(model, "x", sampler=beam_search(4), max_new_tokens=4) == "only"


def test_a_stop_string_ends_a_text_of_beam_search() -> None:
    completion: Any = gen.generate(ScriptedModel("one. two."), "x", sampler=beam_search(2), stop=".", details=True)
    assert (completion.text, completion.finish_reason) == ("one", "stop")


def test_a_subclass_searches_alike_unless_it_has_a_step_of_its_own(hf_model: PreTrainedModel) -> None:
    class Named(BeamSearchSampler):
        pass

    class Greedy(BeamSearchSampler):
        def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Any:
            return greedy().step(logits, weights, keys)

    model = gen.from_transformers(hf_model, byte_tokenizer())
    settings: Any = {"max_new_tokens": 12, "seed": 1}
    made, expected = (
        gen.generate(model, ["ab", "c"], sampler=sampler, num_return_sequences=3, details=True, **settings)
        for sampler in (Named(3), beam_search(3))
    )
    assert made == expected
    own, likeliest = (gen.generate(model, "ab", sampler=sampler, **settings) for sampler in (Greedy(3), greedy()))
    assert own == [likeliest] * 3


def test_the_search_ends_when_every_prompt_is_done() -> None:
    model = ScriptedModel(lambda prompt: [*prompt.encode()])
    assert gen.generate(model, ["abc", "a", "ab"], sampler=beam_search(3)) == ["abc", "a", "ab"]
    assert model.steps == 4
    assert gen.generate(model, "abc", sampler=beam_search(3), max_new_tokens=0) == ""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: beam_search(0), "beams must be a whole number at least 1, got 0"),
        (lambda m: beam_search(2, length_penalty="x"), "length_penalty must be a number"),  # type: ignore[arg-type]
        (
            lambda m: beam_search(num_beams=3),  # type: ignore[call-arg]
            "got 'num_beams'; did you mean 'beams'",
        ),
        (
            lambda m: gen.generate(m, "x", sampler=beam_search(2), num_return_sequences=3),
            "num_return_sequences must be a whole number at least 1 and at most 2, got 3",
        ),
        (lambda m: gen.generate(m, "x", num_return_sequences=2), r"multinomial\(samples=\.\.\.\) draws several"),
        (lambda m: gen.stream(m, "x", sampler=beam_search(2)), "stream makes one text"),
    ],
)
def test_unusable_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        call(ScriptedModel("hello"))


def test_texts_without_a_token_have_receipts_of_their_own() -> None:
    model, sampler = ScriptedModel("hello"), beam_search(2)
    made: Any = gen.generate(model, "x", sampler=sampler, num_return_sequences=2, max_new_tokens=0, details=True)
    assert [one.receipt.sample for one in made] == [0, 1]
