"""The random function: SplitMix64's published vectors, and uniform and independent numbers over seeds and steps."""

import pytest
import torch
from scipy import stats

from gen.samplers.backends.random import draw_seed, log_uniform, row_keys, sample_seed, splitmix64, weyl


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
    noise = -log_uniform(keys.unsqueeze(1), weyl(torch.arange(32)))
    assert noise.shape == (5000, 32)
    assert stats.kstest(noise.flatten()[::7], "expon").pvalue > 1e-4
    by_seed_step_token = torch.exp(-noise).view(50, 100, 32) - 0.5
    for axis in range(3):
        neighbours = (by_seed_step_token * by_seed_step_token.roll(1, axis)).mean()
        # a product of two independent uniforms less their means has variance 1/144
        assert abs(float(neighbours)) < 5 / (144 * noise.numel()) ** 0.5


def test_every_bit_is_set_and_changes_from_neighbour_to_neighbour_half_of_the_time() -> None:
    keys = row_keys(torch.arange(50), 40)  # (steps, seeds)
    words = splitmix64(keys.unsqueeze(-1), torch.arange(100))
    for numbers in (words, *(words ^ words.roll(1, axis) for axis in range(3))):
        bits = (numbers.unsqueeze(-1) >> torch.arange(64)) & 1
        share = bits.double().mean((0, 1, 2))
        assert float((share - 0.5).abs().max()) < 5 * 0.5 / words.numel() ** 0.5


def test_every_use_seed_and_step_has_numbers_of_its_own() -> None:
    keys = row_keys(torch.arange(200), 200)
    assert len(set(keys.flatten().tolist())) == keys.numel()
    derived = [sample_seed(0, sample) for sample in range(1, 200)]
    words = {*keys[:, 0].tolist(), *splitmix64(torch.tensor(0), torch.arange(200)).tolist()}
    assert len(words) == 400
    assert not {word >> 11 for word in words} & set(derived)


def test_the_noise_has_52_bits_and_never_is_zero_or_infinite() -> None:
    ends = torch.tensor([-(2**63), -1, 0, 2**63 - 1])
    uniform = [(float(word >> 12) + 2.0**51 + 0.5) / 2.0**52 for word in ends]
    assert min(uniform) > 0 and max(uniform) < 1
    key = torch.arange(1000).unsqueeze(1)
    bits = splitmix64(key, torch.arange(64))
    wanted = ((bits >> 12).double() + 2.0**51 + 0.5).mul(2.0**-52)
    noise = log_uniform(key, weyl(torch.arange(64)))
    assert (noise < 0).all()
    torch.testing.assert_close(noise.exp(), wanted, atol=2.0**-31, rtol=0)


def test_a_key_depends_on_seed_and_step_alone() -> None:
    seeds = torch.tensor([5, 2**62 + 1, 0])
    assert torch.equal(row_keys(seeds, 3), row_keys(seeds, 9)[:3])
    assert torch.equal(row_keys(seeds, 4)[:, 1], row_keys(seeds[1:2], 4)[:, 0])


def test_sample_seeds_are_derived_from_the_prompts_seed() -> None:
    assert sample_seed(17, 0) == 17
    derived = {sample_seed(seed, sample) for seed in range(20) for sample in range(1, 20)}
    assert len(derived) == 20 * 19
    assert all(0 <= seed < 2**53 for seed in derived | {draw_seed() for _ in range(20)})


def test_the_example_of_seed_7() -> None:
    """The numbers that the module's documentation gives."""
    key = row_keys(torch.tensor([7]), 1)
    assert key.tolist() == [[-5447111994751043391]]
    uniform = log_uniform(key[0], weyl(torch.arange(4))).exp()
    torch.testing.assert_close(uniform, torch.tensor([0.608, 0.925, 0.333, 0.365]).double(), atol=5e-4, rtol=0)
