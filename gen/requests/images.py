"""Reads and checks the user's images: PIL images, arrays or files."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import url2pathname

from gen.errors import ArgumentError, GenError, ModelError, kept_in, show, show_path
from gen.models.base import Inputs
from gen.tokens.tokenizers import Message

if TYPE_CHECKING:
    import numpy
    from PIL.Image import Image

ImageLike: TypeAlias = "Image | numpy.ndarray[Any, Any] | str | Path"

_KEYS = ("image", "path", "url")  # the keys under which a part of a message may have its image
_KINDS = "a PIL image, a uint8 array (height, width, 3) or a path"
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # allowed in data: URLs; for other formats Pillow may run programs
MOST_PIXELS = 40_000_000
"""How many pixels the image of a data: URL may have: a small file may decode to very many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Illustrated:
    """A prompt with images, as the model has encoded it.

    Attributes:
        text: with one place for each image.
        images: in order, in RGB.
        add_special_tokens: see `gen.models.base.Model.encode`.
        inputs: the model's inputs for the images.
    """

    text: str
    images: Sequence["Image"]
    add_special_tokens: bool
    inputs: Inputs


def read_images(
    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None,
    prompts: int | None,
    *,
    local_files: bool = True,
    failed: dict[int, GenError] | None = None,
) -> list[list["Image"]]:
    """Each prompt's images, as PIL images in RGB, turned upright if a file says how the camera was held.

    Args:
        images: the prompt's images; for a list of prompts, one list for each prompt; None for no images.
        prompts: how many prompts the list has; None for one prompt that is not in a list.
        local_files: whether images may be paths and file: URLs.
        failed: receives the errors of single prompts of a list; None raises the first error.
    Raises:
        ArgumentError: there are not as many lists as prompts, something is no image, or a file cannot be read.
    """
    if images is None:
        return [[] for _ in range(1 if prompts is None else prompts)]
    if not _is_list(images):
        raise ArgumentError(f"images must be a list, as images=[image], got {show(images)}")
    if prompts is None:
        return [[read_image(image, f"image {number}", local_files) for number, image in enumerate(images)]]
    if len(images) != prompts or not all(map(_is_list, images)):
        raise ArgumentError(
            f"images must be {prompts} lists, one for each prompt, as images=[[image], []]; got {show(images)}"
        )
    read: list[list[Image]] = [[] for _ in images]
    lists: Any = images
    for prompt, of_prompt in enumerate(lists):
        with kept_in(failed, prompt):
            for number, image in enumerate(of_prompt):
                read[prompt].append(read_image(image, f"image {number} of prompt {prompt}", local_files))
    return read


def take_images(
    messages: Sequence[Message], *, readable: bool, local_files: bool = True
) -> tuple[list[Message], list["Image"]]:
    """The messages with {"type": "image"} in the place of each image, and the images in order, see `read_image`.

    An image is a part of a message's content: {"type": "image", "image": picture}, where a file's "path" or "url" may
    take the place of "image"; or, in OpenAI's form, {"type": "image_url", "image_url": {"url": url}}.

    Args:
        readable: whether the model reads images.
        local_files: whether images may be paths and file: URLs.
    Raises:
        ArgumentError: an image cannot be read, or there are images and the model reads none.
    """
    bare: list[Message] = []
    found: list[object] = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list | tuple):
            parts = [*map(_plain_part, content)]
            for place, part in enumerate(parts):
                if not isinstance(part, Mapping) or part.get("type") != "image":
                    continue
                given = [part[key] for key in _KEYS if part.get(key) is not None]
                if given and not readable:
                    raise ArgumentError(
                        f"message {number}, part {place} is an image, and this model reads no images; load a "
                        "vision-language model, or leave images out."
                    )
                found += given
                parts[place] = {key: value for key, value in part.items() if key not in _KEYS}
            message = {**message, "content": parts}
        bare.append(message)
    names = (f"image {number} of the messages" for number in range(len(found)))
    return bare, [read_image(image, name, local_files) for image, name in zip(found, names, strict=False)]


def _plain_part(part: Any) -> Any:
    """A part of a message; an image in OpenAI's form is put into transformers' form."""
    if not isinstance(part, Mapping) or part.get("type") != "image_url":
        return part
    image = part.get("image_url")
    return {"type": "image", "url": image.get("url") if isinstance(image, Mapping) else image}


def read_image(image: object, name: str, local_files: bool = True, most_pixels: int = MOST_PIXELS) -> "Image":
    """One image as a PIL image in RGB; of greys of 16 bits, the upper 8 count.

    Args:
        name: what errors call the image.
        local_files: whether the image may be a path or a file: URL.
        most_pixels: how many pixels the image of a data: URL may have.
    Raises:
        ArgumentError: it is not a PIL image, an array or a readable file, or it has numbers of 32 bits.
        ModelError: Pillow is not installed.
    """
    try:
        import numpy
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ModelError(f"reading images needs Pillow: pip install 'gen-torch[vision]' ({error})") from error

    if isinstance(image, Image.Image):
        picture = image
    elif isinstance(image, numpy.ndarray):
        if image.dtype != numpy.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise ArgumentError(f"{name} must be {_KINDS}, got {show(image)}")
        picture = Image.fromarray(image)
    elif isinstance(image, str | Path):
        refusals = (OSError, ValueError, RuntimeError, SyntaxError, Image.DecompressionBombError)  # raised by PIL, Path
        try:
            data = _read_data_url(image, name)
            if data is None and not local_files:
                raise ArgumentError(f"{name}: paths and file: URLs are not read here; give it as a data: URL.")
            formats = None if data is None else _FORMATS
            with Image.open(_read_path(image, name) if data is None else BytesIO(data), formats=formats) as opened:
                if data is not None and opened.width * opened.height > most_pixels:
                    raise ArgumentError(
                        f"{name} has {opened.width} x {opened.height} pixels, and a data: URL may have {most_pixels}; "
                        "give a smaller one."
                    )
                opened.load()
                picture = opened
        except ArgumentError:
            raise
        except refusals as error:
            reason, shown = show(str(error), 120), show_path(image)
            if data is not None:
                reason, shown = f"it is no whole image of {', '.join(_FORMATS)}", show(image, 40)
            raise ArgumentError(f"{name}: cannot read {shown}: {reason}; give {_KINDS}.") from error
    else:
        raise ArgumentError(f"{name} must be {_KINDS}, got {show(image)}")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I;16"):  # converted as it is, everything but the darkest grey would be white
        picture = Image.fromarray((numpy.asarray(picture) >> 8).astype(numpy.uint8))
    if picture.mode in ("I", "F"):
        raise ArgumentError(f"{name} has numbers of 32 bits, and nothing says which of them is white; give it in 8.")
    return picture.convert("RGB")


def data_url(image: "Image") -> str:
    """An image in RGB as a data: URL, which `read_image` reads back without loss."""
    from PIL import Image

    bare, file = Image.frombytes(image.mode, image.size, image.tobytes()), BytesIO()  # without what a file says of it
    bare.save(file, "PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


def _read_data_url(image: str | Path, name: str) -> bytes | None:
    """The bytes in a data: URL, such as "data:image/png;base64,iVBORw0..."; None for anything else."""
    if not isinstance(image, str) or image[:5].lower() != "data:":
        return None
    head, _, data = image.partition(",")
    try:
        if not head.lower().endswith(";base64"):
            raise ValueError("it does not say that it is in base64")
        return b64decode(data, validate=True)
    except (ValueError, binascii.Error) as error:
        raise ArgumentError(f"{name}: cannot read {show(image, 40)}: {error}.") from error


def _read_path(image: str | Path, name: str) -> Path:
    """The file that a path or a file: URL names."""
    if isinstance(image, str) and image.startswith("file:"):
        return Path(url2pathname(urlsplit(image).path))
    if isinstance(image, str) and "://" in image:
        scheme = image.partition(":")[0]
        raise ArgumentError(f"{name}: gen reads no {scheme}: URL, and fetches nothing; read it and give {_KINDS}.")
    return Path(image).expanduser()


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)
