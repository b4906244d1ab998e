"""Steps captured as CUDA graphs: on virtual GPUs, and on a real GPU if the machine has one.

The oracle is the eager loop on the same device; `tests/whole_calls/test_on_a_gpu.py` compares it with the CPU.
"""

import gc
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

import gen
from gen.loop import row_pool
from gen.loop.replay import cuda_graphs, recorded
from gen.loop.replay.cuda_graphs import Graph
from gen.models.transformers.model import TransformersModel
from gen.samplers import MultinomialSampler, Sampler
from gen.samplers.base import Sampled
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.noting import noted
from tests.loop.calls import kept_rows
from virtual_gpus import no_host_sync, virtual_gpus
from virtual_gpus.machine import active_machine

pytestmark = pytest.mark.usefixtures("soon_worth_it")

PROMPTS = [
    "Ada",
    "hello there, how are you??",
    "x = ",
]  # after 11 tokens, captures of 32 and of 64 columns are worth it
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.3, "bad_words": ["a"], "no_repeat_ngram_size": 2}
SAMPLERS: dict[str, Sampler | list[Sampler]] = {
    "greedy": gen.samplers.greedy(),
    "multinomial": gen.samplers.multinomial(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
    "several": gen.samplers.multinomial(samples=2),
    "beams": gen.samplers.beam_search(3),
    "penalised": gen.samplers.multinomial(**PENALTIES, logit_bias={65: 1.0}, min_new_tokens=3),
    "each its own": [
        gen.samplers.greedy(),
        gen.samplers.multinomial(top_p=0.7),
        gen.samplers.multinomial(temperature=1.4, presence_penalty=0.5),
    ],
}


def adapter(device: torch.device | str, shape: str = "llama") -> TransformersModel:
    """A model; by default a Llama of one layer, since each operator takes long on a virtual GPU."""
    layers: dict[str, Any] = {"num_hidden_layers": 1} if shape == "llama" else {}
    return gen.from_transformers(tiny_model(shape, **layers).to(device), byte_tokenizer(), probe=False)


def tokens(model: TransformersModel, sampler: Any = None, new_tokens: int | list[int] = 11, **options: Any) -> Any:
    """The tokens of each text, sample or beam, made by plain steps, since these tests count the steps' shapes."""
    made: Any = gen.generate(
        model,
        PROMPTS,
        sampler=sampler or SAMPLERS["greedy"],
        max_new_tokens=new_tokens,
        seed=5,
        eos_token_id=[],
        details=True,
        speculate=False,
        **options,
    )
    return [[one.token_ids for one in texts] if isinstance(texts, list) else texts.token_ids for texts in made]


def graphs(model: TransformersModel) -> list[Graph]:
    """The graphs captured on the rows that the model keeps."""
    return [one for one in kept_rows(model).recordings.values() if isinstance(one, Graph)]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (rows, view) of every capture, in order."""
    return noted(monkeypatch, recorded, "capture", lambda step, *_: step.args[:2])


@pytest.mark.parametrize(
    ("shape", "sampler"),
    [
        *(("llama", name) for name in ("several", "penalised", "each its own")),
        *(("gpt2", "greedy"), ("gemma3", "multinomial"), ("mixtral", "beams")),
    ],
)
def test_tokens_with_graphs_are_those_without(shape: str, sampler: str, gpu: torch.device) -> None:
    model = adapter(gpu, shape)
    eager = tokens(model, SAMPLERS[sampler], cuda_graph=False)
    assert not kept_rows(model).recordings
    assert tokens(model, SAMPLERS[sampler]) == eager
    recordings = dict(kept_rows(model).recordings)
    assert len(recordings) >= 2 and all(isinstance(graph, Graph) for graph in recordings.values())
    assert tokens(model, SAMPLERS[sampler]) == eager  # replayed from the first step that has a graph
    assert kept_rows(model).recordings == recordings


@pytest.mark.parametrize("sampler", ["each its own", "beams"])
def test_rows_that_are_filled_again_and_moved_are_captured_too(sampler: str, gpu: torch.device) -> None:
    model = adapter(gpu)
    limits = [16, 5, 9]
    eager = tokens(model, SAMPLERS[sampler], limits, max_batch_tokens=2 * 64 * 3, cuda_graph=False)
    for _ in range(2):
        assert tokens(model, SAMPLERS[sampler], limits, max_batch_tokens=2 * 64 * 3) == eager


def test_streams_and_engines_run_graphs(gpu: torch.device) -> None:
    model = adapter(gpu)
    arguments: dict[str, Any] = {"seed": 5, "max_new_tokens": 12, "eos_token_id": []}
    eager = [gen.generate(model, prompt, cuda_graph=False, **arguments) for prompt in PROMPTS]
    assert ["".join(gen.stream(model, prompt, **arguments)) for prompt in PROMPTS] == eager
    assert kept_rows(model).recordings
    model.release()
    with gen.Engine(model, rows=4) as engine:
        streams = [engine.submit(prompt, **arguments) for prompt in PROMPTS]
        assert [stream.completion().text for stream in streams] == eager
    recordings = kept_rows(model).recordings
    assert recordings and all(isinstance(graph, Graph) for graph in recordings.values())


def test_threads_capture_beside_each_other(gpu: torch.device) -> None:
    model = adapter(gpu)
    eager = tokens(model, cuda_graph=False)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(tokens, model) for _ in range(4)]
        assert [future.result() for future in futures] == [eager] * 4


def test_a_step_is_captured_once_it_is_worth_it_and_the_largest_first(
    captures: list[tuple[int, int]], gpu: torch.device
) -> None:
    model = adapter(gpu)
    tokens(model, new_tokens=recorded._WORTH["cuda"])  # the prompt gives the first token: one step too few
    assert captures == []
    tokens(model, new_tokens=20)
    assert captures == [(3, 32), (3, 64)]  # first 32 columns, the most that there were; then the rows have grown
    model.release()
    for _ in range(2):
        tokens(model, new_tokens=20)
        assert captures[2:] == [(3, 64), (3, 32)]  # the whole 64 columns first, then the 32 that were asked for
    assert len({graph.graph.pool() for graph in graphs(model)}) == 1


def test_growing_drops_graphs_and_their_memory(captures: list[tuple[int, int]], gpu: torch.device) -> None:
    model = adapter(gpu)
    tokens(model, new_tokens=20)
    old = ref(next(iter(kept_rows(model).recordings.values())))
    tokens(model, new_tokens=45)
    gc.collect()
    assert old() is None
    assert {shape[1] for shape in captures} == {32, 64, 96, 128}
    assert kept_rows(model).decoder.length == 128


def reserved(gpu: torch.device) -> int:
    """How many bytes of the device torch has reserved."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(gpu)


def test_graphs_count_as_memory_that_a_model_keeps_idle(
    captures: list[tuple[int, int]], gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they take more memory than may be kept, they are dropped, and the rows stay."""
    wide = tiny_model(vocab_size=100_000).to(gpu)  # its logits are larger than the unit in which memory is counted
    model = gen.from_transformers(wide, byte_tokenizer(), probe=False)
    tokens(model, cuda_graph=False)
    without, alone = reserved(gpu), kept_rows(model).sizes()[gpu]
    tokens(model)
    with_graphs = reserved(gpu)
    assert captures
    assert with_graphs > without
    assert kept_rows(model).sizes()[gpu] - alone >= (with_graphs - without) // 2
    monkeypatch.setattr(row_pool, "kept_bytes", lambda device: alone)
    tokens(model)
    assert not kept_rows(model).recordings
    assert reserved(gpu) <= without
    assert kept_rows(model).sizes() == {gpu: alone}


@pytest.mark.parametrize("change", ["data", "parameter", "buffer", "in place"])
def test_a_change_of_the_weights_is_seen(change: str, gpu: torch.device) -> None:
    model = adapter(gpu)
    before = tokens(model)
    layer: Any = model.hf_model.get_output_embeddings()
    if change == "data":
        layer.weight.data = layer.weight.data.flip(0).contiguous()
    elif change == "parameter":
        layer.weight = torch.nn.Parameter(layer.weight.detach().flip(0).contiguous())
    elif change == "in place":
        with torch.no_grad():
            layer.weight.copy_(layer.weight.flip(0))
    else:
        rotary: Any = model.hf_model.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq * 2
    after = tokens(model)
    assert after == tokens(model, cuda_graph=False) != before


def test_wider_tables_get_graphs_of_their_own(gpu: torch.device) -> None:
    model = adapter(gpu)
    for bias in ({65: 2.0}, {65: 2.0, 66: -1.0, 67: 3.0}, {70: 1.0}):
        sampler = gen.samplers.greedy(logit_bias=bias)
        assert tokens(model, sampler, 10) == tokens(model, sampler, 10, cuda_graph=False)


def test_without_cuda_graph_nothing_is_captured(captures: list[tuple[int, int]], gpu: torch.device) -> None:
    model = adapter(gpu)
    tokens(model, cuda_graph=False)
    list(gen.stream(model, "Ada", max_new_tokens=12, cuda_graph=False))
    with gen.Engine(model, rows=1, cuda_graph=False) as engine:
        engine.submit("Ada", max_new_tokens=12).completion()
    assert captures == []


def test_a_capture_is_on_the_models_device_and_the_rows_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    with virtual_gpus(2):

        class Watched(torch.cuda.CUDAGraph):
            def capture_begin(self, *args: Any, **kwargs: Any) -> None:
                stream: Any = torch.cuda.current_stream()
                seen.append((kwargs["capture_error_mode"], torch.cuda.current_device(), stream))
                assert not torch.is_inference_mode_enabled()  # it makes tensors that other calls' graphs change later
                super().capture_begin(*args, **kwargs)

        monkeypatch.setattr(torch.cuda, "CUDAGraph", Watched)
        model = adapter("cuda:1")
        tokens(model)
        default = torch.cuda.current_stream("cuda:1")
    assert len(seen) == 2
    assert {(mode, device) for mode, device, _ in seen} == {("thread_local", 1)}
    assert len({stream for _, _, stream in seen}) == 1 and seen[0][2] is not default


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """CUDA's own debug mode on a real GPU, gen's rules on a virtual one."""
    if active_machine() is not None:
        with no_host_sync():
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_every_step_after_the_first_runs_where_waiting_is_an_error(cuda_graph: bool, gpu: torch.device) -> None:
    model = adapter(gpu)
    sampler = gen.samplers.multinomial(**PENALTIES)
    arguments: dict[str, Any] = {"sampler": sampler, "seed": 1, "max_new_tokens": 20, "eos_token_id": []}
    expected = gen.generate(model, "Ada", cuda_graph=False, **arguments)
    stream = gen.stream(model, "Ada", cuda_graph=cuda_graph, **arguments)
    pieces = [next(stream)]
    with waiting_is_an_error():
        while len("".join(pieces)) < len(expected) // 2:
            pieces.append(next(stream))
    assert "".join([*pieces, *stream]) == expected
    assert bool(kept_rows(model).recordings) is cuda_graph


@pytest.mark.gpu  # alone: a virtual GPU makes the calls of a graph again, and these allocate
def test_a_step_with_a_graph_allocates_nothing() -> None:
    gpu = torch.device("cuda:0")
    model = adapter(gpu)
    counts = []
    for _ in range(2):
        tokens(model, new_tokens=40)  # captures every graph, and then finds it
    for new_tokens in (30, 40):
        before = torch.cuda.memory_stats(gpu)["allocation.all.allocated"]
        tokens(model, new_tokens=new_tokens)
        counts.append(torch.cuda.memory_stats(gpu)["allocation.all.allocated"] - before)
    assert counts[0] == counts[1]


class Drawing(MultinomialSampler):
    """A sampler that draws from torch's generator, but claims that it may be replayed."""

    replayable = True

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        token_ids, ancestors, logprobs = super().step(logits, weights, keys)
        return token_ids, ancestors, logprobs + 0 * torch.rand_like(logprobs)


class Reads:
    """A processor that reads on the host; if it claims that it may be replayed, it is refused."""

    def __init__(self, *, replayable: bool) -> None:
        self.replayable, self.runs = replayable, 0

    def __call__(self, token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        self.runs += 1
        return logits * (2.0 + self.runs % 3 if float(logits[0, 0]) < 1e9 else 1.0)


class Picking:
    """Draws as gen does, with a temperature that changes; it does not claim that it may be replayed."""

    samples, penalties = 1, None

    def __init__(self) -> None:
        self.runs = 0

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        self.runs += 1
        return gen.samplers.multinomial(temperature=0.5 + self.runs % 2).step(logits, weights, keys)


def test_users_functions_run_between_the_graphs_of_a_step(captures: list[tuple[int, int]], gpu: torch.device) -> None:
    model = adapter(gpu)
    runs, texts = [], []
    for cuda_graph in (False, True, True):
        reads, picks = Reads(replayable=False), Picking()
        sampler = gen.samplers.multinomial(**PENALTIES)
        processed = tokens(model, sampler, 11, logits_processors=[reads], cuda_graph=cuda_graph)
        texts.append((processed, tokens(model, picks, 11, cuda_graph=cuda_graph)))
        runs.append((reads.runs, picks.runs))
    assert runs == [runs[0]] * 3 and runs[0][0] >= 11
    assert texts == [texts[0]] * 3
    assert {(3, 32), (3, 64)} <= set(captures)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sampler": Drawing()}, "it draws random numbers of torch's"),
        ({"logits_processors": [Reads(replayable=True)]}, "it reads on the host"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_what_cannot_be_replayed_on_a_cpu_is_not_captured(
    device: str, options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with virtual_gpus(1), caplog.at_level(logging.INFO, logger="gen"):
        model = adapter(device)
        eager = tokens(model, new_tokens=12, cuda_graph=False, replay=False, **options)
        assert tokens(model, new_tokens=12, **options) == eager
        assert not kept_rows(model).recordings
    [line] = [record.getMessage() for record in caplog.records]
    assert reason in line and ("are not captured" if device == "cuda:0" else "are not replayed") in line


class Waits(torch.nn.Module):
    """An activation that makes CUDA refuse the captures whose numbers are in `refused`."""

    def __init__(self, *refused: int) -> None:
        super().__init__()
        self.refused, self.captures = refused, 0

    def forward(self, x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            self.captures += 1
            if self.captures in self.refused:
                torch.cuda.synchronize()
        return torch.nn.functional.silu(x)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The calls to torch's allocator about the pools of failed captures."""
    seen: list[tuple[str, Any]] = []
    for name in ("endAllocateToPool", "releasePool"):
        original = getattr(torch.cuda.memory, f"_cuda_{name}", None)

        def tell(device: int, pool: Any, name: str = name, original: Any = original) -> None:
            seen.append((name, pool))
            if active_machine() is None:
                original(device, pool)

        monkeypatch.setattr(torch.cuda.memory, f"_cuda_{name}", tell, raising=False)
    return seen


@pytest.mark.parametrize("refused", [1, 2])
def test_a_failed_capture_leaves_nothing_behind(
    refused: int, told: list[tuple[str, Any]], gpu: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    """Texts go on, torch draws and pins memory, others capture; this set of rows captures no more, and says so once."""
    caplog.set_level(logging.INFO, "gen")
    model, other = adapter(gpu), adapter(gpu)
    eager = tokens(model, new_tokens=11, cuda_graph=False)
    layer: Any = model.hf_model.model.layers[0].mlp
    waits = layer.act_fn = Waits(refused)
    model.replay = True
    for _ in range(3):
        assert tokens(model, new_tokens=11) == eager
        assert torch.rand(3, device=gpu).shape == (3,)
        assert torch.ones(3).pin_memory().to(gpu, non_blocking=True).tolist() == [1.0] * 3
    assert waits.captures == refused and not graphs(model)  # older graphs' memory is lost to captures
    [line] = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert line[0] == "WARNING"
    assert "steps of TransformersModel are captured no more: CUDA refused to capture it: CUDA error" in line[1]
    assert [what for what, _ in told] == ["endAllocateToPool", "releasePool"] and told[0][1] == told[1][1]
    assert tokens(other, new_tokens=11) == eager and graphs(other)
    model.release()
    assert tokens(model, new_tokens=11) == eager and graphs(model)  # other rows try it again


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("first", [1, 2])
def test_a_capture_without_memory_is_tried_once_more_in_other_memory(
    first: int, always: bool, gpu: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[Any] = []
    caplog.set_level(logging.INFO, "gen")
    capture = cuda_graphs._Capture

    class Short(capture):  # type: ignore[misc, valid-type]
        def begin(self) -> None:
            super().begin()
            tries.append(self._pool)

        def end(self) -> None:
            super().end()
            steps_tried = sum(pool != "empty" for pool in tries)
            if steps_tried == first or (always and steps_tried > first):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    model = adapter(gpu)
    eager = tokens(model, new_tokens=11, cuda_graph=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: tries.append("empty"))
    monkeypatch.setattr(cuda_graphs, "_clean_up", lambda pool: "")
    monkeypatch.setattr(cuda_graphs, "_Capture", Short)
    for _ in range(2):
        assert tokens(model, new_tokens=11) == eager
    assert tries[first] == "empty" and tries[first + 1] not in tries[:first]
    assert bool(graphs(model)) is not always
    messages = [record.getMessage() for record in caplog.records]
    assert messages == always * [
        "steps of TransformersModel are captured no more: memory is out: "
        "CUDA out of memory. Tried to allocate 2.00 MiB."
    ]
    if always:
        assert len(tries) == first + 2


def test_no_garbage_is_collected_during_a_capture(gpu: torch.device) -> None:
    during: list[bool] = []

    def see(phase: str, info: dict[str, int]) -> None:
        during.append(torch.cuda.is_current_stream_capturing())

    model, threshold = adapter(gpu), gc.get_threshold()
    gc.callbacks.append(see)
    gc.set_threshold(1)
    try:
        tokens(model, new_tokens=12)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(see)
    assert graphs(model) and during and not any(during) and gc.isenabled()


def test_a_graph_keeps_what_it_reads_and_writes(gpu: torch.device) -> None:
    """Memory that was freed could belong to another tensor when the graph is launched."""
    model = adapter(gpu)
    tokens(model, SAMPLERS["multinomial"])
    graph = graphs(model)[0]
    addresses = {thing.data_ptr() for thing in graph._rests_on if isinstance(thing, Tensor)}
    weights = {parameter.data_ptr() for parameter in model.hf_model.parameters()}
    rows = kept_rows(model)
    state = {tensor.data_ptr() for _, tensor, _ in rows.decoder.rows.parts()} | {rows.decoder._keys.table.data_ptr()}
    embedding = model.hf_model.get_input_embeddings().weight.data_ptr()
    assert weights <= addresses and embedding in addresses
    assert state <= addresses
