"""Rollouts for TRL's GRPOTrainer, in one process: the trainer's own model writes them, with its newest weights.

    trainer = GRPOTrainer(model, reward, args, dataset, processing_class=tokenizer, rollout_func=Rollouts())

`rollout_func` is experimental in TRL, so the extra `trl` names one version of it. Source: trl 1.16.0, GRPOTrainer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gen
from gen.errors import ArgumentError
from gen.models.base import Model
from gen.requests.prompts import Prompt, messages_of, read_one_prompt
from gen.samplers.backends.random import sample_seed

_OF_TRAINER = ("details", "eos_token_id", "max_new_tokens", "sampler", "seed")  # settings that follow from a trainer's


class Rollouts:
    """A `rollout_func`: continues each prompt that a trainer gives, once for each time that it is given.

    The trainer's arguments say how: temperature, top_k, top_p, min_p, repetition_penalty, max_completion_length, seed
    and chat_template_kwargs. Each text has a seed of its own, which follows from the trainer's seed, its process, the
    number of the call and the text's place in it. The model is in evaluation mode meanwhile, so that dropout changes
    nothing. Weights are those of the moment: nothing that was read with older ones is used again.

    The log-probabilities are those of the trainer's own forward, up to rounding, at any temperature without cuts and
    types, if the model has no more logits than the tokenizer has ids: gen leaves the others out, and the trainer does
    not. `hf_model.resize_token_embeddings(len(tokenizer))` makes them equal.

    Args:
        output_type: as for `gen.generate`; log-probabilities are then those under the type. Reward functions get the
            values as `values`.
        settings: more arguments of `gen.generate`, such as `stop`, except those that follow from the trainer's.
    Raises:
        ArgumentError: a setting follows from the trainer's arguments.
        ModelError: gen cannot run the trainer's model; the first call raises it.
    """

    def __init__(self, output_type: Any = None, **settings: Any) -> None:
        if refused := [name for name in _OF_TRAINER if name in settings]:
            raise ArgumentError(f"Rollouts takes no {', '.join(refused)}: the trainer's arguments decide that.")
        self._output_type, self._settings = output_type, {"shorten": True} | settings
        self._calls = 0
        self._made: tuple[Any, Model] | None = None

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """The tokens of prompts and of texts, with the token that ended each text, and their log-probabilities."""
        args, hf_model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
        begin = sample_seed(sample_seed(args.seed, trainer.accelerator.process_index), self._calls)
        self._calls += 1
        with evaluated(hf_model):
            if self._made is None or self._made[0] is not hf_model:
                self._made = hf_model, gen.from_transformers(hf_model, trainer.processing_class)
            model = self._made[1]
            kwargs = [(trainer.chat_template_kwargs or None) if messages_of(one) else None for one in prompts]
            prompt_ids = [
                read_one_prompt(model, number, one, (), template_kwargs=own)[0]
                for number, (one, own) in enumerate(zip(prompts, kwargs, strict=True))
            ]
            made = gen.generate(
                model,
                prompt_ids,
                self._output_type,
                details="tensors",
                sampler=sampler_of(args),
                max_new_tokens=args.max_completion_length,
                eos_token_id=trainer.eos_token_ids,
                seed=[sample_seed(begin, number) for number in range(len(prompts))],
                **self._settings,
            )
        lengths = made.lengths.tolist()
        found = {
            "prompt_ids": prompt_ids,
            "completion_ids": [one[:n] for one, n in zip(made.token_ids.tolist(), lengths, strict=True)],
            "logprobs": [one[:n] for one, n in zip(made.logprobs.tolist(), lengths, strict=True)],
        }
        values = {} if self._output_type is None else {"values": [one.value for one in made.completions]}
        return found | values


def sampler_of(args: Any) -> gen.samplers.MultinomialSampler:
    """The sampler that a trainer's arguments describe; what changes nothing is left out.

    Raises:
        ArgumentError: there are generation_kwargs, which are transformers' own.
    """
    if args.generation_kwargs:
        raise ArgumentError("generation_kwargs are for transformers' generate; give gen's settings to Rollouts.")
    return gen.samplers.multinomial(
        temperature=args.temperature,
        top_k=args.top_k or None,
        top_p=None if args.top_p == 1 else args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
    )


@contextmanager
def evaluated(hf_model: Any) -> Iterator[None]:
    """In the block, a model is in evaluation mode; after it, each module is in the mode in which it was."""
    training = [module for module in hf_model.modules() if module.training]
    hf_model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
