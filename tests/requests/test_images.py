"""Images as users have them: pictures, arrays and files work; everything else is refused with the reason."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import gen
from gen.requests.images import read_images, take_images
from tests.helpers import byte_tokenizer, tiny_model
from tests.models.transformers.vision_helpers import picture, tiny_processor, tiny_vision_model


def same(first: Image.Image, second: Image.Image) -> bool:
    return numpy.array_equal(numpy.asarray(first), numpy.asarray(second))


def test_pictures_arrays_and_paths_give_the_same_image(tmp_path: Path) -> None:
    image, path = picture(1), tmp_path / "image.png"
    image.save(path)
    given: list[Any] = [image, numpy.asarray(image), path, str(path)]
    [read] = read_images(given, None)
    assert len(read) == 4
    assert all(same(image, one) for one in read)


def test_other_modes_become_rgb_and_files_held_sideways_are_turned(tmp_path: Path) -> None:
    image = picture(1, 20, 16)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the picture's top is at the right
    image.save(tmp_path / "turned.png", exif=exif)
    given: list[Any] = [tmp_path / "turned.png", image.convert("L")]
    [[turned, grey]] = read_images(given, None)
    assert same(turned, image.transpose(Image.Transpose.ROTATE_270))
    assert (grey.mode, grey.size) == ("RGB", (20, 16))


def test_greys_of_16_bits_keep_their_order_and_numbers_of_32_bits_are_refused(tmp_path: Path) -> None:
    greys = numpy.array([[0, 255, 256], [32767, 65279, 65535]], numpy.uint16)
    deep = Image.fromarray(greys)
    deep.save(tmp_path / "deep.tiff")
    given: list[Any] = [deep, tmp_path / "deep.tiff"]
    for one in read_images(given, None)[0]:
        assert one.mode == "RGB" and numpy.array_equal(numpy.asarray(one), numpy.stack([greys // 256] * 3, 2))
    for kind in (numpy.int32, numpy.float32):
        with pytest.raises(gen.ArgumentError, match="image 0 has numbers of 32 bits"):
            read_images([Image.fromarray(greys.astype(kind))], None)


def test_a_list_of_prompts_has_a_list_of_images_for_each() -> None:
    assert [len(images) for images in read_images([[picture(1)], [], [picture(2), picture(3)]], 3)] == [1, 0, 2]
    assert read_images(None, 2) == [[], []]
    assert read_images([], None) == read_images(None, None) == [[]]


def test_what_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = gen.from_transformers(tiny_vision_model("llava"), tiny_processor("llava"))
    with pytest.raises(gen.ArgumentError, match="this model reads no images; load a vision-language model"):
        gen.generate(gen.from_transformers(tiny_model(), byte_tokenizer()), "a", images=[picture(1)])
    cases: list[tuple[str, list[Any]]] = [("a", [picture(1)]), ("<image>", []), ("<image><image>", [picture(1)])]
    for prompt, images in cases:
        with pytest.raises(gen.ArgumentError, match=rf"^places .*: {prompt.count('<')}, images: {len(images)};"):
            gen.generate(model, prompt, images=images)
    with pytest.raises(gen.ArgumentError, match="prompt 1: places for images: 1, images: 0; write '<image>' where"):
        gen.generate(model, ["a", "<image>"])
    with pytest.raises(gen.ArgumentError, match=r"image 0: cannot read '.*missing\.png'"):
        gen.stream(model, "<image>", images=[tmp_path / "missing.png"])
    (tmp_path / "text.png").write_text("no picture")
    of_prompt: list[Any] = [picture(1), tmp_path / "text.png"]
    with pytest.raises(gen.ArgumentError, match=r"image 1 of prompt 0: cannot read '.*text\.png'"):
        gen.generate(model, ["<image>"], images=[of_prompt])
    unread, whole = gen.generate(
        model, ["<image>", "<image>"], images=[of_prompt[1:], of_prompt[:1]], errors="return", max_new_tokens=2, seed=1
    )
    assert isinstance(unread, gen.ArgumentError) and "image 0 of prompt 0: cannot read" in str(unread)
    assert whole == gen.generate(model, "<image>", images=of_prompt[:1], max_new_tokens=2, seed=1)
    wrong: list[Any] = [numpy.zeros((4, 4), numpy.uint8), numpy.zeros((4, 4, 3)), 7, b"bytes", [picture(1)]]
    for image in wrong:
        with pytest.raises(gen.ArgumentError, match=r"image 0 must be a PIL image, a uint8 array \(height, width, 3\)"):
            gen.generate(model, "<image>", images=[image])
    single: Any = picture(1)
    with pytest.raises(gen.ArgumentError, match=r"images must be a list, as images=\[image\], got <PIL.Image.Image"):
        gen.generate(model, "<image>", images=single)
    with pytest.raises(gen.ArgumentError, match=r"images must be 2 lists, one for each prompt.*got \[<PIL.Image.Image"):
        gen.generate(model, ["<image>", "a"], images=[picture(1)])
    with pytest.raises(gen.ArgumentError, match="a prompt of token ids takes no images"):
        gen.generate(model, [1, 2], images=[picture(1)])


def data_url(image: Image.Image, form: str = "PNG", begins: str = "data:image/png;base64,") -> str:
    data = BytesIO()
    image.save(data, form)
    return begins + b64encode(data.getvalue()).decode()


def test_a_data_url_is_an_image_with_or_without_local_files() -> None:
    image = picture(1)
    for local_files in (True, False):
        [[read]] = read_images([data_url(image)], None, local_files=local_files)
        assert same(read, image)
    model = gen.from_transformers(tiny_vision_model("llava"), tiny_processor("llava"))
    content = [{"type": "image_url", "image_url": {"url": data_url(image)}}, {"type": "text", "text": "a"}]
    _, [taken] = take_images([{"role": "user", "content": content}], readable=True, local_files=False)
    assert same(taken, image)
    told, wanted = (
        gen.generate(model, "<image>", images=images, local_files=False, seed=1, max_new_tokens=4)
        for images in ([data_url(image)], [image])
    )
    assert told == wanted


def test_paths_of_strangers_are_refused_and_so_is_what_is_no_small_picture(tmp_path: Path) -> None:
    model = gen.from_transformers(tiny_vision_model("llava"), tiny_processor("llava"))
    path = tmp_path / "image.png"
    picture(1).save(path)
    for name in (path, str(path), path.as_uri(), "/etc/passwd"):
        part: dict[str, Any] = {"type": "image_url", "image_url": {"url": name}}
        with pytest.raises(gen.ArgumentError, match="image 0 of the messages: paths and file: URLs are not read here"):
            take_images([{"role": "user", "content": [part]}], readable=True, local_files=False)
        with pytest.raises(gen.ArgumentError, match="image 0: paths and file: URLs are not read here"):
            gen.stream(model, "<image>", images=[name], local_files=False)
    bomb = Image.new("1", (20_000, 2_001))  # of a few kilobytes
    for wrong, message in (
        (data_url(bomb), "has 20000 x 2001 pixels, and a data: URL may have 40000000"),
        (data_url(picture(1), "EPS"), "cannot read 'data:image/png;ba.*: it is no whole image of PNG"),
        ("data:image/png,abc", "it does not say that it is in base64"),
        ("data:image/png;base64,a?b", "cannot read 'data:image/png;base64,a.b'"),
        ("data:image/png;base64,iVBORw0KGgo=", "it is no whole image of PNG, JPEG"),
        ("http://example.org/a.png", "paths and file: URLs are not read here"),
    ):
        with pytest.raises(gen.ArgumentError, match=message):
            read_images([wrong], None, local_files=False)
    with pytest.raises(gen.ArgumentError, match="local_files must be True or False"):
        gen.generate(model, "a", local_files=0)  # type: ignore[call-overload]


def test_prompts_with_images_do_not_have_the_same_bits_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gen.from_transformers(tiny_vision_model("llava"), tiny_processor("llava"))
    monkeypatch.setattr(model, "find_step_rows", lambda: 2)  # as of a model whose images take linear layers alone
    given: Any = {"images": [picture(1)], "max_new_tokens": 2}
    refused = r"prompt 0 has images; exact=True is not possible with these"
    for function in (gen.generate, gen.stream):
        with pytest.raises(gen.ArgumentError, match=refused):
            function(model, "<image>", exact=True, **given)
    with gen.Engine(model, exact=True) as engine, pytest.raises(gen.ArgumentError, match=refused):
        engine.submit("<image>", **given)
