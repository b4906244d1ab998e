"""`/v1/rerank`, as Jina's, and `/v1/score`, as vLLM's: how alike texts are, by the cosine of their vectors."""

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from gen.server.errors import refused
from gen.server.protocols.embeddings import EmbedderBody, embed_texts, embedder_of
from gen.server.served import Served
from gen.server.tools import new_id


class RerankBody(EmbedderBody):
    """The fields of a request."""

    query: str
    documents: Annotated[list[str | dict[str, Any]], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True


class ScoreBody(EmbedderBody):
    """The fields of a request: one text or as many as the others have, against these."""

    text_1: str | list[str]
    text_2: str | list[str]


def rerank(served: Served, body: RerankBody) -> dict[str, Any]:
    """The documents, the likest to the query first; of equals, the earlier one.

    Raises:
        ApiError, GenError: the server has no embedder, or the embedder does not take a text.
    """
    documents = [_text_of(one) for one in body.documents]
    name, vectors, tokens = _vectors(served, body, [body.query, *documents])
    found = (vectors[1:] @ vectors[0]).tolist()
    order = sorted(range(len(found)), key=lambda number: -found[number])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": number, "relevance_score": found[number]} for number in order]
    if body.return_documents:
        for one in results:
            one["document"] = {"text": documents[one["index"]]}
    return {"id": new_id("rerank-"), "model": name, "results": results, "usage": {"total_tokens": tokens}}


def score(served: Served, body: ScoreBody) -> dict[str, Any]:
    """How alike each pair of texts is, from -1 to 1.

    Raises:
        ApiError, GenError: the numbers of texts do not fit; or as `rerank`.
    """
    first, second = ([one] if isinstance(one, str) else one for one in (body.text_1, body.text_2))
    if not first or not second or (len(first) > 1 and len(first) != len(second)):
        raise refused("text_1 must have one text, or as many as text_2.", "text_1")
    name, vectors, tokens = _vectors(served, body, [*first, *second])
    found = (vectors[: len(first)] * vectors[len(first) :]).sum(1).tolist()
    data = [{"index": number, "object": "score", "score": one} for number, one in enumerate(found)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": new_id("score-"), "object": "list", "model": name, "data": data, "usage": usage}


def _vectors(served: Served, body: EmbedderBody, texts: list[str]) -> tuple[str, Tensor, int]:
    """The embedder's name, the vectors of texts, each of length 1, and how many tokens the texts have."""
    name, embedder = embedder_of(served, body.model)
    vectors, tokens = embed_texts(served, embedder, texts)
    return name, normalize(vectors), tokens


def _text_of(document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise refused('each of documents must be a text, or {"text": ...}.', "documents")
    return text
