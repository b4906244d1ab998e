"""Vision-language models: greedy texts equal transformers' own for two families; refusals come before any work."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import peft
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

import gen
from benchmarks.architectures.comparisons import ImageOracle
from benchmarks.architectures.image_inputs import each_alone, image_inputs
from benchmarks.architectures.tiny_models import tiny_model as listed_model
from benchmarks.architectures.tiny_models import tokenizer as listed_tokenizer
from gen.doctor import examine
from gen.models.transformers.vision import VisionModel
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.waits import waits
from tests.models.transformers.vision_helpers import (
    FAMILIES,
    IMAGE,
    PICTURES,
    picture,
    prompts,
    split_vision_model,
    tiny_processor,
    tiny_vision_model,
    transformers_tokens,
)
from virtual_gpus import virtual_gpus

GREEDY = gen.samplers.greedy()
GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")


def adapter(family: str, device: str = "cpu", **options: Any) -> VisionModel:
    model = gen.from_transformers(tiny_vision_model(family).to(device), tiny_processor(family), **options)
    assert isinstance(model, VisionModel)
    return model


def texts(model: Any, family: str, sampler: Any = None, new_tokens: int = 5) -> list[str]:
    result: list[str] = gen.generate(
        model, prompts(family), images=PICTURES, sampler=sampler, seed=5, max_new_tokens=new_tokens
    )
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_is_equal_alone_in_other_batches_and_streamed(family: str) -> None:
    model = adapter(family)
    together = texts(model, family)
    for prompt, images, text in zip(prompts(family), PICTURES, together, strict=True):
        assert gen.generate(model, prompt, images=images, seed=5, max_new_tokens=5) == text
        assert "".join(gen.stream(model, prompt, images=images, seed=5, max_new_tokens=5)) == text
    backwards = gen.generate(model, prompts(family)[::-1], images=PICTURES[::-1], seed=5, max_new_tokens=5)
    assert backwards == together[::-1]
    groups = gen.generate(
        model, prompts(family), images=PICTURES, sampler=gen.samplers.multinomial(samples=2), seed=5, max_new_tokens=5
    )
    assert [group[0] for group in groups] == together


def test_a_token_that_was_added_later_is_refused_beside_an_image_too() -> None:
    model = adapter("llava")
    model.processor.tokenizer.add_tokens([f"<{number}>" for number in range(90)])
    with pytest.raises(gen.ArgumentError, match=r"has the token 3\d\d, and .* had ids up to \d+ when you gave"):
        gen.generate(model, f"{IMAGE['llava']}<89>", images=[picture(0)], max_new_tokens=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_beams_equal_transformers_beams(family: str) -> None:
    together: Any = gen.generate(
        adapter(family),
        prompts(family),
        images=PICTURES,
        sampler=gen.samplers.beam_search(3),
        max_new_tokens=7,
        details=True,
    )
    for prompt, images, completion in zip(prompts(family), PICTURES, together, strict=True):
        assert completion.token_ids == transformers_tokens(family, prompt, images, 7, num_beams=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_chat_template_puts_images_before_the_text(family: str) -> None:
    model = adapter(family)

    def complete(prompt: Any, **options: Any) -> gen.Completion:
        completion: gen.Completion = gen.generate(model, prompt, seed=1, max_new_tokens=4, details=True, **options)
        return completion

    expected = complete(f"[user] {IMAGE[family]}what?\n[assistant] ", images=[picture(1)])
    assert complete("what?", images=[picture(1)], chat=True) == expected
    content = [{"type": "image"}, {"type": "text", "text": "what?"}]
    assert complete([{"role": "user", "content": content}], images=[picture(1)]) == expected
    assert complete("what?", chat=True) == complete("[user] what?\n[assistant] ")
    # a template that reads only parts finds nothing in a text
    assert complete([{"role": "user", "content": "what?"}]) == complete("[user] what?\n[assistant] ")


@pytest.mark.parametrize("family", FAMILIES)
def test_images_may_be_in_the_messages(family: str, tmp_path: Path) -> None:
    model = adapter(family)
    pictures = [picture(1), picture(2), picture(3)]
    pictures[1].save(tmp_path / "a picture.png")
    question = {"type": "text", "text": "what?"}
    inside: list[Any] = [
        {"role": "user", "content": [{"type": "image", "image": pictures[0]}, question]},
        {"role": "user", "content": [{"type": "image", "path": tmp_path / "a picture.png"}, question]},
        {"role": "user", "content": [question, {"type": "image", "image": numpy.asarray(pictures[2])}]},
    ]
    bare: list[Any] = [
        {**message, "content": [{"type": part["type"], "text": part.get("text")} for part in message["content"]]}
        for message in inside
    ]
    options: Any = {"sampler": GREEDY, "max_new_tokens": 3}
    expected = gen.generate(model, bare, images=pictures, **options)
    assert gen.generate(model, inside, **options) == expected
    assert "".join(gen.stream(model, inside, **options)) == expected
    for url in (str(tmp_path / "a picture.png"), (tmp_path / "a picture.png").as_uri()):
        inside[1]["content"][0] = {"type": "image", "url": url}
        assert gen.generate(model, inside, **options) == expected
    inside[1]["content"][0] = {"type": "image_url", "image_url": {"url": (tmp_path / "a picture.png").as_uri()}}
    assert gen.generate(model, inside, **options) == expected
    alone: list[Any] = [[message] for message in inside]
    assert gen.generate(model, [*alone, "no picture"], chat=True, **options) == [
        *(gen.generate(model, one, **options) for one in alone),
        gen.generate(model, "no picture", chat=True, **options),
    ]
    assert inside[0]["content"][0]["image"] is pictures[0]  # the caller's messages stay as they were


def test_images_in_messages_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    def message(**image: object) -> Any:
        return [{"role": "user", "content": [{"type": "image", **image}, {"type": "text", "text": "what?"}]}]

    model, one = adapter("llava"), message(image=picture(1))
    with pytest.raises(gen.ArgumentError, match="prompt 1 has images in its messages and in images=; give all in one"):
        gen.generate(model, ["a", one], images=[[], [picture(1)]])
    with pytest.raises(gen.ArgumentError, match=r"^places for images: 1, images: 0"):
        gen.generate(model, message())
    with pytest.raises(gen.ArgumentError, match=r"^image 0 of the messages must be a PIL image, .* got 7"):
        gen.generate(model, message(image=7))
    with pytest.raises(gen.ArgumentError, match=r"^prompt 1: image 0 of the messages must be a PIL image, .* got 7"):
        gen.generate(model, [one, message(image=7)])
    with pytest.raises(gen.ArgumentError, match=r"image 0 of the messages: cannot read '.*missing\.png'"):
        gen.generate(model, message(path=tmp_path / "missing.png"))
    with pytest.raises(gen.ArgumentError, match="image 0 of the messages: gen reads no https: URL"):
        gen.stream(model, message(url="https://example.org/cat.png"))
    with pytest.raises(gen.ArgumentError, match="this model reads no images"):
        gen.generate(gen.from_transformers(tiny_model(), byte_tokenizer(chat=True)), one)


def test_a_prompt_with_images_is_not_scored_as_if_it_had_none() -> None:
    model = adapter("llava")
    content = [{"type": "image", "image": picture(0)}, {"type": "text", "text": "What?"}]
    with pytest.raises(gen.ArgumentError, match="prompt 0 has images; scores are of texts alone"):
        gen.score(model, [{"role": "user", "content": content}], "A cat")


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_of_a_call_stays_on_the_model_so_that_threads_can_share_it(family: str) -> None:
    model = adapter(family)
    calls = list(zip(prompts(family), PICTURES, strict=True)) * 2

    def text(call: tuple[str, list[Image.Image]]) -> str:
        result: str = gen.generate(model, call[0], images=call[1], sampler=GREEDY, max_new_tokens=4)
        return result

    expected = [text(call) for call in calls]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(text, calls)) == expected
    assert getattr(model.hf_model.model, "rope_deltas", None) is None


def test_what_transformers_has_left_on_the_model_changes_nothing() -> None:
    model = adapter("qwen2_5_vl")
    expected = texts(model, "qwen2_5_vl")
    stale = torch.tensor([[99], [7]])
    model.hf_model.model.rope_deltas = stale
    assert texts(model, "qwen2_5_vl") == expected
    assert model.hf_model.model.rope_deltas is stale


@pytest.mark.parametrize(
    ("family", "vision", "last_layer", "head"),
    [
        *((family, 1, 2, 3) for family in FAMILIES),  # with every sampler, and as others greedily in a thread
        *((FAMILIES[0], *split) for split in ((0, 1, 1), (1, 1, 1), (2, 1, 0))),
    ],
)
def test_split_over_gpus_the_texts_are_the_cpus(family: str, vision: int, last_layer: int, head: int) -> None:
    whole = tiny_vision_model(family)
    samplers = [None, gen.samplers.beam_search(2)] if head == 3 else []
    on_the_cpu = adapter(family)
    greedy = texts(on_the_cpu, family, GREEDY, 4)
    expected = [texts(on_the_cpu, family, sampler, 4) for sampler in samplers]
    with virtual_gpus(4), ThreadPoolExecutor(1) as pool:
        spread = split_vision_model(whole, family, vision=vision, last_layer=last_layer, head=head)
        spread._hf_hook.io_same_device = False  # as gen.load sets it: the logits stay where the head is
        model = gen.from_transformers(spread, tiny_processor(family), probe=head == 3)
        placement = model.placement
        assert (placement.input_device, placement.vision_device) == (GPU0, torch.device("cuda", vision))
        assert placement.layer_devices == (GPU0, torch.device("cuda", last_layer))
        assert placement.logits_device == torch.device("cuda", head)
        for sampler, text in zip(samplers, expected, strict=True):
            assert texts(model, family, sampler, 4) == text
        assert pool.submit(texts, model, family, GREEDY, 4).result() == greedy


@pytest.mark.parametrize("family", FAMILIES)
def test_the_callers_default_device_changes_nothing(family: str) -> None:
    expected = texts(adapter(family), family, new_tokens=3)
    with virtual_gpus(2):
        model = adapter(family, "cuda:1", probe=False)
        with torch.device("cuda:0"):
            assert texts(model, family, new_tokens=3) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_models_take_images(family: str) -> None:
    model = gen.from_transformers(tiny_vision_model(family).to(torch.bfloat16), tiny_processor(family))
    assert model.placement.dtype == torch.bfloat16
    prompt, images = prompts(family)[0], PICTURES[0]
    completion = gen.generate(model, prompt, images=images, max_new_tokens=8, seed=1, details=True)
    assert len(completion.token_ids) == 8


@pytest.mark.usefixtures("soon_worth_it")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_host_never_waits_for_a_token(family: str) -> None:
    with virtual_gpus(2):
        split = split_vision_model(tiny_vision_model(family), family)
        spread = gen.from_transformers(split, tiny_processor(family), probe=False)
        for model in (adapter(family, "cuda:1", probe=False), spread):
            (short, long), _ = waits(lambda most, model=model: texts(model, family, new_tokens=most), 2, 6)  # type: ignore[misc]
            assert long == short


def test_load_knows_a_vision_language_checkpoint_by_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = tiny_vision_model("llava"), tiny_processor("llava")
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    expected = texts(adapter("llava"), "llava", new_tokens=3)
    loaded = gen.load(tmp_path, device="cpu")
    assert isinstance(loaded, VisionModel)
    assert texts(loaded, "llava", new_tokens=3) == expected
    with virtual_gpus(2):
        assert texts(gen.load(tmp_path, device="cuda:1"), "llava", new_tokens=3) == expected
        device_map = {"model.vision_tower": 0, "model.multi_modal_projector": 0, "model.language_model": 1}
        spread = gen.load(tmp_path, device_map=device_map | {"lm_head": 0})
        assert (spread.placement.vision_device, spread.placement.input_device) == (GPU0, GPU1)
        assert spread.placement.logits_device == GPU0
        assert texts(spread, "llava", new_tokens=3) == expected
    monkeypatch.setattr(AutoProcessor, "from_pretrained", lambda *_, **__: processor.tokenizer)
    with pytest.raises(gen.ModelError, match=r"reads images, which .* cannot prepare; give the model's processor"):
        gen.load(tmp_path, device="cpu")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft reads what is going
@pytest.mark.parametrize("own", ["nothing", "tokenizer", "processor"])
def test_an_adapter_of_a_vision_language_model_is_loaded_with_its_processor(tmp_path: Path, own: str) -> None:
    model, processor = tiny_vision_model("llava"), tiny_processor("llava")
    for part in (model, processor):
        part.save_pretrained(tmp_path / "base")
    model.name_or_path = str(tmp_path / "base")
    adapted: Any = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    adapted.save_pretrained(str(tmp_path / "adapter"))
    expected = texts(gen.from_transformers(adapted.merge_and_unload().eval(), processor), "llava")
    processor.tokenizer.add_tokens(["<new>"])
    if own != "nothing":
        (processor.tokenizer if own == "tokenizer" else processor).save_pretrained(tmp_path / "adapter")
    loaded = gen.load(tmp_path / "adapter", device="cpu")
    assert isinstance(loaded, VisionModel)
    assert loaded.tokenizer.encode_plain("<new>") == ([260] if own != "nothing" else [*b"<new>"])
    assert texts(loaded, "llava") == expected != texts(gen.load(tmp_path / "base", device="cpu"), "llava")


def test_a_processor_that_does_not_fit_is_refused() -> None:
    model = tiny_vision_model("llava")
    with pytest.raises(gen.ModelError, match=r"LlavaFor.* reads images.* give the model's processor"):
        gen.from_transformers(model, byte_tokenizer())
    with pytest.raises(gen.ModelError, match=r"LlamaForCausalLM reads no images; give processor\.tokenizer"):
        gen.from_transformers(tiny_model(), tiny_processor("llava"))
    processor = tiny_processor("llava")
    processor.image_token_id = 65
    with pytest.raises(gen.ModelError, match=r"writes images as token 65, .* reads them from token 259: use"):
        gen.from_transformers(model, processor)
    coarse = tiny_processor("llava")
    coarse.patch_size = 16
    with pytest.raises(gen.ModelError, match=r"do not match.*use the processor that belongs to Llava"):
        gen.generate(gen.from_transformers(model, coarse), "<image>", images=[picture(1)])


@pytest.mark.parametrize("kind", ["git", "mllama", "qwen4_exp"])
def test_images_are_refused_where_steps_would_forget_them(kind: str) -> None:
    """Mllama and GIT keep keys of an image beside the tokens'; Qwen4 needs the positions of all tokens in each step."""
    hf_model = listed_model(kind, "images")
    inputs = image_inputs(hf_model)
    one = {name: value[: len(value) // 2] for name, value in inputs.items()}

    class Processor:
        tokenizer, image_processor = byte_tokenizer(), object()

        def __call__(self, **_: Any) -> dict[str, Any]:
            return dict(one)

    model = gen.from_transformers(hf_model, Processor())
    assert gen.generate(model, "a", sampler=GREEDY, max_new_tokens=4, details=True).token_ids
    with pytest.raises(gen.ModelError, match=r"without images, or use tr|prompts without them"):
        gen.generate(model, "a", images=[picture(0)], max_new_tokens=4)


def test_images_of_other_shapes_are_refused_with_the_reason() -> None:
    processor = tiny_processor("llava")
    processor.image_processor.do_resize = processor.image_processor.do_center_crop = False
    pictures = [[picture(1, 16, 16)], [picture(1, 24, 16)]]
    model = gen.from_transformers(tiny_vision_model("llava"), processor)
    reason = r"Input image size \(16\*24\) doesn't match model \(16\*16\); use the processor that belongs to Llava"
    with pytest.raises(gen.BatchError, match=f"prompt 1 failed: {reason}") as caught:
        gen.generate(model, ["<image>", "<image>"], images=pictures, sampler=GREEDY, max_new_tokens=4)
    text, error = caught.value.results
    assert text == gen.generate(model, "<image>", images=pictures[0], sampler=GREEDY, max_new_tokens=4)
    assert isinstance(error, gen.ModelError)
    with pytest.raises(gen.ModelError, match=f"^{reason}"):
        gen.generate(model, "<image>", images=pictures[1])
    with pytest.raises(gen.ArgumentError, match="LlavaProcessor refuses the prompt"):
        both = [image for images in pictures for image in images]
        gen.generate(model, "<image><image>", images=both)


@pytest.mark.usefixtures("short_examinations")
def test_the_doctor_finds_nothing_amiss_with_a_split_vision_model() -> None:
    with virtual_gpus(2):
        spread = split_vision_model(tiny_vision_model("llava"), "llava")
        diagnosis = examine(gen.from_transformers(spread, tiny_processor("llava")))
    assert not diagnosis.problems
    assert diagnosis.as_dict()["placement"]["vision_device"] == "cuda:1"
    assert "input cuda:0, vision cuda:1, logits" in str(diagnosis)


def test_tokens_of_images_that_the_tokenizer_does_not_have_are_not_penalised_and_are_verified() -> None:
    """The oracle penalises what the tokenizer has, in the logits of the model's own forward."""
    hf_model = listed_model("qwen2_vl", "images")
    one, _ = each_alone(image_inputs(hf_model))

    class Processor:
        tokenizer, image_processor = listed_tokenizer(), object()

        def __call__(self, **_: Any) -> dict[str, Any]:
            return dict(one)

    model, oracle = gen.from_transformers(hf_model, Processor()), ImageOracle(hf_model, one)
    [prompt_ids] = one["input_ids"].tolist()
    assert max(prompt_ids) >= model.tokenizer.vocab_size
    for penalty, ngram in ((1.3, 0), (1.0, 1)):
        sampler = gen.samplers.greedy(repetition_penalty=penalty, no_repeat_ngram_size=ngram)
        settings: Any = {"images": [picture(0)], "max_new_tokens": 8, "eos_token_id": [], "details": True}
        made = gen.generate(model, "a", sampler=sampler, **settings)
        expected: list[int] = []
        for _ in range(8):
            logits = oracle.logits(expected).clone()
            for token_id in {*prompt_ids, *expected} & {*range(len(logits))}:
                logits[token_id] *= penalty if logits[token_id] < 0 else 1 / penalty
                logits[token_id] -= torch.inf if ngram else 0
            expected.append(int(logits.argmax()))
        assert made.token_ids == expected
        assert gen.verify(model, made.receipt).kind == "equal"
    with pytest.raises(gen.ArgumentError, match="and others than the"):
        gen.verify(model, replace(made.receipt, prompt_ids=[*prompt_ids, 258]))


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_texts_of_prompts_with_images_are_verified(family: str, tmp_path: Path) -> None:
    """With the images in the receipts; another picture makes another text, from the token on that a call makes."""
    model = adapter(family)
    settings: dict[str, Any] = {"sampler": gen.samplers.multinomial(temperature=0.7), "max_new_tokens": 12}
    seeds = [5, 6, 7][: len(PICTURES)]
    made = gen.generate(model, prompts(family), images=PICTURES, seed=seeds, details=True, **settings)
    gen.Receipt.dump([one.receipt for one in made], tmp_path / "receipts")
    receipts = gen.Receipt.load(tmp_path / "receipts")
    plain = gen.generate(model, "no picture", seed=1, details=True, **settings).receipt
    assert plain.images is None
    assert [one.kind for one in gen.verify(model, [*receipts, plain])] == ["equal"] * (len(receipts) + 1)
    number = next(number for number, images in enumerate(PICTURES) if len(images) == 1)
    prompt, other = prompts(family)[number], picture(99)
    new = gen.generate(model, prompt, images=[other], seed=seeds[number], details=True, **settings)
    found = gen.verify(model, replace(receipts[number], images=new.receipt.images))
    same = [a == b for a, b in zip(new.token_ids, receipts[number].token_ids, strict=True)]
    assert (found.kind, found.at) == ("different", same.index(False))


def test_images_that_cannot_be_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    made = gen.generate(adapter("llava"), "<image>", images=[picture(1)], max_new_tokens=2, details=True)
    receipt = made.receipt
    pictures: Any = receipt.images
    monkeypatch.setattr("gen.receipts.writing.MOST_PIXELS", 100)
    with pytest.raises(gen.ArgumentError, match="no receipt: an image of 320 pixels, more than 100"):
        _ = made.receipt
    with pytest.raises(gen.ArgumentError, match="receipt 0: its prompt has images, and this model reads none"):
        gen.verify(gen.from_transformers(tiny_model(), byte_tokenizer()), replace(receipt, prompt_ids=[1, 2]))
    for images, message in (
        ({**pictures, "images": ["/etc/passwd"]}, "paths and file: URLs are not read"),
        ({**pictures, "text": "<image> <image>"}, "places for images: 2, images: 1"),
        ({**pictures, "text": "A cat: <image>"}, "others than the 4 that the text came after"),
        ({"text": "<image>"}, "not whole"),
    ):
        with pytest.raises(gen.ArgumentError, match=message):
            gen.verify(adapter("llava"), replace(receipt, images=images))
