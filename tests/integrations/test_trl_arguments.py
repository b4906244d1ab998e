"""What a trainer's arguments say of its rollouts; this needs no TRL."""

from types import SimpleNamespace

import pytest

import gen
from gen.integrations.trl import Rollouts, sampler_of


def test_arguments_are_those_of_a_sampler_and_no_others_are_dropped() -> None:
    args = SimpleNamespace(temperature=0.7, top_k=0, top_p=1, min_p=None, repetition_penalty=1, generation_kwargs=None)
    assert sampler_of(args) == gen.samplers.multinomial(temperature=0.7, repetition_penalty=1)
    args.generation_kwargs = {"suppress_tokens": [3]}
    with pytest.raises(gen.ArgumentError, match="generation_kwargs are for transformers"):
        sampler_of(args)
    with pytest.raises(gen.ArgumentError, match="takes no sampler, seed: the trainer's arguments decide that"):
        Rollouts(seed=3, stop="x", sampler=gen.samplers.greedy())
