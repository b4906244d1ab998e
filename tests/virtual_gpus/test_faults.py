"""Faults that a block injects: each happens where it is told to, and nowhere else.

The oracle is worked out by hand: eight numbers, of which four arrive.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from virtual_gpus import ArgumentError, StreamRaceError, virtual_gpus
from virtual_gpus.faults import FailedAllocation, Fault, MissingWait, PartialCopy, Placeholder

FIRST_HALF = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def ones(device: str) -> Tensor:
    return torch.ones(2, 4, device=device)


def numbers(tensor: Tensor) -> list[float]:
    values: list[float] = tensor.cpu().flatten().tolist()
    return values


def test_a_copy_arrives_in_part_for_its_pair_alone() -> None:
    fault = PartialCopy(source=0, target=1)
    with virtual_gpus(3, faults=[fault]):
        x = ones("cuda:0")
        assert numbers(x.to("cuda:2")) == numbers(ones("cuda:1").to("cuda:0")) == [1.0] * 8
        before = fault.happened
        assert numbers(x.to("cuda:1")) == FIRST_HALF
        assert numbers(x.to("cuda:1", torch.float64)) == numbers(x.cuda(1)) == FIRST_HALF
        assert (before, fault.happened) == (0, 3)


def test_the_rest_of_a_target_keeps_its_old_numbers() -> None:
    with virtual_gpus(2, faults=[PartialCopy(part=0.25)]):
        target = torch.full((4, 2), 7.0, device="cuda:1").T  # not contiguous
        target.copy_(ones("cuda:0"))
        assert numbers(target) == [1.0] * 2 + [7.0] * 6


def test_a_gradient_arrives_in_part() -> None:
    with virtual_gpus(2, faults=[PartialCopy(source=1, target=0)]):
        x = ones("cuda:0").requires_grad_()
        x.to("cuda:1").sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert numbers(x.grad) == FIRST_HALF


def test_a_chain_of_three_is_broken_and_each_pair_is_right() -> None:
    fault = PartialCopy(chain=True)
    with virtual_gpus(3, faults=[fault]):
        x = ones("cuda:0")
        for source in range(3):
            for target in range(3):
                assert numbers(ones(f"cuda:{source}").to(f"cuda:{target}")) == [1.0] * 8
        assert numbers(x.to("cuda:1").to("cuda:0")) == [1.0] * 8
        assert not fault.happened
        assert numbers(x.to("cuda:1").mul(1).to("cuda:2")) == FIRST_HALF
        passed = x.to("cuda:1")
        torch.cuda.synchronize()
        assert numbers(passed.to("cuda:2")) == [1.0] * 8


def test_large_and_busy_copies() -> None:
    with virtual_gpus(2, faults=[PartialCopy(at_least=32)]):
        assert numbers(torch.ones(7, device="cuda:0").to("cuda:1")) == [1.0] * 7
        assert numbers(ones("cuda:0").to("cuda:1")) == FIRST_HALF
    with virtual_gpus(2, faults=[PartialCopy(busy=2)]):
        copies = [ones("cuda:0").to("cuda:1") for _ in range(3)]
        assert [numbers(one) for one in copies] == [[1.0] * 8, [1.0] * 8, FIRST_HALF]
        assert numbers(ones("cuda:0").to("cuda:1")) == [1.0] * 8


@pytest.mark.parametrize(("gpu", "fails"), [(None, 3), (1, 4), (0, None)])
def test_one_allocation_fails(gpu: int | None, fails: int | None) -> None:
    fault = FailedAllocation(number=3, gpu=gpu)
    failed = []
    with virtual_gpus(2, faults=[fault]):
        for number, device in enumerate(("cuda:1", "cuda:0", "cuda:1", "cuda:1", "cuda:1"), start=1):
            try:
                ones(device)
            except torch.OutOfMemoryError:
                failed.append(number)
    assert failed == ([] if fails is None else [fails])
    assert fault.happened == len(failed)


def test_a_placeholder_has_no_values() -> None:
    fault = Placeholder(number=2)
    with virtual_gpus(2, faults=[fault]):
        first, second = (torch.ones(2).to("cuda:1") for _ in range(2))
        assert (first.device.type, second.device.type) == ("cuda", "meta")
        with pytest.raises(RuntimeError, match="`other` has no values: a hook loads them"):
            first + second


def waits(what: str, stream: Any, event: Any) -> None:
    if what == "wait_stream":
        torch.cuda.current_stream().wait_stream(stream)
    elif what == "wait_event":
        torch.cuda.current_stream().wait_event(event)
    else:
        {"stream": stream, "event": event}[what].synchronize()


@pytest.mark.parametrize("what", ["wait_stream", "wait_event", "stream", "event"])
def test_a_missing_wait_is_a_race(what: str) -> None:
    fault = MissingWait(number=2)
    with virtual_gpus(1, check_streams=True, faults=[fault]):
        for time in (1, 2):
            stream, event = torch.cuda.Stream(), torch.cuda.Event()  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                x = torch.ones(4, device="cuda")
                event.record(stream)
            waits(what, stream, event)
            if time == 1:
                x.add_(1)
        assert fault.happened == 1
        with pytest.raises(StreamRaceError):
            x.add_(1)


def test_a_fault_is_counted_anew_in_each_block() -> None:
    fault = FailedAllocation(number=1)
    for _ in range(2):
        with virtual_gpus(1, faults=[fault]), pytest.raises(torch.OutOfMemoryError):
            ones("cuda")
        assert fault.happened == 1
    with virtual_gpus(1):
        ones("cuda")


@pytest.mark.parametrize(
    ("faults", "said"), [([MissingWait(number=1)], "only with .*check_streams"), (["copies"], "takes faults")]
)
def test_faults_that_cannot_be_used_are_refused(faults: list[Fault], said: str) -> None:
    with pytest.raises(ArgumentError, match=said), virtual_gpus(2, faults=faults):
        pass
    with virtual_gpus(2):  # and nothing is left of the block
        assert numbers(ones("cuda:0").to("cuda:1")) == [1.0] * 8
