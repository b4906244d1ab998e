"""`/v1/models`, OpenAI's, and `/tokenize` and `/detokenize`, as in vLLM: what there is to know of the model."""

from typing import Any

from gen.server.bodies import Body
from gen.server.errors import refused
from gen.server.protocols.chat import ChatBody, ChatWriter
from gen.server.served import Served, name_in


def list_models(served: Served) -> dict[str, Any]:
    """All models of the server."""
    return {"object": "list", "data": [*_models(served).values()]}


def one_model(served: Served, name: str) -> dict[str, Any]:
    """One model of the server."""
    known = _models(served)
    return known[name_in([*known], name)]


def _models(served: Served) -> dict[str, dict[str, Any]]:
    settings, own = served.settings, {"max_model_len": served.model.context_length}
    known: dict[str, dict[str, Any]] = dict.fromkeys(settings.names, own)
    if settings.embedder is not None:
        known |= {name: {} for name in settings.embedder_names}
    usual = {"object": "model", "created": served.since, "owned_by": "gen"}
    return {name: {"id": name, **usual, **more} for name, more in known.items()}


class TokenizeBody(Body):
    """A text, or a conversation with what shapes its prompt in chat completions."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Body):
    """Token ids."""

    model: str | None = None
    tokens: list[int]


def tokenize(served: Served, body: TokenizeBody) -> dict[str, Any]:
    """The token ids that a text or a conversation would have as a prompt."""
    served.name_of(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise refused("give a prompt, or messages.", "prompt")
    tokenizer = served.model.tokenizer
    if body.messages is not None:
        given = {name: getattr(body, name) for name in ChatBody.model_fields if name in TokenizeBody.model_fields}
        token_ids = served.prompt_ids(ChatWriter.of(served, ChatBody(**given)).asked)
    else:
        token_ids = (tokenizer.encode if body.add_special_tokens else tokenizer.encode_plain)(body.prompt or "")
    return {"tokens": token_ids, "count": len(token_ids), "max_model_len": served.model.context_length}


def detokenize(served: Served, body: DetokenizeBody) -> dict[str, Any]:
    """The text of token ids."""
    served.name_of(body.model)
    known = served.model.tokenizer.vocab_size
    if any(not 0 <= token_id < known for token_id in body.tokens):
        raise refused(f"tokens: the vocabulary is 0 to {known - 1}.", "tokens")
    tokenizer = served.model.tokenizer
    return {"prompt": tokenizer.decode(body.tokens, shown=tokenizer.special_tokens.keys())}
