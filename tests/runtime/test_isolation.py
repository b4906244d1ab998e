"""Settings of torch around a call change no text, vector or model, and the call does not change the settings."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gen
from gen.runtime.isolation import multiplies_whole, settings_of_the_process
from gen.samplers import beam_search, greedy, multinomial
from gen.samplers.backends import choosing, torch_backend
from gen.samplers.backends.race import running_sum
from tests.helpers import byte_tokenizer, encoder_tokenizer, needs_kernels_that_agree, stored, tiny_encoder, tiny_model
from tests.helpers.noting import noted
from tests.models.exported.programs import exported


@contextmanager
def setting(change: Callable[[Any], object], value: object, before: object) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", torch.float16),
    "default dtype float64": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "default dtype bfloat16": lambda: setting(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "default device meta": lambda: setting(torch.set_default_device, "meta", None),
    "device meta": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "enable grad": torch.enable_grad,
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
}
PROMPTS = ["abc", "de fghi"]
PROCESSED = multinomial(
    temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.3, no_repeat_ngram_size=2, bad_words=["a"]
)
"""Every processor of `multinomial` at once."""


class Made:
    """Models that are made before any setting is changed."""

    def __init__(self, folder: Path) -> None:
        self.text: Any = gen.from_transformers(tiny_model(), byte_tokenizer())
        self.encoder: Any = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
        self.program = exported()
        self.exported: Any = gen.from_exported(self.program, byte_tokenizer(), device="cpu")
        self.saved_text, self.saved_encoder = folder / "text", folder / "encoder"
        stored(tiny_model().bfloat16(), self.saved_text)
        stored(tiny_encoder(), self.saved_encoder, encoder_tokenizer())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("models"))


def texts(model: Any, sampler: Any = None, count: int = 6, *, replay: bool = True) -> Any:
    return gen.generate(model, PROMPTS, sampler=sampler, seed=1, max_new_tokens=count, details=True, replay=replay)


CALLS: dict[str, Callable[[Made], Any]] = {
    "generate": lambda made: texts(made.text),
    "with processors": lambda made: texts(made.text, PROCESSED),
    "greedy": lambda made: texts(made.text, greedy(logit_bias={97: 1.0})),
    "beams": lambda made: texts(made.text, beam_search(3, repetition_penalty=1.2)),
    "stream": lambda made: list(gen.stream(made.text, "abc", seed=1, max_new_tokens=10)),
    "exported": lambda made: texts(made.exported, count=4),
    "embed": lambda made: gen.embed(made.encoder, ["a cat", "the red moon"]).tolist(),
    "from_transformers": lambda made: texts(gen.from_transformers(made.text.hf_model, byte_tokenizer()), count=4),
    "from_exported": lambda made: texts(gen.from_exported(made.program, byte_tokenizer(), device="cpu"), count=4),
    "from_transformers_encoder": lambda made: gen.embed(
        gen.from_transformers_encoder(made.encoder.hf_model, encoder_tokenizer()), ["a cat"]
    ).tolist(),
    "load": lambda made: texts(gen.load(made.saved_text, device="cpu"), count=4),
    "load_encoder": lambda made: gen.embed(gen.load_encoder(made.saved_encoder, device="cpu"), ["a cat"]).tolist(),
}


@pytest.fixture(scope="module")
def expected(made: Made) -> dict[str, Any]:
    return {name: call(made) for name, call in CALLS.items()}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_of_torch_changes_a_result(made: Made, expected: dict[str, Any], name: str, call: str) -> None:
    with SETTINGS[name]():
        result = CALLS[call](made)
    assert result == expected[call]


def engine_texts(model: Any) -> None:
    with gen.Engine(model, rows=2) as engine:
        engine.submit("abc", seed=1, max_new_tokens=4).completion()


FORWARDS: dict[str, Callable[[Any], object]] = {
    "a few": texts,
    "many in the first call": lambda model: gen.generate(model, ["x" * 900] * 20, max_new_tokens=2),
    "beams": lambda model: texts(model, beam_search(3)),
    "exact": lambda model: gen.generate(model, PROMPTS, exact=True, max_new_tokens=4),
    "stream": lambda model: [*gen.stream(model, "abc", max_new_tokens=4)],
    "engine": engine_texts,
    "prompt_logprobs": lambda model: gen.generate(model, PROMPTS, prompt_logprobs=1, details=True, max_new_tokens=2),
    "score": lambda model: gen.score(model, PROMPTS),
    "classify": lambda model: gen.classify(model, "abc", ["d", "e"]),
    "prefix": lambda model: gen.prefix(model, [*range(9)]).release(),
    "from_transformers": lambda model: gen.from_transformers(model.hf_model, byte_tokenizer()),
}


@pytest.mark.parametrize("call", FORWARDS)
def test_every_forward_runs_without_gradients_and_autocast(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = gen.from_transformers(tiny_model(max_position_embeddings=2048), byte_tokenizer())
    if call == "exact":
        needs_kernels_that_agree(model)
    modes = lambda *_: (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))  # noqa: E731
    seen = noted(monkeypatch, torch.nn.functional, "linear", modes)
    with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
        FORWARDS[call](model)
    assert {*seen} == {(False, False)}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_stream_may_start_under_one_setting_and_go_on_under_another(made: Made, name: str) -> None:
    plain = list(gen.stream(made.text, "abc", seed=1, max_new_tokens=10))
    with SETTINGS[name]():
        stream = iter(gen.stream(made.text, "abc", seed=1, max_new_tokens=10))
        pieces = [next(stream)]
    pieces += [next(stream)]
    with SETTINGS[name]():
        pieces += stream
    assert pieces == plain


def state() -> tuple[Any, ...]:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.ones(1).dtype,
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_the_callers_between_the_pieces_and_after_a_stream_that_is_given_up(made: Made, name: str) -> None:
    with SETTINGS[name]():
        before = state()
        stream: Any = gen.stream(made.text, "abc", seed=1, max_new_tokens=10)
        next(stream)
        assert state() == before
        stream.close()
        assert state() == before


@pytest.mark.parametrize("name", ["cuda.matmul", "mkldnn.matmul", "mkldnn", ""])
def test_a_precision_that_was_set_by_its_new_name_counts(made: Made, name: str) -> None:
    """With some of these set, torch refuses to say the precision by its old name."""
    backend: Any = reduce(getattr, name.split(".") if name else [], torch.backends)
    plain = gen.generate(made.text, PROMPTS, seed=1, max_new_tokens=20)
    before, unset = settings_of_the_process(), backend.fp32_precision
    assert multiplies_whole()
    backend.fp32_precision = "tf32"
    try:
        assert not multiplies_whole() and settings_of_the_process() != before
        assert len(gen.generate(made.text, PROMPTS, seed=1, max_new_tokens=20)) == 2
        assert len(gen.generate(made.text, PROMPTS, exact=True, max_new_tokens=2)) == 2
        gen.from_transformers(tiny_model(), byte_tokenizer())
    finally:
        backend.fp32_precision = unset
    assert settings_of_the_process() == before
    assert gen.generate(made.text, PROMPTS, seed=1, max_new_tokens=20) == plain


BACKENDS: Any = torch.backends
KERNELS: dict[str, tuple[Callable[[Any], object], object, object]] = {
    **{
        one: (getattr(BACKENDS.cuda, f"enable_{one}_sdp"), False, True)
        for one in ("flash", "mem_efficient", "math", "cudnn")
    },
    "math in half precision": (BACKENDS.cuda.allow_fp16_bf16_reduction_math_sdp, True, False),
    "sums in float16": (partial(setattr, BACKENDS.cuda.matmul, "allow_fp16_accumulation"), True, False),
    "convolutions": (partial(setattr, BACKENDS.cudnn.conv, "fp32_precision"), "ieee", "tf32"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_captured_steps_depend_on_what_chooses_kernels(name: str) -> None:
    before = settings_of_the_process()
    with setting(*KERNELS[name]):
        assert settings_of_the_process() != before
    assert settings_of_the_process() == before


def test_a_loaded_model_can_be_trained_though_it_was_loaded_in_inference_mode() -> None:
    with torch.inference_mode():
        model = gen.load("demo", device="cpu")
    assert not any(parameter.is_inference() for parameter in model.hf_model.parameters())
    model.hf_model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()


class Interrupting:
    """A sampler that takes the first token until it raises."""

    samples, penalties = 1, None

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._steps = 0

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Any:
        self._steps += 1
        if self._steps == 3:
            raise self._error
        return greedy().step(logits, weights, keys)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("mine"), SystemExit(3)], ids=repr)
def test_what_a_sampler_raises_comes_through_and_leaves_the_model_and_the_settings(
    made: Made, expected: dict[str, Any], error: BaseException
) -> None:
    with torch.autocast("cpu"):
        before = state()
        with pytest.raises(type(error)) as caught:
            texts(made.text, Interrupting(error))
        if isinstance(error, KeyboardInterrupt):  # has the texts that were done
            assert isinstance(caught.value, gen.Interrupted)
            so_far = [(one.finish_reason, len(one.token_ids)) for one in caught.value.results]
            assert so_far == [(None, 2)] * len(PROMPTS)
            assert caught.value.__context__ is error
        else:
            assert caught.value is error
        assert state() == before
        stream = iter(gen.stream(made.text, "abc", sampler=Interrupting(error)))
        assert next(stream)
        with pytest.raises(type(error)):
            list(stream)
        assert state() == before
    assert texts(made.text) == expected["generate"]


def test_an_interrupt_within_the_model_or_the_tokenizer_leaves_both_usable(
    made: Made, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    hook = made.text.hf_model.get_output_embeddings().register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        texts(made.text)
    hook.remove()
    with monkeypatch.context() as patch:
        patch.setattr(type(made.text.tokenizer._tokenizer), "__call__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            texts(made.text)
    assert texts(made.text) == expected["generate"]


def test_a_consumer_that_fails_or_stops_leaves_the_model_usable(made: Made, expected: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in gen.stream(made.text, "abc", seed=1, max_new_tokens=10):
            raise ZeroDivisionError
    for _ in gen.stream(made.text, "abc", seed=1, max_new_tokens=10):
        break
    next(iter(gen.stream(made.text, "abc", seed=1, max_new_tokens=10)))  # never closed
    assert texts(made.text) == expected["generate"]


class OnlyDeterministic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses on the CPU what torch's deterministic mode refuses on CUDA; see use_deterministic_algorithms."""

    NAMES = ("put", "histc", "bincount", "median", "kthvalue", "scatter_reduce", "nll_loss", "grid_sampler")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        floating = any(isinstance(one, Tensor) and one.is_floating_point() for one in args)
        assert name not in self.NAMES and not (name in ("cumsum", "cumprod") and floating), func
        return func(*args, **(kwargs or {}))


SAMPLERS = [
    PROCESSED,
    multinomial(top_k=5, top_p=0.7),
    multinomial(top_p=0.7),
    multinomial(min_p=0.1, temperature=0.5),
    greedy(),
    beam_search(3),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=range(len(SAMPLERS)))
def test_the_path_for_cuda_has_a_deterministic_kernel_for_every_step(
    made: Made, sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_backend", lambda logits: torch_backend)
    expected = texts(made.text, sampler, replay=False)  # steps of the other tests were recorded on the other path
    with SETTINGS["deterministic"](), OnlyDeterministic():  # type: ignore[no-untyped-call]
        result = texts(made.text, sampler, replay=False)
    assert [one.token_ids for one in result] == [one.token_ids for one in expected]


def test_running_sums_by_doubling_are_sums() -> None:
    for length in (1, 2, 3, 127, 128, 129):
        mass = torch.rand((2, length), dtype=torch.float64, generator=torch.Generator().manual_seed(length))
        with SETTINGS["deterministic"]():
            found = running_sum(mass)
        torch.testing.assert_close(found, torch.from_numpy(mass.numpy().cumsum(-1)), rtol=1e-14, atol=0)
