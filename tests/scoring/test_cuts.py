"""Where a text is cut into prompt and continuation: the oracle is transformers' reading of the whole text, alone."""

import itertools
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import gen
from gen.models.checkpoints import DEMO
from gen.requests.chats import chat_text
from tests.helpers import byte_tokenizer, spaced_tokenizer, tiny_model
from tests.helpers.demo import short_demo

WORDS = [
    "don't",
    "http://a.org",
    "x = [1, 2]]",
    "naïve",
    "日本語",
    "🙂🙃",
    "Ada",
    "once",
    " ",
    "\n",
    "...",
    '{"name": "Ben"}',
]


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO)


def new_texts(count: int) -> list[str]:
    random = Random(41)
    return ["".join(random.choice(WORDS) + random.choice(["", " ", "\n"]) for _ in range(7)) for _ in range(count)]


def whole(model: Any, text: str) -> tuple[list[int], list[float]]:
    """The tokens of a text, and the log-probability of each after its first one, by transformers."""
    token_ids: list[int] = tokenizer()(text)["input_ids"]
    with torch.inference_mode():
        logits = model.hf_model(torch.tensor([token_ids])).logits[0].double().log_softmax(-1)
    return token_ids, [0.0, *(float(logits[place, token]) for place, token in enumerate(token_ids[1:]))]


def shared(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_sums_are_those_of_whole_texts_wherever_they_are_cut(demo: Any) -> None:
    random, encode = Random(1), tokenizer()
    texts = new_texts(50)
    cuts = [(text, random.randrange(len(text))) for text in texts for _ in range(10)]
    found = gen.score(demo, [text[:cut] for text, cut in cuts], [text[cut:] for text, cut in cuts])
    by_hand = {text: whole(demo, text) for text in texts}
    merged = 0
    for (text, cut), score in zip(cuts, found, strict=True):
        token_ids, logprobs = by_hand[text]
        prompt = encode(text[:cut])["input_ids"]
        first = shared(token_ids, prompt)
        merged += first < len(prompt)
        assert score.token_ids == token_ids[first:]
        assert score.sum == pytest.approx(sum(logprobs[first:]), abs=1e-4)
        said = encode.decode(token_ids[first:])
        assert score.start is not None and score.start <= cut
        if not said.startswith("\ufffd"):  # else the scored text begins within a character
            assert text[score.start :] == said
        else:
            assert encode.decode(token_ids[:first], skip_special_tokens=True).rstrip("\ufffd") == text[: score.start]
    assert merged > 100


def test_options_share_what_their_whole_texts_have(demo: Any) -> None:
    encode = demo.tokenizer.encode
    for prompt, options in [
        ("He said that he do", ["n't", " not", "es"]),
        ("One day a clever girl nam", ["ed Ada", "e", "ing things"]),
        ("Is it day?\n", ["Yes", "\nNo", "Not at all"]),
        ("", ["Once", "One"]),
    ]:
        sums = torch.tensor([sum(whole(demo, prompt + option)[1]) for option in options], dtype=torch.float64)
        found = gen.classify(demo, prompt, options)
        assert list(found.values()) == pytest.approx(sums.softmax(0).tolist(), abs=1e-5)
        cut = min(shared(encode(prompt), encode(prompt + option)) for option in options)
        means = sums.new_tensor([sum(lp[cut:]) / len(lp[cut:]) for _, lp in (whole(demo, prompt + o) for o in options)])
        found = gen.classify(demo, prompt, options, normalise="tokens")
        assert list(found.values()) == pytest.approx(means.softmax(0).tolist(), abs=1e-5)


@pytest.mark.parametrize("end", ["\n", "\n\n", " \n"])
def test_a_line_break_at_the_end_of_a_prompt_is_the_prompts(demo: Any, end: str) -> None:
    prompt = f"Is it day?{end}"
    found, ids = gen.score(demo, prompt, "Yes"), gen.score(demo, demo.tokenizer.encode(prompt), "Yes")
    assert demo.tokenizer.decode(found.token_ids) == "Yes"
    assert found.start == len(prompt)
    assert found.logprobs == pytest.approx(ids.logprobs, abs=1e-5)


def test_a_chats_text_and_its_continuation_are_encoded_together() -> None:
    demo: Any = short_demo()
    demo.tokenizer.use_chat_template("{{ bos_token }}Q: {{ messages[0].content }}\nA: ")
    text = "<|bos|>Q: Hi\nA:"
    token_ids = demo.tokenizer.encode_plain(text + " the cat")
    for found in (
        gen.score(demo, "Hi", "the cat", chat=True),
        gen.score(demo, [{"role": "user", "content": "Hi"}], "the cat"),
    ):
        assert found.token_ids == demo.tokenizer.encode_plain(" the cat") == token_ids[-len(found.token_ids) :]
        assert found.start == len(text)
    given = gen.score(demo, "Hi", [5, 6], chat=True)
    assert (given.token_ids, given.start) == ([5, 6], len(text) + 1)
    shares = gen.classify(demo, "Hi", ["the cat", "\n"], chat=True)
    sums = [
        gen.score(demo, demo.tokenizer.encode_plain(text), [demo.tokenizer.encode_plain(one)])[0].sum
        for one in (" the cat", " \n")
    ]
    assert list(shares.values()) == pytest.approx(torch.tensor(sums).softmax(0).tolist(), abs=1e-5)


def test_what_follows_a_chats_last_special_token_is_encoded_as_in_the_whole_text() -> None:
    """The oracle is the tokenizer, which encodes the whole chat with what follows."""
    spaced: Any = gen.from_transformers(tiny_model("llama", vocab_size=300), spaced_tokenizer())
    spaced.tokenizer.use_chat_template("{% for m in messages %}<s>{{ m.content }}</s> {% endfor %}the c")
    demo: Any = short_demo()
    for model, options in ((demo, ["n't", " not", "<|user|>n't", "es"]), (spaced, ["at", " cat", "</s>the", "\u00e9"])):
        messages = [
            {"role": role, "content": "He said that he do"} for role in ("user", "assistant", "user", "assistant")
        ]
        text = chat_text(model.tokenizer, messages)
        context = model.tokenizer.encode_plain(text)
        for option, score in zip(options, gen.score(model, messages, options), strict=True):
            token_ids = model.tokenizer.encode_plain(text + option)
            assert score.token_ids == token_ids[shared(token_ids, context) :]


def test_token_ids_are_scored_as_they_are(demo: Any) -> None:
    ids = demo.tokenizer.encode("He said that he do")
    found = gen.score(demo, ids, ["n't", " not"])
    assert [one.token_ids for one in found] == [demo.tokenizer.encode_plain(one) for one in ("n't", " not")]
    assert [one.start for one in found] == [None, None]
    assert gen.score(demo, ids).start is None
    assert gen.score(demo, "He do", ids).start == len("He do")


def test_a_prompt_alone_is_scored_after_its_first_token(demo: Any) -> None:
    assert gen.score(demo, "Once upon a time").start == 0  # the first token is the bos token
    no_bos: Any = gen.from_transformers(tiny_model("llama"), byte_tokenizer(bos=False, specials=["<user>"]))
    assert [gen.score(no_bos, text).start for text in ("abc", "éa", "<user>ab")] == [1, 0, 6]


def tiny_bpe(**special: str) -> PreTrainedTokenizerFast:
    """Letters, and two pairs of them; encoding adds no special tokens."""
    vocab = {letter: number for number, letter in enumerate("abcd")} | {"ab": 4, "cd": 5, "<s>": 6}
    made = FastTokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("c", "d")]))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def test_a_text_whose_first_token_is_merged_begins_after_the_bos_token_or_is_refused() -> None:
    without: Any = gen.from_transformers(tiny_model("llama"), tiny_bpe())
    with pytest.raises(gen.ArgumentError, match="continuation 0 of prompt 0, 'b', changes all of the prompt's tokens"):
        gen.score(without, "a", "b")
    with pytest.raises(gen.ArgumentError, match="option 1 of prompt 1, 'b', changes all of the prompt's tokens"):
        gen.classify(without, ["c", "a"], ["a", "b"])
    assert gen.score(without, "ca", "b").start == 1
    model: Any = gen.from_transformers(tiny_model("llama"), tiny_bpe(bos_token="<s>"))
    found = gen.score(model, "a", ["b", "c"])
    assert [(one.token_ids, one.start) for one in found] == [([4], 0), ([2], 1)]
    assert found[0].logprobs == pytest.approx(gen.score(model, [6], [4]).logprobs, abs=1e-5)
    shares = gen.classify(model, "a", ["b", "c"])
    sums = [one.sum for one in gen.score(model, [6], [[4], [0, 2]])]
    assert list(shares.values()) == pytest.approx(torch.tensor(sums).softmax(0).tolist(), abs=1e-5)
