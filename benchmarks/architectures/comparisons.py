"""`gen`'s texts and vectors against the model's own plain forward: no cache, no padding, one sequence at a time."""

import string
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

import gen
from benchmarks.architectures.image_inputs import TEXTS, Inputs
from benchmarks.architectures.tiny_configs import VOCABULARY
from benchmarks.architectures.tiny_models import tokenizer
from gen.models.transformers.vision import reads_images

TIE = 1e-4  # logits this close to the best count as equal: a share of their spread (highest minus lowest)
CLOSE = 1e-4  # log-probabilities differ by less than this share of the logits' spread, vectors by less of theirs
NOISE = 1e-6  # if so much noise in the embeddings moves the logits further than CLOSE, nothing is compared
NEW_TOKENS = 20
BEAMS = 3
LENGTHS = (5, 29, 1, 29, 12)  # of the prompts: one token, shorter and longer than a window, two equal

Cases = Iterator[tuple[str, Callable[[], None]]]


class DifferenceError(Exception):
    """A text or vector that is not the oracle's."""


class Oracle:
    """The logits after given tokens, by a forward over all of them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], Tensor] = {}

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """(VOCABULARY,) float64, for the tokens that the tokenizer knows."""
        key = tuple(token_ids)
        if key not in self._known:
            self._known[key] = self._forward(token_ids)
        return self._known[key]

    def jumps(self, token_ids: Sequence[int]) -> bool:
        """Whether rounding decides here: a little noise in the embeddings changes which experts or keys are chosen."""
        logits = self.logits(token_ids)
        generator = torch.Generator().manual_seed(0)

        def add_noise(_module: object, _inputs: object, embedded: Tensor) -> Tensor:
            return embedded * (1 + NOISE * torch.randn(embedded.shape, generator=generator))

        with self._model.get_input_embeddings().register_forward_hook(add_noise):
            others = [self._forward(token_ids) for _ in range(10)]
        return any(float((other - logits).abs().max()) > CLOSE * spread(logits) for other in others)

    @torch.inference_mode()
    def _forward(self, token_ids: Sequence[int]) -> Tensor:
        logits: Tensor = self._model(input_ids=torch.tensor([token_ids]), use_cache=False).logits
        return logits[0, -1, :VOCABULARY].double()

    def likeliest(self, prompt: Sequence[int], length: int, beams: int) -> tuple[list[int], bool]:
        """The first text of a beam search without ends, and whether it was a close call anywhere."""
        hypotheses: list[tuple[float, list[int]]] = [(0.0, [])]
        close_call = False
        for _ in range(length):
            candidates = []
            for weight, tokens in hypotheses:
                logits = self.logits([*prompt, *tokens])
                best, found = logits.log_softmax(-1).topk(beams + 1)
                candidates += [(weight + p, [*tokens, t]) for p, t in zip(best.tolist(), found.tolist(), strict=True)]
            candidates.sort(key=lambda candidate: -candidate[0])
            tolerance = TIE * length * spread(logits)
            close_call |= candidates[beams - 1][0] - candidates[beams][0] < tolerance
            hypotheses = candidates[:beams]
        close_call |= hypotheses[0][0] - hypotheses[1][0] < tolerance
        return hypotheses[0][1], close_call


class TextComparison:
    """A decoder's texts: greedy, sampled and searched for; alone and in batches.

    Args:
        new_tokens: how long the texts are; those of beams are half as long.
        processor: that of a model that reads images; None where it gets only text.

    Attributes:
        error: the largest difference of a log-probability so far, as a share of the logits' spread.
        tokens: the tokens of the greedy texts.
        close_calls: how many tokens were not compared, because rounding decides which one the oracle chooses.
    """

    def __init__(self, model: PreTrainedModel, new_tokens: int = NEW_TOKENS, *, processor: Any = None) -> None:
        self._oracle = Oracle(model)
        self._new_tokens = new_tokens
        without_images = _Processor() if reads_images(model) else tokenizer()
        self._model = gen.from_transformers(model, processor or without_images)
        generator = torch.Generator().manual_seed(1)
        self._prompts = [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]
        self.error = 0.0
        self.tokens: set[int] = set()
        self.close_calls = 0

    def cases(self) -> Cases:
        for prompt in self._prompts[:3]:
            yield f"a prompt of {len(prompt)} alone", partial(self._greedy, [prompt])
        yield "a batch of equal lengths", partial(self._greedy, self._prompts[1::2])
        yield "a batch of unequal lengths", partial(self._greedy, self._prompts)
        yield "samples", self._samples
        yield "beams", self._beams

    def _generate(
        self,
        prompts: Sequence[list[int]],
        sampler: Any,
        *,
        max_new_tokens: int | None = None,
        seed: int | Sequence[int] = 0,
    ) -> list[Any]:
        completions: list[Any] = gen.generate(
            self._model,
            list(prompts),
            sampler=sampler,
            max_new_tokens=max_new_tokens or self._new_tokens,
            seed=seed,
            eos_token_id=[],
            details=True,
        )
        return completions

    def _greedy(self, prompts: Sequence[list[int]]) -> None:
        for prompt, completion in zip(prompts, self._generate(prompts, gen.samplers.greedy()), strict=True):
            self.tokens.update(completion.token_ids)
            self._check(prompt, completion, greedy=True)

    def _samples(self) -> None:
        sampler, seeds = gen.samplers.multinomial(samples=2), list(range(len(self._prompts)))
        together = self._generate(self._prompts, sampler, seed=seeds)
        for prompt, seed, both in zip(self._prompts, seeds, together, strict=True):
            for completion in both:
                self._check(prompt, completion, greedy=False)
            alone = self._generate([prompt], sampler, seed=seed)[0]
            if [one.token_ids for one in alone] != [one.token_ids for one in both]:
                raise DifferenceError(f"the prompt of {len(prompt)} has another text alone than in the batch")

    def _beams(self) -> None:
        prompts, length = self._prompts[:3], self._new_tokens // 2
        sampler = gen.samplers.beam_search(BEAMS)
        for prompt, completion in zip(prompts, self._generate(prompts, sampler, max_new_tokens=length), strict=True):
            self._check(prompt, completion, greedy=False)
            expected, close_call = self._oracle.likeliest(prompt, length, BEAMS)
            if completion.token_ids != expected and not close_call and not self.close_calls:
                raise DifferenceError(f"the prompt of {len(prompt)}: {completion.token_ids}, expected {expected}")

    def _check(self, prompt: list[int], completion: Any, *, greedy: bool, oracle: Oracle | None = None) -> None:
        """Every token has the log-probability that was reported, and in a greedy text no other token is likelier."""
        given, oracle = list(prompt), oracle or self._oracle
        for place, (token, logprob) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
            logits = oracle.logits(given)
            missed = float(logits.max() - logits[token]) / spread(logits) if greedy else 0.0
            error = abs(float(logits.log_softmax(-1)[token]) - logprob) / spread(logits)
            if missed <= TIE and error <= CLOSE:
                self.error = max(self.error, error)
            elif oracle.jumps(given):
                self.close_calls += 1
            else:
                where = f"new token {place} of the prompt of {len(prompt)}"
                if missed > TIE:
                    raise DifferenceError(
                        f"{where} is {token}, expected {int(logits.argmax())}, better by {missed:.1e}"
                    )
                raise DifferenceError(f"{where}: its log-probability is off by {error:.1e}")
            given.append(token)


class ImageComparison(TextComparison):
    """The texts of two prompts with an image each: greedy and sampled, alone, and in a batch with one without.

    Args:
        inputs: the arguments of the model's forward for each prompt, see `each_alone`.
    """

    def __init__(self, model: PreTrainedModel, inputs: Sequence[Inputs]) -> None:
        super().__init__(model, processor=_ImageProcessor(inputs))
        self._oracles = [ImageOracle(model, one) for one in inputs]

    def cases(self) -> Cases:
        for text in range(TEXTS):
            yield f"image {text} alone", partial(self._compare, [text], gen.samplers.greedy())
        both = [*range(TEXTS)]
        yield "a batch", partial(self._compare, both, gen.samplers.greedy())
        yield "samples", partial(self._compare, both, gen.samplers.multinomial(samples=2))

    def _compare(self, texts: Sequence[int], sampler: Any) -> None:
        images = [[Image.new("L", (1, 1), text)] for text in texts]
        greedy, alone = sampler == gen.samplers.greedy(), len(texts) == 1
        prompts = ["image"] * len(texts) + ([] if alone else ["a text without one"])
        made = gen.generate(
            self._model,
            prompts,
            images=images + ([] if alone else [[]]),
            sampler=sampler,
            max_new_tokens=self._new_tokens,
            seed=0,
            eos_token_id=[],
            details=True,
        )
        for text, found in zip(texts, made, strict=False):
            for completion in found if isinstance(found, list) else [found]:
                self.tokens.update(completion.token_ids)
                self._check([], completion, greedy=greedy, oracle=self._oracles[text])


class ImageOracle(Oracle):
    """The logits after an image's prompt and given tokens."""

    def __init__(self, model: PreTrainedModel, inputs: Inputs) -> None:
        super().__init__(model)
        self._inputs = inputs

    @torch.inference_mode()
    def _forward(self, token_ids: Sequence[int]) -> Tensor:
        more = len(token_ids)
        inputs = {
            **self._inputs,
            "input_ids": torch.cat((self._inputs["input_ids"], torch.tensor([token_ids], dtype=torch.int64)), 1),
        }
        for name, value in self._inputs.items():
            if name == "attention_mask":
                inputs[name] = pad(value, (0, more), value=1)
            elif name.endswith("token_type_ids") or name == "image_embeds_position_mask":
                inputs[name] = pad(value, (0, more))
            elif name in ("cross_attention_mask", "image_attention_mask", "bbox"):  # as the last one of the prompt
                inputs[name] = torch.cat((value, value[:, -1:].repeat_interleave(more, 1)), 1)
        logits: Tensor = self._model(**inputs, use_cache=False).logits
        return logits[0, -1, :VOCABULARY].double()


class VectorComparison:
    """An encoder's vectors: each text alone, and texts of unequal lengths together.

    Attributes:
        error: the largest difference so far, as a share of the vectors' spread.
        tokens, close_calls: none; texts have them.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._hf_model, self._tokenizer = model, tokenizer()
        self._model = gen.from_transformers_encoder(model, self._tokenizer)
        letters = string.ascii_letters
        self._texts = [letters[number : number + length] for number, length in enumerate(LENGTHS)]
        self.error = 0.0
        self.tokens: set[int] = set()
        self.close_calls = 0

    def cases(self) -> Cases:
        for text in self._texts[:3]:
            yield f"a text of {len(text)} tokens alone", partial(self._check, [text])
        yield "a batch of unequal lengths", partial(self._check, self._texts)

    @torch.inference_mode()
    def _check(self, texts: Sequence[str]) -> None:
        for text, vector in zip(texts, gen.embed(self._model, texts, normalize=False), strict=True):
            token_ids = torch.tensor([self._tokenizer(text)["input_ids"]])
            expected = self._hf_model(input_ids=token_ids).last_hidden_state[0].double().mean(0)
            error = float((vector.double() - expected).abs().max()) / spread(expected)
            if not error <= CLOSE:
                raise DifferenceError(f"the vector of a text of {len(text)} tokens is off by {error:.1e}")
            self.error = max(self.error, error)


class _Processor:
    """Stands in for the processor of a model that reads images: here the model gets only token ids."""

    image_processor: Any = None

    def __init__(self) -> None:
        self.tokenizer = tokenizer()


class _ImageProcessor(_Processor):
    """Gives what was made for an image, which its grey names, whatever the text is."""

    image_processor, image_token = object(), None

    def __init__(self, inputs: Sequence[Inputs]) -> None:
        super().__init__()
        self._inputs = inputs

    def __call__(self, text: object, images: Any, **settings: object) -> Inputs:
        return dict(self._inputs[images[0][0].convert("L").getpixel((0, 0))])


def spread(values: Tensor) -> float:
    return float(values.max() - values.min())
