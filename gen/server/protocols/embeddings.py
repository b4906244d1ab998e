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


class EmbeddingsBody(Body):
    """The fields of a request."""

    model: str | None = None
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: Any = None


def embeddings(served: Served, body: EmbeddingsBody) -> dict[str, Any]:
    """The vector of each text.

    Raises:
        ApiError, GenError: the server has no embedder, or the embedder does not take a text.
    """
    embedder, names = served.settings.embedder, served.settings.embedder_names
    if embedder is None:
        raise ApiError(404, "this server has no embedder: start it with --embedder.", "model", "model_not_found")
    name = names[0] if body.model is None else body.model
    if name not in names:
        raise no_model(name, names)
    texts = read_prompts(body.input, "input")
    if len(texts) > served.settings.max_prompts:
        raise refused(f"input may have {served.settings.max_prompts} texts, and has {len(texts)}.", "input")
    vectors, tokens = _embed(embedder, texts)
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


def _embed(embedder: Encoder, texts: Sequence[Any]) -> tuple[Tensor, int]:
    """The vectors of texts, and how many tokens they have."""
    tokens = sum(len(text) if isinstance(text, list) else len(embedder.tokenize([text])[0]) for text in texts)
    return embed(embedder, texts).float().cpu(), tokens


def _in_base64(vector: Any) -> str:
    """The numbers in base64, as float32, little-endian, which is what OpenAI's clients ask for."""
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
