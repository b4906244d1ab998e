"""CUDA graphs on virtual GPUs behave like real ones; on a machine with a GPU the same tests run on it."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from virtual_gpus import no_host_sync, virtual_gpus


def captured(step: Callable[[], object], pool: Any = None) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        step()
    return graph


def test_a_capture_does_nothing_and_each_replay_does_it_all(gpu: torch.device) -> None:
    """The oracle is the same arithmetic by hand."""
    count, table = torch.zeros(1, dtype=torch.int64, device=gpu), torch.zeros(4, device=gpu)
    weights = torch.tensor([[2.0, 0.0], [0.0, 3.0]]).to(gpu)
    made: list[Tensor] = []

    def step() -> None:
        fresh = torch.zeros(2, device=gpu)  # a new tensor in every step
        fresh += count + 1
        made.append(fresh @ weights)
        table[count] = made[-1].sum()
        count.add_(1)

    graph = captured(step)
    assert count.tolist() == [0] and table.tolist() == [0.0] * 4
    with no_host_sync():
        for _ in range(3):
            graph.replay()
    assert count.tolist() == [3]
    assert table.tolist() == [5.0, 10.0, 15.0, 0.0]
    assert made[-1].tolist() == [6.0, 9.0]  # every replay writes the capture's result
    count.zero_()
    graph.replay()
    assert table.tolist() == [5.0, 10.0, 15.0, 0.0] and made[-1].tolist() == [2.0, 3.0]


def test_views_and_in_place_operations_are_captured(gpu: torch.device) -> None:
    state = torch.arange(6.0, device=gpu).view(2, 3)

    def step() -> None:
        first, second = state.unbind(0)
        first.add_(second[:1]).clamp_(max=10)
        state[1].copy_(first.flip(0))

    expected = torch.arange(6.0).view(2, 3)
    graph = captured(step)
    for _ in range(3):
        graph.replay()
        expected[0] = (expected[0] + expected[1, :1]).clamp(max=10)
        expected[1] = expected[0].flip(0)
    assert torch.equal(state.cpu(), expected)


def test_a_graph_reads_the_memory_that_it_has_seen(gpu: torch.device) -> None:
    weight = torch.nn.Parameter(torch.ones(2, device=gpu))
    old, out = weight.data, torch.zeros(2, device=gpu)
    graph = captured(lambda: out.copy_(weight * 3))
    weight.data = torch.full((2,), 5.0, device=gpu)  # a graph does not see this
    graph.replay()
    assert out.tolist() == [3.0, 3.0]
    old.fill_(2)
    graph.replay()
    assert out.tolist() == [6.0, 6.0]


def test_graphs_share_a_pool_for_as_long_as_one_of_them_lives(gpu: torch.device) -> None:
    numbers = torch.zeros(2, device=gpu)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        numbers.add_(1)
    with torch.cuda.graph(second, pool=first.pool()):
        numbers.add_(numbers * 2)
    assert first.pool() == second.pool()
    for graph in (first, second, first):
        graph.replay()
    assert numbers.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("what", ["item", "branch", "event", "synchronize"])
def test_what_makes_the_host_wait_is_refused_in_a_virtual_capture(what: str) -> None:
    with virtual_gpus(1):
        numbers = torch.ones(2, device="cuda")
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        waits: dict[str, Callable[[], object]] = {
            "item": lambda: numbers.sum().item(),
            "branch": lambda: bool(numbers.any()),
            "event": event.synchronize,
            "synchronize": torch.cuda.synchronize,
        }
        with pytest.raises(RuntimeError, match="failed due to a previous error during capture") as raised:
            captured(waits[what])
        assert "not permitted when stream is capturing" in str(raised.value.__context__)
        assert numbers.sum().item() == 2  # the device still works


def test_a_failed_capture_leaves_the_generator_and_its_pool_unusable_until_another_one_ends_well() -> None:
    with virtual_gpus(1):
        numbers = torch.ones(2, device="cuda")
        first = captured(lambda: numbers.add_(1))
        with pytest.raises(RuntimeError, match="previous error"):
            captured(lambda: numbers.sum().item(), pool=first.pool())
        with pytest.raises(RuntimeError, match="Offset increment outside graph capture"):
            torch.rand(2, device="cuda")
        with pytest.raises(RuntimeError, match="already recording to mempool_id"):
            captured(lambda: numbers.add_(1), pool=first.pool())
        captured(lambda: numbers.add_(1))
        assert torch.rand(2, device="cuda").shape == (2,)


def test_a_capture_on_the_default_stream_is_refused(gpu: torch.device) -> None:
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()


def test_a_pool_whose_graphs_are_gone_is_refused() -> None:
    with virtual_gpus(1):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = captured(lambda: torch.zeros(1, device="cuda"))
        handle = graph.pool()
        del graph
        with torch.cuda.stream(stream), pytest.raises(RuntimeError, match="take a new handle"):
            torch.cuda.CUDAGraph().capture_begin(pool=handle)


@pytest.mark.parametrize("amp", [False, True])
def test_a_graph_holds_a_whole_step_of_training(gpu: torch.device, amp: bool) -> None:
    """The oracle is the same step without a graph, for every optimizer that can be captured."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(5, 8, device=gpu), torch.randn(5, 4, device=gpu)
    weights = torch.nn.Linear(8, 4).state_dict()

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=amp):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    def steps_of(make: Callable[..., torch.optim.Optimizer]) -> Callable[[], Tensor]:
        model = torch.nn.Linear(8, 4, device=gpu)
        model.load_state_dict(weights)
        optimizer = make(model.parameters())
        return partial(step, model, optimizer)

    optim = torch.optim
    adam, fused = partial(optim.Adam, capturable=True), partial(optim.SGD, momentum=0.9, fused=True)
    for make in (adam, fused, partial(optim.Rprop, capturable=True), partial(optim.SGD, foreach=True)):
        plainly, recorded = steps_of(make), steps_of(make)
        with torch.cuda.stream(torch.cuda.Stream(gpu)):  # type: ignore[no-untyped-call]
            for _ in range(2):
                plainly()
                recorded()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = recorded()
        for _ in range(3):
            inputs.normal_()
            graph.replay()
            torch.testing.assert_close(loss, plainly())


def test_graphed_callables_have_gradients(gpu: torch.device) -> None:
    plainly = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)).to(gpu)
    recorded = copy.deepcopy(plainly)
    torch.cuda.make_graphed_callables(recorded, (torch.randn(2, 3, device=gpu),))
    for _ in range(2):
        inputs = torch.randn(2, 3, device=gpu)
        for model in (plainly, recorded):
            model.zero_grad()
            model(inputs).square().sum().backward()
        for expected, found in zip(plainly.parameters(), recorded.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad)


def test_each_replay_draws_anew(gpu: torch.device) -> None:
    own = torch.Generator(gpu)
    numbers, kept = torch.ones(8, device=gpu), torch.zeros(2, 8, device=gpu)

    def step() -> None:
        kept[0].copy_(torch.nn.functional.dropout(numbers, 0.5))
        kept[1].normal_(generator=own)

    def seed() -> None:
        torch.cuda.manual_seed(1)
        own.manual_seed(2)

    seed()
    expected = []
    for _ in range(3):
        step()
        expected.append(kept.clone())
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(own)
    seed()
    with torch.cuda.graph(graph):
        step()
    for one in expected:
        graph.replay()
        assert torch.equal(kept, one)


def test_draws_of_unknown_generators_and_pinned_memory_are_refused_in_a_virtual_capture() -> None:
    with virtual_gpus(1):
        numbers, own = torch.ones(2, device="cuda"), torch.Generator("cuda")
        with pytest.raises(RuntimeError, match="generator not in capture mode"):
            captured(lambda: numbers.normal_(generator=own))
        with pytest.raises(RuntimeError, match="previous error") as raised:
            captured(lambda: torch.ones(2).pin_memory())
        assert "not permitted when stream is capturing: pin_memory" in str(raised.value.__context__)
        assert not torch.cuda.is_current_stream_capturing()
        assert numbers.tolist() == [1.0, 1.0]


def test_a_graph_holds_copies_to_other_devices() -> None:
    with virtual_gpus(2):
        host, numbers = torch.ones(2).pin_memory(), torch.ones(2, device="cuda")
        made: list[Tensor] = []
        graph = captured(lambda: made.extend((host.to("cuda", non_blocking=True) * 2, numbers.to("cuda:1") * 3)))
        host.fill_(5)
        numbers.fill_(7)
        graph.replay()
        assert [one.tolist() for one in made] == [[10.0, 10.0], [21.0, 21.0]]


def test_a_graph_holds_no_work_of_the_host() -> None:
    with virtual_gpus(1):
        of_host, numbers = torch.zeros(2), torch.zeros(2, device="cuda")
        graph = captured(lambda: (of_host.add_(1), torch.rand(2, generator=torch.Generator()), numbers.add_(1)))
        graph.replay()
        assert of_host.tolist() == [1.0, 1.0] and numbers.tolist() == [1.0, 1.0]


def test_a_capture_in_one_thread_leaves_others_alone() -> None:
    with virtual_gpus(1), ThreadPoolExecutor(1) as pool:
        numbers, others = torch.ones(2, device="cuda"), torch.ones(2, device="cuda")

        def step() -> None:
            numbers.add_(1)
            assert torch.cuda.is_current_stream_capturing()
            assert pool.submit(lambda: others.add_(1).sum().item()).result() == 4

        captured(step).replay()
        assert numbers.tolist() == [2.0, 2.0] and others.tolist() == [2.0, 2.0]
