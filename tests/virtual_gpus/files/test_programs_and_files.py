"""Exported programs, checkpoints and training steps on virtual GPUs."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from virtual_gpus import DeviceMismatchError, no_host_sync, virtual_gpus


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_program_that_is_only_sent_keeps_its_constants_behind() -> None:
    program = _exported()
    with virtual_gpus(2), pytest.raises(DeviceMismatchError, match="cuda:1 and cpu"):
        program.module().to("cuda:1")(torch.ones(2, 3, device="cuda:1"))


def test_operators_called_by_themselves_take_devices() -> None:
    aten = torch.ops.aten
    with virtual_gpus(2):
        device = torch.device("cuda:1")
        zeros = aten.zeros.default([2], device=device, pin_memory=False)
        assert zeros.device == device
        assert aten.zeros_like.default(torch.ones(2), device=device).device == device
        assert aten._to_copy.default(zeros, device=torch.device("cuda:0")).device == torch.device("cuda:0")
        assert aten.to.device(torch.ones(2), device, torch.float64).dtype == torch.float64
        torch.manual_seed(0)
        drawn = aten.rand.default([3], device=device)
        torch.manual_seed(0)
        assert torch.equal(torch.rand(3, device="cuda:1"), drawn)


def test_checkpoints_are_read_to_a_gpu_and_without_any(tmp_path: Path) -> None:
    with virtual_gpus(2):
        layer = nn.Linear(2, 2).to("cuda:1")
        torch.save(layer.state_dict(), tmp_path / "layer.pt")
        placed = torch.load(tmp_path / "layer.pt", map_location="cuda:0")
        assert placed["weight"].device == torch.device("cuda:0")
        layer.load_state_dict(placed)
        assert layer.weight.device == torch.device("cuda:1")
    read = torch.load(tmp_path / "layer.pt", map_location="cpu")
    assert type(read["weight"]) is Tensor
    assert torch.equal(read["weight"], layer.weight.cpu())


def test_cpu_tensors_made_in_the_block_can_be_saved(tmp_path: Path) -> None:
    with virtual_gpus(1):
        torch.save(torch.zeros(2), tmp_path / "zeros.pt")
    assert torch.load(tmp_path / "zeros.pt").tolist() == [0, 0]


def test_saving_waits() -> None:
    with virtual_gpus(1):
        numbers = torch.ones(2, device="cuda")
        with no_host_sync(count=True) as report:
            torch.save(numbers, io.BytesIO())
    assert report.count == 1


def test_a_training_step_changes_what_the_cpus_changes() -> None:
    torch.manual_seed(0)
    layer, numbers = nn.Linear(3, 2), torch.randn(4, 3)

    def train(device: str) -> Tensor:
        twin = nn.Linear(3, 2)
        twin.load_state_dict(layer.state_dict())
        twin.to(device)
        optimizer = torch.optim.AdamW(twin.parameters())
        twin(numbers.to(device)).square().sum().backward()
        optimizer.step()
        return twin.weight.detach().cpu()

    expected = train("cpu")
    with virtual_gpus(2):
        torch.testing.assert_close(train("cuda:1"), expected)


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
