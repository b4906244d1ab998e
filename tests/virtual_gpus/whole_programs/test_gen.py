"""gen itself on virtual GPUs: the CPU's texts from every device and thread, and a host that never waits for a token."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import gen
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.models.transformers.model import TransformersModel
from gen.requests.reading import read_requests
from gen.requests.settings import Settings
from gen.samplers import MultinomialSampler, Sampler
from gen.samplers.base import Sampled
from tests.helpers import byte_tokenizer, stored, tiny_model
from tests.virtual_gpus.whole_programs.test_transformers import split
from virtual_gpus import SyncReport, no_host_sync, virtual_gpus

GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")
PROMPTS = ["Ada", "hello there", ""]
SAMPLERS: dict[str, Sampler] = {
    "greedy": gen.samplers.greedy(),
    "multinomial": gen.samplers.multinomial(),
    "filtered": gen.samplers.multinomial(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
    "several": gen.samplers.multinomial(samples=3),
    "beams": gen.samplers.beam_search(3),
}
PROCESSED: dict[str, Sampler] = {
    "penalised": gen.samplers.greedy(repetition_penalty=1.3, frequency_penalty=0.2, logit_bias={65: 1.0}),
    "restricted": gen.samplers.multinomial(bad_words=["a"], no_repeat_ngram_size=2, min_new_tokens=2),
}
IN_THE_LOOP = SAMPLERS | PROCESSED
# every sampler with one architecture, and every architecture with samplers that copy and move its cache
PAIRS = [*(("llama", name) for name in IN_THE_LOOP), ("gpt2", "several"), ("mixtral", "beams")]
SPLIT = [pair for pair in PAIRS if pair not in [("llama", name) for name in ("greedy", "multinomial", "several")]]


def texts(model: TransformersModel, sampler: Sampler, new_tokens: int = 6, **options: Any) -> list[str | list[str]]:
    made: list[str | list[str]] = gen.generate(
        model, PROMPTS, sampler=sampler, seed=5, max_new_tokens=new_tokens, **options
    )
    return made


def adapter(shape: str = "llama", device: str = "cpu") -> TransformersModel:
    """A tiny model; a Llama has one layer, since each operator takes long on a virtual GPU."""
    model = tiny_model() if shape == "llama" else tiny_model(shape)
    return gen.from_transformers(model.to(device), byte_tokenizer(), probe=False)


def whole(shape: str = "llama") -> TransformersModel:
    """The model that `halves` splits in two."""
    return gen.from_transformers(tiny_model(shape), byte_tokenizer(), probe=False)


def halves(model: PreTrainedModel, shape: str) -> TransformersModel:
    """The model with one half on cuda:0, the other on cuda:1."""
    return gen.from_transformers(split(model, shape), byte_tokenizer(), probe=False)


def syncs(model: TransformersModel, sampler: Sampler, new_tokens: int) -> SyncReport:
    with no_host_sync(count=True) as report:
        texts(model, sampler, new_tokens)
    return report


@pytest.mark.parametrize("sampler", ["multinomial", "several", "beams", "penalised"])
def test_the_loop_has_no_races_between_streams(sampler: str) -> None:
    expected = texts(adapter(), IN_THE_LOOP[sampler])
    with virtual_gpus(2, check_streams=True):
        assert texts(adapter(device="cuda:1"), IN_THE_LOOP[sampler]) == expected


@pytest.mark.usefixtures("soon_worth_it")
@pytest.mark.parametrize(
    ("shape", "sampler", "spread"), [*((*pair, False) for pair in PAIRS), *((*pair, True) for pair in SPLIT)]
)
def test_texts_are_the_cpus_and_the_host_never_waits_for_a_token(shape: str, sampler: str, spread: bool) -> None:
    """Steps are captured, but not those in another thread."""
    expected = texts((whole if spread else adapter)(shape), IN_THE_LOOP[sampler])
    with virtual_gpus(2), ThreadPoolExecutor(1) as pool:
        model = halves(tiny_model(shape), shape) if spread else adapter(shape, "cuda:1")
        assert torch.cuda.current_device() == 0
        assert {*model.placement.devices} == ({GPU0, GPU1} if spread else {GPU1})
        counts = []
        for new_tokens in (3, 6):
            with no_host_sync(count=True) as report:
                found = texts(model, IN_THE_LOOP[sampler], new_tokens)
            counts.append(report.count)
        assert found == expected
        assert counts[0] == counts[1] <= 2, report
        assert pool.submit(texts, model, IN_THE_LOOP[sampler], cuda_graph=False).result() == expected


def test_load_puts_a_model_where_it_is_asked_to(tmp_path: Path) -> None:
    stored(tiny_model("llama"), tmp_path)
    expected = texts(gen.load(tmp_path, device="cpu"), SAMPLERS["multinomial"])
    with virtual_gpus(2):
        torch.cuda.set_device(1)
        for placed in (
            gen.load(tmp_path, device="cuda:1"),
            gen.load(tmp_path),
            gen.load(tmp_path, device_map={"": 1}),
        ):
            torch.cuda.set_device(0)
            assert placed.placement.devices == (GPU1,)
            assert texts(placed, SAMPLERS["multinomial"]) == expected
            torch.cuda.set_device(1)
        device_map = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0, "model.layers.1": 1}
        spread = gen.load(tmp_path, device_map=device_map | {"model.norm": 1, "lm_head": 1})
        assert (spread.placement.input_device, spread.placement.logits_device) == (GPU0, GPU1)
        assert texts(spread, SAMPLERS["multinomial"]) == expected


@pytest.mark.usefixtures("soon_worth_it")
@pytest.mark.parametrize(
    ("limits", "sampler", "spread"),
    [
        *(("unequal", name, name in ("several", "beams")) for name in IN_THE_LOOP if name != "multinomial"),
        ("equal", "greedy", False),
        ("equal", "beams", True),
    ],
)
def test_a_batch_that_is_filled_again_and_again_never_waits_for_a_token(
    limits: str, sampler: str, spread: bool
) -> None:
    """Two texts or searches have rows at a time; with equal limits both end at once, and no other row goes on."""

    def ran(model: TransformersModel, new_tokens: int) -> list[list[int]]:
        requests = read_requests(
            model,
            [*PROMPTS, "once upon a time", "x = "],
            Settings(
                max_new_tokens=[new_tokens + (number if limits == "unequal" else 0) for number in range(5)],
                seed=5,
                eos_token_id=[],
            ),
            [IN_THE_LOOP[sampler]] * 5,
            [[]] * 5,
        )
        jobs = [new_job(model, request) for request in requests]
        run_all(model, jobs, Options(rows=2 * IN_THE_LOOP[sampler].samples, admit_tokens=5))
        return [completion.token_ids for job in jobs for completion in job.completions()]

    expected = ran(whole() if spread else adapter(), 6)
    with virtual_gpus(2):
        model = halves(tiny_model("llama"), "llama") if spread else adapter(device="cuda:1")
        counts = []
        for new_tokens in (3, 6):
            with no_host_sync(count=True) as report:
                found = ran(model, new_tokens)
            counts.append(report.count)
        assert found == expected
        assert counts[0] == counts[1] <= 2, report


@pytest.mark.parametrize("sampler", ["greedy", "several", "beams"])
def test_stop_strings_and_eos_never_wait_for_a_token(sampler: str) -> None:
    """Texts end where only the host sees it; beams also end where only the device sees it."""
    on_the_cpu = whole()
    greedy: Any = gen.generate(on_the_cpu, PROMPTS, sampler=SAMPLERS["greedy"], max_new_tokens=12, details=True)
    first, second, _ = greedy
    stop = next(sign for sign in first.text[3:] if sign.isascii() and sign not in first.text[:3])
    seen = {*first.token_ids, *second.token_ids[:3]}
    options: dict[str, Any] = {
        "stop": [stop, "zzz"],
        "eos_token_id": next(token for token in second.token_ids if token not in seen),
    }

    def ran(model: TransformersModel, new_tokens: int) -> Any:
        return gen.generate(
            model, PROMPTS, sampler=IN_THE_LOOP[sampler], seed=5, max_new_tokens=new_tokens, details=True, **options
        )

    expected = ran(on_the_cpu, 12)
    if sampler == "greedy":
        assert [completion.finish_reason for completion in expected[:2]] == ["stop", "eos"]
    with virtual_gpus(2):
        spread = halves(tiny_model("llama"), "llama")
        for model in (gen.from_transformers(tiny_model("llama").to("cuda:1"), byte_tokenizer(), probe=False), spread):
            with no_host_sync(count=True) as report:
                found = ran(model, 12)
            assert token_ids(found) == token_ids(expected)
            assert report.count <= 2, report


def token_ids(completions: Any) -> Any:
    """The token ids of a completion, or of each one in a list."""
    return [token_ids(one) for one in completions] if isinstance(completions, list) else completions.token_ids


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampler_alone_never_waits(sampler: str) -> None:
    rows = 2 * SAMPLERS[sampler].samples
    with virtual_gpus(2):
        logits = torch.randn(rows, 300, device="cuda:1")
        weights = torch.zeros(rows, device="cuda:1")
        keys = torch.arange(rows, device="cuda:1")
        with no_host_sync():
            results = SAMPLERS[sampler].step(logits, weights, keys)
        assert all(result.device == GPU1 for result in results)


class _Peeking(MultinomialSampler):
    """A sampler whose step has one line too many: it reads on the host."""

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        token_ids, ancestors, logprobs = super().step(logits, weights, keys)
        if int(token_ids.min()) < 0:
            raise ValueError("no token")
        return token_ids, ancestors, logprobs


def test_a_sync_planted_in_a_step_is_found_at_its_line() -> None:
    with virtual_gpus(2):
        model = adapter(device="cuda:1")
        short, long = (syncs(model, _Peeking(), new_tokens) for new_tokens in (4, 12))
    assert (long.count - short.count) / 8 == 1
    line = _Peeking.step.__code__.co_firstlineno + 2
    planted = f"item, bool, int or float at tests/virtual_gpus/whole_programs/test_gen.py:{line} in step"
    assert long.by_line[planted] == 12
