"""Encoding, chat templates, and decoding piece by piece compared with decoding at once."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

import pytest
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

import gen
from gen.errors import ArgumentError, ContextError
from gen.tokens.tokenizers import ByteDetokenizer, Detokenizer, Tokenizer
from tests.helpers import BOS, EOS, OTHER_EOS, byte_tokenizer, encoder_tokenizer, spaced_tokenizer
from tests.helpers.noting import noted

ALPHABET = "aZ 9\n.éßжλ中文字に안녕🙂👩‍👩‍👧‍👦🇳🇴\u0301\u200d"


def random_text(rng: random.Random, length: int) -> str:
    return "".join(rng.choice(ALPHABET) for _ in range(length))


@pytest.mark.parametrize("make", [byte_tokenizer, spaced_tokenizer])
def test_pieces_joined_are_the_new_text_and_never_split_a_character(make: type[PreTrainedTokenizerBase]) -> None:
    tokenizer = Tokenizer(make())
    rng = random.Random(0)
    for _ in range(200):
        prompt, new = random_text(rng, 5), random_text(rng, 12)
        prompt_ids = tokenizer.encode(prompt)
        new_ids = tokenizer.encode(prompt + new)[len(prompt_ids) :]
        detokenizer = Detokenizer(tokenizer, prompt_ids)
        pieces = [detokenizer.push(token_id) for token_id in new_ids]
        assert all("\ufffd" not in piece for piece in pieces)
        assert detokenizer.push(last=True) == ""
        whole, before = tokenizer.decode(prompt_ids + new_ids), tokenizer.decode(prompt_ids)
        assert before + "".join(pieces) == whole


def test_a_space_at_the_start_of_the_new_text_stays() -> None:
    tokenizer = Tokenizer(spaced_tokenizer())
    prompt_ids = tokenizer.encode("the")
    new_ids = tokenizer.encode("the cat sat")[len(prompt_ids) :]
    detokenizer = Detokenizer(tokenizer, prompt_ids)
    assert tokenizer.decode(new_ids) == "cat sat"  # what decoding the new tokens alone would lose
    assert [detokenizer.push(token_id) for token_id in new_ids] == [" cat", " sat"]


def test_a_character_that_the_prompt_began_comes_whole_and_one_left_open_shows_as_replacement() -> None:
    tokenizer = Tokenizer(byte_tokenizer())
    first, *rest = "中".encode()
    detokenizer = Detokenizer(tokenizer, [*b"so ", first])
    assert [detokenizer.push(byte) for byte in [*rest, ord("!")]] == ["", "中", "!"]
    assert detokenizer.push(first) == ""
    assert detokenizer.push(last=True) == "\ufffd"


def test_bytes_that_are_no_character_leave_those_before_them_in_any_portions() -> None:
    tokenizer = Tokenizer(spaced_tokenizer())
    new_ids = [3 + byte for byte in "\n🙂".encode()[:-1]] + tokenizer.encode("the")  # a run of bytes, broken off
    assert tokenizer.decode(new_ids[:4]) == "\ufffd" * 4  # the line break is lost beside the others
    for size in range(1, len(new_ids) + 1):
        detokenizer = Detokenizer(tokenizer, tokenizer.encode("cat"))
        portions = [new_ids[start : start + size] for start in range(0, len(new_ids), size)]
        pieces = [detokenizer.push(*portion) for portion in portions]
        assert "".join(pieces) + detokenizer.push(last=True) == "\n\ufffd\ufffd\ufffd the"


def test_special_tokens_give_no_text() -> None:
    detokenizer = Detokenizer(Tokenizer(byte_tokenizer()), [BOS])
    assert [detokenizer.push(token_id) for token_id in [ord("a"), EOS, ord("b")]] == ["a", "", "b"]


def test_an_empty_text_is_the_bos_token_or_refused() -> None:
    assert Tokenizer(byte_tokenizer()).encode("") == [BOS]
    with pytest.raises(ArgumentError, match="the prompt is empty and the tokenizer has no bos token"):
        Tokenizer(byte_tokenizer(bos=False)).encode("")


def test_a_chat_is_rendered_by_the_template_for_the_assistants_turn() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    tokenizer = Tokenizer(byte_tokenizer(chat=True))
    assert tokenizer.chat_text(messages) == "[system] Be brief.\n[user] Hi\n[assistant] "
    with pytest.raises(ArgumentError, match="no chat template; give the prompt as text"):
        Tokenizer(byte_tokenizer()).chat_text(messages)


def test_a_template_that_refuses_the_messages_says_why() -> None:
    wrapped = byte_tokenizer()
    wrapped.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ArgumentError, match="the chat template refuses these messages: roles must alternate"):
        Tokenizer(wrapped).chat_text([{"role": "user", "content": "Hi"}])


def test_arguments_of_the_template_reach_it_and_those_that_it_does_not_use_are_refused() -> None:
    wrapped = byte_tokenizer()
    template = "{% for d in documents or [] %}({{ d.text }}){% endfor %}{{ mood }}"
    wrapped.chat_template = template + "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer, messages = Tokenizer(wrapped), [{"role": "user", "content": "Hi"}]
    given = {"documents": [{"title": "", "text": "sky"}], "mood": "calm "}
    assert tokenizer.chat_text(messages, given) == "(sky)calm Hi"
    assert tokenizer.chat_text(messages, {"chat_template": "{{ messages[0].content }}!"}) == "Hi!"
    with pytest.raises(ArgumentError, match="the chat template does not use tools, mod of chat_template_kwargs"):
        tokenizer.chat_text(messages, {"tools": [{}], "mod": "calm"})
    with pytest.raises(ArgumentError, match="chat_template_kwargs cannot have return_tensors, tokenize: gen sets that"):
        tokenizer.chat_text(messages, {"tokenize": True, "return_tensors": "pt"})


def test_of_several_templates_the_default_is_used_and_with_tools_the_one_for_tools() -> None:
    wrapped = byte_tokenizer()
    wrapped.chat_template = {"default": "plain", "tool_use": "{{ tools | length }} tools", "other": "{{ mood }}"}
    tokenizer, messages = Tokenizer(wrapped), [{"role": "user", "content": "Hi"}]
    assert tokenizer.chat_text(messages) == "plain"
    assert tokenizer.chat_text(messages, {"tools": [{"type": "function"}]}) == "1 tools"
    assert tokenizer.chat_text(messages, {"chat_template": "other", "mood": "calm"}) == "calm"


def test_a_last_message_of_the_assistant_is_gone_on_with() -> None:
    tokenizer = Tokenizer(byte_tokenizer(chat=True))
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is"}]
    assert tokenizer.chat_text(messages) == "[user] Hi\n[assistant] It is"
    assert tokenizer.chat_text(messages[:1]) == "[user] Hi\n[assistant] "
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]
    template = {"chat_template": "{% for m in messages %}[{{ m.role }}] {{ m.content[0].text }}\n{% endfor %}"}
    assert tokenizer.chat_text(parts, template) == "[assistant] It is"
    with pytest.raises(ArgumentError, match="the chat template refuses these messages"):
        tokenizer.chat_text([{"role": "assistant", "tool_calls": []}])
    assert messages == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is"}]


def test_special_tokens_that_stop_strings_name_are_found() -> None:
    wrapped = byte_tokenizer()
    wrapped.add_tokens(["<plain>", " "])
    tokenizer = Tokenizer(wrapped)
    assert tokenizer.hidden_in([]) == tokenizer.hidden_in(["<en", "d>", "<plain>", "a b"]) == {}
    assert tokenizer.hidden_in(["x", "a<end>b</s>"]) == {EOS: "</s>", OTHER_EOS: "<end>"}


def test_it_tells_the_bytes_of_a_token() -> None:
    wrapped = byte_tokenizer()
    wrapped.add_tokens(["<plain>"])
    tokenizer = Tokenizer(wrapped)
    told = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    assert told == [*(bytes([byte]) for byte in range(256)), b"", b"", b"", b"<plain>"]
    demo = gen.load("demo").tokenizer
    assert b"".join(demo.token_bytes(token_id) for token_id in demo.encode_plain("naïve 日本")) == "naïve 日本".encode()
    wrapped.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # as RoBERTa's
    spaced = Tokenizer(wrapped)
    assert spaced.encode_plain("a") == [*b" a"] and spaced.all_token_bytes() == told
    for wrong in (260, -1, "a"):
        with pytest.raises(ArgumentError, match="token_id"):
            tokenizer.token_bytes(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "plain", "é日😀", "a\n é"])
def test_tokens_of_known_bytes_decode_to_what_they_spell_character_by_character(text: str) -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    decoder = ByteDetokenizer(tokens)
    pieces = [decoder.push(byte) for byte in text.encode()]
    assert [piece for piece in pieces if piece] == [*text]
    assert decoder.push(last=True) == ""
    assert decoder.push(*text.encode(), last=True) == text


def test_an_unfinished_character_shows_at_the_end() -> None:
    decoder = ByteDetokenizer([b"a\xe6", b"\x97", b"b"])
    other = copy(decoder)
    assert [decoder.push(0), decoder.push(1), decoder.push(last=True)] == ["a", "", "\ufffd"]
    assert [other.push(0), other.push(2), other.push(last=True)] == ["a", "\ufffdb", ""]
    assert other.push(0, 1, last=True) == "a\ufffd"


def test_a_text_is_encoded_beside_others() -> None:
    """The first text waits in its tokenizer until others have been encoded."""
    inside, go_on = threading.Event(), threading.Event()

    class Waiting:
        def pre_tokenize(self, text: object) -> None:
            if not inside.is_set():
                inside.set()
                assert go_on.wait(60)

    hf_tokenizer = byte_tokenizer()
    hf_tokenizer.backend_tokenizer.enable_truncation(2)  # as some folders have it; transformers drops it
    hf_tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Waiting())
    tokenizer = Tokenizer(hf_tokenizer)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(tokenizer.encode, "wait")
        assert inside.wait(60)
        found = [tokenizer.encode_plain("other") for _ in range(3)]
        go_on.set()
        assert (first.result(), found) == ([*b"wait"], [[*b"other"]] * 3)


def test_a_tokenizer_decodes_with_its_own_code() -> None:
    class Loud(PreTrainedTokenizerFast):  # type: ignore[misc]
        def decode(self, *given: Any, **how: Any) -> str:
            return str(super().decode(*given, **how)).upper()

    assert Tokenizer(Loud(tokenizer_object=byte_tokenizer().backend_tokenizer)).decode(b"ab") == "AB"


@pytest.mark.parametrize("make", [byte_tokenizer, spaced_tokenizer, encoder_tokenizer])
def test_no_text_has_fewer_tokens_than_its_beginning_tells(make: Any) -> None:
    tokenizer, rng, told = Tokenizer(make()), random.Random(1), 0
    for _ in range(200):
        text, above = random_text(rng, rng.randrange(4000)) + "the cat " * rng.randrange(300), rng.randrange(300)
        count, least = len(tokenizer.encode_plain(text)), tokenizer.least_tokens(text, above)
        assert least <= count and (least == 0 or least > above)
        told += least > 0
    assert told > 50


def test_a_prompt_that_cannot_fit_is_refused_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    demo: Any = gen.load("demo", device="cpu")
    most = demo.context_length
    lengths = noted(monkeypatch, Tokenizer, "_encode", lambda self, text, **_: len(text))
    huge = "word " * 100_000
    with gen.Engine(demo, rows=1) as engine:
        for ask in (
            lambda: gen.generate(demo, huge),
            lambda: gen.generate(demo, huge, chat=True),
            lambda: gen.generate(demo, [{"role": "user", "content": huge}]),
            lambda: engine.submit(huge),
            lambda: engine.submit_all(["a", huge]),
            lambda: next(gen.stream(demo, huge)),
        ):
            with pytest.raises(ContextError, match=r"at least \d+ tokens; the model's context of 1024"):
                ask()
    [_, error] = gen.generate(demo, ["a", huge], max_new_tokens=1, errors="return")
    assert isinstance(error, ContextError) and max(lengths) == 8 * most
    # what may fit is encoded whole: a prompt of few tokens, and one whose end is kept
    assert gen.generate(demo, huge, max_new_tokens=4, truncate="left", seed=1) == gen.generate(
        demo,
        [demo.tokenizer.bos_token_id, *demo.tokenizer.encode_plain(huge)[4 + 1 - most :]],
        max_new_tokens=4,
        seed=1,
    )
    with pytest.raises(ContextError, match=r"prompt 0 has \d+ tokens"):
        gen.generate(demo, " " * 100_000)
