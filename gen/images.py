"""Images as the user has them, read and checked: pictures of PIL, arrays or files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gen.errors import ArgumentError, ModelError

if TYPE_CHECKING:
    import numpy
    from PIL.Image import Image

ImageLike: TypeAlias = "Image | numpy.ndarray[Any, Any] | str | Path"

_KINDS = "a PIL image, a uint8 array (height, width, 3) or a path"


def read_images(
    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None, prompts: int | None
) -> list[list["Image"]]:
    """Each prompt's images, as PIL images in RGB, upright where a file says how it was held.

    Args:
        images: the prompt's images, or where there is a list of prompts a list for each; None for no images.
        prompts: how many prompts the list has; None for one prompt that is not in a list.
    Raises:
        ArgumentError: not as many lists as prompts, something that is no image, or a file that cannot be read.
    """
    if images is None:
        return [[] for _ in range(prompts or 1)]
    if not _is_list(images):
        raise ArgumentError(f"images must be a list, as images=[image], got {_describe(images)}")
    if prompts is None:
        return [[read_image(image, f"image {number}") for number, image in enumerate(images)]]
    if len(images) != prompts or not all(map(_is_list, images)):
        given = ", ".join(map(_describe, images))
        raise ArgumentError(
            f"images must be {prompts} lists, one for each prompt, as images=[[image], []]; got [{given}]"
        )
    lists: Any = images
    return [
        [read_image(image, f"image {number} of prompt {prompt}") for number, image in enumerate(of_prompt)]
        for prompt, of_prompt in enumerate(lists)
    ]


def read_image(image: object, name: str) -> "Image":
    """One image as PIL has it, in RGB.

    Args:
        name: what errors call it.
    Raises:
        ArgumentError: it is none of a PIL image, an array and a readable file.
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
            raise ArgumentError(f"{name} must be {_KINDS}, got {_describe(image)}")
        picture = Image.fromarray(image)
    elif isinstance(image, str | Path):
        path = Path(image).expanduser()
        try:
            with Image.open(path) as opened:
                opened.load()
                picture = opened
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # PIL's ways to say no
            raise ArgumentError(f"{name}: cannot read {str(path)!r}: {error}; give {_KINDS}.") from error
    else:
        raise ArgumentError(f"{name} must be {_KINDS}, got {_describe(image)}")
    return ImageOps.exif_transpose(picture).convert("RGB")


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _describe(value: object) -> str:
    """What an error says of a value that may be large."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_describe, value))}]"
    return repr(value) if isinstance(value, str | Path | int | float) else type(value).__name__
