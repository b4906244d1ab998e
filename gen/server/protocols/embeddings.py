"""`/v1/embeddings`, OpenAI's, and what follows from vectors: `/v1/rerank`, as Jina's, and `/v1/score`, as vLLM's."""

import base64
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from gen.embedding.embed import embed, read_prompt
from gen.embedding.encoder import Encoder
from gen.server.bodies import Body, Known
from gen.server.errors import ApiError, refused
from gen.server.output_types import new_id
from gen.server.protocols.completions import read_prompts
from gen.server.served import Served, name_in


class EmbedderBody(Body):
    """The fields that all requests to the embedder have; those that would change the vectors are refused."""

    refused: ClassVar[Mapping[str, object]] = {"add_special_tokens": True, "normalize": True, "prompt_name": None}

    harmless: ClassVar[Mapping[str, object]] = {"user": None}

    model: str | None = None


class EmbeddingsBody(EmbedderBody):
    """The fields of a request."""

    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None


def embeddings(served: Served, body: EmbeddingsBody) -> dict[str, Any]:
    """The vector of each text."""
    texts = read_prompts(body.input, "input")
    embedder, name = _embedder(served, body.model, len(texts))
    vectors, tokens = _embedded(embedder, texts)
    if (wanted := body.dimensions) is not None:
        if wanted > vectors.shape[1]:
            raise refused(f"dimensions: the vectors of this model have {vectors.shape[1]}.", "dimensions")
        if wanted < vectors.shape[1]:
            vectors = vectors[:, :wanted]
            vectors = normalize(vectors) if embedder.recipe.normalize else vectors
    data = []
    for number, vector in enumerate(vectors):
        numbers: Any = vector.tolist()
        if body.encoding_format == "base64":  # of float32, little-endian, which is what OpenAI's clients ask for
            numbers = base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": number, "embedding": numbers})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": name, "usage": usage}


def _embedder(served: Served, given: str | None, count: int) -> tuple[Encoder, str]:
    """The embedder that a request with so many texts asks for, and its name."""
    embedder, names = served.settings.embedder, served.settings.embedder_names
    if embedder is None:
        raise ApiError(404, "this server has no embedder: start it with --embedder.", "model", "model_not_found")
    name = name_in(names, given)
    if count > (most := served.settings.max_prompts):
        raise refused(f"a request may have {most} texts, and this one has {count}.")
    return embedder, name


def _embedded(embedder: Encoder, texts: Sequence[Any]) -> tuple[Tensor, int]:
    """The vectors of texts, (texts, width), float32 on the CPU, and how many tokens are read for them."""
    before, tokens = read_prompt(embedder.recipe, None), 0
    for text in texts:
        row = text if isinstance(text, list) else embedder.tokenize([before + text])[0]
        tokens += len(row)
    return embed(embedder, texts).float().cpu(), tokens


def _compared(
    served: Served, given: str | None, queries: Sequence[str], documents: Sequence[str]
) -> tuple[str, Tensor, Tensor, int]:
    """The embedder's name, the vectors of queries and of documents, of length 1, and how many tokens are read.

    The prompts before them are those of sentence-transformers' `encode_query` and `encode_document`: never the folder's
    default.
    """
    embedder, name = _embedder(served, given, len(queries) + len(documents))
    found = []
    for texts, names in ((queries, ("query",)), (documents, ("document", "passage", "corpus"))):
        prompted, recipe = copy(embedder), embedder.recipe
        prompt = next((each for each in names if each in recipe.prompts), None)
        prompted.recipe = replace(recipe, default_prompt_name=prompt)
        found.append(_embedded(prompted, texts))
    (first, read), (second, more) = found
    return name, normalize(first), normalize(second), read + more


class RerankBody(EmbedderBody):
    """The fields of a request."""

    inner: ClassVar[Mapping[str, Known]] = {"documents": {"text": None}}

    query: str
    documents: Annotated[list[str | dict[str, Any]], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True


class ScoreBody(EmbedderBody):
    """The fields of a request: one text or as many as the others have, against these."""

    text_1: str | list[str]
    text_2: str | list[str]


def rerank(served: Served, body: RerankBody) -> dict[str, Any]:
    """The documents, the likest to the query first; of equals, the earlier one."""
    documents = [_text_of(one) for one in body.documents]
    name, query, vectors, tokens = _compared(served, body.model, [body.query], documents)
    found = (vectors @ query[0]).tolist()
    order = sorted(range(len(found)), key=lambda number: -found[number])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": number, "relevance_score": found[number]} for number in order]
    if body.return_documents:
        for one in results:
            one["document"] = {"text": documents[one["index"]]}
    return {"id": new_id("rerank-"), "model": name, "results": results, "usage": {"total_tokens": tokens}}


def score(served: Served, body: ScoreBody) -> dict[str, Any]:
    """How alike each pair of texts is, from -1 to 1."""
    first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if not second or len(first) not in (1, len(second)):
        raise refused("text_1 must have one text, or as many as text_2.", "text_1")
    name, queries, documents, tokens = _compared(served, body.model, first, second)
    found = (queries * documents).sum(1).tolist()
    data = [{"index": number, "object": "score", "score": one} for number, one in enumerate(found)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": new_id("score-"), "object": "list", "model": name, "data": data, "usage": usage}


def _text_of(document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise refused('each of documents must be a text, or {"text": ...}.', "documents")
    return text
