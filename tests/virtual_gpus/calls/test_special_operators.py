"""Operators with special rules: lengths on the host, numbers that are moved, kernels that users wrote."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from virtual_gpus import DeviceError, DeviceMismatchError, no_host_sync, virtual_gpus

GPU0, GPU1, HOST = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")


def test_nested_tensors_with_gradients_are_refused() -> None:
    with virtual_gpus(1):
        parts = [torch.ones(2, 3, device="cuda"), torch.ones(1, 3, device="cuda", requires_grad=True)]
        with pytest.raises(DeviceError, match="no nested tensors with gradients"):
            torch.nested.as_nested_tensor(parts)


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_a_padded_sequence_is_where_its_packed_one_was_moved(enforce_sorted: bool) -> None:
    sequence = torch.arange(6.0).view(3, 2)
    packed = nn.utils.rnn.pack_padded_sequence(sequence, torch.tensor([3, 2]), enforce_sorted=enforce_sorted)
    with virtual_gpus(2):
        padded, lengths = nn.utils.rnn.pad_packed_sequence(packed.to("cuda:1"))  # type: ignore[arg-type]
        assert (padded.device, lengths.device) == (GPU1, HOST) and lengths.tolist() == [3, 2]
        assert padded.tolist() == [[0, 1], [2, 3], [4, 0]]


def test_packed_sequences_keep_their_sizes_on_the_host() -> None:
    torch.manual_seed(0)
    sequence, lstm = torch.randn(3, 2, 4), nn.LSTM(4, 4)
    packed = nn.utils.rnn.pack_padded_sequence(sequence, [3, 2])
    expected, lengths = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])
    with virtual_gpus(2):
        lstm.to("cuda:1")
        moved = sequence.to("cuda:1").requires_grad_()
        packed = nn.utils.rnn.pack_padded_sequence(moved, torch.tensor([3, 2]))
        assert (packed.data.device, packed.batch_sizes.device) == (GPU1, HOST)
        result, sizes = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])
        assert sizes.device == HOST and torch.equal(sizes, lengths)
        torch.testing.assert_close(result.detach().cpu(), expected.detach())
        result.sum().backward()  # type: ignore[no-untyped-call]
        assert moved.grad is not None and moved.grad.device == GPU1


def test_ctc_takes_lengths_from_the_host_and_targets_from_its_device() -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(5, 1, 4).log_softmax(2), torch.ones(1, 2, dtype=torch.long)
    lengths = torch.tensor([5]), torch.tensor([2])
    expected = functional.ctc_loss(scores, targets, *lengths)
    with virtual_gpus(2):
        moved = scores.to("cuda:1").requires_grad_()
        with no_host_sync(count=True) as report:
            loss = functional.ctc_loss(moved, targets.to("cuda:1"), *lengths, reduction="sum")
            assert report.count == 1  # the copy of the targets
            functional.ctc_loss(moved, targets.to("cuda:1"), lengths[0].to("cuda:1"), lengths[1])
        assert report.count == 5  # two copies to the device, one back, and one of the lengths
        loss = functional.ctc_loss(moved, targets.to("cuda:1"), *lengths)
        assert loss.device == GPU1
        torch.testing.assert_close(loss.detach().cpu(), expected)
        loss.backward()  # type: ignore[no-untyped-call]
        assert moved.grad is not None and moved.grad.device == GPU1
        with pytest.raises(DeviceMismatchError, match="targets"):
            functional.ctc_loss(moved, targets, *lengths)
        functional.ctc_loss(moved, targets[0].int(), *lengths)  # cuDNN takes these from the CPU, if blank is 0
        with pytest.raises(DeviceMismatchError, match="targets"):
            functional.ctc_loss(moved, targets[0].int(), *lengths, blank=2)


def test_single_numbers_of_any_device_are_put_and_chosen() -> None:
    with virtual_gpus(2):
        here, there = torch.ones((), device="cuda:0"), torch.ones((), device="cuda:1")
        numbers, host, index = torch.zeros(3, device="cuda:0"), torch.zeros(3), torch.tensor([1])
        for put in (index, host == 0):
            with no_host_sync(count=True) as report:
                host[put] = here
            assert report.count == 1
        assert host.tolist() == [1, 1, 1]
        placed = index.to("cuda:0")
        with no_host_sync():
            numbers[placed] = there
            chosen = torch.where(numbers == 0, numbers, there)
            torch.where(there == 0, there, here)
        assert chosen.device == GPU0 and numbers.tolist() == [0, 1, 0]
        with pytest.raises(DeviceMismatchError):
            numbers[placed.expand(2)] = there.expand(2)
        with pytest.raises(DeviceMismatchError):
            torch.where(numbers == 0, numbers, there.expand(3))


def test_scatters_of_a_slice_copy_their_source_from_anywhere() -> None:
    with virtual_gpus(2):
        whole = torch.zeros(2, 2, device="cuda:0")
        for place, waits in (("cuda:1", 0), ("cpu", 1)):
            row = torch.ones(2, device=place)
            scatters: list[Any] = [
                lambda row=row: torch.select_scatter(whole, row, 0, 1),
                lambda row=row: torch.slice_scatter(whole, row[None], 0, 1, 2),
                lambda row=row: torch.diagonal_scatter(whole, row),
                lambda row=row: torch.as_strided_scatter(whole, row, (2,), (1,)),
            ]
            for scatter in scatters:
                with no_host_sync(count=True) as report:
                    result = scatter()
                assert report.count == waits
                assert result.device == GPU0 and result.sum().item() == 2


@torch.library.custom_op("gen_tests::mixing", mutates_args=())
def mixing(numbers: Tensor) -> Tensor:
    return numbers * torch.ones(3)


@torch.library.custom_op("gen_tests::waiting", mutates_args=())
def waiting(numbers: Tensor) -> Tensor:
    return numbers * numbers.sum().item()


@torch.library.custom_op("gen_tests::for_cuda", mutates_args=(), device_types="cuda")
def for_cuda(numbers: Tensor) -> Tensor:
    return torch.nn.functional.pad(numbers * 2, (0, 1))


@torch.library.custom_op("gen_tests::for_cpu", mutates_args=(), device_types="cpu")
def for_cpu(numbers: Tensor) -> Tensor:
    return numbers * 2


@torch.library.custom_op("gen_tests::two_places", mutates_args=())
def two_places(numbers: Tensor, table: Tensor) -> Tensor:
    return numbers + table.to(numbers.device)


_library = torch.library.Library("gen_tests_old", "DEF")  # type: ignore[no-untyped-call]
_library.define("mixing(Tensor numbers) -> Tensor")  # type: ignore[no-untyped-call]
_library.impl("mixing", lambda numbers: numbers * torch.ones(3), "CUDA")  # type: ignore[no-untyped-call]


def test_what_custom_operators_do_is_seen() -> None:
    with virtual_gpus(2):
        numbers = torch.ones(3, device="cuda:1")
        with pytest.raises(DeviceMismatchError, match="in mixing"):
            mixing(numbers)
        with pytest.raises(DeviceMismatchError):
            torch.ops.gen_tests_old.mixing(numbers)
        with no_host_sync(count=True) as report:
            waiting(numbers)
        assert report.count == 1
        result = for_cuda(numbers)
        assert result.device == GPU1 and result.tolist() == [2, 2, 2, 0]
        with pytest.raises(NotImplementedError, match="'CUDA' backend"):
            for_cpu(numbers)
        assert two_places(numbers, torch.ones(3)).device == GPU1


def test_gradients_of_custom_operators_are_on_their_device() -> None:
    @torch.library.custom_op("gen_tests::doubling", mutates_args=())
    def doubling(numbers: Tensor) -> Tensor:
        return numbers * 2

    doubling.register_autograd(lambda ctx, gradient: gradient * 2)
    with virtual_gpus(2):
        leaf = torch.ones(3, device="cuda:1", requires_grad=True)
        doubling(leaf).sum().backward()
        assert leaf.grad is not None and leaf.grad.device == GPU1
        assert leaf.grad.tolist() == [2, 2, 2]
