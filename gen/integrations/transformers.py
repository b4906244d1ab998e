"""gen's draws inside of transformers' generate: a logits processor that leaves nothing to choose."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gen.arguments import as_lists, read_whole
from gen.devices import to_device
from gen.errors import ArgumentError, show
from gen.samplers import GreedySampler, MultinomialSampler, Sampler
from gen.samplers.random import draw_seed, row_keys, sample_seed

_AHEAD = 256  # tokens for which keys are made at once


class SamplerProcessor:
    """Makes `generate(do_sample=False)` of transformers give the tokens that `gen.generate` gives.

    Every token but the chosen one is dropped, so that greedy decoding takes that one. Use it in one call of generate,
    as its last processor, or call `reset` before the next one.

        processor = SamplerProcessor(gen.samplers.multinomial(temperature=0.8), seed=7, vocab_size=len(tokenizer))
        model.generate(**inputs, do_sample=False, logits_processor=[processor])

    Args:
        sampler: greedy or multinomial, without penalties: give those to transformers. With `samples`, a prompt has so
            many rows, side by side.
        seed: for all prompts, or one for each; None draws it, and `seeds` says which.
        vocab_size: how many ids the tokenizer has, where the model's logits are wider; None for all logits.
    Attributes:
        seeds: one for all prompts, or one for each.
    Raises:
        ArgumentError: another sampler, or a seed that is no whole number; at the first token if the
            rows are not those of as many prompts.
    """

    def __init__(
        self, sampler: Sampler, *, seed: int | Sequence[int] | None = None, vocab_size: int | None = None
    ) -> None:
        if type(sampler) not in (GreedySampler, MultinomialSampler):
            raise ArgumentError(
                "SamplerProcessor takes a greedy or multinomial sampler of gen.samplers, "
                f"got {show(sampler)}; beams are transformers' own: generate(num_beams=...)."
            )
        if sampler.processors is not None:
            raise ArgumentError(
                "penalties, bad words, n-grams and minimum lengths are transformers' own inside of its generate: give "
                "them there, and a sampler without them here."
            )
        given = as_lists(draw_seed() if seed is None else seed)
        given = given if isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray) else [given]
        self.seeds = [read_whole("seed", one) for one in given]
        self._sampler = sampler
        self._vocab_size = None if vocab_size is None else read_whole("vocab_size", vocab_size, minimum=1)
        self.reset()

    def reset(self) -> None:
        """Begin anew: the next call is that of the first token."""
        self._step = 0
        self._keys: Tensor | None = None  # (tokens, rows)
        self._weights: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The logits with -inf everywhere but at the token that gen draws.

        Args:
            input_ids: (rows, tokens), not looked at.
            scores: (rows, vocab), floating, any device; not modified.
        Returns:
            (rows, vocab), of the dtype and on the device of scores. Host sync: none.
        """
        if self._keys is None or self._weights is None:
            self._row_seeds = to_device(torch.tensor(self._seeds_of(len(scores)), device="cpu"), scores.device)
            self._weights = torch.zeros(len(scores), dtype=torch.float32, device=scores.device)
            self._keys = row_keys(self._row_seeds, _AHEAD)
        elif self._step == len(self._keys):
            self._keys = row_keys(self._row_seeds, 2 * self._step)
        logits = scores[:, : self._vocab_size]
        token_ids, _, _ = self._sampler.step(logits, self._weights, self._keys[self._step])
        self._step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, token_ids, 0.0)

    def _seeds_of(self, rows: int) -> list[int]:
        """The seed of each row."""
        samples = self._sampler.samples
        prompts = rows // samples
        if rows % samples or len(self.seeds) not in (1, prompts):
            raise ArgumentError(
                f"generate has {rows} rows; SamplerProcessor has {len(self.seeds)} seeds for prompts of {samples} rows."
            )
        seeds = self.seeds * (prompts if len(self.seeds) == 1 else 1)
        return [sample_seed(seed, sample) for seed in seeds for sample in range(samples)]
