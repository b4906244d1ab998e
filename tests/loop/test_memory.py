"""How much room rows have: never more than the caller says, and by default as much as fits into free memory."""

import random
from collections.abc import Sequence
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gen
from gen.loop import memory
from gen.loop.decoder import Decoder
from gen.loop.jobs import Job
from gen.loop.options import Options
from gen.loop.prefixes.tree import tree_of
from gen.loop.runner import run_all
from gen.loop.slots import view_bucket
from gen.models.transformers.rows import TransformersRows
from gen.runtime import cpu_memory
from gen.runtime.control_groups import Group
from gen.samplers import MultinomialSampler, Sampler, beam_search, greedy, multinomial, sample_seed
from tests.helpers import ScriptedModel, ScriptedRows, byte_tokenizer, tiny_model
from tests.helpers.noting import noted
from tests.loop.calls import kept_rows, new_jobs
from virtual_gpus import virtual_gpus

# bytes of a token in the cache of a small Llama of one layer: keys and values, heads, their width, float32
COLUMN = 2 * 2 * 8 * 4


class Measured(ScriptedModel):
    """Writes two y for each x of its prompt, and logs how many tokens its rows have room for."""

    def __init__(self, *, refillable: bool = True) -> None:
        super().__init__(lambda prompt: b"y" * (2 * prompt.count("x") - prompt.count("y")))
        self.room: list[int] = []
        self.refillable = refillable

    def new_rows(self, count: int, length: int) -> ScriptedRows:
        model = self

        class Rows(ScriptedRows):
            refillable = model.refillable

            def grow(self, length: int) -> None:
                model.room.append(self.count * length)
                super().grow(length)

            def prefill(self, rows: slice, prompts: Sequence[Sequence[int]], *args: Any, **others: Any) -> torch.Tensor:
                assert max(map(len, prompts)) < self.length
                return super().prefill(rows, prompts, *args, **others)

        assert count > 0 and length > 0
        self.room.append(count * length)
        return Rows(self, count, length)


@pytest.fixture
def model() -> Any:
    """A small Llama that nothing was asked of."""
    return gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())


def of_the_users(samples: int) -> Any:
    """A user's sampler."""
    return SimpleNamespace(samples=samples, penalties=None, step=greedy().step)


def a_sampler(rng: random.Random) -> Sampler:
    samplers: list[Sampler] = [
        greedy(),
        multinomial(rng.randint(1, 5)),
        beam_search(rng.randint(1, 5)),
        of_the_users(rng.randint(1, 3)),
    ]
    return rng.choice(samplers)


@pytest.mark.parametrize("refillable", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_rows_never_have_more_room_than_they_may_and_texts_are_the_same(seed: int, refillable: bool) -> None:
    rng = random.Random(seed)
    model = Measured(refillable=refillable)
    prompts = ["x" * rng.choice([1, 2, 3, 5, 20, 33]) for _ in range(rng.randint(1, 12))]
    limits = [rng.choice([0, 1, 2, 7, 30, 66]) for _ in prompts]
    samplers = [a_sampler(rng)] * len(prompts) if rng.random() < 0.5 else [a_sampler(rng) for _ in prompts]
    arguments: Any = {"max_new_tokens": limits, "sampler": samplers}
    expected = gen.generate(model, prompts, **arguments)  # leaves rows behind
    needed = max(
        ((1 if isinstance(sampler, MultinomialSampler) else sampler.samples) * (len(prompt) + limit) if limit else 0)
        for sampler, prompt, limit in zip(samplers, prompts, limits, strict=True)
    )
    for most in (needed - 1, needed, needed + rng.randint(1, 9), 2 * needed + rng.randint(0, 200)):
        model.room.clear()
        model.steps = 0
        if most < 1:
            continue
        if most < needed:
            with pytest.raises(gen.ArgumentError, match=rf"max_batch_tokens={most} is too little .* {needed} tokens"):
                gen.generate(model, prompts, max_batch_tokens=most, **arguments)
            assert model.steps == 0 and not model.room
        else:
            assert gen.generate(model, prompts, max_batch_tokens=most, **arguments) == expected
            assert max(model.room, default=0) <= most


def test_an_engine_refuses_what_has_no_room_in_the_callers_thread() -> None:
    model = Measured()
    with gen.Engine(model, rows=8, max_batch_tokens=90) as engine:
        with pytest.raises(
            gen.ArgumentError, match=r"max_batch_tokens=90 is too little .* 91 tokens: give at least 91"
        ):
            engine.submit("x", max_new_tokens=90)
        streams = [engine.submit("x" * length, max_new_tokens=70) for length in (1, 20, 2, 17, 3)]
        assert [stream.completion().text for stream in streams] == ["yy" * length for length in (1, 20, 2, 17, 3)]
    assert max(model.room) <= 90


PROMPTS = ["once upon", "a", "the cat sat on the mat", "xy", "to be or not to be", "12", "ab", "cd"] * 3


def sizes_made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The number and the length of all rows that are made from now on, or grow."""
    sizes = noted(monkeypatch, TransformersRows, "__init__", lambda rows, model, count, length: (count, length))
    noted(monkeypatch, TransformersRows, "grow", lambda rows, length: sizes.append((rows.count, length)))
    return sizes


def planted(monkeypatch: pytest.MonkeyPatch, free: int) -> list[tuple[int, int]]:
    """Pretend that `free` bytes are free; returns the sizes of rows."""
    monkeypatch.setattr(memory, "free_bytes", lambda device, *, alone=False: None if alone else free)
    return sizes_made(monkeypatch)


def left_on_the_cpu(monkeypatch: pytest.MonkeyPatch, tokens: float) -> list[tuple[int, int]]:
    """Pretend that memory holds `tokens` tokens of the small Llama; returns the sizes of rows."""
    monkeypatch.setattr(cpu_memory, "_of_system", lambda what: [int(tokens * COLUMN)])
    monkeypatch.setattr(cpu_memory, "groups", lambda controller: [])
    return sizes_made(monkeypatch)


@pytest.mark.parametrize("sampler", [greedy(), multinomial(2), beam_search(2)])
def test_by_default_rows_have_room_for_what_fits_into_free_memory(
    model: Any, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: Any = {"sampler": sampler, "seed": range(24), "max_new_tokens": 16}
    expected = gen.generate(model, PROMPTS, **arguments)
    model.release()
    tokens = 500
    sizes = planted(monkeypatch, tokens * COLUMN)
    for own in (model, gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())):
        sizes.clear()
        assert gen.generate(own, PROMPTS, **arguments) == expected
        assert tokens // 2 < max(map(prod, sizes)) <= tokens


def test_one_text_has_its_chance_where_memory_may_not_do(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = gen.generate(model, PROMPTS, sampler=greedy(), max_new_tokens=40)
    planted(monkeypatch, 0)
    assert gen.generate(model, PROMPTS, sampler=greedy(), max_new_tokens=40) == expected


def test_rows_grow_within_free_memory_in_the_first_call_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = gen.from_transformers(tiny_model(vocab_size=259, max_position_embeddings=512), byte_tokenizer())
    sizes = planted(monkeypatch, 4096 * COLUMN)
    gen.generate(model, PROMPTS, sampler=greedy(), max_new_tokens=250, eos_token_id=[])
    assert 24 * 128 < max(map(prod, sizes)) <= 4096


@pytest.mark.parametrize("sampler", [beam_search(5000), of_the_users(5000)])
@pytest.mark.parametrize("known", [False, True])
def test_a_search_that_no_memory_holds_is_refused_before_it_takes_any(
    model: Any, sampler: Any, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if known:
        gen.generate(model, "a", sampler=greedy(), max_new_tokens=2)
    made = left_on_the_cpu(monkeypatch, 10_000)
    message = r"memory of cpu: 5000 rows of 32 tokens take 0\.1 GB, and 0\.0 GB may be taken\. Give fewer beams"
    with pytest.raises(gen.ModelError, match=message):
        gen.generate(model, "a", sampler=sampler, max_new_tokens=20)
    assert all(count == 1 for count, _ in made)
    assert len(gen.generate(model, "a", sampler=beam_search(3), num_return_sequences=3, max_new_tokens=5)) == 3


def test_a_search_that_memory_holds_runs_with_all_its_rows(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = left_on_the_cpu(monkeypatch, 1_000_000)
    gen.generate(model, "a", sampler=beam_search(600), max_new_tokens=4)
    assert [count for count, _ in made] == [1, 600]  # the first one shows how much memory a token takes


def test_an_engine_of_more_rows_than_memory_holds_has_fewer(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = gen.generate(model, "a", sampler=greedy(), max_new_tokens=20)
    fresh = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    made = left_on_the_cpu(monkeypatch, 10_000)
    with gen.Engine(fresh, rows=100_000) as engine:
        assert engine.submit("a", sampler=greedy(), max_new_tokens=20).completion().text == expected
    assert 4000 < max(map(prod, made)) <= 5000


@pytest.fixture(scope="module")
def drawn_alone() -> dict[str, list[tuple[int, str]]]:
    """150 texts of each of two prompts, drawn as prompts of their own: the seed and the text of each."""
    model: Any = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    found: dict[str, list[tuple[int, str]]] = {}
    for prompt, seed in (("once upon", 3), ("a", 4)):
        seeds = [sample_seed(seed, sample) for sample in range(150)]
        texts: Any = gen.generate(model, [prompt] * 150, seed=seeds, max_new_tokens=6, sampler=multinomial())
        found[prompt] = [*zip(seeds, texts, strict=True)]
    return found


@pytest.mark.parametrize("tokens", [1e9, 3000, 400])
def test_samples_of_a_prompt_are_drawn_in_parts_where_all_do_not_fit(
    model: Any, tokens: float, drawn_alone: dict[str, list[tuple[int, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = left_on_the_cpu(monkeypatch, tokens)
    ended: list[Job] = []
    arguments: Any = {"seed": [3, 4], "max_new_tokens": 6, "details": True}
    found = gen.generate(model, ["once upon", "a"], sampler=multinomial(150), **arguments)
    last, _ = made[-1]
    assert last == 150 if tokens == 1e9 else last < 64  # if all fit, a prompt is read once
    for prompt, completions in zip(["once upon", "a"], found, strict=True):
        assert isinstance(completions, list)
        assert len({one.seed for one in completions}) == 150
        assert [(one.seed, one.text) for one in completions] == drawn_alone[prompt]
    jobs = new_jobs(model, ["ab"] * 2, sampler=multinomial(150), seed=1, max_new_tokens=3)
    run_all(model, jobs, Options(), ended.append)
    assert ended == jobs  # each ends once


def test_a_sample_that_fails_in_a_later_part_bears_its_own_number(model: Any) -> None:
    completions = gen.generate(model, "ab", sampler=multinomial(100), seed=1, max_new_tokens=1, details=True)
    assert isinstance(completions, list)

    [job] = new_jobs(model, ["ab"], sampler=multinomial(100), seed=1, max_new_tokens=3)
    assert job.request.seeds[70] == completions[70].seed
    parts = job.split(model, 64)
    assert [len(part.takers) for part in parts] == [50, 50]
    text = parts[1].takers[20].texts[0]
    text.push(5, float("-inf"))
    with pytest.raises(gen.SamplingError, match="prompt 0, sample 70"):
        text.completion()


def test_a_task_that_is_cancelled_cancels_all_parts_of_its_prompts(model: Any) -> None:
    [job] = new_jobs(model, ["ab"], sampler=multinomial(100), max_new_tokens=3)
    early = job.split(model, 10)
    job.cancel()
    late = early[0].split(model, 3)
    assert all(part.ended for part in (*early, *late)) and job.ended


@pytest.mark.parametrize("known", [False, True])
def test_a_text_that_outgrows_memory_fails_alone(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    llama = tiny_model(vocab_size=259, max_position_embeddings=512)
    model: Any = gen.from_transformers(llama, byte_tokenizer())
    arguments: Any = {"sampler": greedy(), "eos_token_id": []}
    expected = gen.generate(model, ["ab", "cd"], max_new_tokens=60, **arguments)
    if not known:
        model = gen.from_transformers(llama, byte_tokenizer())
    model.release()
    left_on_the_cpu(monkeypatch, 230)
    with pytest.raises(gen.BatchError) as caught:
        gen.generate(model, ["ab", "xyz", "cd"], max_new_tokens=[60, 400, 60], **arguments)
    assert [caught.value.results[place] for place in (0, 2)] == expected
    assert isinstance(caught.value.results[1], gen.ModelError)
    with gen.Engine(model, rows=2) as engine:
        long = engine.submit("xyz", max_new_tokens=400, **arguments)
        with pytest.raises(gen.ModelError, match=r"tokens are too many\. Give shorter prompts, or a smaller"):
            long.completion()
        assert engine.submit("ab", max_new_tokens=60, **arguments).completion().text == expected[0]


def test_steps_are_not_recorded_where_memory_does_not_hold_what_they_make(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for free, recorded in ((10**9, True), (10**4, False)):
        monkeypatch.setattr("gen.loop.replay.recorded.free_bytes", lambda device, free=free: free)
        model: Any = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
        texts.append(gen.generate(model, PROMPTS, sampler=greedy(), max_new_tokens=40, eos_token_id=[]))
        assert bool(model.idle.take().recordings) is recorded
    assert texts[0] == texts[1]


def test_what_a_token_takes_is_seen_from_rows_that_were_filled(model: Any) -> None:
    gen.generate(model, "abc", sampler=greedy(), max_new_tokens=3)
    [(device, size)] = model.idle.token_bytes.items()
    assert device == torch.device("cpu")
    assert COLUMN < size < 1.1 * COLUMN


def test_the_cpus_memory_is_what_the_system_has_left_or_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "meminfo"
    limit, used, kinds = (tmp_path / f"memory.{name}" for name in ("max", "current", "stat"))
    monkeypatch.setattr(cpu_memory, "_INFO", info)
    monkeypatch.setattr(cpu_memory, "groups", lambda controller: [Group(str(tmp_path), 2)])
    cpu = torch.device("cpu")
    assert memory.free_bytes(cpu) is None
    info.write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    4000 kB\nBuffers: 1 kB\n")
    assert memory.free_bytes(cpu) == 2000 * 1024
    limit.write_text("max\n")
    used.write_text("5000\n")
    assert memory.free_bytes(cpu) == 2000 * 1024
    limit.write_text("2000000\n")
    assert memory.free_bytes(cpu) == 1995000 // 2
    kinds.write_text("anon 2000\nfile 2900\ninactive_file 1000\nactive_file 1500\nslab 7\n")
    assert memory.free_bytes(cpu) == (1995000 + 2500) // 2  # cached file pages are given up when memory is needed
    used.write_text("3000000\n")
    assert memory.free_bytes(cpu) == 0
    info.unlink()
    assert memory.free_bytes(cpu) == 0


def test_a_model_keeps_a_tenth_of_a_device_for_calls_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(cpu_memory, "_INFO", info)
    monkeypatch.setattr(cpu_memory, "groups", lambda controller: [Group(str(tmp_path), 2)])
    cpu = torch.device("cpu")
    assert memory.kept_bytes(cpu) == 2**33 // 10  # the memory's size is unknown
    info.write_text("MemTotal:  9000 kB\nMemAvailable:    4000 kB\n")
    assert memory.kept_bytes(cpu) == 900 * 1024
    limit.write_text("max\n")
    assert memory.kept_bytes(cpu) == 900 * 1024
    limit.write_text("2000000\n")
    assert memory.kept_bytes(cpu) == 200_000
    with virtual_gpus(1, memory="80GB"):
        assert memory.kept_bytes(torch.device("cuda:0")) == 8 * 10**9


@pytest.mark.parametrize(("gigabytes", "kept"), [(8, True), (5, False)])
def test_rows_stay_with_the_model_up_to_that_share_of_the_device(gigabytes: int, kept: bool) -> None:
    """An 8B model's rows of 4096 tokens take more than half a gigabyte."""
    with virtual_gpus(1, memory=f"{gigabytes}GB"):
        model: Any = gen.from_transformers(tiny_model(max_position_embeddings=2**16).to("cuda"), byte_tokenizer())
        gen.generate(model, [[3, 4]] * 2, max_new_tokens=2)
        rows: Any = kept_rows(model)
        rows.sizes = lambda: {torch.device("cuda:0"): 600 * 10**6}
        gen.generate(model, [[3, 4]] * 2, max_new_tokens=2)
        assert (model.idle.take() is rows) is kept


def on(device: str) -> Any:
    model: Any = gen.from_transformers(tiny_model(vocab_size=259).to(device), byte_tokenizer())
    gen.generate(model, "abc", sampler=greedy(), max_new_tokens=2)
    return model


def test_texts_that_were_read_and_then_idle_rows_go_before_a_batch_is_halved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with virtual_gpus(2):
        model, beside, elsewhere = (on(device) for device in ("cuda:0", "cuda:0", "cuda:1"))
        step, seen = Decoder.step, list[tuple[int, int, int]]()
        gpu, tree = torch.device("cuda:0"), tree_of(model)
        assert tree is not None

        def failing(rows: Decoder, *shape: Any, **how: Any) -> None:
            seen.append((rows.count, tree.spare(gpu), len(beside.idle._kept)))
            if len(seen) < 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            step(rows, *shape, **how)

        with gen.Engine(model, rows=4) as engine:
            engine.submit("x" * 100, max_new_tokens=2).completion()
            kept = tree.spare(gpu)
            monkeypatch.setattr(Decoder, "step", failing)
            texts: Any = gen.generate(model, ["abc"] * 4, sampler=greedy(), max_new_tokens=4)
        assert len(texts) == 4 and kept > 0
        assert seen[:4] == [(4, kept, 1), (4, 0, 1), (4, 0, 0), (2, 0, 0)]
        assert "out of memory with 4 rows; going on with 2" in caplog.text
        assert elsewhere.idle.take() is not None


def test_idle_rows_make_way_for_rows_that_free_memory_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, beside = on("cpu"), on("cpu")
    monkeypatch.setattr(memory, "free_bytes", lambda device, **_: COLUMN * (200 if beside.idle._kept else 10_000))
    made = sizes_made(monkeypatch)
    gen.generate(model, ["abc"] * 12, sampler=greedy(), max_new_tokens=4)
    assert [count for count, _ in made] == [12]


def test_a_gpus_memory_is_what_is_free_less_a_margin() -> None:
    with virtual_gpus(2):
        free, total = torch.cuda.mem_get_info(1)
        assert memory.free_bytes(torch.device("cuda:1")) == int(free - 0.1 * total)
    assert memory.free_bytes(torch.device("meta")) is None


def test_spread_over_devices_the_fullest_one_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = torch.device("cuda:0"), torch.device("cuda:1")
    placement = gen.Placement(input_device=one, logits_device=two)
    free = {one: 1000, two: 300}
    monkeypatch.setattr(memory, "free_bytes", lambda device, *, alone: free[device])
    assert memory.tokens_that_fit(placement, {one: 10.0, two: 2.0}) == 100
    assert memory.tokens_that_fit(placement, {one: 2.0, two: 3.0}, held=50) == 150
    assert memory.tokens_that_fit(placement, {}) is None


def test_what_a_step_looks_at_does_not_depend_on_how_rows_have_grown() -> None:
    """Parts of a job share rows that others have grown: in bfloat16 another number of columns may give other bits."""
    model = Measured()
    for limit in (60, 300):
        gen.generate(model, ["x" * 150], max_new_tokens=limit)
    assert [view_bucket(length) for length in model.room] == model.room == [224, 512]


@pytest.mark.parametrize(("most", "lengths"), [(400, [160, 384]), (220, [160, 192]), (185, [160, 185])])
def test_row_lengths_are_whole_32s_where_texts_have_room_for_that(
    most: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen.loop.runner._HEADROOM", 96)  # so that rows grow
    model = Measured()
    gen.generate(model, ["x" * 60] * 5, max_new_tokens=124, max_batch_tokens=5 * most)
    assert model.room == [5 * length for length in lengths]


@pytest.mark.parametrize(
    ("said", "is_out"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("CUDA error: out of memory", True),  # of torch.AcceleratorError
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_libraries_say_in_their_own_words_that_memory_is_out(said: str, is_out: bool) -> None:
    kind = getattr(torch, "AcceleratorError", RuntimeError) if said.startswith("CUDA error: o") else RuntimeError
    assert memory.is_out_of_memory(kind(said)) is is_out
