"""privateGPT 1851 (also 1521, 1390): an embedding model whose device is looked up again at each call.

The model was built without a device, so "cuda" meant the current one: for the weights, that of the thread that started
the server, and for a request's tokens, that of a worker thread. With two GPUs these differ.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from tests.helpers import encoder_tokenizer, stored, tiny_encoder
from virtual_gpus import DeviceMismatchError, virtual_gpus

TEXTS = ["the cat sat on the mat .", "a dog", "the red moon"]


class Unindexed:
    """The faulty way: "cuda" without an index, resolved wherever it is used."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = encoder_tokenizer()
        self.model: Any = type(tiny_encoder()).from_pretrained(path).eval().to("cuda")

    def embed(self, text: str) -> Tensor:
        token_ids = torch.tensor([self.tokenizer(text)["input_ids"]]).to("cuda")
        with torch.inference_mode():
            vector: Tensor = self.model(input_ids=token_ids).last_hidden_state.mean(1)
        return vector


def in_another_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call it in a thread of its own, whose current device is 0; give its result, or raise its error."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder")
    return stored(tiny_encoder(), path, encoder_tokenizer())


def built_on_gpu_1(build: Callable[[Path], Any], path: Path) -> Any:
    """Build in this thread while its current device is 1."""
    with torch.cuda.device(1):
        return build(path)


def check_everywhere(path: Path, expected: Tensor) -> None:
    """One encoder, built with current device 1: called here, after the current device changed, and from a worker."""
    model = built_on_gpu_1(gen.load_encoder, path)
    assert model.placement.devices == (torch.device("cuda:1"),)
    assert {parameter.device for parameter in model.hf_model.parameters()} == {torch.device("cuda:1")}
    calls: list[Callable[[], Tensor]] = [
        lambda: built_on_gpu_1(lambda _: gen.embed(model, TEXTS), path),
        lambda: gen.embed(model, TEXTS),
        lambda: in_another_thread(gen.embed, model, TEXTS),
    ]
    vectors = [call() for call in calls]
    assert {vector.device for vector in vectors} == {torch.device("cuda:1")}
    assert all(torch.equal(vector, vectors[0]) for vector in vectors)
    torch.testing.assert_close(vectors[0].cpu(), expected, rtol=0, atol=1e-5)


def test_looked_up_at_each_call_it_raises_in_another_thread(saved: Path) -> None:
    with virtual_gpus(2):
        model = built_on_gpu_1(Unindexed, saved)
        assert torch.cuda.current_device() == 0
        with pytest.raises(DeviceMismatchError, match=r"cuda:1 and cuda:0|cuda:0 and cuda:1"):
            in_another_thread(model.embed, TEXTS[0])


def test_gen_pins_the_device_when_it_is_built(saved: Path) -> None:
    expected = gen.embed(gen.load_encoder(saved, device="cpu"), TEXTS)
    with virtual_gpus(2):
        check_everywhere(saved, expected)


def test_an_encoder_that_is_loaded_already_stays_where_it_is() -> None:
    expected = gen.embed(gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer()), TEXTS)
    with virtual_gpus(2):
        model = gen.from_transformers_encoder(tiny_encoder().to("cuda:1"), encoder_tokenizer())
        vectors = in_another_thread(gen.embed, model, TEXTS)
        assert vectors.device == torch.device("cuda:1")
        torch.testing.assert_close(vectors.cpu(), expected, rtol=0, atol=1e-5)


@pytest.mark.gpu(devices=2)
def test_on_two_gpus(saved: Path) -> None:
    model = built_on_gpu_1(Unindexed, saved)
    with pytest.raises(RuntimeError, match="same device"):
        in_another_thread(model.embed, TEXTS[0])
    check_everywhere(saved, gen.embed(gen.load_encoder(saved, device="cpu"), TEXTS))
