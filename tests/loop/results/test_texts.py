"""How the host handles a text, token by token."""

import pytest

from gen.loop.results.texts import Text
from gen.requests.request import Request
from gen.samplers import greedy
from gen.tokens.tokenizers import Tokenizer
from tests.helpers import byte_tokenizer

BOS = 256  # a special token, which decoding leaves out


def text_with(stops: tuple[str, ...]) -> Text:
    tokenizer = Tokenizer(byte_tokenizer())
    return Text(
        Request(
            prompt_ids=[*b"x"],
            sampler=greedy(),
            seeds=(0,),
            limit=99,
            stops=stops,
            hidden=tokenizer.hidden_in(stops),
        ),
        0,
        tokenizer,
    )


@pytest.mark.parametrize("first", [0, 1])
def test_texts_that_go_on_from_one_text_are_each_as_if_alone(first: int) -> None:
    """After "a<s" is held back, one text goes on to the stop string and the other does not, in either order."""
    stops = ("a<s>b",)
    parts = [[*b"x", ord("a"), BOS, ord("b")], [*b"x", ord("a"), BOS, *b"cd"]]
    alone = []
    for part in parts:
        text = text_with(stops)
        for token_id in part:
            text.push(token_id, 0.0)
        alone.append((text.read(), text.finish_reason))
    assert alone == [("x", "stop"), ("xacd", None)]
    text = text_with(stops)
    for token_id in parts[0][:3]:
        text.push(token_id, 0.0)
    texts = [text, text.fork(1)]
    for which in (first, 1 - first):
        for token_id in parts[which][3:]:
            texts[which].push(token_id, 0.0)
    assert [(one.read(), one.finish_reason) for one in texts] == alone
