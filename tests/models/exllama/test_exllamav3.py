"""exllamav3 on virtual GPUs: its own Python code with a stub of its kernels, compared with transformers in float16."""

import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import gen
from gen.doctor import examine
from gen.models.base import NoRoom
from gen.models.exllama.exllamav3_model import Exllamav3Model
from gen.receipts.digests import weights_digest
from tests.helpers.noting import noted
from tests.models.exllama import checks, exllamav3_ext
from tests.models.exllama.checkpoints import change, save, save_exl3
from tests.models.exllama.checks import GPU0, GPU1, PROMPTS, SAMPLERS
from tests.models.exllama.oracle import NEAR, Plain, generated, ids, logits_of, plain_of, tokens_of

Folders = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("gpus", "short_examinations")


@pytest.fixture(scope="session")
def exl3(tmp_path_factory: pytest.TempPathFactory, folders: Folders) -> Path:
    """The first Llama with EXL3 weights; its head is padded to 384 tokens."""
    folder = tmp_path_factory.mktemp("exl3")
    save(folder / "plain", "llama", vocab_size=384, num_key_value_heads=4)
    save_exl3(folder / "exl3", folder / "plain")
    return folder


def load(folder: Path, **options: Any) -> Exllamav3Model:
    return gen.from_exllamav3(folder, **({} if "use_per_device" in options else {"device": "cuda:1"}) | options)


def split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Exllamav3Model:
    """The model over both GPUs: the first one is full after some layers."""
    from exllamav3.model.model import Model

    asked = count()

    def used(device: Any) -> int:
        return 0 if torch.device(device) == GPU1 or next(asked) < 12 else 2**60

    real = Model.load
    monkeypatch.setattr(torch.cuda, "memory_allocated", used)
    # each layer reads a chunk, to show how much memory that takes, which nobody asks here
    monkeypatch.setattr(Model, "load", lambda *own, **options: real(*own, **options | {"max_chunk_size": 256}))
    model = load(folder, use_per_device=[2, 20])
    assert model.placement.layer_devices == (GPU0, GPU1)
    return model


def of_kind(kind: str, exl3: Path) -> Exllamav3Model:
    """A kind of weights, or a kind of cache."""
    folder = exl3 / ("exl3" if kind == "exl3" else "plain")
    return load(folder, **({"cache_bits": 4} if kind == "4 bits" else {}))


def test_short_factors_or_long_ones_are_chosen_once_by_the_context(tmp_path: Path) -> None:
    save(tmp_path, "longrope")
    checks.factors_are_chosen_by_the_context(load, tmp_path, Plain(tmp_path), "context_length")


@pytest.mark.parametrize("kind", ["float16", "exl3"])
def test_logits_of_exl3_weights_are_those_of_the_same_weights_in_float16(kind: str, exl3: Path) -> None:
    exllamav3_ext.CALLS.clear()
    prompts, new = ids("The quick brown fox jumps over the lazy dog. " * 4, "one"), ids("abcd", "efgh")
    found = logits_of(of_kind(kind, exl3), prompts, new)
    assert ("exl3_gemm" in exllamav3_ext.CALLS) == ("reconstruct" in exllamav3_ext.CALLS) == (kind != "float16")
    plain = plain_of(exl3 / "plain")
    for row in range(2):
        assert (found[row] - plain.logits(prompts[row], new[row])).abs().max() < NEAR


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [
        *(("float16", sampler) for sampler in SAMPLERS),
        *(("exl3", sampler) for sampler in ("greedy", "multinomial")),
        *(("4 bits", sampler) for sampler in ("multinomial", "beams")),
    ],
)
def test_texts_are_those_of_transformers_and_the_same_alone_and_streamed(kind: str, sampler: str, exl3: Path) -> None:
    model = of_kind(kind, exl3)
    made = generated(model, PROMPTS, SAMPLERS[sampler])
    if sampler == "greedy":
        plain = plain_of(exl3 / "plain")
        for prompt, one in zip(PROMPTS, made, strict=True):
            plain.check_greedy(prompt, one.token_ids)
    assert [tokens_of(generated(model, prompt, SAMPLERS[sampler])) for prompt in PROMPTS] == tokens_of(made)
    if sampler == "multinomial":
        checks.is_streamed(model, sampler)
    assert model.free_pages == 32


@pytest.mark.parametrize(
    ("ancestors", "how"),
    [
        *((ancestors, {}) for ancestors in ([2, 2, 0], [1, 0], [2, 0, 1, 1, 2])),
        *((ancestors, {"cache_bits": 5}) for ancestors in ([2, 2, 0], [2, 0, 1, 1, 2])),
        ([2, 0, 1, 1, 2], "split"),
    ],
    ids=str,
)
@torch.inference_mode()
def test_reordered_rows_go_on_as_rows_that_read_the_reordered_prompts(
    ancestors: list[int], how: Any, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = split(folders("llama"), monkeypatch) if how == "split" else load(folders("llama"), **how)
    rows = checks.reordered_rows_go_on(model, ancestors, 300)
    rows.copy(0, slice(1, 5), 32)
    same = rows.step(torch.full((5, 1), 70, device=GPU1), 32)
    assert torch.equal(same, same[:1].expand_as(same))


@torch.inference_mode()
def test_copies_of_a_row_go_on_as_it_does_and_a_row_is_filled_anew_beside_others(folders: Folders) -> None:
    model, [long, short, other] = load(folders("llama")), ids("The quick brown fox", "one", "and other")
    rows, alone = model.new_rows(4, 32), model.new_rows(3, 32)
    rows.prefill(slice(0, 4, 3), [long, short])
    rows.copy(0, slice(1, 3), 32)
    alone.prefill(slice(0, 2), [long, short])
    tokens = torch.tensor([[70], [71]], device=GPU1)
    expected = alone.step(tokens, 32)
    assert torch.equal(rows.step(tokens[[0, 0, 0, 1]], 32), expected[[0, 0, 0, 1]])
    rows.prefill(slice(1, 2), [other[:4]])
    refilled = rows.prefill(slice(1, 2), [other[4:]], [4])
    assert torch.allclose(refilled, alone.prefill(slice(2, 3), [other]), atol=NEAR)  # pieces compute other products
    assert torch.equal(rows.step(tokens[[0, 1, 0, 1]], 32)[[0, 3]], alone.step(tokens[[0, 1, 1]], 32)[:2])


def test_prompts_and_texts_longer_than_a_page_borrow_more(folders: Folders, tmp_path: Path) -> None:
    save(tmp_path, max_position_embeddings=1024)
    model, plain = load(tmp_path, max_num_tokens=2048), Plain(tmp_path)
    prompt = "The quick brown fox jumps over the lazy dog. " * 6
    made = generated(model, [prompt[:250], prompt], SAMPLERS["greedy"], 20)
    for text, one in zip([prompt[:250], prompt], made, strict=True):
        plain.check_greedy(text, one.token_ids)
    assert model.free_pages == 8


def test_the_digest_is_that_of_the_weights_alone(exl3: Path) -> None:
    """What calls leave in the cache is no part of it, and is no change of the weights."""
    model = of_kind("exl3", exl3)
    made = gen.generate(model, PROMPTS[0], sampler=SAMPLERS["beams"], max_new_tokens=4, details=True)
    assert made.receipt.model["weights"] == weights_digest(of_kind("exl3", exl3))


def test_more_prompts_than_pages_take_turns(folders: Folders) -> None:
    model, roomy = load(folders("llama"), max_num_tokens=600), load(folders("llama"))
    assert model.free_pages == 3
    expected = tokens_of(generated(roomy, PROMPTS * 2, SAMPLERS["multinomial"]))
    assert tokens_of(generated(model, PROMPTS * 2, SAMPLERS["multinomial"])) == expected
    assert model.free_pages == 3


def test_too_few_pages_are_an_error_that_says_what_to_give(folders: Folders) -> None:
    model = load(folders("llama"), max_num_tokens=512)
    message = r"cache of 512 tokens has 2 free pages of 256 tokens, 3 are needed: give gen.from_exllamav3 a larger max"
    with pytest.raises(gen.ModelError, match=message):
        generated(model, "Ada", SAMPLERS["beams"])
    with pytest.raises(NoRoom, match=message):
        model.new_rows(3, 256)
    rows = model.new_rows(2, 256)
    with pytest.raises(gen.ModelError, match=r"has 0 free pages .* or let other calls end first"):
        generated(model, "Ada", SAMPLERS["greedy"])
    rows.give_back()
    assert model.free_pages == 2


def test_pages_come_back_when_a_call_ends_is_given_up_or_fails(folders: Folders) -> None:
    model = load(folders("llama"))
    generated(model, PROMPTS, SAMPLERS["several"])
    assert model.free_pages == 32
    stream = gen.stream(model, "Ada", max_new_tokens=50, eos_token_id=[])
    next(stream)
    assert model.free_pages < 32
    stream.close()
    assert model.free_pages == 32
    stream = gen.stream(model, "Ada", max_new_tokens=50, eos_token_id=[])
    next(stream)
    del stream
    gc.collect()
    assert model.free_pages == 32

    def fail(*arguments: Any) -> Any:
        raise ValueError("no logits")

    with pytest.raises(Exception, match="no logits") as caught:
        generated(model, "Ada", SAMPLERS["greedy"], logits_processors=[fail])
    assert model.free_pages == 32, caught  # although the error still holds its frames
    rows = model.new_rows(2, 300)
    assert model.free_pages == 28
    rows.give_back()
    rows.give_back()
    assert model.free_pages == 32


def test_an_engine_gives_its_pages_back_when_nothing_runs(folders: Folders) -> None:
    model = load(folders("llama"))
    checks.an_engine_takes_requests_as_they_come(model)
    assert model.free_pages == 32


CASES = [
    *((sampler, "exl3", PROMPTS) for sampler in ("greedy", "multinomial", "beams")),
    *(("multinomial", "float16", PROMPTS), ("beams", "split", PROMPTS)),
    *((sampler, "4 bits", PROMPTS) for sampler in ("multinomial", "beams")),
    *(("greedy", kind, PROMPTS[:1]) for kind in ("exl3", "split")),
]


@pytest.mark.parametrize(("sampler", "kind", "prompts"), CASES)
def test_the_host_waits_for_no_token(
    sampler: str, kind: str, prompts: list[str], exl3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = split(exl3 / "plain", monkeypatch) if kind == "split" else of_kind(kind, exl3)
    checks.no_token_is_waited_for(model, sampler, prompts, 2)


def test_everything_is_on_the_device_that_was_asked_for(exl3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("plain", "exl3"):
        model = load(exl3 / folder)
        assert model.placement.devices == (GPU1,)
        weights = list(model.weights())
        assert {tensor.device for _, tensor, _ in weights} == {GPU1}
        names = {name for name, _, _ in weights}
        assert {"model.embed_tokens.embedding", "model.layers.1.mlp.up_proj.inner", "lm_head.inner"} <= names
        assert {device for _, _, device in model.new_rows(2, 8).parts()} == {GPU1}
    assert split(exl3 / "exl3", monkeypatch).placement.devices == (GPU0, GPU1)


def test_gemma_2_reads_beyond_its_window_where_exllamav3_knows_it(folders: Folders, tmp_path: Path) -> None:
    """exllamav3 asks config.json for sliding_window_size, which not all checkpoints have."""
    assert load(folders("gemma2")).context_length == 40
    save(tmp_path, "gemma2", sliding_window_size=40)
    model, plain = load(tmp_path), Plain(tmp_path)
    assert model.context_length == 256
    prompts, new = ids("The quick brown fox jumps over the lazy dog, and on.", "one"), ids("the lazy", "and five")
    found = logits_of(model, prompts, new)
    for row in range(2):
        assert (found[row] - plain.logits(prompts[row], new[row])).abs().max() < NEAR


def test_threads_share_a_model(exl3: Path) -> None:
    checks.threads_share(load(exl3 / "exl3"))


def test_each_forward_takes_a_turn_since_buffers_are_shared(exl3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(exl3 / "exl3")
    seen = noted(monkeypatch, exllamav3_ext.BC_LinearEXL3, "run_alloc", lambda *_: torch.cuda.current_stream(GPU1))
    callers = torch.cuda.Stream(1)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(callers):
        generated(model, PROMPTS, SAMPLERS["greedy"], 4)
        assert torch.cuda.current_stream() is callers
    with ThreadPoolExecutor(1) as pool:
        pool.submit(generated, model, PROMPTS, SAMPLERS["greedy"], 4).result()
    assert len(set(seen)) == 1


def test_steps_are_not_recorded_since_a_recording_takes_no_turn(exl3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(exl3 / "exl3")
    forwards, turn = count(), model.turn
    monkeypatch.setattr(model, "turn", lambda: next(forwards) is not None and turn())
    generated(model, "Ada", SAMPLERS["greedy"], 16)  # enough steps for a capture to be worth it
    assert next(forwards) == 16


def test_the_doctor_finds_nothing_or_names_what_is_misplaced(exl3: Path) -> None:
    for folder in ("plain", "exl3"):
        diagnosis = examine(load(exl3 / folder))
        assert (diagnosis.problems, diagnosis.notes) == ([], [])
    model = load(exl3 / "plain")
    norm = model.exl3_model.find_module("model.norm")
    norm.weight = torch.nn.Parameter(norm.weight.data.to("cuda:0"), requires_grad=False)
    problems = examine(model).problems
    assert problems[0] == "model.norm.weight (128,) float16 is on cuda:0, but is used on cuda:1"


def test_a_window_that_it_does_not_know_ends_the_context(tmp_path: Path) -> None:
    save(tmp_path, "mistral", sliding_window=16)
    assert load(tmp_path).context_length == 16


def test_layers_with_a_recurrent_state_are_refused(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    from exllamav3.model.model import Model

    monkeypatch.setattr(Model, "get_recurrent_layers", lambda self: [self.modules[1]])
    with pytest.raises(gen.ModelError, match=r"layers with a recurrent state .* keeps no pages for"):
        load(folders("llama"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "cpu"}, gen.DeviceError, r"runs on CUDA devices alone, not on cpu; gen.load runs"),
        ({"device": 0, "use_per_device": [1]}, gen.ArgumentError, "device for one GPU or use_per_device for several"),
        ({"use_per_device": []}, gen.ArgumentError, "use_per_device must be a list of gigabytes"),
        ({"use_per_device": [-1]}, gen.ArgumentError, "use_per_device must be a number at least 0, got -1"),
        ({"use_per_device": [0]}, gen.ArgumentError, "must have room on some GPU"),
        ({"use_per_device": [1, 1, 1]}, gen.DeviceError, "device cuda:2 does not exist"),
        ({"max_num_tokens": 0}, gen.ArgumentError, "max_num_tokens must be a whole number at least 1"),
        ({"cache_bits": 9}, gen.ArgumentError, "cache_bits must be a whole number at least 2 and at most 8"),
    ],
)
def test_arguments_are_refused_in_words(
    options: dict[str, Any], error: type[Exception], message: str, folders: Folders
) -> None:
    with pytest.raises(error, match=message):
        load(folders("llama"), **options)


def test_a_checkpoint_that_it_does_not_know_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    change(tmp_path, architectures=["OtherForCausalLM"])
    with pytest.raises(gen.ModelError, match=r"exllamav3 cannot load .*Unknown architecture OtherForCausalLM"):
        load(tmp_path)


def test_gen_load_refuses_exl3_weights_on_the_cpu_and_those_that_the_config_does_not_name(
    exl3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_exl3(tmp_path / "unnamed", exl3 / "plain")
    change(tmp_path / "unnamed", quantization_config=None)
    with pytest.raises(gen.ModelError, match=r"EXL3 checkpoint as its config.json does not say: load it with gen"):
        gen.load(tmp_path / "unnamed", device="cuda:1")
    assert isinstance(load(tmp_path / "unnamed"), Exllamav3Model)
    loaded: Any = gen.load(exl3 / "exl3", device="cuda:1", context_length=40)
    assert isinstance(loaded, Exllamav3Model) and loaded.context_length == 40
    assert loaded.placement.devices == (GPU1,)
    options: list[Any] = [{"dtype": "bfloat16"}, {"trust_remote_code": True}]
    for option in options:
        with pytest.raises(gen.ArgumentError, match="is an EXL3 checkpoint, which exllamav3 runs by itself: leave"):
            gen.load(exl3 / "exl3", device="cuda:1", **option)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "exllamav3", None)
        with pytest.raises(gen.ModelError, match=r"exllamav3 cannot be used .*pip install"):
            gen.load(exl3 / "exl3", device="cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(gen.DeviceError, match="exllamav3 runs on CUDA devices alone, not on cpu"):
        gen.load(exl3 / "exl3", device="cpu")
