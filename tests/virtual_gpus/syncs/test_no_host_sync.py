"""The check that the host never waits: what it counts, what it says, and what it does not touch."""

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from virtual_gpus import DeviceError, HostSyncError, allowed, no_host_sync, virtual_gpus


def test_a_sync_raises_before_it_happens_and_tells_the_line() -> None:
    with virtual_gpus(2):
        scores = torch.ones(3, device="cuda:1")
        with pytest.raises(HostSyncError, match="item, bool, int or float") as caught, no_host_sync():
            scores.add_(1)
            scores.sum().item()
        assert "tests/virtual_gpus/syncs/test_no_host_sync.py" in str(caught.value)
        assert "test_a_sync_raises_before_it_happens_and_tells_the_line" in str(caught.value)
        assert scores.tolist() == [2, 2, 2]


def test_a_report_counts_each_line() -> None:
    with virtual_gpus(1):
        scores = torch.ones(3, device="cuda")
        with no_host_sync(count=True) as report:
            for _ in range(3):
                scores.cpu()
            bool(scores.any())
    line = test_a_report_counts_each_line.__code__.co_firstlineno
    assert report.count == 4
    first, second = report.by_line.items()
    assert first == (
        f"copy from cuda:0 to the host at tests/virtual_gpus/syncs/test_no_host_sync.py:{line + 5} "
        "in test_a_report_counts_each_line",
        3,
    )
    assert second[1] == 1
    assert str(report).splitlines()[:2] == ["4 host syncs:", f"  3 x {first[0]}"]


def test_without_syncs_the_report_says_so() -> None:
    with virtual_gpus(1), no_host_sync() as report:
        torch.zeros(3, device="cuda").add_(1).softmax(-1).argmax(-1)
    assert report.count == 0
    assert str(report) == "no host syncs"


def test_an_allowed_block_is_not_counted() -> None:
    with virtual_gpus(1):
        scores = torch.ones(3, device="cuda")
        with no_host_sync():
            with allowed():
                assert scores.tolist() == [1, 1, 1]
            with pytest.raises(HostSyncError):
                scores.tolist()


def test_other_threads_are_checked_too_and_allow_for_themselves() -> None:
    caught: list[HostSyncError] = []

    def read(scores: Tensor) -> None:
        try:
            scores.tolist()
        except HostSyncError as error:
            caught.append(error)

    with virtual_gpus(1):
        scores = torch.ones(3, device="cuda")
        with no_host_sync(), allowed():
            thread = threading.Thread(target=read, args=(scores,))
            thread.start()
            thread.join()
    assert len(caught) == 1


def test_nested_checks_each_keep_their_count() -> None:
    with virtual_gpus(1):
        scores = torch.ones(3, device="cuda")
        with no_host_sync(count=True) as outer:
            scores.tolist()
            with no_host_sync(count=True) as inner:
                scores.tolist()
            scores.tolist()
    assert (outer.count, inner.count) == (3, 1)


def test_nothing_is_listened_to_after_the_block() -> None:
    with virtual_gpus(1):
        scores = torch.ones(3, device="cuda")
        with pytest.raises(ZeroDivisionError), no_host_sync():
            raise ZeroDivisionError
        with no_host_sync(count=True) as report:
            pass
        scores.tolist()
    assert report.count == 0


def test_without_a_device_it_refuses_rather_than_to_find_nothing() -> None:
    with pytest.raises(DeviceError, match=r"virtual_gpus\(\) first"), no_host_sync():
        pass


def test_printing_waits() -> None:
    with virtual_gpus(1), no_host_sync(count=True) as report:
        repr(torch.zeros(3, device="cuda"))
    assert report.count == 1


def test_waiting_for_a_device_or_stream_counts() -> None:
    with virtual_gpus(1), no_host_sync(count=True) as report:
        torch.cuda.synchronize()
        torch.accelerator.synchronize()
        torch.cuda.current_stream().synchronize()
    assert report.count == 3


def test_waiting_for_the_newest_event_counts_and_for_a_late_one_is_free() -> None:
    with virtual_gpus(2):
        scores = torch.ones(3, device="cuda:1")
        stream = torch.cuda.current_stream("cuda:1")
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with no_host_sync(count=True) as report:
            event.synchronize()  # never recorded
            scores.add_(1)
            event.record(stream)
            scores.view(3, 1)  # no work
            torch.zeros(3, device="cuda:0").add_(1)  # another device's work
            event.synchronize()
            assert report.count == 1
            with torch.inference_mode():
                scores.half()
            event.synchronize()
        assert report.count == 1
        with pytest.raises(RuntimeError, match="Event device 1 does not match recording stream's device 0"):
            event.record(torch.cuda.current_stream("cuda:0"))


@pytest.mark.parametrize(
    ("numbers", "non_blocking", "waits"), [(16384, True, 0), (16385, True, 1), (1, False, 1), (0, False, 0)]
)
def test_pageable_memory_is_staged_up_to_64_kib(numbers: int, non_blocking: bool, waits: int) -> None:
    with virtual_gpus(1):
        source = torch.zeros(numbers)
        with no_host_sync(count=True) as report:
            source.to("cuda", non_blocking=non_blocking)
    assert report.count == waits


COPIES: dict[str, tuple[int, Callable[[Tensor, Tensor], Tensor]]] = {
    "rows": (0, lambda host, gpu: host[:200].to("cuda", non_blocking=True)),
    "transposed": (0, lambda host, gpu: host.t().to("cuda", non_blocking=True)),
    "half": (0, lambda host, gpu: host.to("cuda", torch.half, non_blocking=True)),
    "columns": (1, lambda host, gpu: host[:, :200].to("cuda", non_blocking=True)),
    "transposed half": (1, lambda host, gpu: host.t().to("cuda", torch.half, non_blocking=True)),
    "stretched": (1, lambda host, gpu: host[:1].expand(300, 300).to("cuda", non_blocking=True)),
    "into all": (0, lambda host, gpu: host.copy_(gpu.half().t(), non_blocking=True)),
    "into a row": (0, lambda host, gpu: host[1].copy_(gpu[0], non_blocking=True)),
    "into columns": (1, lambda host, gpu: host[:, :200].copy_(gpu[:, :200], non_blocking=True)),
    "into pageable memory": (1, lambda host, gpu: torch.zeros(300, 300).copy_(gpu, non_blocking=True)),
    "to the host": (0, lambda host, gpu: gpu[:, :200].to("cpu", non_blocking=True)),
    "made half in inference": (1, lambda host, gpu: host.half().to("cuda", non_blocking=True)),
    "put in order in inference": (1, lambda host, gpu: host.t().contiguous().to("cuda", non_blocking=True)),
}


@pytest.mark.parametrize("case", COPIES)
def test_a_part_of_pinned_memory_that_is_copied_before_it_is_sent_is_pageable(case: str) -> None:
    """Source: copy_requires_temporaries in aten/src/ATen/native/cuda/Copy.cu."""
    waits, run = COPIES[case]
    with virtual_gpus(1), torch.inference_mode("inference" in case):
        host, gpu = torch.zeros(300, 300).pin_memory(), torch.zeros(300, 300, device="cuda")
        with no_host_sync(count=True) as report:
            run(host, gpu)
    assert report.count == waits


@pytest.fixture
def debug_mode(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """Stands in for a CUDA device and its debug mode; the list has the modes that were set."""
    modes: list[int | str] = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", _synchronize)
    return modes


def _synchronize() -> None:
    """Behaves like an operation that waits, with CUDA's debug mode on."""
    if str(torch.cuda.get_sync_debug_mode()) == "warn":
        warnings.warn("called a synchronizing CUDA operation (Triggered internally at here)", stacklevel=1)


def test_warnings_of_cudas_debug_mode_are_counted_by_line(debug_mode: list[int | str]) -> None:
    with no_host_sync(count=True) as report:
        for _ in range(2):
            _synchronize()
        with allowed():
            _synchronize()
        torch.cuda.synchronize()
    assert report.count == 3
    assert [line.split(" at ")[0] for line in report.by_line] == ["a synchronizing operation", "torch.cuda.synchronize"]
    assert debug_mode[-1] == 0
    assert torch.cuda.synchronize is _synchronize


def test_a_warning_of_cudas_debug_mode_raises_at_its_line(debug_mode: list[int | str]) -> None:
    with pytest.raises(HostSyncError, match="in _synchronize"), no_host_sync():
        _synchronize()
    assert debug_mode[-1] == 0


def test_other_warnings_pass_by(debug_mode: list[int | str]) -> None:
    with pytest.warns(UserWarning, match="another matter"), no_host_sync() as report:
        warnings.warn("another matter", stacklevel=1)
    assert report.count == 0


@pytest.mark.gpu
def test_real_cuda_is_checked_and_its_debug_mode_set_back() -> None:
    scores = torch.ones(3, device="cuda")
    before = torch.cuda.get_sync_debug_mode()
    with no_host_sync(count=True) as report:
        scores.sum().item()
        with allowed():
            scores.tolist()
        torch.cuda.synchronize()
    assert report.count == 2
    assert "test_no_host_sync.py" in next(iter(report.by_line))
    with pytest.raises(HostSyncError), no_host_sync():
        scores.sum().item()
    assert torch.cuda.get_sync_debug_mode() == before
