"""`check_streams=True`: races between streams, with the host, and over memory that is given back too early."""

import copy
import gc
import pickle
import re
from collections.abc import Iterator
from operator import methodcaller
from typing import Any

import pytest
import torch
from torch import Tensor

from virtual_gpus import StreamRaceError, virtual_gpus


@pytest.fixture
def side() -> Iterator[Any]:
    with virtual_gpus(2, check_streams=True):
        yield torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()  # the tests' tensors are gone by then


def test_a_read_on_another_stream_is_a_race_that_names_both_lines(side: Any) -> None:
    numbers = torch.zeros(4, device="cuda")
    numbers.add_(1)
    with torch.cuda.stream(side), pytest.raises(StreamRaceError) as caught:
        numbers.sum()
    lines = re.findall(r"test_races.py:(\d+) in", str(caught.value))
    first = test_a_read_on_another_stream_is_a_race_that_names_both_lines.__code__.co_firstlineno
    assert [int(line) - first for line in lines] == [4, 2]
    assert re.search(r"on cuda:0's stream 0x[0-9a-f]+, which .* on cuda:0's default stream", str(caught.value))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_copy_that_may_have_been_a_view_reads(mode: Any, side: Any) -> None:
    numbers = torch.zeros(4, 4, device="cuda")
    with mode(), torch.cuda.stream(side):
        for read in (Tensor.half, lambda x: x.t().contiguous(), lambda x: x.t().flatten(), lambda x: x.t().reshape(-1)):
            with pytest.raises(StreamRaceError):
                read(numbers)
        assert numbers.contiguous() is numbers.float() is numbers


def test_a_write_after_a_read_is_a_race_and_two_reads_are_none(side: Any) -> None:
    numbers = torch.zeros(4, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        numbers.sum()
    numbers.sum()
    with pytest.raises(StreamRaceError, match=r"add_.* writes .* sum.* read"):
        numbers.add_(1)


def test_waits_and_events_order_work(side: Any) -> None:
    numbers = torch.zeros(4, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        numbers.add_(1)
        event = side.record_event()
        numbers.add_(1)
    torch.cuda.current_stream().wait_event(event)
    with pytest.raises(StreamRaceError):
        numbers.add_(1)  # the second addition came after the event
    torch.cuda.current_stream().wait_stream(side)
    numbers.add_(1)
    with torch.cuda.stream(side), pytest.raises(StreamRaceError):
        numbers.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        numbers.add_(1)


def test_an_event_that_was_recorded_too_early_orders_nothing(side: Any) -> None:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    numbers = torch.zeros(4, device="cuda")
    side.wait_event(event)
    with torch.cuda.stream(side), pytest.raises(StreamRaceError):
        numbers.sum()


def test_order_passes_from_stream_to_stream(side: Any) -> None:
    third = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    numbers = torch.zeros(4, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    third.wait_stream(side)
    with torch.cuda.stream(third):
        numbers.sum()


def test_views_that_do_not_overlap_do_not_race(side: Any) -> None:
    numbers = torch.zeros(4, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        numbers[:2].add_(1)
    numbers[2:].add_(1)
    with pytest.raises(StreamRaceError):
        numbers[1:3].add_(1)


def test_a_pinned_buffer_is_not_changed_under_a_copy_from_it() -> None:
    with virtual_gpus(2, check_streams=True):
        buffer = torch.zeros(4).pin_memory()
        target = buffer.to("cuda:1", non_blocking=True)
        with pytest.raises(StreamRaceError, match=r"the host, which a copy .* read on cuda:1's default stream, and"):
            buffer.fill_(1)
        event = torch.cuda.current_stream(1).record_event()
        event.synchronize()
        buffer.fill_(1)
        target.copy_(buffer)
        buffer.fill_(2)  # a blocking copy is over


def test_a_part_of_a_pinned_buffer_that_is_not_in_one_piece_is_read_at_once() -> None:
    with virtual_gpus(1, check_streams=True):
        buffer = torch.zeros(4, 4).pin_memory()
        buffer[:, :2].to("cuda", non_blocking=True)
        buffer.fill_(1)
        buffer[:2].to("cuda", non_blocking=True)
        with pytest.raises(StreamRaceError):
            buffer.fill_(2)


@pytest.mark.parametrize("synchronized", [True, False])
def test_a_capture_and_its_replays_race_with_nothing_before_them(synchronized: bool) -> None:
    with virtual_gpus(1, check_streams=True):
        numbers, graph, side = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.graph(graph, stream=side) if synchronized else torch.cuda.stream(side):
            if not synchronized:
                graph.capture_begin()
            made = numbers * 2
            if not synchronized:
                graph.capture_end()
        numbers.fill_(3)
        graph.replay()
        with torch.cuda.stream(side), pytest.raises(StreamRaceError):
            made.add_(1)
        assert made.tolist() == [6, 6, 6, 6]
        graph.replay()
        del made, graph


def test_a_pinned_buffer_is_not_read_before_its_copy_is_over() -> None:
    with virtual_gpus(1, check_streams=True):
        slots = torch.zeros(2, 4).pin_memory()
        numbers = torch.ones(4, device="cuda")
        slots[0].copy_(numbers, non_blocking=True)
        event = torch.cuda.current_stream().record_event()
        slots[1].copy_(numbers, non_blocking=True)
        methods: list[Any] = [methodcaller(name) for name in ("tolist", "numpy", "clone")]
        for read in (*methods, repr, pickle.dumps, copy.deepcopy):
            with pytest.raises(StreamRaceError):
                read(slots[0])
        event.synchronize()
        assert slots[0].tolist() == [1, 1, 1, 1]
        with pytest.raises(StreamRaceError):
            slots[1].tolist()


def test_reading_a_result_lets_the_host_see_its_stream(side: Any) -> None:
    numbers = torch.ones(4, device="cuda")
    numbers.sum().item()
    with torch.cuda.stream(side):
        numbers.add_(1)  # launched after the host had waited


def test_memory_given_back_while_a_stream_uses_it_is_a_race(side: Any) -> None:
    for record in (False, True):
        numbers = torch.ones(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            numbers.sum()
        if record:
            numbers.record_stream(side)
        del numbers
        gc.collect()
        if record:
            torch.ones(4, device="cuda")
        else:
            with pytest.raises(StreamRaceError, match=r"memory of cuda:0's default stream was given back at .*sum"):
                torch.ones(4, device="cuda")


def test_memory_given_back_too_early_is_told_at_the_end_of_the_block() -> None:
    with pytest.raises(StreamRaceError, match="record_stream"), virtual_gpus(1, check_streams=True):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        numbers = torch.ones(4, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            numbers.sum()
        del numbers
        gc.collect()


def test_copies_between_gpus_are_ordered_on_both(side: Any) -> None:
    numbers = torch.ones(4, device="cuda:0")
    moved = numbers.to("cuda:1")
    moved.add_(1)
    numbers.add_(1)


def test_a_training_step_has_no_races() -> None:
    with virtual_gpus(2, check_streams=True):
        layer = torch.nn.Linear(3, 3).to("cuda:1")
        optimizer = torch.optim.AdamW(layer.parameters())
        for _ in range(2):
            layer(torch.ones(2, 3, device="cuda:1")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_without_the_check_nothing_is_said() -> None:
    with virtual_gpus(1):
        numbers = torch.ones(4, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            numbers.add_(1)
