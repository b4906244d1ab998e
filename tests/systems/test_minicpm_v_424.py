"""MiniCPM-V 424: a vision-language model over two GPUs put image embeddings into text embeddings of another GPU.

The oracle is transformers' own generate with the whole model on the CPU.
"""

import copy
from typing import Any

import pytest
import torch
from accelerate import dispatch_model  # type: ignore[import-untyped]
from torch import Tensor, nn

import gen
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.waits import waits
from tests.models.transformers.vision_helpers import (
    FAMILIES,
    PICTURES,
    prompts,
    split_vision_model,
    tiny_processor,
    tiny_vision_model,
    transformers_tokens,
)

GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")
GREEDY = gen.samplers.greedy()


class FaultyModel:
    """An embedding on one device and a vision part on another; their results are combined without a move."""

    def __init__(self, text: torch.device, vision: torch.device) -> None:
        self.embedding, self.vision = nn.Embedding(16, 4).to(text), nn.Linear(6, 4).to(vision)

    @torch.inference_mode()
    def embed(self, token_ids: Tensor, pixel_values: Tensor, places: Tensor) -> Tensor:
        embeddings = self.embedding(token_ids.to(self.embedding.weight.device))
        seen = self.vision(pixel_values.to(self.vision.weight.device))
        index = places.to(embeddings.device).unsqueeze(1).expand(-1, 4)
        result: Tensor = embeddings.scatter(0, index, seen)
        return result


def test_image_embeddings_scattered_into_those_of_another_gpu_fail(two_gpus: None) -> None:
    inputs = (torch.arange(5), torch.ones(2, 6), torch.tensor([1, 2]))
    assert FaultyModel(GPU1, GPU1).embed(*inputs).device == GPU1
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        FaultyModel(GPU0, GPU1).embed(*inputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_gens_tokens_are_those_of_the_whole_model(two_gpus: None, family: str) -> None:
    expected = [transformers_tokens(family, *one, 5) for one in zip(prompts(family), PICTURES, strict=True)]
    whole, processor = tiny_vision_model(family), tiny_processor(family)
    model = gen.from_transformers(split_vision_model(whole, family, vision=1), processor, probe=False)
    assert (model.placement.input_device, model.placement.vision_device) == (GPU0, GPU1)
    assert model.placement.layer_devices == (GPU0, GPU1)
    together = gen.generate(model, prompts(family), images=PICTURES, sampler=GREEDY, max_new_tokens=5, details=True)
    assert [completion.token_ids for completion in together] == expected
    for prompt, images, completion in zip(prompts(family), PICTURES, together, strict=True):
        pieces = gen.stream(model, prompt, images=images, sampler=GREEDY, max_new_tokens=5)
        assert "".join(pieces) == completion.text


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_runs_where_the_logits_are_and_never_waits(two_gpus: None, family: str) -> None:
    spread = split_vision_model(tiny_vision_model(family), family)
    spread._hf_hook.io_same_device = False  # as gen.load sets it: the logits stay where the head is
    model = gen.from_transformers(spread, tiny_processor(family), probe=False)
    assert model.placement.logits_device == GPU1
    whole = gen.from_transformers(tiny_vision_model(family), tiny_processor(family))
    options: dict[str, Any] = {"images": PICTURES, "seed": 5}
    counts, texts = waits(lambda most: gen.generate(model, prompts(family), max_new_tokens=most, **options), 3, 6)
    assert texts == gen.generate(whole, prompts(family), max_new_tokens=6, **options)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_text_model_over_two_gpus_says_what_transformers_says_of_the_whole(two_gpus: None, num_beams: int) -> None:
    tokenizer = byte_tokenizer()
    whole = tiny_model("llama", vocab_size=len(tokenizer))
    device_map = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0}
    device_map |= {"model.layers.1": 1, "model.norm": 1, "lm_head": 1}
    model = gen.from_transformers(dispatch_model(copy.deepcopy(whole), device_map=device_map), tokenizer, probe=False)
    assert set(model.placement.devices) == {GPU0, GPU1}
    texts = ["Ada", "hello there", "x = [1, 2, 3]"]
    sampler = GREEDY if num_beams == 1 else gen.samplers.beam_search(num_beams)
    together: Any = gen.generate(model, texts, sampler=sampler, max_new_tokens=8, details=True)
    for text, completion in zip(texts, together, strict=True):
        prompt_ids = torch.tensor([tokenizer(text)["input_ids"]])
        token_ids = whole.generate(
            prompt_ids,
            attention_mask=torch.ones_like(prompt_ids),
            max_new_tokens=8,
            num_beams=num_beams,
            do_sample=False,
            pad_token_id=0,
        )
        assert completion.token_ids == token_ids[0, prompt_ids.shape[1] :].tolist()
