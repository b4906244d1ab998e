"""exllamav2 on virtual GPUs: its own Python code with a stub of its kernels, compared with transformers in float16."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gen
from gen.doctor import diagnose, examine
from gen.integrations.outlines_exl2 import OutlinesExl2
from gen.models.exllama.exllamav2_model import CACHES, Exllamav2Model
from tests.cli.test_commands import run
from tests.helpers import needs_float16_products_that_agree
from tests.models.exllama import checks
from tests.models.exllama.checkpoints import LONGROPE, change, save
from tests.models.exllama.checks import GPU0, GPU1, PROMPTS, SAMPLERS
from tests.models.exllama.oracle import NEAR, Plain, generated, ids, logits_of, plain_of

SPLIT = [0.0118, 80]  # gigabytes: the embedding and the first layer's attention go onto the first GPU
pytestmark = pytest.mark.usefixtures("gpus", "short_examinations")


def load(folder: Path, **options: Any) -> Exllamav2Model:
    return gen.from_exllamav2(folder, **({} if "gpu_split" in options else {"device": "cuda:1"}) | options)


def test_short_factors_or_long_ones_are_chosen_once_by_the_context(tmp_path: Path) -> None:
    save(tmp_path, "longrope")
    oracle = Plain(tmp_path)
    change(tmp_path, rope_parameters=None, rope_theta=1e4, rope_scaling=LONGROPE)
    checks.factors_are_chosen_by_the_context(load, tmp_path, oracle, "max_seq_len")


@pytest.mark.parametrize("options", [{}, {"gpu_split": SPLIT}, {"cpu_embedding": True}, {"max_batch_size": 4}])
def test_texts_are_those_of_transformers(options: dict[str, Any], llama: Path) -> None:
    model, plain = load(llama, **options), plain_of(llama)
    for prompt, made in zip(PROMPTS, generated(model, PROMPTS, SAMPLERS["greedy"], 12), strict=True):
        plain.check_greedy(prompt, made.token_ids)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_text_is_the_same_alone_in_a_batch_and_streamed(sampler: str, llama: Path) -> None:
    checks.texts_are_the_same_alone_and_streamed(load(llama), sampler)


@pytest.mark.parametrize(
    ("shape", "cache", "near"),
    [("llama", "fp16", 0), ("gemma2", "fp16", 0), *(("wide", cache, NEAR / 10) for cache in ("q8", "q6", "q4"))],
)
def test_a_padded_row_is_the_row_alone_also_where_a_token_is_quantised_by_itself(
    shape: str, cache: str, near: float, folders: Callable[[str], Path]
) -> None:
    """Its quantised keys are whole blocks of 512 numbers; only float16's rounding of sums of other lengths differs."""
    needs_float16_products_that_agree()
    model = load(folders(shape), cache=cache)
    prompts, new = ids("The quick brown fox", "one", "hello"), ids("ab", "cd", "ef")
    together = logits_of(model, prompts, new)
    for row in range(3):
        alone = logits_of(model, prompts[row : row + 1], new[row : row + 1])[0]
        assert (alone - together[row]).abs().max() <= near


@pytest.mark.parametrize("cache", ["q8", "q6", "q4"])
def test_a_padded_row_is_close_to_the_row_alone_where_blocks_have_several_tokens(cache: str, llama: Path) -> None:
    """exllamav2 quantises a block's earlier tokens again with each new one; where blocks begin depends on padding."""
    model, exact = load(llama, cache=cache), load(llama)
    prompts, new = ids("The quick brown fox", "one", "hello"), ids("ab", "cd", "ef")
    together, without = logits_of(model, prompts, new), logits_of(exact, prompts, new)
    for row in range(3):
        alone = logits_of(model, prompts[row : row + 1], new[row : row + 1])[0]
        assert (alone - together[row]).square().mean().sqrt() <= (without - together).square().mean().sqrt()


@pytest.mark.parametrize(
    ("options", "ancestors", "cache"),
    [
        *(({}, [2, 0, 1, 1, 2], cache) for cache in CACHES),
        *(({}, ancestors, cache) for ancestors in ([2, 2, 0], [1, 0]) for cache in ("fp16", "q4")),
        *(({"gpu_split": SPLIT}, [2, 0, 1, 1, 2], cache) for cache in ("fp16", "q6")),
    ],
)
def test_reordered_rows_go_on_as_rows_that_read_the_reordered_prompts(
    options: dict[str, Any], ancestors: list[int], cache: str, llama: Path
) -> None:
    checks.reordered_rows_go_on(load(llama, cache=cache, **options), ancestors, 32)


@pytest.mark.parametrize("reorders", [True, False])
def test_outlines_reads_the_same_rows_and_moves_them_only_for_samplers_that_move_rows(
    reorders: bool, llama: Path
) -> None:
    model, (first, second) = load(llama), ids("The quick", "one")
    outlines, more = OutlinesExl2(model, None), [0] * (len(first) - len(second))
    input_ids, mask = torch.tensor([first, more + second]), torch.tensor([[1] * len(first), more + [1] * len(second)])
    logits, state = outlines(input_ids, mask, reorders=reorders)
    state.reorder(torch.tensor([1, 1]))
    logits, _ = outlines(torch.cat((input_ids, torch.tensor([[97], [97]])), 1), mask, state)
    expected = logits_of(model, [second if reorders else first, second], ids("a", "a"))[:, -1]
    assert logits.device == GPU1 and (logits.cpu() - expected).abs().max() <= NEAR


@pytest.mark.parametrize("cache", CACHES)
def test_copies_of_a_row_go_on_as_it_does(cache: str, llama: Path) -> None:
    model, prompts = load(llama, cache=cache), ids("The quick brown fox", "one")
    rows, alone = model.new_rows(6, 32), model.new_rows(2, 32)
    first = rows.prefill(slice(0, 6, 3), prompts)
    assert torch.equal(first, alone.prefill(slice(0, 2), prompts))
    for place in (0, 3):
        rows.copy(place, slice(place + 1, place + 3), 32)
    tokens = torch.tensor([[70], [71]], device=GPU1)
    expected = alone.step(tokens, 32).repeat_interleave(3, 0)
    assert torch.equal(rows.step(tokens.repeat_interleave(3, 0), 32), expected)


@pytest.mark.parametrize("cache", CACHES)
def test_rows_grow_as_tokens_come_and_keep_what_they_have(cache: str, llama: Path) -> None:
    """27 tokens: a quantised cache is written in whole blocks, so one of just this length would overflow."""
    model, prompts, new = load(llama, cache=cache), ids("The quick brown fox", "a"), ids("x" * 14, "y" * 14)
    grown = logits_of(model, prompts, new, model.new_rows(2, 27))
    assert torch.equal(grown, logits_of(model, prompts, new, model.new_rows(2, 128)))


def test_long_prompts_are_read_in_pieces(llama: Path) -> None:
    model, plain = load(llama), plain_of(llama)
    model.exl2_model.config.max_input_len = 30  # of a row; 15 of each of two
    prompts, new = ids("The quick brown fox jumps over the lazy dog", "and then it went"), ids("ab", "cd")
    found = logits_of(model, prompts, new)
    for row in range(2):
        assert (found[row] - plain.logits(prompts[row], new[row])).abs().max() < NEAR


def test_rows_go_on_when_others_are_past_the_end_of_the_context(llama: Path) -> None:
    model, plain = load(llama, max_seq_len=64), plain_of(llama)
    assert model.context_length == 64
    made = generated(model, ["a" * 50, "b"], SAMPLERS["greedy"], 60)
    assert [len(one.token_ids) for one in made] == [14, 60]
    for prompt, one in zip(["a" * 50, "b"], made, strict=True):
        plain.check_greedy(prompt, one.token_ids)
    rows = model.new_rows(2, 64)
    with torch.inference_mode():
        rows.prefill(slice(0, 2), ids("a" * 60, "b" * 60))
        for _ in range(8):  # nobody needs these steps, and they do not fail
            rows.step(torch.tensor([[70], [71]], device=GPU1), 64)


CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    *((sampler, {}, PROMPTS) for sampler in ("greedy", "multinomial", "beams")),
    *((sampler, {"gpu_split": SPLIT}, PROMPTS) for sampler in ("multinomial", "beams")),
    ("beams", {"cache": "q4"}, PROMPTS),
    ("greedy", {}, PROMPTS[:1]),
    ("beams", {"gpu_split": SPLIT}, PROMPTS[:1]),
]


@pytest.mark.parametrize(("sampler", "options", "prompts"), CASES)
def test_the_host_waits_for_no_token(sampler: str, options: dict[str, Any], prompts: list[str], llama: Path) -> None:
    checks.no_token_is_waited_for(load(llama, **options), sampler, prompts, 5 if "gpu_split" in options else 2)


def test_with_the_embedding_on_the_cpu_it_waits_twice_a_token(llama: Path) -> None:
    model = load(llama, cpu_embedding=True)
    assert model.placement.input_device == torch.device("cpu")
    _, short, long = checks.syncs(model, "greedy", PROMPTS, 1, 2, 5)  # a row shows how much memory a token takes
    assert (long - short) / 3 == 2


def test_everything_is_on_the_device_that_was_asked_for(llama: Path) -> None:
    model = load(llama)
    assert model.placement.devices == (GPU1,)
    weights = list(model.weights())
    assert {tensor.device for _, tensor, _ in weights} == {GPU1}
    names = {name for name, _, _ in weights}
    assert {"model.embed_tokens.embedding", "model.layers.1.mlp.up_proj.linear", "the table sin"} <= names
    assert {device for _, _, device in model.new_rows(2, 8).parts()} == {GPU1}
    with torch.cuda.device(1):
        assert gen.from_exllamav2(llama).placement.devices == (GPU1,)
    split = load(llama, gpu_split=SPLIT)
    assert split.placement.layer_devices == (GPU0, GPU1)
    assert split.placement.logits_device == GPU1
    assert {tensor.device for _, tensor, _ in split.weights()} == {GPU0, GPU1}
    assert all(tensor.device == device for _, tensor, device in split.new_rows(2, 8).parts())


def test_a_weight_that_is_put_elsewhere_is_an_error_by_name(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from exllamav2.rmsnorm import ExLlamaV2RMSNorm

    real = ExLlamaV2RMSNorm.load

    def misplacing(self: Any) -> None:
        real(self)
        self.weight = torch.nn.Parameter(self.weight.data.to("cuda:0"), requires_grad=False)

    monkeypatch.setattr(ExLlamaV2RMSNorm, "load", misplacing)
    with pytest.raises(gen.DeviceError, match=r"was to put model.layers.0.input_layernorm.weight on cuda:1, it is on"):
        load(llama)


def test_the_callers_device_and_streams_stay_whatever_happens(llama: Path) -> None:
    streams = [torch.cuda.Stream(device) for device in (0, 1)]  # type: ignore[no-untyped-call]
    for stream in streams:
        torch.cuda.set_stream(stream)
    torch.cuda.set_device(0)

    def check() -> None:
        assert torch.cuda.current_device() == 0
        assert [torch.cuda.current_stream(device) for device in (0, 1)] == streams

    model = load(llama)
    check()
    generated(model, PROMPTS, SAMPLERS["beams"])
    check()
    with pytest.raises(AssertionError, match="exceeds cache size"), torch.inference_mode(), model.turn():
        model.exl2_model.forward(torch.zeros(1, 99, dtype=torch.int64, device=GPU1), model.new_cache(1, 8))
    check()
    with pytest.raises(gen.ModelError, match=r"does not fit into gpu_split=\[1e-05\]: give more gigabytes"):
        load(llama, gpu_split=[1e-5])
    check()


def test_threads_share_a_model(llama: Path) -> None:
    checks.threads_share(load(llama))


def test_an_engine_takes_requests_as_they_come(llama: Path) -> None:
    checks.an_engine_takes_requests_as_they_come(load(llama))


def test_a_prompt_beyond_a_window_is_refused_and_the_others_go_on(folders: Callable[[str], Path]) -> None:
    model, plain = load(folders("gemma2")), plain_of(folders("gemma2"))
    assert model.window == 40
    with pytest.raises(gen.BatchError, match="longer than this model's window of 40 tokens, got 42") as caught:
        generated(model, ["x" * 42, "The quick brown fox jumps over"], SAMPLERS["greedy"], 24)
    plain.check_greedy("The quick brown fox jumps over", caught.value.results[1].token_ids)  # beyond it, step by step


def test_a_window_that_it_does_not_know_ends_the_context(tmp_path: Path, folders: Callable[[str], Path]) -> None:
    save(tmp_path / "narrow", "mistral", sliding_window=16)
    assert load(tmp_path / "narrow").context_length == 16
    assert load(folders("mistral")).context_length == 256
    save(tmp_path / "off", "qwen2", sliding_window=16, use_sliding_window=False)
    assert load(tmp_path / "off").context_length == 256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["OtherForCausalLM"]}, "does not know 'OtherForCausalLM', and would run it as a Llama"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
            "rope_parameters of the type 'ya",
        ),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters of the type 'default'"),
        ({"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1]}}, "rope_parameters with mrope_section"),
        ({"rope_scaling": {"type": "other"}}, "does not know rope_scaling of the type 'other'"),
        ({"hidden_size": None}, "cannot read .*ValueError"),
        ({"vocab_size": 100}, "has ids up to 258, its model knows 100"),
    ],
)
def test_what_it_would_run_wrongly_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path)
    change(tmp_path, **changes)
    capsys.readouterr()
    with pytest.raises(gen.ModelError, match=message):
        load(tmp_path)
    assert capsys.readouterr().out == ""


def test_all_tokens_that_end_a_text_and_the_recommended_sampler_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    save(tmp_path)
    assert load(tmp_path).eos_token_ids == (257, 258)
    change(tmp_path, "generation_config.json", eos_token_id=258, do_sample=True, temperature=0.5, top_k=7)
    model = load(tmp_path)
    assert model.eos_token_ids == (258,)
    assert model.recommended_sampler == gen.samplers.multinomial(temperature=0.5, top_k=7)
    (tmp_path / "generation_config.json").unlink()
    assert load(tmp_path).eos_token_ids == (257, 258)


@pytest.mark.parametrize("pattern", [{"rank_pattern": {"q_proj": 8}}, {"alpha_pattern": {"q_proj": 1}}])
def test_a_lora_with_scales_of_single_modules_is_refused(pattern: dict[str, Any], llama: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8} | pattern))
    with pytest.raises(gen.ModelError, match=r"(rank|alpha)_pattern: ranks or scales of single modules, which exllama"):
        load(llama, lora=tmp_path)


def test_the_doctor_finds_nothing_or_names_what_is_misplaced(llama: Path) -> None:
    model = load(llama)
    diagnosis = examine(model)
    assert (diagnosis.problems, diagnosis.notes) == ([], [])
    norm = model.exl2_model.modules[-2]
    norm.weight = torch.nn.Parameter(norm.weight.data.to("cuda:0"), requires_grad=False)
    problems = examine(model).problems
    assert problems[0] == "model.norm.weight (128,) float16 is on cuda:0, but is used on cuda:1"
    assert problems[1].startswith("it does not run: Expected all tensors to be on the same device")


@pytest.mark.parametrize("exllama", ["2", "3"])
def test_the_doctors_command_takes_both(exllama: str, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", llama, "--exllama", exllama, "--device", "cuda:1", "--devices", "0") == 0
    out = capsys.readouterr().out
    assert "placement   cuda:1 (float16)" in out
    assert out.endswith("no problems\n")
    with pytest.raises(gen.ArgumentError, match="encoder, tokenizer and exllama are for different kinds of models"):
        diagnose(llama, exllama=2, encoder=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "cpu"}, gen.DeviceError, r"runs on CUDA devices alone, not on cpu; gen.load runs"),
        ({"device": "cuda:5"}, gen.DeviceError, "device cuda:5 does not exist"),
        ({"device": 0, "gpu_split": [1]}, gen.ArgumentError, "device for one GPU or gpu_split for several, not both"),
        ({"gpu_split": []}, gen.ArgumentError, "gpu_split must be a list of gigabytes"),
        ({"gpu_split": "1,2"}, gen.ArgumentError, "gpu_split must be a list of gigabytes"),
        ({"gpu_split": [-1]}, gen.ArgumentError, "gpu_split must be a number at least 0, got -1"),
        ({"gpu_split": [0, 0]}, gen.ArgumentError, "must have room on some GPU"),
        ({"gpu_split": [1, 1, 1]}, gen.DeviceError, "device cuda:2 does not exist"),
        ({"cache": "q5"}, gen.ArgumentError, "cache must be one of fp16, q8, q6, q4, got 'q5'"),
        ({"max_seq_len": 300}, gen.ArgumentError, "max_seq_len must be a whole number at least 2 and at most 256"),
        ({"max_batch_size": 0}, gen.ArgumentError, "max_batch_size must be a whole number at least 1"),
        ({"cpu_embedding": "no"}, gen.ArgumentError, "cpu_embedding must be True or False"),
        ({"lora": "/no/such/folder"}, gen.ModelError, "cannot load the LoRA .*No LoRA found in /no/such/folder"),
    ],
)
def test_arguments_are_refused_in_words(
    options: dict[str, Any], error: type[Exception], message: str, llama: Path
) -> None:
    with pytest.raises(error, match=message):
        load(llama, **options)


def test_more_rows_than_there_is_scratch_memory_for_are_refused(llama: Path) -> None:
    with pytest.raises(gen.ArgumentError, match="scratch memory for 2048 rows, got 2049; load with max_batch_size"):
        load(llama).new_rows(2049, 8)
