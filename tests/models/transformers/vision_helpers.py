"""Tiny vision-language models of three families, with processors made by hand: random weights, few pixels."""

import copy
import warnings
from functools import cache
from typing import Any

import numpy
import torch
from accelerate import dispatch_model  # type: ignore[import-untyped]
from PIL import Image
from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.processing_utils import ProcessorMixin

from tests.helpers import BOS, byte_tokenizer
from tests.helpers.architectures import SMALL

FAMILIES = ["llava", "qwen2_5_vl", "gemma3"]
IMAGE = {"llava": "<image>", "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>", "gemma3": "<boi>"}
_VISION_PART = {"llava": ["model.vision_tower", "model.multi_modal_projector"], "qwen2_5_vl": ["model.visual"]}
_VISION_PART["gemma3"] = _VISION_PART["llava"]
IMAGE_ID = 259  # the first id after those of the byte tokenizer
VOCAB_SIZE = {"llava": 260, "qwen2_5_vl": 263, "gemma3": 262}
CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {% for part in m.content %}"
    "{% if part.type == 'image' %}PLACE{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{{ '\n' }}{% endfor %}[assistant] "
)

_TEXT: dict[str, Any] = SMALL | {
    "max_position_embeddings": 256,
    "bos_token_id": BOS,
    "eos_token_id": None,
    "pad_token_id": None,
}


class ImageProcessorOfQwen(Qwen2VLProcessor):  # type: ignore[misc]
    """Qwen's processor without its part for videos, which would need torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def picture(seed: int, width: int = 20, height: int = 16) -> Image.Image:
    pixels = numpy.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=numpy.uint8)
    return Image.fromarray(pixels)


def tiny_processor(family: str) -> Any:
    template = CHAT_TEMPLATE.replace("PLACE", IMAGE[family])
    if family == "llava":
        size = {"height": 16, "width": 16}
        return LlavaProcessor(
            CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=size),
            _tokenizer("<image>"),
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=template,
        )
    if family == "gemma3":
        tokenizer = _tokenizer("<image>", "<boi>", "<eoi>")
        tokenizer.boi_token, tokenizer.boi_token_id = "<boi>", IMAGE_ID + 1
        tokenizer.image_token, tokenizer.image_token_id = "<image>", IMAGE_ID
        tokenizer.eoi_token = "<eoi>"
        images = Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
        return Gemma3Processor(images, tokenizer, image_seq_length=4, chat_template=template)
    tokenizer = _tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    images = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, min_pixels=64, max_pixels=1024)
    return ImageProcessorOfQwen(images, tokenizer, chat_template=template)


def _tokenizer(*specials: str) -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>", *specials]})
    return tokenizer


def tiny_vision_model(family: str, *, seed: int = 0) -> PreTrainedModel:
    """A small model with random weights whose texts depend on images: other pixels give other texts."""
    return copy.deepcopy(_made(family, seed))


@cache
def _made(family: str, seed: int) -> PreTrainedModel:
    with warnings.catch_warnings(action="ignore"):  # reduced configs warn about missing parts
        torch.manual_seed(seed)
        model: PreTrainedModel = {"llava": _llava, "qwen2_5_vl": _qwen, "gemma3": _gemma}[family]()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                spread = 1.0 if "embed_tokens" in name else 0.3
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _llava() -> Any:
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=8
    )
    text = LlamaConfig(vocab_size=VOCAB_SIZE["llava"], **_TEXT)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=IMAGE_ID, tie_word_embeddings=False)
    return LlavaForConditionalGeneration(config)


def _qwen() -> Any:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "out_hidden_size": 32,
        "patch_size": 4,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    config = Qwen2_5_VLConfig(
        vision_config=vision,
        text_config=_TEXT | {"vocab_size": VOCAB_SIZE["qwen2_5_vl"], "rope_parameters": rope},
        image_token_id=IMAGE_ID,
        video_token_id=IMAGE_ID + 1,
        vision_start_token_id=IMAGE_ID + 2,
        vision_end_token_id=IMAGE_ID + 3,
        tie_word_embeddings=False,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def _gemma() -> Any:
    """It has a sliding window, and attention in both directions within an image."""
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 4,
    }
    layers = {"head_dim": 8, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    config = Gemma3Config(
        vision_config=vision,
        text_config=_TEXT | {"vocab_size": VOCAB_SIZE["gemma3"]} | layers,
        mm_tokens_per_image=4,
        image_token_id=IMAGE_ID,
        boi_token_index=IMAGE_ID + 1,
        eoi_token_index=IMAGE_ID + 2,
        tie_word_embeddings=False,
    )
    return Gemma3ForConditionalGeneration(config)


PICTURES = [[picture(1)], [picture(2, 30, 30), picture(3, 16, 40)], []]  # for three prompts


def prompts(family: str) -> list[str]:
    place = IMAGE[family]
    return [f"a {place} b", f"{place}: before, {place}: after", "no picture"]


def split_vision_model(
    model: PreTrainedModel, family: str, *, vision: int = 1, last_layer: int = 1, head: int = 1
) -> PreTrainedModel:
    """A copy with its embedding and first layer on cuda:0, and other parts on the GPUs that are given."""
    text = "model.language_model"
    device_map = {f"{text}.embed_tokens": 0, f"{text}.rotary_emb": 0, f"{text}.layers.0": 0}
    device_map |= {f"{text}.layers.1": last_layer, f"{text}.norm": head, "lm_head": head}
    device_map |= {part: vision for part in _VISION_PART[family]}
    spread: PreTrainedModel = dispatch_model(copy.deepcopy(model), device_map=device_map)
    return spread


def transformers_tokens(
    family: str, prompt: str, images: list[Image.Image], new_tokens: int, **options: Any
) -> list[int]:
    """The tokens of transformers' own generate on the CPU, greedy unless the options differ."""
    model, processor = tiny_vision_model(family), tiny_processor(family)
    encoded = processor(text=[prompt], images=[images] if images else None, return_tensors="pt")
    token_ids = model.generate(**encoded, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0, **options)
    return token_ids[0, encoded["input_ids"].shape[1] :].tolist()  # type: ignore[no-any-return]
