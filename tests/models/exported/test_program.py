"""Exported programs: texts equal the transformers adapter's, every shape of input works, and what is refused."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import gen
from gen.completions import Completion
from gen.models.transformers.model import TransformersModel
from tests.helpers import EOS, byte_tokenizer, tiny_model
from tests.models.exported.programs import (
    LONGEST,
    PROMPTS,
    Bigrams,
    Positioned,
    dynamic,
    exported,
    ids,
    of_everything,
    one_layer,
    program_of,
)

greedy = gen.samplers.greedy()


def details(model: Any, prompts: list[str] = PROMPTS, **options: Any) -> list[Completion]:
    options = dict[str, Any](sampler=greedy, max_new_tokens=10) | options
    completions: list[Completion] = gen.generate(model, prompts, details=True, **options)
    return completions


def token_ids(model: Any, prompts: list[str] = PROMPTS, **options: Any) -> list[list[int]]:
    return [completion.token_ids for completion in details(model, prompts, **options)]


def transformers_model(shape: str = "one layer") -> TransformersModel:
    return gen.from_transformers(one_layer(shape), byte_tokenizer())


def load(program: Any, **options: Any) -> Any:
    return gen.from_exported(program, byte_tokenizer(), **({"device": "cpu", "eos_token_id": []} | options))


@pytest.mark.parametrize("shape", ["one layer", "gpt2"])
def test_greedy_texts_are_those_of_the_transformers_adapter(shape: str) -> None:
    expected = token_ids(transformers_model(shape))
    model = load(exported(shape))
    assert token_ids(model) == expected
    assert [token_ids(model, [prompt])[0] for prompt in PROMPTS] == expected
    assert len({token for text in expected for token in text}) > 8, "the texts hardly vary"


@pytest.mark.parametrize("rows", [1, 3])
def test_fixed_shapes_are_padded_and_larger_batches_run_in_parts(rows: int) -> None:
    whole, encode = Positioned(), byte_tokenizer()
    model = load(program_of(whole, *(torch.ones_like(ids(rows, 40)) for _ in range(3)), dynamic_shapes=None))
    assert model.context_length == 40
    found = token_ids(model)
    assert found == [whole.likeliest(encode(prompt)["input_ids"], 10) for prompt in PROMPTS]
    assert len({token for text in found for token in text}) > 8, "the texts hardly vary"
    full = details(model, ["x" * 38, "y"], max_new_tokens=30)
    assert [len(completion.token_ids) for completion in full] == [2, 30]
    assert full[1].token_ids == whole.likeliest(encode("y")["input_ids"], 30)
    with pytest.raises(gen.ArgumentError, match="prompt 0 has 40 tokens; the model's context of 40 leaves no room"):
        details(model, ["x" * 40])


def test_rows_run_in_parts_where_the_logits_of_all_their_tokens_would_take_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most, rows = 100_000, []
    model = load(exported())
    monkeypatch.setattr("gen.models.exported.program._LOGITS", most)
    model.module.register_forward_hook(lambda module, args, logits: rows.append(tuple(logits.shape)))
    texts = [text for [text] in (token_ids(model, [prompt]) for prompt in PROMPTS)]
    rows.clear()
    assert token_ids(model, PROMPTS * 8) == texts * 8
    assert all(count * width * vocabulary <= most for count, width, vocabulary in rows)
    assert max(count for count, _, _ in rows) > 1


def test_drawn_texts_samples_beams_and_streams_are_those_of_the_transformers_adapter() -> None:
    ours, theirs = load(exported()), transformers_model()
    for sampler in (gen.samplers.multinomial(samples=2), gen.samplers.beam_search(beams=3)):
        results = [gen.generate(m, PROMPTS, sampler=sampler, seed=3, max_new_tokens=8) for m in (ours, theirs)]
        assert results[0] == results[1]
    assert "".join(gen.stream(ours, "Ada", seed=3, max_new_tokens=8)) == gen.generate(
        theirs, "Ada", seed=3, max_new_tokens=8
    )


def test_a_transformers_model_exported_as_it_is_gives_its_own_output_class(tmp_path: Path) -> None:
    shapes = {"input_ids": {0: Dim.AUTO, 1: Dim.AUTO}, "use_cache": None}
    with torch.no_grad():
        program = torch.export.export(
            one_layer("opt"), (), {"input_ids": ids(2, 5), "use_cache": False}, dynamic_shapes=shapes
        )
    torch.export.save(program, tmp_path / "model.pt2")
    model = load(tmp_path / "model.pt2")
    assert token_ids(model, ["", *PROMPTS]) == token_ids(transformers_model("opt"), ["", *PROMPTS])


def test_logits_may_be_in_a_tuple_or_a_dict() -> None:
    class Wrapped(Bigrams):
        def __init__(self, wrap: Any) -> None:
            super().__init__()
            self.wrap = wrap

        def forward(self, input_ids: Tensor) -> Any:
            return self.wrap(super().forward(input_ids), input_ids.float())

    expected = token_ids(load(program_of(Bigrams())))
    for wrap in (lambda logits, rest: (logits, rest), lambda logits, rest: {"rest": rest, "logits": logits}):
        assert token_ids(load(program_of(Wrapped(wrap)))) == expected
    with pytest.raises(gen.ModelError, match="gives a dict of rest without logits"):
        load(program_of(Wrapped(lambda logits, rest: {"rest": rest})))


def test_one_row_of_positions_is_for_all() -> None:
    class Positions(Positioned):
        def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(input_ids, torch.ones_like(input_ids), position_ids)

    batch, length = Dim("batch", min=1, max=64), Dim("length", min=1, max=LONGEST)
    shapes = {"input_ids": {0: batch, 1: length}, "position_ids": {1: length}}
    program = program_of(Positions(), ids(2, 5), torch.arange(5)[None], dynamic_shapes=shapes)
    expected = [Positioned().likeliest(byte_tokenizer()(prompt)["input_ids"], 10) for prompt in PROMPTS]
    assert token_ids(load(program)) == expected


def test_the_placement_says_that_there_is_no_cache() -> None:
    model = load(of_everything())
    assert not model.placement.has_cache
    assert model.placement.devices == (torch.device("cpu"),)
    assert model.placement.dtype == torch.float32
    assert (model.vocab_size, model.context_length) == (300, LONGEST)


def test_a_text_ends_with_the_tokenizers_eos_unless_told_otherwise() -> None:
    program = of_everything()
    assert load(program, eos_token_id=None).eos_token_ids == (EOS,)
    assert load(program, eos_token_id=7).eos_token_ids == (7,)
    first = token_ids(load(program))[0]
    ended = details(load(program, eos_token_id=[first[2]]))[0]
    assert ended.finish_reason == "eos"
    assert ended.token_ids == first[: first.index(first[2])]


def test_the_context_may_be_given_where_the_program_knows_no_limit() -> None:
    program = program_of(Bigrams(), dynamic_shapes={"input_ids": {0: Dim.AUTO, 1: Dim.AUTO}})
    model = load(program, context_length=20)
    assert len(token_ids(model, ["x" * 15], max_new_tokens=30)[0]) == 5
    with pytest.raises(gen.ArgumentError, match=r"context_length must be a whole number .* at most 64, got 100"):
        load(of_everything(), context_length=100)


class _Headless(nn.Module):
    def forward(self, input_ids: Tensor) -> Tensor:
        return nn.functional.one_hot(input_ids % 32, 32).float()


class _LastOnly(Bigrams):
    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids)[:, -1]


class _Counting(Bigrams):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input_ids: Tensor) -> Tensor:
        self.get_buffer("calls").add_(1)
        return super().forward(input_ids)


class _Images(Bigrams):
    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input_ids) + pixel_values.mean()


class _Masked(Bigrams):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input_ids) + attention_mask.sum()


def test_programs_that_are_no_language_model_are_refused_with_what_to_do() -> None:
    fixed = {"dynamic_shapes": None}
    with pytest.raises(
        gen.ModelError, match=r"\(1, 3, 32\) has 32 numbers for each token, the tokenizer 259 ids.*head"
    ):
        load(program_of(_Headless()))
    with pytest.raises(gen.ModelError, match=r"for input_ids \(2, 3\) the program gives \(2, 300\).*logits_to_keep"):
        load(program_of(_LastOnly(), dynamic_shapes={"input_ids": {0: Dim("b", min=2), 1: Dim("t", min=1, max=9)}}))
    with pytest.raises(gen.ModelError, match="changes calls at each call, as a cache of its own"):
        load(program_of(_Counting()))
    with pytest.raises(gen.ModelError, match=r"takes pixel_values \(3, 8\). Export a model that takes input_ids"):
        load(program_of(_Images(), ids(2, 5), torch.zeros(3, 8), **fixed))
    with pytest.raises(gen.ModelError, match=r"takes attention_mask \(2, 1, 5, 5\), expected \(batch, length\)"):
        mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
        load(program_of(_Masked(), ids(2, 5), mask, **fixed))
    with pytest.raises(gen.ModelError, match=r"takes input_ids \(2, 1\), one token at a time"):
        load(program_of(Bigrams(), ids(2, 1), **fixed))
    with pytest.raises(gen.ModelError, match=r"the program takes input_ids \(5,\), expected \(batch, length\)"):
        load(program_of(_Headless(), ids(1, 5)[0], **fixed))
    with pytest.raises(gen.ModelError, match=r"input_ids are torch.float32, expected int64"):
        load(program_of(nn.Linear(5, 5), torch.zeros(2, 5), **fixed))


class _Dropping(nn.Module):
    def __init__(self, *, in_attention: bool) -> None:
        super().__init__()
        self.model = Bigrams()
        self.in_attention = in_attention

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids)
        if self.in_attention:
            dropout = 0.1 if self.training else 0.0
            return nn.functional.scaled_dot_product_attention(logits, logits, logits, None, dropout, is_causal=True)
        return nn.functional.dropout(logits, 0.1, self.training)


@pytest.mark.parametrize("in_attention", [False, True])
def test_a_model_exported_in_training_mode_is_refused(in_attention: bool) -> None:
    model = _Dropping(in_attention=in_attention)
    load(program_of(model))
    training = torch.export.export(model.train(), (ids(2, 5),), dynamic_shapes=dynamic())
    with pytest.raises(gen.ModelError, match=r"drops out at random.*in training mode. Call model.eval\(\)"):
        load(training)


def test_a_length_that_is_computed_from_another_is_refused() -> None:
    class Pairs(Bigrams):
        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(input_ids) + input_ids.view(input_ids.shape[0], -1, 2).sum()

    length = 2 * Dim("half", min=1, max=8)
    with pytest.raises(gen.ModelError, match=r"whose size 2\*\w+ depends on another one"):
        load(program_of(Pairs(), ids(2, 6), dynamic_shapes={"input_ids": {1: length}}))


def test_an_encoder_is_no_causal_language_model() -> None:
    class Encoder(Bigrams):
        def forward(self, input_ids: Tensor) -> Tensor:
            logits = super().forward(input_ids)
            return logits + logits.mean(1, keepdim=True)

    with pytest.raises(gen.ModelError, match=r"no causal language model: .* depend on the tokens after.*load_encoder"):
        load(program_of(Encoder()))


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(exported(), path)
    whole = path.read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.pt2").write_text("not a program", encoding="utf-8")
    for name in ("cut.pt2", "text.pt2"):
        with pytest.raises(gen.ModelError, match=rf"{name}' is no file of torch\.export\.save, or only a part of one"):
            load(tmp_path / name)
    with zipfile.ZipFile(path) as given, zipfile.ZipFile(tmp_path / "newer.pt2", "w") as changed:
        for entry in given.infolist():
            content = given.read(entry)
            if entry.filename.endswith("models/model.json"):
                described = json.loads(content)
                described["schema_version"]["major"] += 90
                content = json.dumps(described).encode()
            changed.writestr(entry.filename, content)
    with pytest.raises(
        gen.ModelError, match=r"SchemaVersion\(major=9\d.*Export the model again with this version"
    ) as e:
        load(tmp_path / "newer.pt2")
    assert torch.__version__ in str(e.value)
    assert not caplog.records, "torch's stack is not shown beside the error"
    torch.export.load(path)


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gen.ModelError, match=r"no file '.*missing.pt2'; save a program with torch.export.save"):
        load(tmp_path / "missing.pt2")
    torch.save({}, tmp_path / "other.pt2")
    with pytest.raises(gen.ModelError, match=r"cannot read '.*other.pt2' as a program of torch.export.save"):
        load(tmp_path / "other.pt2")
    with pytest.raises(gen.ArgumentError, match=r"got LlamaForCausalLM; for a transformers model use gen.from_trans"):
        load(tiny_model())
