"""Exported programs, checkpoints and training steps on virtual GPUs."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from virtual_gpus import no_host_sync, virtual_gpus


class _Program(nn.Module):
    """Has a parameter, a buffer, a constant, a literal and factories: an export can fix a device in each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))
        self.register_buffer("buffer", torch.arange(3.0))
        self.constant = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, numbers: Tensor) -> Tensor:
        literal = torch.tensor([1.0, 1.0, 1.0], device=numbers.device)
        made = torch.arange(3, device=numbers.device) + torch.zeros(3, device=numbers.device)
        return numbers @ self.weight + self.get_buffer("buffer") + self.constant + literal + made


def _exported() -> Any:
    return torch.export.export(_Program(), (torch.ones(2, 3),))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_moved_program_gives_the_cpus_numbers() -> None:
    expected = _Program()(torch.ones(2, 3))
    program = _exported()
    with virtual_gpus(2):
        moved = move_to_device_pass(program, "cuda:1").module()
        result = moved(torch.ones(2, 3, device="cuda:1"))
        assert result.device == torch.device("cuda:1")
        assert torch.equal(result.cpu(), expected)


def test_saving_waits() -> None:
    with virtual_gpus(1):
        numbers = torch.ones(2, device="cuda")
        with no_host_sync(count=True) as report:
            torch.save(numbers, io.BytesIO())
    assert report.count == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_what_torch_makes_inside_of_a_function_is_on_its_arguments_device(mode: Any) -> None:
    def run(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        numbers = torch.arange(24, dtype=torch.float32).reshape(1, 2, 3, 4).to(device)
        sequence = numbers.reshape(3, 2, 4)
        with mode():
            return [
                nn.functional.scaled_dot_product_attention(numbers, numbers, numbers, is_causal=True),
                nn.functional.one_hot(torch.arange(3).to(device), 4),
                nn.utils.rnn.pad_sequence([sequence[0], sequence[1, :1]]),
                nn.LSTM(4, 3).to(device)(sequence)[0],
                nn.MultiheadAttention(4, 2).to(device)(sequence, sequence, sequence)[0],
                nn.functional.interpolate(numbers, scale_factor=2.0),
                torch.where(numbers > 3, 0.0, numbers),
                torch.repeat_interleave(sequence, 2, dim=0),
                torch.stft(sequence.reshape(-1), 8, window=torch.hann_window(8, device=device), return_complex=True),
            ]

    expected = run("cpu")
    with virtual_gpus(2):
        results = run("cuda:1")
        assert {result.device for result in results} == {torch.device("cuda:1")}
        for result, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(result.cpu(), wanted)
