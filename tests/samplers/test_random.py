"""The random function: Random123's published vectors, and uniform and independent numbers over seeds and steps."""

import pytest
import torch
from scipy import stats

from gen.samplers.random import BLOCK_NOISE, TOKEN_NOISE, draw_seed, exponential, philox, row_keys, sample_seed

PI_KEY = 0x299F31D0A4093822


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, -1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), PI_KEY, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_vectors(counter: tuple[int, int, int, int], key: int, words: str) -> None:
    assert " ".join(f"{int(word):08x}" for word in philox(counter, torch.tensor(key))) == words


def test_the_noise_has_its_distribution_over_seeds_steps_and_neighbours() -> None:
    keys = row_keys(torch.arange(100), 50).flatten()
    noise = exponential(keys, torch.arange(8).unsqueeze(0), TOKEN_NOISE).double()
    assert noise.shape == (5000, 32)
    assert stats.kstest(noise.flatten()[::7], "expon").pvalue > 1e-4
    by_seed_step_token = torch.exp(-noise).view(50, 100, 32) - 0.5
    for axis in range(3):
        neighbours = (by_seed_step_token * by_seed_step_token.roll(1, axis)).mean()
        # a product of two independent uniforms less their means has variance 1/144
        assert abs(float(neighbours)) < 5 / (144 * noise.numel()) ** 0.5


def test_every_use_seed_and_step_has_numbers_of_its_own() -> None:
    keys = row_keys(torch.arange(200), 200)
    assert len(set(keys.flatten().tolist())) == keys.numel()
    runs = torch.arange(4).unsqueeze(0)
    assert not torch.isin(exponential(keys[0], runs, TOKEN_NOISE), exponential(keys[0], runs, BLOCK_NOISE)).any()


def test_a_key_depends_on_seed_and_step_alone() -> None:
    seeds = torch.tensor([5, 2**62 + 1, 0])
    assert torch.equal(row_keys(seeds, 3), row_keys(seeds, 9)[:3])
    assert torch.equal(row_keys(seeds, 4)[:, 1], row_keys(seeds[1:2], 4)[:, 0])


def test_sample_seeds_are_derived_from_the_prompts_seed() -> None:
    assert sample_seed(17, 0) == 17
    derived = {sample_seed(seed, sample) for seed in range(20) for sample in range(1, 20)}
    assert len(derived) == 20 * 19
    assert all(0 <= seed < 2**53 for seed in derived | {draw_seed() for _ in range(20)})
