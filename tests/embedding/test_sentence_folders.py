"""Folders of sentence-transformers: gen.embed gives the vectors of sentence-transformers itself."""

import json
import random
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from tokenizers import normalizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import gen
from gen.embedding.sentence_folders import POOLINGS
from tests.helpers import WORDS, encoder_tokenizer, tiny_encoder, tiny_model

st = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the reference")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

TEXTS = ["the cat sat on the mat .", "a dog", "red", "a dog ran on the red mat . the cat sat", "the red moon", "A Cat"]
LONG = " ".join(random.Random(0).choices(WORDS[4:], k=40))


def build(
    path: Path,
    *after: Any,
    pooling: str | Sequence[str] = "mean",
    encoder: PreTrainedModel | str = "Bert",
    tokenizer: Any = None,
    **settings: Any,
) -> Path:
    """A folder as sentence-transformers writes it, with random weights."""
    first = usual(encoder) if isinstance(encoder, str) and tokenizer is None else transformer(path, encoder, tokenizer)
    torch.manual_seed(0)
    steps = [first, modules.Pooling(32, pooling_mode=pooling), *after]
    st.SentenceTransformer(modules=steps, device="cpu", **settings).save(str(path / "model"), create_model_card=False)
    return path / "model"


@cache
def usual(shape: str) -> Any:
    """The first step with the usual tokenizer, which folders share."""
    with TemporaryDirectory() as path:
        return transformer(Path(path), shape, None)


def transformer(path: Path, encoder: PreTrainedModel | str, tokenizer: Any) -> Any:
    plain = path / "encoder"
    (tiny_encoder(encoder) if isinstance(encoder, str) else encoder).save_pretrained(plain)
    (tokenizer or encoder_tokenizer()).save_pretrained(plain)
    return modules.Transformer(str(plain))


def change(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def same(path: Path, texts: Sequence[str] = TEXTS) -> torch.Tensor:
    """gen's vectors, after a comparison with the reference."""
    return compare(*load(path), texts)


def load(path: Path) -> tuple[Any, Any]:
    """The reference, and gen's encoder."""
    reference, model = st.SentenceTransformer(str(path), device="cpu"), gen.load_encoder(path, device="cpu")
    assert model.context_length == min(reference.max_seq_length, sys.maxsize)
    return reference, model


def compare(reference: Any, model: Any, texts: Sequence[str] = TEXTS, prompt_name: str | None = None) -> torch.Tensor:
    expected = reference.encode(list(texts), convert_to_tensor=True, prompt_name=prompt_name)
    vectors: torch.Tensor = gen.embed(model, texts, truncate=True, batch_size=4, prompt_name=prompt_name)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)
    return vectors


@pytest.mark.parametrize("pooling", [*POOLINGS, ("cls", "max", "mean")])
@pytest.mark.parametrize("shape", ["Bert", "Roberta"])
def test_every_pooling(tmp_path: Path, pooling: Any, shape: str) -> None:
    path = build(tmp_path, pooling=pooling, encoder=shape)
    change(path / "tokenizer_config.json", model_max_length=20)
    vectors = same(path)
    assert vectors.norm(dim=-1).max() > 1.1  # no Normalize, so vectors keep their lengths


def test_an_old_folder_says_it_in_other_words(tmp_path: Path) -> None:
    path = build(tmp_path, modules.Normalize())
    old = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}
    (path / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32} | old))
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 7, "do_lower_case": true}')
    (path / "2_Normalize/config.json").unlink(missing_ok=True)
    kinds = ["Transformer", "Pooling", "Normalize"]
    places = ["", "1_Pooling", "2_Normalize"]
    steps = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ]
    (path / "modules.json").write_text(json.dumps(steps))
    vectors = same(path, [*TEXTS, LONG])
    assert vectors.shape == (7, 64)
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(7))


def layers() -> list[Any]:
    torch.manual_seed(1)
    return [
        modules.Dense(32, 16),
        modules.Dropout(0.5),
        modules.Dense(16, 16, bias=False, activation_function=torch.nn.GELU(), use_residual=True),
        modules.Normalize(),
        modules.LayerNorm(16),
        modules.Dense(16, 24, activation_function=None, use_residual=True),
        modules.Normalize(),
    ]


def test_layers_after_pooling(tmp_path: Path) -> None:
    path = build(tmp_path, *layers())
    assert same(path).shape == (6, 24)
    model = gen.load_encoder(path, device="cpu")
    assert gen.embed(model, []).shape == (0, 24)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gen.embed(model, TEXTS, normalize=False), gen.embed(model, TEXTS))


@pytest.mark.parametrize("after", [(), (modules.Normalize(),), (modules.Dense(32, 16),)])
def test_vectors_are_cut_to_the_folders_width(tmp_path: Path, after: tuple[Any, ...]) -> None:
    path = build(tmp_path, *after, truncate_dim=8)
    assert same(path).shape == (6, 8)
    reference, model = load(path)
    expected = reference.encode(TEXTS, convert_to_tensor=True, normalize_embeddings=True)
    torch.testing.assert_close(gen.embed(model, TEXTS, normalize=True), expected, rtol=0, atol=1e-5)
    assert gen.embed(model, []).shape == (0, 8)


def test_a_last_step_that_normalises_tokens_is_no_normalising_of_texts(tmp_path: Path) -> None:
    path = build(tmp_path, modules.Normalize(module_input_name="token_embeddings"))
    with pytest.raises(gen.ModelError, match=r"Normalize in '2_Normalize', which gen cannot do"):
        gen.load_encoder(path, device="cpu")


@pytest.mark.parametrize("limit", [5, 24])
def test_longer_texts_are_cut_where_the_folder_says(tmp_path: Path, limit: int) -> None:
    path = build(tmp_path)
    change(path / "tokenizer_config.json", model_max_length=limit)
    same(path, [*TEXTS, LONG])
    with pytest.raises(gen.ArgumentError, match=f"the encoder's context is {limit}"):
        gen.embed(gen.load_encoder(path, device="cpu"), [LONG])


def test_max_seq_length_goes_before_the_tokenizers_own(tmp_path: Path) -> None:
    path = build(tmp_path)
    change(path / "tokenizer_config.json", model_max_length=5)
    change(path / "sentence_bert_config.json", max_seq_length=9)
    same(path, [*TEXTS, LONG])
    assert gen.load_encoder(path, device="cpu").context_length == 9


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.Lowercase()])
def test_texts_are_put_into_lower_case_if_the_folder_says_so(tmp_path: Path, normalizer: Any) -> None:
    tokenizer = encoder_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizer
    path = build(tmp_path, tokenizer=tokenizer)
    change(path / "sentence_bert_config.json", do_lower_case=True)
    vectors = same(path, ["a cat", "A CAT", "[SEP] A"])
    torch.testing.assert_close(vectors[0], vectors[1])


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_prompts(tmp_path: Path, include: bool, pooling: str) -> None:
    prompts = {"query": "the moon sat on ", "document": "a "}
    path = build(tmp_path, pooling=pooling, prompts=prompts, default_prompt_name="query")
    change(path / "1_Pooling/config.json", include_prompt=include)
    reference, model = load(path)
    assert not torch.equal(compare(reference, model), compare(reference, model, prompt_name="document"))
    with pytest.raises(gen.ArgumentError, match="which are 'document', 'query'; got 'passage'"):
        gen.embed(model, TEXTS, prompt_name="passage")


def test_a_text_whose_tokens_are_all_the_prompts_is_refused(tmp_path: Path) -> None:
    prompts = {"query": "the moon sat on ", "long": "the moon sat on " * 20}
    path = build(tmp_path, tokenizer=encoder_tokenizer(special=False), prompts=prompts)
    change(path / "1_Pooling/config.json", include_prompt=False)
    _, model = load(path)
    with pytest.raises(gen.ArgumentError, match="text 1, '', has no tokens behind the prompt and so no vector"):
        gen.embed(model, ["a", ""], prompt_name="query")
    with pytest.raises(gen.ArgumentError, match="text 0, 'a', has no tokens behind the prompt"):
        gen.embed(model, ["a"], prompt_name="long", truncate=True)


def test_a_text_model_that_pools_its_last_token(tmp_path: Path) -> None:
    text_model = tiny_model(vocab_size=len(WORDS)).model
    same(build(tmp_path, modules.Normalize(), pooling="lasttoken", encoder=text_model))


@pytest.mark.parametrize("family", ["T5", "UMT5"])
def test_the_encoder_of_an_encoder_with_a_decoder(tmp_path: Path, family: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")
    config = config(vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    t5 = getattr(transformers, f"{family}Model")(config).eval()
    same(build(tmp_path, modules.Dense(32, 16, activation_function=torch.nn.Identity()), encoder=t5))


def test_special_tokens_have_the_types_that_the_tokenizer_gives_them(tmp_path: Path) -> None:
    """As XLNet's and Funnel's, whose [CLS] has the type 2."""
    backend = encoder_tokenizer().backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single="$A:0 [SEP]:0 [CLS]:2", special_tokens=[(one, WORDS.index(one)) for one in ("[CLS]", "[SEP]")]
    )
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", model_input_names=inputs)
    path = build(tmp_path, encoder=tiny_encoder("Bert", type_vocab_size=3), tokenizer=tokenizer)
    vectors, model = same(path, ["a cat", ""]), gen.load_encoder(path, device="cpu")
    torch.testing.assert_close(gen.embed(model, model.tokenize(["a cat", ""])), vectors, rtol=0, atol=1e-5)


def test_arguments_go_before_the_folder(tmp_path: Path) -> None:
    path = build(tmp_path / "cls", modules.Normalize(), pooling="cls")
    model = gen.load_encoder(path, device="cpu")
    mean = gen.load_encoder(build(tmp_path / "mean"), device="cpu")
    torch.testing.assert_close(gen.embed(model, TEXTS, pooling="mean", normalize=False), gen.embed(mean, TEXTS))


def test_only_modules_need_sentence_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(tmp_path)
    monkeypatch.setitem(sys.modules, "sentence_transformers.sentence_transformer", None)
    with pytest.raises(gen.ModelError, match=r"pip install 'gen-torch\[embed\]'"):
        gen.load_encoder(path, device="cpu")
    (path / "modules.json").unlink()
    assert gen.load_encoder(path, device="cpu").recipe.pooling == ("mean",)


def with_type(kind: str, number: int) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        steps = json.loads((path / "modules.json").read_text())
        steps[number]["type"] = kind
        (path / "modules.json").write_text(json.dumps(steps))

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (with_type("sentence_transformers.models.CLIPModel", 0), "needs sentence_transformers.models.CLIPModel, which"),
        (with_type("sentence_transformers.models.WordWeights", 1), r"WordWeights, .*a Pooling module must follow"),
        (with_type("sentence_transformers.models.Pooling", 2), r"Pooling in '2_Dense', .* after pooling it can do"),
        (with_type("sentence_transformers.models.CNN", 2), r"CNN in '2_Dense', .*after pooling it can do Dense"),
        (with_type("their.code.Model", 0), r"their\.code\.Model, .*it is code that comes with the model"),
        (
            lambda path: change(path / "config_sentence_transformers.json", model_type="SparseEncoder"),
            "is a SparseEncoder; gen.embed is for",
        ),
        (
            lambda path: change(path / "sentence_bert_config.json", module_output_name="sentence_embedding"),
            "needs module_output_name='sentence_embedding'",
        ),
        (
            lambda path: change(path / "sentence_bert_config.json", config_args={"num_hidden_layers": 1}),
            "needs config_args={'num_hidden_layers': 1}",
        ),
        (
            lambda path: change(path / "2_Dense/config.json", activation_function="torch.seed"),
            r"needs activation_function='torch\.seed'",
        ),
        (
            lambda path: change(path / "2_Dense/config.json", module_input_name="token_embeddings"),
            "Dense in '2_Dense'",
        ),
        (lambda path: change(path / "1_Pooling/config.json", pooling_mode="best"), "the Pooling .*'best'"),
        (lambda path: (path / "2_Dense/model.safetensors").unlink(), "cannot load the Dense in '2_Dense' of .*: Could"),
    ],
)
def test_what_gen_cannot_do_is_refused_by_name(tmp_path: Path, edit: Callable[[Path], object], message: str) -> None:
    path = build(tmp_path, modules.Dense(32, 16))
    edit(path)
    with pytest.raises(gen.ModelError, match=message):
        gen.load_encoder(path, device="cpu")
