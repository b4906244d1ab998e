"""The random function: Random123's published vectors, and uniform and independent numbers over seeds and steps."""

import pytest
import torch
from scipy import stats

from gen.samplers.random import (
    BLOCK_NOISE,
    TOKEN_NOISE,
    draw_seed,
    exponential,
    philox,
    row_keys,
    sample_seed,
    splitmix64,
)

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


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]),
    ],
)
def test_splitmix64_gives_the_published_vectors(key: int, words: list[int]) -> None:
    bits = splitmix64(torch.tensor(key), torch.arange(1, len(words) + 1))
    assert [number % 2**64 for number in bits.tolist()] == words


def test_the_noise_has_its_distribution_over_seeds_steps_and_neighbours() -> None:
    keys = row_keys(torch.arange(100), 50).flatten()
    noise = exponential(keys.unsqueeze(1), torch.arange(32) + TOKEN_NOISE).double()
    assert noise.shape == (5000, 32)
    assert stats.kstest(noise.flatten()[::7], "expon").pvalue > 1e-4
    by_seed_step_token = torch.exp(-noise).view(50, 100, 32) - 0.5
    for axis in range(3):
        neighbours = (by_seed_step_token * by_seed_step_token.roll(1, axis)).mean()
        # a product of two independent uniforms less their means has variance 1/144
        assert abs(float(neighbours)) < 5 / (144 * noise.numel()) ** 0.5


def test_every_bit_is_set_and_changes_from_neighbour_to_neighbour_half_of_the_time() -> None:
    keys = row_keys(torch.arange(50), 40)  # (steps, seeds)
    words = splitmix64(keys.unsqueeze(-1), torch.arange(100) + TOKEN_NOISE)
    for numbers in (words, *(words ^ words.roll(1, axis) for axis in range(3))):
        bits = (numbers.unsqueeze(-1) >> torch.arange(64)) & 1
        share = bits.double().mean((0, 1, 2))
        assert float((share - 0.5).abs().max()) < 5 * 0.5 / words.numel() ** 0.5


def test_every_use_seed_and_step_has_numbers_of_its_own() -> None:
    keys = row_keys(torch.arange(200), 200)
    assert len(set(keys.flatten().tolist())) == keys.numel()
    index = torch.arange(16)
    blocks, tokens = (splitmix64(keys[0].unsqueeze(1), index + use) for use in (BLOCK_NOISE, TOKEN_NOISE))
    assert len({*blocks.flatten().tolist(), *tokens.flatten().tolist()}) == 2 * blocks.numel()


def test_a_key_depends_on_seed_and_step_alone() -> None:
    seeds = torch.tensor([5, 2**62 + 1, 0])
    assert torch.equal(row_keys(seeds, 3), row_keys(seeds, 9)[:3])
    assert torch.equal(row_keys(seeds, 4)[:, 1], row_keys(seeds[1:2], 4)[:, 0])


def test_sample_seeds_are_derived_from_the_prompts_seed() -> None:
    assert sample_seed(17, 0) == 17
    derived = {sample_seed(seed, sample) for seed in range(20) for sample in range(1, 20)}
    assert len(derived) == 20 * 19
    assert all(0 <= seed < 2**53 for seed in derived | {draw_seed() for _ in range(20)})
