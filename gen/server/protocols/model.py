"""`/v1/models`, OpenAI's, and `/tokenize` and `/detokenize`, as in vLLM: what there is to know of the model."""

from collections.abc import Mapping
from typing import Any, ClassVar

from gen.server.bodies import Body, Known
from gen.server.conversations import MESSAGES
from gen.server.errors import refused
from gen.server.output_types import TOOLS
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

    refused: ClassVar[Mapping[str, object]] = {"chat_template": None, "mm_processor_kwargs": None}
    harmless: ClassVar[Mapping[str, object]] = {"messages": None, "return_token_strs": False}
    inner: ClassVar[Mapping[str, Known]] = {"messages": MESSAGES, "tools": TOOLS}

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None

    @property
    def ignored(self) -> list[str]:
        """See `Body.ignored`; a text has nothing of what shapes a conversation's prompt."""
        of_chats = self.model_fields_set & ChatBody.model_fields.keys() - {"model"}
        return super().ignored + (sorted(of_chats) if self.messages is None else [])


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
        given = {name: getattr(body, name) for name in body.model_fields_set & TokenizeBody.model_fields.keys()}
        token_ids = served.prompt_ids(ChatWriter.of(served, ChatBody.read(given)).asked)
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
