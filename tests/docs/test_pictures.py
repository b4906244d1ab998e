"""The pictures of the docs are the ones that their script draws, with the samplers' numbers."""

import math
import runpy
from pathlib import Path
from typing import Any

import torch

import gen

ROOT = Path(__file__).parents[2]
DRAWN = runpy.run_path(str(ROOT / ".ci" / "pictures.py"))
LOGITS = torch.tensor([list(DRAWN["TOKENS"].values())]).log()


def test_the_committed_pictures_are_those_of_the_script() -> None:
    for name, draw in DRAWN["PICTURES"].items():
        assert (DRAWN["FOLDER"] / name).read_text(encoding="utf-8") == draw(), "run python .ci/pictures.py"


def test_the_cuts_of_the_picture_are_those_of_the_sampler() -> None:
    for cut, value in (("top_k", 2), ("top_k", 3), ("top_p", 0.6), ("top_p", 0.7), ("min_p", 0.4)):
        settings: dict[str, Any] = {cut: value}
        left = gen.samplers.multinomial(**settings).warp(LOGITS)[0]
        kept = {token for token, logit in zip(DRAWN["TOKENS"], left.tolist(), strict=True) if logit > -math.inf}
        assert kept == DRAWN[cut](DRAWN["TOKENS"], value)
