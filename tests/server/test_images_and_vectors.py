"""Images as data URLs, and vectors of texts and token ids."""

import base64
import io
import math
import struct
from dataclasses import replace
from typing import Any

import pytest

import gen
from gen.embedding.encoder import Encoder
from gen.embedding.sentence_folders import Recipe
from gen.tokens.tokenizers import Tokenizer
from tests.helpers.noting import noted
from tests.helpers.tiny_encoders import encoder_tokenizer, tiny_encoder
from tests.models.transformers.vision_helpers import picture, tiny_processor, tiny_vision_model
from tests.server.client import Client


def test_an_image_in_a_data_url_is_read_and_nothing_else_is() -> None:
    model: Any = gen.from_transformers(tiny_vision_model("llava"), tiny_processor("llava"))
    file = io.BytesIO()
    picture(1).save(file, format="PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    said = {"type": "text", "text": "a"}
    wanted = gen.generate(
        model,
        [{"role": "user", "content": [{"type": "image", "image": picture(1)}, said]}],
        seed=1,
        max_new_tokens=6,
    )
    with gen.Engine(model, rows=2) as engine:
        client = Client(gen.server.app(engine))

        def ask(url: str) -> Any:
            content = [{"type": "image_url", "image_url": {"url": url}}, said]
            fields = {"messages": [{"role": "user", "content": content}], "seed": 1, "max_tokens": 6}
            return client.post("/v1/chat/completions", fields)

        assert ask(url).json["choices"][0]["message"]["content"] == wanted
        block = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        content = [{"type": "image", "source": block}, said]
        fields = {"messages": [{"role": "user", "content": content}], "seed": 1, "max_tokens": 6}
        assert client.post("/v1/messages", fields).json["content"][0]["text"] == wanted
        for other in ("https://host/cat.png", "file:///etc/passwd", "/etc/passwd", "data:image/png;base64,AAAA"):
            assert ask(other).status == 400
        client = Client(gen.server.app(engine, max_image_mpx=0.0001))
        assert b"and a data: URL may have 100" in ask(url).body


def test_the_tokens_of_a_conversation_with_images_are_counted_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = gen.from_transformers(tiny_vision_model("llava"), tiny_processor("llava"))
    file = io.BytesIO()
    picture(1).save(file, format="PNG")
    data = base64.b64encode(file.getvalue()).decode()
    blocks = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {"type": "text", "text": "What is this?"},
    ]
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}, blocks[1]]
    messages, others = ([{"role": "user", "content": content}] for content in (blocks, parts))
    with gen.Engine(model, rows=2) as engine:
        client = Client(gen.server.app(engine))
        usage = client.post("/v1/messages", {"messages": messages, "max_tokens": 3}).json["usage"]
        tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert client.post("/v1/messages/count_tokens", {"messages": messages}).json == {"input_tokens": tokens}
        assert client.post("/tokenize", {"messages": others}).json["count"] == tokens
        small = Client(gen.server.app(engine, max_image_mpx=0.0001))
        for path, asked in (("/v1/messages/count_tokens", messages), ("/tokenize", others)):
            assert b"and a data: URL may have 100" in small.post(path, {"messages": asked}).body
    read = noted(monkeypatch, type(model), "encode", lambda model, text, *_, **__: text)
    with gen.Engine(model, rows=2, max_batch_tokens=tokens + 5) as engine:
        client = Client(gen.server.app(engine))
        fields: dict[str, Any] = {"messages": others, "max_tokens": 1000, "ignore_eos": True, "n": 2}
        cut = client.post("/v1/chat/completions", fields).json
        assert [choice["finish_reason"] for choice in cut["choices"]] == ["length"] * 2
        assert cut["usage"]["prompt_tokens"] == tokens
    assert len(read) == 1


def test_a_prompt_is_encoded_once_for_all_of_its_texts(engine: gen.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = noted(monkeypatch, Tokenizer, "_encode", lambda tokenizer, text, **_: text)
    with gen.Engine(engine.model, rows=8, max_batch_tokens=200) as small:
        client = Client(gen.server.app(small))
        fields = {"prompt": ["One", "Two"], "n": 3, "max_tokens": 500, "ignore_eos": True}
        made = client.post("/v1/completions", fields).json
    assert sorted(encoded) == ["One", "Two"]
    prompt_tokens = made["usage"]["prompt_tokens"] // 2
    assert made["usage"]["completion_tokens"] == 6 * (200 - prompt_tokens)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_vectors_are_those_of_embed(engine: gen.Engine) -> None:
    encoder = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    client = Client(gen.server.app(engine, embedder=encoder, embedder_names=["vectors"]))
    texts = ["a red kite", "a kite"]
    wanted = gen.embed(encoder, texts).tolist()
    fields = {"model": "vectors", "input": texts}
    plain = client.post("/v1/embeddings", fields).json
    assert [one["embedding"] for one in plain["data"]] == [pytest.approx(row, abs=1e-6) for row in wanted]
    token_ids = encoder.tokenize(texts)
    assert plain["usage"]["prompt_tokens"] == sum(map(len, token_ids))
    encoder.recipe = replace(recipe := encoder.recipe, prompts={"own": "the "}, default_prompt_name="own")
    assert client.post("/v1/embeddings", fields).json["usage"]["prompt_tokens"] == sum(map(len, token_ids)) + 2
    encoder.recipe = recipe
    packed = client.post("/v1/embeddings", {**fields, "input": token_ids, "encoding_format": "base64"}).json
    for one, row in zip(packed["data"], wanted, strict=True):
        assert list(struct.unpack(f"<{len(row)}f", base64.b64decode(one["embedding"]))) == pytest.approx(row, abs=1e-6)
    assert client.post("/v1/embeddings", {"model": "demo", "input": "a"}).status == 404
    assert client.post("/v1/embeddings", {**fields, "dimensions": 500}).json["error"]["param"] == "dimensions"
    assert client.post("/v1/embeddings", {**fields, "input": []}).status == 400
    for name, value, status in (("normalize", False, 400), ("normalize", True, 200), ("prompt_name", "query", 400)):
        assert client.post("/v1/embeddings", {**fields, name: value}).status == status
    assert Client(gen.server.app(engine)).post("/v1/embeddings", fields).status == 404


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dimensions", [1, 5, 31, 32])
def test_vectors_of_fewer_dimensions_have_length_1_where_whole_ones_do(
    normalize: bool, dimensions: int, engine: gen.Engine
) -> None:
    encoder = Encoder(tiny_encoder(), encoder_tokenizer(), Recipe(normalize=normalize))
    client = Client(gen.server.app(engine, embedder=encoder))
    fields = {"input": "a red cat", "dimensions": dimensions}
    [whole] = gen.embed(encoder, ["a red cat"]).tolist()
    length = math.hypot(*whole[:dimensions]) if normalize else 1.0
    [found] = client.post("/v1/embeddings", fields).json["data"]
    assert found["embedding"] == pytest.approx([number / length for number in whole[:dimensions]], abs=1e-6)
