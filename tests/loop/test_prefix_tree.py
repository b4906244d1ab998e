"""What a model keeps from request to request: the tree itself, and how calls and engines use it."""

import random
from threading import Thread
from typing import Any

import pytest
import torch

import gen
from gen.loop.prefixes.columns import Columns
from gen.loop.prefixes.tree import PrefixTree
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.noting import fails_once
from virtual_gpus import virtual_gpus

Tokens = list[int]
SAMPLED: Any = {"seed": 1, "max_new_tokens": 8, "eos_token_id": []}


def keep(tree: PrefixTree, tokens: Tokens, salt: str | None = None, version: int = 1, pin: bool = False) -> object:
    """Keep a text whose columns are its token ids, one byte each."""
    columns = torch.tensor(tokens, dtype=torch.uint8).view(1, -1, 1)
    return tree.add(
        tokens, version, salt, lambda start, end: Columns.of({"ids": columns[:, start:end].clone()}), pin=pin
    )[1]


def found(tree: PrefixTree, tokens: Tokens, salt: str | None = None, version: int = 1, pinned: bool = False) -> Tokens:
    """The tokens whose columns the tree gives."""
    count, kept = tree.find(tokens, version, salt, pinned=pinned)
    ids = [token for run, most in kept.runs for token in run.part(0, most)["ids"].flatten().tolist()]
    assert len(ids) == count
    return ids


def some(seed: int, count: int) -> Tokens:
    source = random.Random(seed)
    return [source.randrange(256) for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> Any:
    return gen.from_transformers(tiny_model("llama", max_position_embeddings=1024), byte_tokenizer())


def test_texts_are_found_as_by_comparing_with_each() -> None:
    source, tree, engine = random.Random(0), PrefixTree(), object()
    tree.open(engine, 10**6)
    texts: dict[str | None, list[Tokens]] = {None: [], "a": []}
    pins: list[tuple[Tokens, str | None, object]] = []
    for _ in range(600):
        salt = source.choice([None, "a"])
        tokens = [source.randrange(3) for _ in range(source.randint(1, 12))]
        longest = max((alike(tokens, one) for one in texts[salt]), default=0)
        assert found(tree, tokens, salt) == tokens[:longest]
        pinned = max((alike(tokens, one) for one, own, _ in pins if own == salt), default=0)
        assert found(tree, tokens, salt, pinned=True) == tokens[:pinned]
        if source.random() < 0.5:
            era = keep(tree, tokens, salt, pin=(pin := source.random() < 0.3))
            texts[salt].append(tokens)
            pins += [(tokens, salt, era)] * pin
        if pins and source.random() < 0.2:
            tree.unpin(*pins.pop(source.randrange(len(pins))))
    tree.close(engine)  # everything that is not pinned goes
    for salt in texts:
        for tokens in texts[salt]:
            pinned = max((alike(tokens, one) for one, own, _ in pins if own == salt), default=0)
            assert found(tree, tokens, salt) == tokens[:pinned]
    for one in pins:
        tree.unpin(*one)
    assert tree.spare(torch.device("cpu")) == 0 and not any(tree._salts.values())


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("call", [0, 1])
def test_a_text_that_cannot_be_cut_for_want_of_memory_stays_as_it_is(
    call: int, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = PrefixTree()
    tree.open(object(), 10**6)
    era = keep(tree, [1, 2, 3, 4], pin=pinned)

    fails_once(monkeypatch, Columns, "cut", call)
    with pytest.raises(torch.OutOfMemoryError):
        keep(tree, [1, 2, 5])
    assert found(tree, [1, 2, 3, 4, 5]) == [1, 2, 3, 4]
    keep(tree, [1, 2, 5])
    assert found(tree, [1, 2, 3, 4, 5]) == [1, 2, 3, 4] and found(tree, [1, 2, 5]) == [1, 2, 5]
    if pinned:
        tree.unpin([1, 2, 3, 4], None, era)
    assert tree.nbytes == 5 and tree.give_way() and not found(tree, [1])


def alike(one: Tokens, other: Tokens) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def test_texts_that_nobody_has_bounded_make_way_for_rows_that_lie_idle() -> None:
    tree = PrefixTree()
    tree.open(usual := object(), 12, with_rows=True)
    keep(tree, [1, 2, 3])
    keep(tree, [4, 5, 6])
    tree.leave(9)
    assert found(tree, [4, 5, 6]) == [4, 5, 6] and not found(tree, [1, 2, 3])
    tree.leave(13)
    assert not found(tree, [4, 5, 6])
    tree.open(object(), 4)  # an explicit bound does not include the rows
    keep(tree, [7, 8, 9])
    tree.close(usual)
    assert found(tree, [7, 8, 9]) == [7, 8, 9]


def test_what_was_not_used_for_the_longest_time_goes_first_leaves_before_what_they_go_on_from() -> None:
    tree = PrefixTree()
    tree.open(self := object(), 12)
    keep(tree, [1, 2, 3, 4, 5, 6])
    keep(tree, [1, 2, 3, 7, 8, 9])
    keep(tree, [50, 51, 52])
    assert found(tree, [1, 2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5, 6]
    keep(tree, [60])  # 13 bytes: the leaf 7, 8, 9 goes
    assert found(tree, [1, 2, 3, 7, 8, 9]) == [1, 2, 3]
    assert found(tree, [50, 51, 52]) == [50, 51, 52]
    tree.open(other := object(), 4)
    keep(tree, [61, 62, 63])
    assert tree.spare(torch.device("cpu")) == 10 + 3 - 3 and not found(tree, [4])
    tree.close(self)  # now it may have 4
    assert found(tree, [61, 62, 63]) == [61, 62, 63] and not found(tree, [50, 51, 52])
    keep(tree, [9] * 5)  # larger than the bound: nothing is dropped for it
    assert found(tree, [61, 62, 63]) == [61, 62, 63] and not found(tree, [9] * 5)
    assert tree.give_way() and not tree.give_way()
    tree.close(other)
    keep(tree, [1, 2])
    assert not found(tree, [1, 2])


def test_states_are_found_where_a_pinned_text_ends_and_nowhere_else() -> None:
    tree = PrefixTree()

    def pin(tokens: Tokens) -> object:
        def save(start: int, end: int) -> Columns:
            return Columns.of({"ids": torch.zeros(end - start, 1, dtype=torch.uint8)})

        sizes, era = tree.add(
            tokens, 1, None, save, pin=True, states=lambda: Columns.of({"sum": torch.tensor([sum(tokens)])})
        )
        assert sizes >= len(tokens) + 8
        return era

    def ends(tokens: Tokens) -> tuple[int, int | None]:
        count, kept = tree.find(tokens, 1, None, pinned=True, states=True)
        return count, None if kept.states is None else int(kept.states.ready()["sum"])

    era = pin([1, 2, 3, 4])
    assert ends([1, 2, 3, 4, 5]) == (4, 10) and ends([1, 2, 3]) == (0, None) == ends([1, 2, 3, 5])
    pin([1, 2, 7])  # cuts the first text in two: no text ends after 1, 2
    assert ends([1, 2, 3, 4, 5]) == (4, 10) and ends([1, 2, 7, 8]) == (3, 10) and ends([1, 2, 3]) == (0, None)
    pin([1, 2])
    assert ends([1, 2, 3]) == (2, 3)
    tree.unpin([1, 2, 3, 4], None, era)
    assert ends([1, 2, 3, 4]) == (2, 3) and tree.spare(torch.device("cpu")) == 0


def test_another_version_of_the_model_finds_nothing_not_even_what_is_pinned() -> None:
    tree = PrefixTree()
    era = keep(tree, [1, 2, 3], pin=True)
    assert found(tree, [1, 2, 3], pinned=True) == [1, 2, 3]
    assert found(tree, [1, 2, 3], version=2) == []
    keep(tree, [1, 2, 3], version=2, pin=True)
    tree.unpin([1, 2, 3], None, era)  # from an earlier era
    assert found(tree, [1, 2, 3], version=2, pinned=True) == [1, 2, 3]


def test_an_engine_reads_no_token_twice(model: Any) -> None:
    first, second = some(1, 60), some(2, 9)
    whole = gen.generate(model, [*first, *second], details=True, **SAMPLED)
    with gen.Engine(model, rows=2) as engine:
        one = engine.submit(first, **SAMPLED).completion()
        two = engine.submit([*first, *second], **SAMPLED).completion()
        three = engine.submit([*first, *one.token_ids, 5], **SAMPLED).completion()
        four = engine.submit(first, cache_salt="x", **SAMPLED).completion()
        five = engine.submit([*first, 7], cache_salt="x", **SAMPLED).completion()
        cached = [one.cached_tokens, two.cached_tokens, three.cached_tokens, four.cached_tokens, five.cached_tokens]
        assert cached == [0, 60, 67, 0, 60]  # the newest token of a text has no columns
        assert two.token_ids == whole.token_ids and four.token_ids == one.token_ids
        plain = gen.generate(model, [*first, *second], details=True, **SAMPLED)
        assert plain.cached_tokens == 0
        with torch.no_grad():
            model.hf_model.model.layers[1].mlp.up_proj.weight.mul_(1)
        assert engine.submit([*first, 7], **SAMPLED).completion().cached_tokens == 0
        assert engine.submit([*first, 7], **SAMPLED).completion().cached_tokens == 60
    with gen.Engine(model, rows=2) as engine:
        assert engine.submit([*first, 7], **SAMPLED).completion().cached_tokens == 0
    with gen.Engine(model, rows=2, prefix_bytes=0) as engine:
        assert [engine.submit(first, **SAMPLED).completion().cached_tokens for _ in range(2)] == [0, 0]
    for wrong in ({"prefix_bytes": -1}, {"prefix_bytes": "1 GB"}):
        with pytest.raises(gen.ArgumentError, match="prefix_bytes"):
            gen.Engine(model, **wrong)


def test_a_text_during_which_the_weights_have_changed_is_not_kept(model: Any) -> None:
    prompt = some(8, 50)
    with gen.Engine(model, rows=2) as engine:
        stream = engine.submit(prompt, seed=1, max_new_tokens=60, eos_token_id=[])
        next(stream)
        with torch.no_grad():
            model.hf_model.model.layers[0].mlp.up_proj.weight.mul_(1)
        stream.completion()
        assert engine.submit(prompt, **SAMPLED).completion().cached_tokens == 0
        with gen.prefix(model, prompt[:40]) as kept, torch.no_grad():
            model.hf_model.model.layers[0].mlp.up_proj.weight.mul_(1)
            assert engine.submit(prompt, **SAMPLED).completion().cached_tokens == 0
            assert kept.token_ids == prompt[:40]


def test_salts_do_not_share_live_rows(model: Any) -> None:
    prompt = some(3, 80)
    with gen.Engine(model, rows=4) as engine:
        with pytest.raises(gen.ArgumentError, match="cache_salt must be a text"):
            engine.submit(prompt, cache_salt=7)  # type: ignore[arg-type]
        first = engine.submit(prompt, cache_salt="a", seed=1, max_new_tokens=700, eos_token_id=[])
        next(first)
        made = {salt: engine.submit(prompt, cache_salt=salt, **SAMPLED).completion() for salt in ("b", None, "a")}
        assert [one.cached_tokens for one in made.values()] == [0, 0, 79]
        assert made["a"].token_ids == made["b"].token_ids == made[None].token_ids
        first.cancel()


def test_release_keeps_nothing(model: Any) -> None:
    with gen.prefix(model, some(5, 50)) as kept:
        assert kept.bytes > 0
        model.release()
        made = gen.generate(model, [*kept.token_ids, 1], details=True, **SAMPLED)
        assert made.cached_tokens == 0


@pytest.mark.parametrize("split", [False, True])
def test_what_one_stream_has_kept_is_used_on_another_one_in_order(split: bool) -> None:
    """The race detector sees each tensor; without the events of `Columns` it raises."""
    first, second = some(6, 60), some(7, 40)
    with virtual_gpus(1, check_streams=True):
        model = gen.from_transformers(tiny_model().to("cuda"), byte_tokenizer())
        kept = gen.prefix(model, first)
        made: list[gen.Completion] = []
        with gen.Engine(model, rows=2) as engine:
            made.append(engine.submit([*first, *second], **SAMPLED).completion())

            def run() -> None:  # a call beside the engine, on its own stream
                own = gen.prefix(model, [*first, *second[:20]] if split else [*first, *second])
                made.append(gen.generate(model, [*own.token_ids, 1], details=True, **SAMPLED))
                own.release()

            thread = Thread(target=run)
            thread.start()
            thread.join()
            made.append(engine.submit([*first, *second[:20], 9], **SAMPLED).completion())
        kept.release()
        model.release()
        torch.cuda.synchronize()
    assert [one.cached_tokens for one in made] == [60, 80 if split else 100, 80]
