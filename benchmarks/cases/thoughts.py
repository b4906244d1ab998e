"""Whether a model thinks before an answer of a type what it thinks without one, and whether the answer is its type's.

Each call is drawn at random: how the template marks thoughts, the type, the limit, `thinking`, the sampler, the prompt.
Every second one has the checkpoint's weights, the others random ones. A processor lets both models write the marks of
thoughts, which neither was trained to do. What is checked:

- the answer meets its type, and has at most as many tokens as the limit, which may be the least that the type needs;
- the thought has at most as many tokens as its bound, beside its marks;
- the text is the same in a batch of three;
- the thought's tokens are those that come without a type, up to the end of the shorter one.
"""

import json
import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import gen
from benchmarks.measuring import REAL
from gen.samplers import greedy, multinomial
from tests.helpers import EOS, byte_tokenizer, tiny_model

_TURNS = "{% for m in messages %}{% set c = m.content %}[{{ m.role }}]"
_TAGGED = _TURNS + "{{ c.split('</think>')[-1] }}{% endfor %}[assistant]{# '<think>\\n' + '\\n</think>\\n\\n' #}"
_SWITCH = "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
FORMS = {
    "Qwen3": _TAGGED + _SWITCH,
    "DeepSeek-R1": _TAGGED + "{{ '<think>\\n' }}",
    "Mistral": _TURNS + "{{ c }}{% endfor %}[assistant]{# [THINK] [/THINK] #}",
    "gpt-oss": _TURNS + "<|message|>{{ c }}{% endfor %}<|start|>assistant{# <|channel|> #}",
    "SmolLM3": _TAGGED.replace("'\\n</think>\\n\\n'", "'<think>\\n\\n</think>\\n'") + _SWITCH,
}
"""Chat templates that mark thoughts as those of these families do."""

HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"]
SPECIALS = {"Mistral": ["[THINK]", "[/THINK]"], "gpt-oss": HARMONY}
_CONTEXT = 192  # so that a thought without a bound ends
_UNUSED = ["<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>"]  # special tokens of SmolLM2


class City(BaseModel):
    name: str = Field(max_length=8)
    large: bool


TYPES: list[tuple[Any, str]] = [
    (City, '{"name": "Rome", "large": true}'),
    (Literal["Rome", "Oslo"], "Oslo"),
    (gen.choice(["yes", "no"]), "no"),
    (int, "7"),
    (gen.sequence("<b>", gen.regex("[a-z]+"), "</b>"), "<b>hm</b>"),
    (gen.regex("[<a-z>]{2,9}"), "<thin"),
]
"""Output types, each with one of its texts."""


def tiny(form: str, *, device: str = "cpu", context: int = 256) -> Any:
    """A model with random weights and a token for each byte."""
    tokenizer = byte_tokenizer(specials=SPECIALS.get(form, []))
    tokenizer.chat_template = FORMS[form]
    own = tiny_model(vocab_size=270, max_position_embeddings=context)
    own.generation_config.eos_token_id = EOS
    return gen.from_transformers(own.to(device), tokenizer)


def in_form(own: Any, folder: Path, form: str) -> Any:
    """SmolLM2 with a template of a form; the form's special tokens replace some that it never writes."""
    given = AutoTokenizer.from_pretrained(folder)
    written = given.backend_tokenizer.to_str()
    for old, new in zip(_UNUSED, SPECIALS.get(form, []), strict=False):
        written = written.replace(json.dumps(old), json.dumps(new))
    backend = type(given.backend_tokenizer).from_str(written)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=FORMS[form])
    return gen.from_transformers(own, tokenizer, pack=False)


def nudge(form: str, model: Any, *, ends: bool, opens: bool = False) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A processor that lets a model write the marks of thoughts, at places that depend on its tokens alone.

    It bans the tokens that end a text unless the text `ends`, as a type does within a thought, and the bytes of a
    `tiny` model that no UTF-8 has. If it `opens`, half of all prompts begin a thought.
    """
    marks = ["<think>", "</think>"] if form not in SPECIALS else []
    if form == "Mistral":
        marks = ["[THINK]", "[/THINK]"]
    if form == "gpt-oss":
        marks = ["<|channel|>analysis<|message|>", "<|end|><|start|>assistant", "<|channel|>final<|message|>"]
    spelled = [model.tokenizer.encode_plain(mark) for mark in marks]
    banned = [] if ends else [*model.eos_token_ids]
    banned += [*range(0xF5, 0x100)] if model.vocab_size == 270 else []

    def processor(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[:, banned] = -torch.inf
        for row, (line, length) in enumerate(zip(token_ids.tolist(), lengths.tolist(), strict=True)):
            tail = line[:length]
            begun = [
                mark[n] for mark in spelled for n in range(1, len(mark)) if tail[-n:] == mark[:n] and len(mark) > n
            ]
            for token in begun:
                logits[row, token] += 40
            if opens and sum(tail) % 2 and model.tokenizer.decode(tail[-12:]).endswith(("assistant", "assistant]")):
                logits[row, spelled[0][0]] += 40
            if sum(tail[-3:]) % 13 == 0:
                logits[row, spelled[sum(tail[-5:]) % len(spelled)][0]] += 40
        return logits

    return processor


def check(form: str, number: int, model: Any, *, opens: bool = False) -> dict[str, Any]:
    """One random call: alone, in a batch and without a type.

    Args:
        opens: as for `nudge`.
    Returns:
        The tokens of the thought, how many of them were compared, and whether the bound has cut it.
    Raises:
        AssertionError: a thought or an answer is not what it should be.
    """
    draws = random.Random(number)
    kind, _ = draws.choice(TYPES)
    constraint = gen.compile(model, kind)
    thinking = draws.choice([None, True, 1, 5, 16, 33, 80])
    limit = draws.choice([None, constraint.least_tokens or 9, 40])
    given: dict[str, Any] = {
        "thinking": thinking,
        "sampler": draws.choice([greedy(), multinomial(), multinomial(temperature=0.7)]),
        "seed": draws.randrange(1000),
        "details": True,
        "chat": True,
    }
    typed = given | {
        "max_new_tokens": limit,
        "shorten": True,
        "logits_processors": [nudge(form, model, ends=True, opens=opens)],
    }
    prompt = draws.choice(["x", "What is it?", "\u00e9t\u00e9 " * 9])
    prompt += "!" * draws.randrange(9) if opens else ""
    made = gen.generate(model, prompt, kind, **typed)
    assert constraint.accepts(made.text)
    assert made.engine == "device"
    header = 7 if form == "gpt-oss" else 0
    assert len(made.token_ids) - made.reasoning_tokens <= (limit or 2048) + header
    if type(thinking) is int:
        assert made.reasoning_tokens <= thinking + 40
        assert made.reasoning_cut or made.reasoning_tokens <= thinking + 12
    both = gen.generate(model, ["y", prompt, "z" * 30], kind, **typed)
    assert (both[1].token_ids, both[1].text, both[1].reasoning) == (made.token_ids, made.text, made.reasoning)
    free = gen.generate(
        model, prompt, **given, max_new_tokens=1, logits_processors=[nudge(form, model, ends=False, opens=opens)]
    )
    count = min(made.reasoning_tokens, free.reasoning_tokens)
    if form == "gpt-oss":  # whose thoughts have no special token in them, and end before any other channel
        begin = len(model.tokenizer.encode_plain("<|channel|>analysis<|message|>"))
        specials = model.tokenizer.special_tokens
        own = [token_id in specials or given["sampler"] != greedy() for token_id in free.token_ids]
        count = next((at for at in range(begin, count) if own[at]), count)
    assert free.token_ids[:count] == made.token_ids[:count]
    return {"tokens": made.reasoning_tokens, "compared": count, "cut": made.reasoning_cut}


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[str]]]:
    """One form of thoughts after the other, each with SmolLM2's weights, and with random ones."""
    folder = Path(given.model or REAL)
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    own.config.max_position_embeddings = _CONTEXT
    loaded = {form: in_form(own, folder, form) for form in FORMS}

    def checked(number: int) -> tuple[Counter[str], list[str]]:
        form = [*FORMS][number // 2 % len(FORMS)]
        model = tiny(form, context=2 * _CONTEXT) if number % 2 else loaded[form]
        found = check(form, number, model, opens=True)
        counts = Counter({f"{'random' if number % 2 else 'SmolLM2'}, {form}": 1})
        counts["with a thought"] = found["tokens"] > 0
        counts["cut at the bound"] = found["cut"]
        counts["tokens of thoughts"] = found["tokens"]
        counts["compared with those without a type"] = found["compared"]
        return counts, []

    return checked
