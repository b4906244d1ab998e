"""`/v1/embeddings`, OpenAI's."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from gen.embedding.embed import embed
from gen.embedding.encoder import Encoder
from gen.server.bodies import Body
from gen.server.errors import ApiError, refused
from gen.server.protocols.completions import read_prompts
from gen.server.served import Served, no_model


class EmbedderBody(Body):
    """The fields that all requests to the embedder have."""

    model: str | None = None
    user: Any = None


class EmbeddingsBody(EmbedderBody):
    """The fields of a request."""

    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None


def embeddings(served: Served, body: EmbeddingsBody) -> dict[str, Any]:
    """The vector of each text.

    Raises:
        ApiError, GenError: the server has no embedder, or the embedder does not take a text.
    """
    name, embedder = embedder_of(served, body.model)
    vectors, tokens = embed_texts(served, embedder, read_prompts(body.input, "input"))
    if (wanted := body.dimensions) is not None:
        if wanted > vectors.shape[1]:
            raise refused(f"dimensions: the vectors of this model have {vectors.shape[1]}.", "dimensions")
        if wanted < vectors.shape[1]:
            vectors = vectors[:, :wanted]
            vectors = normalize(vectors) if embedder.recipe.normalize else vectors
    data = [
        {
            "object": "embedding",
            "index": number,
            "embedding": _in_base64(vector) if body.encoding_format == "base64" else vector.tolist(),
        }
        for number, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": name, "usage": usage}


def embedder_of(served: Served, given: str | None) -> tuple[str, Encoder]:
    """The embedder that a request asks for, and its name.

    Raises:
        ApiError: there is none, or none of that name.
    """
    embedder, names = served.settings.embedder, served.settings.embedder_names
    if embedder is None:
        raise ApiError(404, "this server has no embedder: start it with --embedder.", "model", "model_not_found")
    name = names[0] if given is None else given
    if name not in names:
        raise no_model(name, names)
    return name, embedder


def embed_texts(served: Served, embedder: Encoder, texts: Sequence[Any]) -> tuple[Tensor, int]:
    """The vectors of texts, (texts, width), float32 on the CPU, and how many tokens the texts have.

    Raises:
        ApiError, GenError: there are too many, or the embedder does not take one.
    """
    if len(texts) > (most := served.settings.max_prompts):
        raise refused(f"a request may have {most} texts, and this one has {len(texts)}.")
    tokens = sum(len(text) if isinstance(text, list) else len(embedder.tokenize([text])[0]) for text in texts)
    return embed(embedder, texts).float().cpu(), tokens


def _in_base64(vector: Any) -> str:
    """The numbers in base64, as float32, little-endian, which is what OpenAI's clients ask for."""
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
