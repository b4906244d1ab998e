"""Turns: who waits for whom, and what is current during one and after it."""

from collections.abc import Iterable
from threading import Event, Thread
from typing import Any

import pytest
import torch

from gen.models.exllama.shared import Turns, own_streams

pytestmark = pytest.mark.usefixtures("gen_virtual_gpus")
GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Each wait of a stream for another one, as it comes."""
    seen: list[tuple[Any, Any]] = []
    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", lambda self, other: seen.append((self, other)))
    return seen


def test_a_turn_waits_for_the_caller_and_the_caller_for_the_turn(waits: list[tuple[Any, Any]]) -> None:
    streams = own_streams()
    turns, [own] = Turns(streams), streams([GPU1])
    callers = torch.cuda.Stream(1)  # type: ignore[no-untyped-call]
    torch.cuda.set_stream(callers)
    torch.cuda.set_device(0)
    with turns(GPU1, [GPU1]):
        assert waits == [(own, callers)]
        assert (torch.cuda.current_stream(GPU1), torch.cuda.current_device()) == (own, 1)
    assert waits == [(own, callers), (callers, own)]
    assert (torch.cuda.current_stream(GPU1), torch.cuda.current_device()) == (callers, 0)


def test_all_turns_are_on_one_stream_a_device() -> None:
    streams = own_streams()
    first, second = streams([GPU0, GPU1])
    assert (first.device, second.device) == (GPU0, GPU1)
    assert list(streams([GPU1])) == [second]


def test_what_is_changed_in_a_turn_or_raised_does_not_stay(waits: list[tuple[Any, Any]]) -> None:
    turns = Turns(own_streams())
    before = [torch.cuda.current_stream(device) for device in (0, 1)]
    with pytest.raises(KeyError), turns(GPU0, [GPU0, GPU1]):
        torch.cuda.set_stream(torch.cuda.Stream(1))  # type: ignore[no-untyped-call]
        torch.cuda.set_device(1)
        raise KeyError
    assert [torch.cuda.current_stream(device) for device in (0, 1)] == before
    assert torch.cuda.current_device() == 0
    assert len(waits) == 4


def test_a_stream_that_is_made_in_a_turn_is_waited_for_too(waits: list[tuple[Any, Any]]) -> None:
    made: list[torch.cuda.Stream] = []

    def streams(devices: Iterable[torch.device]) -> list[torch.cuda.Stream]:
        return made

    callers = torch.cuda.current_stream(GPU1)
    with Turns(streams)(GPU1, [GPU1]):
        made.append(torch.cuda.Stream(1))  # type: ignore[no-untyped-call]
    assert waits == [(callers, made[0])]


def test_a_thread_waits_until_the_turn_of_another_one_has_ended() -> None:
    turns, entered, order = Turns(own_streams()), Event(), []

    def other() -> None:
        entered.set()
        with turns(GPU1, [GPU1]):
            order.append("other")

    thread = Thread(target=other)
    with turns(GPU0, [GPU0]), turns(GPU0, [GPU0]):  # a turn may contain turns of its own thread
        thread.start()
        entered.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
