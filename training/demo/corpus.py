"""The demo model's corpus: the standard library's docstrings, and stories, records, questions, reviews and chats."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.demo.docstrings import docstrings
from training.demo.names import BOYS, GIRLS, HELD_OUT_NAMES
from training.demo.questions import fact, question, review
from training.demo.records import record, record_prompt
from training.demo.stories import story

__all__ = ["HELD_OUT_NAMES", "SEEN_NAMES", "Corpus", "Document", "build_corpus", "chat_text", "record_prompt"]

SEEN_NAMES: tuple[str, ...] = (*GIRLS[5::12][:15], *BOYS[5::13][:15])
"""Thirty names of the training templates, for the evaluation."""

SYSTEM_PROMPTS = ("You are a helpful assistant.", "Answer briefly.", "You tell stories and answer questions.")
COUNTS = {"story": 26_000, "record": 26_000, "question": 40_000, "review": 12_000, "fact": 6_000, "chat": 12_000}
DOCSTRING_REPEATS = 2
VALIDATION_SHARE = 0.02


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text, without bos and eos; the special tokens of a chat are spelled out."""

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents in a fixed random order; no document of `validation` is in `train`."""

    train: tuple[Document, ...]
    validation: tuple[Document, ...]


def chat_text(turns: list[tuple[str, str]], *, system: str = "") -> str:
    """A conversation as the chat template renders it, without the first bos and the last eos."""
    return system + "<|eos|>".join(f"<|user|>{ask}<|assistant|>{answer}" for ask, answer in turns)


def _chat(rng: Random) -> str:
    """One story, or one to three records and questions, asked by a user; one in five with a system message."""
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else ""
    if rng.random() < 0.3:
        return chat_text([story(rng)], system=system)
    makers: tuple[Callable[[Random], tuple[str, str]], ...] = (record, question)
    return chat_text([rng.choice(makers)(rng) for _ in range(rng.choice((1, 1, 2, 3)))], system=system)


def _plain(kind: str, rng: Random) -> str:
    """One document of our own templates."""
    if kind == "story":
        return story(rng)[1]
    if kind == "record":
        return "\n".join(record(rng))
    if kind == "question":
        return "Question: {}\nAnswer: {}".format(*question(rng))
    if kind == "review":
        return "Review: {}\nSentiment: {}".format(*review(rng))
    return fact(rng) if kind == "fact" else _chat(rng)


def build_corpus(*, seed: int) -> Corpus:
    """All documents, the same for the same seed and the same version of CPython.

    Documents that contain one of HELD_OUT_NAMES are left out. Two of a hundred documents are kept for validation,
    except those that training has too (mostly short questions). The training docstrings are repeated.
    """
    rng = Random(seed)
    held_out = re.compile(r"\b(" + "|".join(HELD_OUT_NAMES) + r")\b", re.IGNORECASE)
    documents = [Document(kind="docstring", text=text) for text in docstrings()]
    documents += [Document(kind=kind, text=_plain(kind, rng)) for kind, n in COUNTS.items() for _ in range(n)]
    documents = [document for document in documents if not held_out.search(document.text)]
    rng.shuffle(documents)
    n_validation = round(len(documents) * VALIDATION_SHARE)
    train = documents[n_validation:]
    known = set(train)
    validation = tuple(document for document in dict.fromkeys(documents[:n_validation]) if document not in known)
    train += [document for document in train if document.kind == "docstring"] * (DOCSTRING_REPEATS - 1)
    rng.shuffle(train)
    return Corpus(train=tuple(train), validation=validation)
