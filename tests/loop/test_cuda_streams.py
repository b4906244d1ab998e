"""Every launch is on the model's devices and on gen's own streams, whatever is current around the call."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch

import gen
from gen.loop import decoder
from gen.loop.results.ring import Ring
from gen.runtime import streams as streams_of_gen
from gen.runtime.streams import Streams, lend
from tests.helpers import byte_tokenizer, encoder_tokenizer, tiny_encoder, tiny_model
from tests.virtual_gpus.whole_programs.test_transformers import split
from virtual_gpus import virtual_gpus, virtual_tensor
from virtual_gpus.calls import dispatch

Launch = tuple[int, int, Any]  # the GPU, the current device, and that GPU's current stream


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launch]]:
    """All launches on virtual GPUs: each new tensor and each operation, with the device and stream current then.

    The ring's copies to the host, on a stream of their own, are left out.
    """
    seen: list[Launch] = []
    copying: set[Any] = set()

    class Watched(Ring):
        def __init__(self, copies: Any, like: Any) -> None:
            super().__init__(copies, like)
            copying.add(copies)

    def see(gpu: int) -> None:
        stream: Any = torch.cuda.current_stream(gpu)
        if stream not in copying:
            seen.append((gpu, torch.cuda.current_device(), stream))

    monkeypatch.setattr(decoder, "Ring", Watched)
    placed, execute = virtual_tensor._placed, dispatch.execute

    def placing(tensor: Any, gpu: int) -> Any:
        see(gpu)
        return placed(tensor, gpu)

    def executing(func: Any, args: Any, kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if type(value) is virtual_tensor.VirtualTensor:
                see(value._gpu)
        return execute(func, args, kwargs)

    monkeypatch.setattr(virtual_tensor, "_placed", placing)
    monkeypatch.setattr(virtual_tensor.handlers, "operator", executing)
    yield seen


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The streams that rows borrow, in order; none are lent before, as in a new process."""
    streams: list[Any] = []
    for name in ("_free", "_seen"):
        monkeypatch.setattr(streams_of_gen, name, {})

    def lending(borrower: object, device: torch.device, *, high_priority: bool = False) -> Any:
        streams.append(lend(borrower, device, high_priority=high_priority))
        return streams[-1]

    monkeypatch.setattr(streams_of_gen, "lend", lending)
    return streams


@contextmanager
def around(current: int) -> Iterator[set[Any]]:
    """Make another device current, and on each GPU a stream of the caller."""
    with ExitStack() as contexts:
        streams: set[Any] = set()
        for gpu in range(torch.cuda.device_count()):
            stream = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
            contexts.enter_context(torch.cuda.stream(stream))
            streams.add(stream)
        contexts.enter_context(torch.cuda.device(current))
        yield streams


def check(launches: list[Launch], callers: set[Any], home: int) -> None:
    """Check that no launch was on a caller's or default stream, and that the model's device was current in all."""
    assert len(launches) > 100
    assert {current for _, current, _ in launches} == {home}
    streams = {gpu: {stream for on, _, stream in launches if on == gpu} for gpu in range(3)}
    for gpu, own in streams.items():
        assert len(own) <= 1, f"cuda:{gpu} was given work on {len(own)} streams"
        assert not own & callers and not any(stream.is_default for stream in own)
    launches.clear()


def adapter(device: str) -> Any:
    return gen.from_transformers(tiny_model().to(device), byte_tokenizer(), probe=False)


def sharded() -> Any:
    return gen.from_transformers(split(tiny_model("llama"), "llama"), byte_tokenizer(), probe=False)


SAMPLERS: dict[str, Any] = {
    "penalised": gen.samplers.multinomial(samples=2, repetition_penalty=1.2, bad_words=["a"]),
    "beams": gen.samplers.beam_search(2),
}


@pytest.mark.usefixtures("soon_worth_it")
@pytest.mark.parametrize("make", [lambda: adapter("cuda:1"), sharded], ids=["one", "sharded"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_generate_uses_its_own(make: Callable[[], Any], sampler: str, launches: list[Launch]) -> None:
    with virtual_gpus(3):
        model = make()
        for current in (2, 0, 1):  # the second call takes the rows that the first one left
            with around(current) as callers:
                launches.clear()
                before = torch.cuda.current_stream(1)
                gen.generate(model, ["ab", "c"], sampler=SAMPLERS[sampler], max_new_tokens=7, seed=1)
                assert torch.cuda.current_device() == current and torch.cuda.current_stream(1) is before
                check(launches, callers, model.placement.logits_device.index)


@pytest.mark.parametrize("make", [lambda: adapter("cuda:1"), sharded], ids=["one", "sharded"])
def test_nothing_of_a_stream_survives_a_yield_and_nothing_around_it_matters(
    make: Callable[[], Any], launches: list[Launch]
) -> None:
    with virtual_gpus(3):
        model = make()
        expected = gen.generate(model, "Ada", seed=5, max_new_tokens=15)
        launches.clear()
        stream = gen.stream(model, "Ada", seed=5, max_new_tokens=15)
        assert not launches  # only the first piece starts it
        callers: set[Any] = set()
        pieces: list[str] = []
        while True:
            with around(len(pieces) % 3) as current:
                callers |= current
                streams = [torch.cuda.current_stream(gpu) for gpu in range(3)]
                piece = next(stream, None)
                assert torch.cuda.current_device() == len(pieces) % 3
                assert [torch.cuda.current_stream(gpu) for gpu in range(3)] == streams
                if piece is None:
                    break
                pieces.append(piece)
        assert "".join(pieces) == expected and len(pieces) > 5
        check(launches, callers, model.placement.logits_device.index)


@pytest.mark.usefixtures("soon_worth_it")
@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "both"])
def test_a_text_is_the_same_whatever_is_current_between_its_pieces(device: str, two_gpus: None) -> None:
    """On the machine's own GPUs too, where a kernel on the wrong stream would read memory too early."""
    model = sharded() if device == "both" else adapter(device)
    prompt = "Ada Lovelace, once upon"  # in its text, steps have 32 columns, and then 64
    expected = gen.generate(model, prompt, seed=5, max_new_tokens=18, cuda_graph=False)
    for _ in range(2):  # graphs are captured first, and then used
        stream, pieces = gen.stream(model, prompt, seed=5, max_new_tokens=18), [""]
        while pieces[-1] is not None:
            with around(len(pieces) % 2) as current:
                for own in current:
                    with torch.cuda.stream(own):
                        torch.ones(1000, device=own.device).cumsum(0)  # work of the caller's own
                pieces.append(next(stream, None))  # type: ignore[arg-type]
        assert "".join(pieces[:-1]) == expected


def test_engines_use_their_own(launches: list[Launch]) -> None:
    with virtual_gpus(3):
        model = adapter("cuda:1")
        with around(2) as callers:
            launches.clear()
            with gen.Engine(model, rows=2) as engine:
                streams = [engine.submit(prompt, seed=1, max_new_tokens=12) for prompt in ("ab", "c", "def")]
                for stream in streams:
                    stream.completion()
            check(launches, callers, 1)


def test_an_engine_is_off_the_streams_of_rows_that_others_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_gpus(1):
        model, on = adapter("cuda:0"), list[Any]()
        put = model.idle.put

        def putting(rows: object) -> None:
            on.append(torch.cuda.current_stream())
            put(rows)

        monkeypatch.setattr(model.idle, "put", putting)
        with gen.Engine(model, rows=1) as engine:
            engine.submit("ab", max_new_tokens=2).completion()
        assert [stream.is_default for stream in on] == [True]


def test_embeddings_are_made_under_the_encoders_device_and_on_the_callers_stream(launches: list[Launch]) -> None:
    """The vectors belong to the caller: what it launches next on its stream must come after them."""
    with virtual_gpus(3):
        encoder = gen.from_transformers_encoder(tiny_encoder().to("cuda:1"), encoder_tokenizer())
        with around(2) as callers:
            launches.clear()
            gen.embed(encoder, ["a cat sat", "the dog"])
            assert torch.cuda.current_device() == 2
            assert {stream for _, _, stream in launches} <= callers
            assert {current for _, current, _ in launches[: len(launches) // 2]} == {1}


def test_what_is_launched_at_load_is_under_the_models_device(launches: list[Launch]) -> None:
    """Kernels that are not torch's, such as those of quantised weights, are launched on the current device."""
    with virtual_gpus(3):
        model = tiny_model().to("cuda:1")
        torch.cuda.set_device(2)
        forwards: set[int] = set()
        model.register_forward_pre_hook(lambda *_: forwards.add(torch.cuda.current_device()))
        gen.from_transformers(model, byte_tokenizer())
        assert forwards == {1} and torch.cuda.current_device() == 2


def test_own_streams_wait_for_what_the_caller_has_launched() -> None:
    waits: list[tuple[Any, Any]] = []

    with virtual_gpus(2), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.Stream, "wait_stream", lambda own, other: waits.append((own, other)))
        model = sharded()
        streams = Streams(model.placement)
        with around(0) as callers:
            with streams.current():
                inside = {torch.cuda.current_stream(gpu) for gpu in range(2)}
            assert {own for own, _ in waits} == inside and {other for _, other in waits} == callers


def test_calls_one_after_another_have_the_same_streams(lent: list[Any]) -> None:
    with virtual_gpus(1):
        models = [adapter("cuda:0") for _ in range(2)]
        for number in range(12):
            gen.generate(models[number % 2], ["ab"] * (1 + number % 3), max_new_tokens=2)
            gen.score(models[0], "ab", "c")
            if number % 4 == 3:
                models[0].release()
    assert len(set(lent)) <= 2 * 3  # both models' rows and scores: each a stream to compute on and one to copy on
    assert {stream.priority for stream in lent} == {0, -1}


def test_forty_engines_that_are_open_at_once_have_no_stream_in_common(
    lent: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Torch gives out 32 streams a device in turn: the 33rd is the first one again."""
    count, new_tokens = 40, 10  # steps are captured after eight
    all_are_in_use, streams, captured = threading.Barrier(count), list[Any](), list[Any]()

    class Waiting:
        replayable = True

        def __init__(self) -> None:
            self.waited = False

        def __call__(self, token_ids: torch.Tensor, lengths: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            stream: Any = torch.cuda.current_stream(logits.device)
            if torch.cuda.is_current_stream_capturing():
                captured.append(stream)
            if not self.waited:
                self.waited = True
                streams.append(stream)
                all_are_in_use.wait(timeout=120)
            return logits

    with virtual_gpus(1), ExitStack() as stack, caplog.at_level(logging.INFO, logger="gen"):
        models = [adapter("cuda:0") for _ in range(2)]
        engines = [
            stack.enter_context(gen.Engine(models[number % 2], rows=1, speculate=False)) for number in range(count)
        ]
        arguments: dict[str, Any] = {"max_new_tokens": new_tokens, "seed": 3, "eos_token_id": []}
        made = [engine.submit("Ada", logits_processors=[Waiting()], **arguments) for engine in engines]
        texts = {one.completion().text for one in made}
        assert texts == {gen.generate(models[0], "Ada", speculate=False, **arguments)}
    assert len(set(streams)) == count and len(set(lent[: 2 * count])) == 2 * count
    assert len(set(captured)) == 32
    lines = {record.getMessage() for record in caplog.records}
    assert lines == {"steps on cuda:0 are not captured: others use the 32 streams that torch has there"}
    assert len(caplog.records) == count - 32


def test_threads_have_streams_of_their_own(launches: list[Launch]) -> None:
    with virtual_gpus(2):
        model = adapter("cuda:1")
        barrier = threading.Barrier(2)
        both = gen.generate(model, "Ada", seed=5, max_new_tokens=12)
        made: list[Any] = []

        def run() -> None:
            stream = gen.stream(model, "Ada", seed=5, max_new_tokens=12)
            first = next(stream)
            barrier.wait(timeout=60)  # both calls run now
            made.append(first + "".join(stream))

        launches.clear()
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [both, both]
        assert len({stream for gpu, _, stream in launches if gpu == 1}) == 2


def test_rows_that_do_not_fit_give_their_streams_to_the_next_ones(launches: list[Launch]) -> None:
    """A new stream would have new workspaces, and could not use the memory that the old one gave back."""
    with virtual_gpus(2):
        model = adapter("cuda:1")
        launches.clear()
        for prompts in (["a"], ["a", "b", "c"], ["a"] * 5):
            gen.generate(model, prompts, max_new_tokens=3)
        gen.generate(model, "a", sampler=gen.samplers.beam_search(2), max_new_tokens=3)
        assert len({stream for gpu, _, stream in launches if gpu == 1}) == 1
