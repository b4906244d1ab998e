"""`gen.prefix`: what it keeps of texts and chats, and who can use it."""

from typing import Any

import pytest
import torch

import gen
from tests.helpers import byte_tokenizer, tiny_model

GREEDY: dict[str, Any] = {"sampler": gen.samplers.greedy(), "max_new_tokens": 6, "details": True}
BEAMS: dict[str, Any] = GREEDY | {"sampler": gen.samplers.beam_search(3)}
TEXT = "A long story about the sea, which everybody has read before they ask. " * 2 + "And now we ask"


def test_a_prefix_is_read_once_and_calls_find_it_until_it_is_released(whole_demo: Any) -> None:
    prompts = [f"{TEXT} {what}?" for what in ("why", "who")]
    before = gen.generate(whole_demo, prompts, **GREEDY)
    with gen.prefix(whole_demo, TEXT) as kept:
        assert kept.bytes > 0 and whole_demo.tokenizer.encode(prompts[0])[: len(kept.token_ids)] == kept.token_ids
        made = gen.generate(whole_demo, prompts, **GREEDY)
        assert [one.cached_tokens for one in made] == [len(kept.token_ids)] * 2
        assert [one.token_ids for one in made] == [one.token_ids for one in before]
        assert gen.generate(whole_demo, prompts[0], **GREEDY).cached_tokens == len(kept.token_ids)  # calls keep nothing
        beams: Any = gen.generate(whole_demo, prompts[0], **BEAMS)
        assert beams.cached_tokens == len(kept.token_ids)
        with gen.prefix(whole_demo, kept.token_ids) as same:
            assert same.bytes == kept.bytes
        assert gen.generate(whole_demo, prompts[0], **GREEDY).cached_tokens > 0
    kept.release()
    assert kept.bytes == 0 and gen.generate(whole_demo, prompts[0], **GREEDY).cached_tokens == 0
    again: Any = gen.generate(whole_demo, prompts[0], **BEAMS)
    assert again.token_ids == beams.token_ids and again.cached_tokens == 0


def test_the_last_token_is_left_out_where_more_text_changes_it(whole_demo: Any) -> None:
    for text in (TEXT, TEXT + " ", TEXT + " unbel", TEXT + ".\n"):
        with gen.prefix(whole_demo, text) as kept:
            whole = whole_demo.tokenizer.encode(text)
            assert whole[: len(kept.token_ids)] == kept.token_ids and len(whole) - len(kept.token_ids) <= 2
            for more in ("ievable", " who", "1", "\nThen", "!"):
                assert whole_demo.tokenizer.encode(text + more)[: len(kept.token_ids)] == kept.token_ids


def test_of_a_chat_what_any_next_message_leaves_is_kept(whole_demo: Any) -> None:
    chat: list[Any] = [{"role": "system", "content": TEXT}]
    with gen.prefix(whole_demo, chat) as kept:
        asked = [*chat, {"role": "user", "content": "Why?"}]
        made = gen.generate(whole_demo, asked, **GREEDY)
        assert made.cached_tokens == len(kept.token_ids) > len(whole_demo.tokenizer.encode_plain(TEXT))
    with gen.prefix(whole_demo, TEXT, chat=True) as kept:
        made = gen.generate(whole_demo, TEXT, chat=True, **GREEDY)
        assert made.cached_tokens == min(len(kept.token_ids), made_tokens(whole_demo, TEXT) - 1)


def made_tokens(whole_demo: Any, text: str) -> int:
    from gen.requests.prompts import read_one_prompt

    return len(read_one_prompt(whole_demo, 0, [{"role": "user", "content": text}], (), template_kwargs=None)[0])


def test_a_salted_prefix_is_for_its_salt_alone(whole_demo: Any) -> None:
    with gen.prefix(whole_demo, TEXT, cache_salt="a") as kept:
        assert gen.generate(whole_demo, TEXT + " why", **GREEDY).cached_tokens == 0
        with gen.Engine(whole_demo, rows=2, prefix_bytes=0) as engine:
            made = {
                salt: engine.submit(TEXT + " why", max_new_tokens=2, cache_salt=salt).completion().cached_tokens
                for salt in (None, "a", "b")
            }
        assert made == {None: 0, "a": len(kept.token_ids), "b": 0}


@pytest.mark.parametrize("shape", ["qwen3_next", "falcon_h1", "jamba"])  # the last one goes on token by token
def test_recurrent_layers_go_on_from_their_states_at_the_end_of_a_prefix(shape: str) -> None:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    ids = [(number * 37) % 250 for number in range(100)]
    prompts = [[*ids[:80], 9, 8], [*ids[:40], 7, 6], [*ids[:40], 5], ids[:40], [*ids[:60], 4], ids[1:70]]
    before = gen.generate(model, prompts, **GREEDY)
    beams: Any = gen.generate(model, prompts[0], **BEAMS)
    with gen.prefix(model, ids[:80]) as long, gen.prefix(model, ids[:40]) as short:
        assert long.bytes > short.bytes > 0 and long.token_ids == ids[:80]
        made = gen.generate(model, prompts, **GREEDY)
        on = [80, 40, 40, 0, 40, 0]  # not from 60, where no prefix ends; not for a prompt that equals a prefix
        if shape == "jamba":
            on[4] = 0  # reading 21 tokens one by one takes longer than the whole prompt
        assert [one.cached_tokens for one in made] == on
        assert [one.token_ids for one in made] == [one.token_ids for one in before]
        again: Any = gen.generate(model, prompts[0], **BEAMS)
        assert again.cached_tokens == 80 and again.token_ids == beams.token_ids
        with gen.Engine(model, rows=2) as engine:
            found = [engine.submit(prompts[0], sampler=GREEDY["sampler"], max_new_tokens=6).completion() for _ in "ab"]
        assert [(one.cached_tokens, one.token_ids) for one in found] == [(80, before[0].token_ids)] * 2
        with torch.no_grad():
            next(model.hf_model.parameters()).mul_(1)
        assert gen.generate(model, prompts[0], **GREEDY).cached_tokens == 0
    assert gen.generate(model, prompts[0], **GREEDY).cached_tokens == 0


def test_models_that_read_prompts_as_a_whole_keep_nothing_and_give_the_same_texts() -> None:
    model = gen.from_transformers(tiny_model("gpt_neo"), byte_tokenizer())
    before = gen.generate(model, TEXT[:90], seed=1, max_new_tokens=8)
    with gen.prefix(model, TEXT[:60]) as kept:
        assert kept.bytes == 0
        assert gen.generate(model, TEXT[:90], seed=1, max_new_tokens=8) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ["a", "b"]}, "a prompt is a text"),
        ({"prompt": "a", "cache_salt": 1}, "cache_salt must be a text"),
        ({"prompt": "a", "chat": 1}, "chat"),
        ({"prompt": "a", "chat_template_kwargs": {"x": 1}}, "prompt 0 is none"),
        ({"prompt": [3] * 5000}, "leaves no room after it"),
        ({"prompt": []}, "a prompt is a text"),
    ],
)
def test_what_cannot_be_kept_is_refused(whole_demo: Any, arguments: Any, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        gen.prefix(whole_demo, **arguments)
