"""The demo model, read from its files once, for tests that do not depend on what it says."""

import copy
from functools import cache

import torch
from transformers import AutoTokenizer

import gen
from gen.models.checkpoints import DEMO
from gen.models.transformers.model import TransformersModel


def short_demo(layers: int = 2, device: str = "cpu") -> TransformersModel:
    """The demo model with its first layers alone, in float32: a step takes half the time. Each call makes a new one."""
    read = _read()
    model = copy.deepcopy(read.hf_model)
    del model.model.layers[layers:]
    model.config.num_hidden_layers = layers
    return gen.from_transformers(model.to(torch.device(device)), AutoTokenizer.from_pretrained(DEMO))


@cache
def _read() -> TransformersModel:
    return gen.load("demo", device="cpu", probe=False)
