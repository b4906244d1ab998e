"""Random calls, each compared with an oracle."""

from random import Random
from typing import Any

import gen
from benchmarks.corpus.models import DATA


def random_sampler(random: Random, samples: int = 1, *, penalised: float = 0.4) -> Any:
    """A sampler of the corpus' settings: every third one takes the likeliest token, and a share has penalties."""
    penalties: dict[str, Any] = random.choice(DATA["penalties"]) if random.random() < penalised else {}
    if random.random() < 0.3:
        return gen.samplers.greedy(**penalties)
    return gen.samplers.multinomial(samples, **random.choice(DATA["cuts"]), **penalties)
