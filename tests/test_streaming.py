"""A stream's completion is what `generate` returns with details, and there is none before the text has ended."""

import subprocess
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any, cast

import pytest
from torch import Tensor

import gen
from gen.samplers import greedy, multinomial
from tests.helpers import EOS, OTHER_EOS, ScriptedModel


@pytest.mark.parametrize("sampler", [None, greedy(), multinomial(temperature=0.8, repetition_penalty=1.2)])
@pytest.mark.parametrize("options", [{}, {"stop": ["e", "\n"]}, {"eos_token_id": [*range(100, 110)]}])
def test_at_its_end_a_stream_has_the_completion_that_generate_gives(llama: Any, sampler: Any, options: Any) -> None:
    for seed in range(2):
        arguments: Any = {"sampler": sampler, "seed": seed, "max_new_tokens": 14, "speculate": False, **options}
        stream = gen.stream(llama, "go on", **arguments)
        pieces = list(stream)
        completion = stream.completion()
        assert completion == gen.generate(llama, "go on", details=True, **arguments)
        assert completion.text == "".join(pieces)
        assert stream.completion() == completion


def test_a_stream_is_of_one_text() -> None:
    stream, model = cast(Any, gen.stream), ScriptedModel("hello")
    with pytest.raises(gen.ArgumentError, match=r"stream takes one prompt; use gen\.generate for a list"):
        stream(model, ["x"])
    with pytest.raises(gen.ArgumentError, match="stream makes one text, the sampler makes 2 a prompt"):
        stream(model, "x", sampler=multinomial(2))
    assert model.steps == 0


def test_before_its_end_there_is_no_completion() -> None:
    stream = gen.stream(ScriptedModel("hello"), "x")
    assert isinstance(stream, gen.Stream)
    assert isinstance(stream, Iterator)
    for piece in "hello":
        with pytest.raises(gen.GenError, match="the text has not ended; take all pieces of the stream"):
            stream.completion()
        assert next(stream) == piece
    with pytest.raises(gen.GenError, match="has not ended"):  # its eos has not come yet
        stream.completion()
    assert next(stream, None) is None
    assert stream.completion().finish_reason == "eos"


def test_a_stream_that_was_closed_early_has_none() -> None:
    stream = gen.stream(ScriptedModel("hello"), "x")
    next(stream)
    stream.close()
    assert list(stream) == []
    with pytest.raises(gen.GenError, match="closed early"):
        stream.completion()


def test_another_thread_may_close_a_stream_while_it_takes_a_turn() -> None:
    model, threads, failed = ScriptedModel("hello"), list[Thread](), list[BaseException]()

    def close() -> None:
        try:
            stream.close()
        except BaseException as error:
            failed.append(error)

    def meanwhile(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        if lengths[0] == 3:
            threads.append(Thread(target=close))
            threads[0].start()
            threads[0].join()
        return logits

    stream = gen.stream(model, [65], logits_processors=[meanwhile])
    assert (list(stream), len(threads), failed) == (["h", "e"], 1, [])
    assert stream.so_far().finish_reason == "cancelled"


def test_closing_after_the_end_keeps_the_completion_and_an_empty_text_has_one() -> None:
    stream = gen.stream(ScriptedModel("hello"), "x", max_new_tokens=2)
    assert [next(stream), next(stream)] == ["h", "e"]
    stream.close()
    assert stream.completion().text == "he"
    stream = gen.stream(ScriptedModel("hello"), "x", max_new_tokens=0)
    assert list(stream) == []
    assert (stream.completion().text, stream.completion().finish_reason) == ("", "length")


def test_tokens_without_text_give_no_piece_and_are_in_the_completion() -> None:
    stream = gen.stream(ScriptedModel(lambda prompt: [OTHER_EOS, *b"a", OTHER_EOS, EOS]), "x")
    assert list(stream) == ["a"]
    assert stream.completion().token_ids == [OTHER_EOS, *b"a", OTHER_EOS]


def test_a_program_may_end_while_texts_are_read() -> None:
    program = "import gen\nm = gen.load('demo')\ns, i = gen.stream(m, 'x'), gen.generate_iter(m, ['x', 'y' * 9])\n"
    run = subprocess.run([sys.executable, "-c", program + "next(s), next(i)"], capture_output=True, text=True)
    assert (run.returncode, "Exception" in run.stderr) == (0, False), run.stderr
