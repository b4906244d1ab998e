"""Embedding: the model run by hand on each text alone is the oracle; order, pooling, limits, threads, refusals."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, T5Config, T5EncoderModel, T5Model

import gen
from tests.helpers import byte_tokenizer, encoder_tokenizer, tiny_encoder, tiny_model
from virtual_gpus import virtual_gpus

TEXTS = ["the cat sat on the mat .", "a dog", "", "the red moon", "a dog ran on the red mat . the cat sat", "a cat"]


def by_hand(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, text: str, pooling: str = "mean", normalize: bool = True
) -> Tensor:
    """The vector of one text, without padding or a batch."""
    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0].double()
    vector: Tensor = hidden.mean(0) if pooling == "mean" else hidden[0]
    return vector / vector.norm() if normalize else vector


@pytest.mark.parametrize("shape", ["Bert", "Roberta"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_each_vector_is_that_of_the_text_alone_in_the_order_of_the_texts(
    shape: str, pooling: Any, normalize: bool
) -> None:
    hf_model, tokenizer = tiny_encoder(shape), encoder_tokenizer()
    expected = torch.stack([by_hand(hf_model, tokenizer, text, pooling, normalize) for text in TEXTS])
    model = gen.from_transformers_encoder(hf_model, tokenizer)
    for batch_size in (1, 2, 4, 32):
        vectors = gen.embed(model, TEXTS, pooling=pooling, normalize=normalize, batch_size=batch_size)
        assert vectors.dtype == torch.float32
        assert vectors.device == model.placement.input_device
        torch.testing.assert_close(vectors.double(), expected, rtol=0, atol=1e-5)
    assert torch.pdist(expected).min() > 0.05, "the vectors hardly differ"


def test_load_encoder_reads_a_directory(tmp_path: Path) -> None:
    tiny_encoder().save_pretrained(tmp_path)
    encoder_tokenizer().save_pretrained(tmp_path)
    model = gen.load_encoder(tmp_path, device="cpu", dtype="float64")
    assert str(model.placement) == "cpu (float64)"
    assert (model.hidden_size, model.context_length) == (32, 24)
    expected = gen.embed(gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer()), TEXTS)
    torch.testing.assert_close(gen.embed(model, TEXTS), expected, rtol=0, atol=1e-5)


def test_an_encoder_without_position_limit_or_special_tokens() -> None:
    config = T5Config(vocab_size=15, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    torch.manual_seed(0)
    model = gen.from_transformers_encoder(T5EncoderModel(config).eval(), encoder_tokenizer(special=False))
    long = " ".join(["the", "cat"] * 100)
    expected = torch.stack([by_hand(model.hf_model, encoder_tokenizer(special=False), text) for text in (long, "a")])
    torch.testing.assert_close(gen.embed(model, [long, "a"]).double(), expected, rtol=0, atol=1e-5)
    with pytest.raises(gen.ArgumentError, match="text 1, '', has no tokens and so no vector"):
        gen.embed(model, ["a", ""])


@pytest.mark.parametrize(("shape", "limit"), [("Bert", 24), ("Roberta", 23)])
def test_a_text_that_is_too_long_is_refused_or_cut(shape: str, limit: int) -> None:
    model = gen.from_transformers_encoder(tiny_encoder(shape), encoder_tokenizer())
    words = ["cat", "dog", "moon"] * 10
    assert model.context_length == limit
    whole = gen.embed(model, [" ".join(words[: limit - 2])])
    with pytest.raises(gen.ArgumentError, match=f"text 1 has {limit + 1} tokens, the encoder's context is {limit}"):
        gen.embed(model, ["a", " ".join(words[: limit - 1])])
    assert torch.equal(gen.embed(model, [" ".join(words)], truncate=True), whole)


def test_the_callers_tokenizer_and_model_are_left_alone() -> None:
    hf_model, tokenizer = tiny_encoder(), encoder_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(3)
    before = {name: value.clone() for name, value in hf_model.state_dict().items()}
    model = gen.from_transformers_encoder(hf_model, tokenizer)
    vectors = gen.embed(model, TEXTS)
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 3
    assert all(torch.equal(value, before[name]) for name, value in hf_model.state_dict().items())
    assert torch.equal(vectors, gen.embed(gen.from_transformers_encoder(hf_model, encoder_tokenizer()), TEXTS))
    vectors.add_(1)  # an ordinary tensor


def test_threads_may_share_an_encoder() -> None:
    model = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    expected = gen.embed(model, TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(lambda n: gen.embed(model, TEXTS, truncate=n % 2 == 0), range(24)):
            assert torch.equal(vectors, expected)


def test_no_texts_have_no_vectors_of_the_usual_width() -> None:
    model = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    for normalize in (True, False):
        none, one = (gen.embed(model, texts, normalize=normalize) for texts in ([], ["a cat"]))
        assert (none.shape, none.dtype, none.device) == ((0, one.shape[1]), one.dtype, one.device)


def test_a_text_model_does_not_embed_and_an_encoder_does_not_generate(tmp_path: Path) -> None:
    text_model: Any = gen.from_transformers(tiny_model(), byte_tokenizer())
    encoder: Any = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    with pytest.raises(gen.ArgumentError, match=r"takes an encoder, as from gen.load_encoder.*got TransformersModel"):
        gen.embed(text_model, ["a"])
    with pytest.raises(gen.ArgumentError, match=r"got Encoder; an encoder is for gen\.embed"):
        gen.generate(encoder, "a")
    tiny_model().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(gen.ModelError, match=r"LlamaModel is a text model.*gen.load .*load an encoder such as BERT"):
        gen.load_encoder(tmp_path)
    experts = tiny_encoder("GraniteMoe", num_local_experts=4, num_experts_per_tok=2)  # sums in another order
    with pytest.raises(gen.ModelError, match="GraniteMoeModel is a text model"):
        gen.from_transformers_encoder(experts, encoder_tokenizer())


def test_models_that_are_no_encoder_are_refused_with_the_reason(tmp_path: Path) -> None:
    tokenizer = encoder_tokenizer()
    with pytest.raises(gen.ModelError, match=r"BertModel is in training mode.*model.eval\(\)"):
        gen.from_transformers_encoder(tiny_encoder().train(), tokenizer)
    with pytest.raises(gen.ModelError, match="LlamaForCausalLM gives no last_hidden_state: it has a head"):
        gen.from_transformers_encoder(tiny_model(), tokenizer)
    t5 = T5Model(T5Config(vocab_size=15, d_model=16, d_ff=16, num_layers=1, num_heads=2)).eval()
    with pytest.raises(gen.ModelError, match=r"T5Model is an encoder with a decoder.*as T5EncoderModel"):
        gen.from_transformers_encoder(t5, tokenizer)
    with pytest.raises(gen.ModelError, match="BertModel is on meta, expected one device with values"):
        gen.from_transformers_encoder(tiny_encoder().to("meta"), tokenizer)
    with pytest.raises(gen.ModelError, match="no directory"):
        gen.load_encoder(tmp_path / "missing")
    with pytest.raises(gen.DeviceError, match="device cuda:63 does not exist"):
        gen.load_encoder(tmp_path, device="cuda:63")


@pytest.mark.parametrize("shape", ["FNet", "ConvBert", "Reformer"])
def test_texts_of_unequal_lengths_are_not_padded_where_padding_changes_vectors(shape: str) -> None:
    chunks = {"axial_pos_embds": False, "attn_layers": ["local"], "local_attn_chunk_length": 4, "is_decoder": False}
    hf_model = tiny_encoder(shape, **(chunks if shape == "Reformer" else {}))
    model, tokenizer = gen.from_transformers_encoder(hf_model, encoder_tokenizer()), encoder_tokenizer()
    assert not model.may_pad
    expected = torch.stack([by_hand(hf_model, tokenizer, text) for text in TEXTS])
    torch.testing.assert_close(gen.embed(model, TEXTS).double(), expected, rtol=0, atol=1e-5)
    widths: list[tuple[int, ...]] = []
    hf_model.register_forward_pre_hook(
        lambda _, args, kwargs: widths.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    gen.embed(model, ["a cat", "a dog sat", "the moon"])
    assert widths == [(1, 5), (2, 4)]


def test_a_short_text_keeps_its_short_factors_beside_a_long_one() -> None:
    """transformers rotates a whole batch with the long factors if its longest text needs them."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 8}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 3.0, **factors}
    hf_model, tokenizer = tiny_encoder("NomicBert", rope_parameters=rope), encoder_tokenizer()
    expected = torch.stack([by_hand(hf_model, tokenizer, text) for text in TEXTS])
    vectors = gen.embed(gen.from_transformers_encoder(hf_model, tokenizer), TEXTS)
    torch.testing.assert_close(vectors.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ("Reformer", {"axial_pos_embds": False, "attn_layers": ["local", "lsh"], "is_decoder": False}),
        ("Yoso", {"use_expectation": False}),
    ],
)
def test_an_encoder_that_draws_at_random_in_each_forward_is_refused(shape: str, changes: dict[str, Any]) -> None:
    with pytest.raises(gen.ModelError, match=f"{shape}Model hashes its tokens by numbers that it draws"):
        gen.from_transformers_encoder(tiny_encoder(shape, **changes), encoder_tokenizer())


def test_texts_are_as_long_as_bigbird_reads_them_whole() -> None:
    """A shorter text lets it attend to all tokens from then on: a longer one would depend on what was read before."""
    hf_model, tokenizer = tiny_encoder("BigBird", block_size=2, num_random_blocks=1), encoder_tokenizer()
    model = gen.from_transformers_encoder(hf_model, tokenizer)
    assert model.context_length == 14
    long = " ".join(["cat", "dog", "moon"] * 4)
    expected = torch.stack([by_hand(hf_model, tokenizer, text) for text in (long, *TEXTS)])
    torch.testing.assert_close(gen.embed(model, [long, *TEXTS]).double(), expected, rtol=0, atol=1e-5)
    with pytest.raises(gen.ArgumentError, match="text 0 has 15 tokens, the encoder's context is 14"):
        gen.embed(model, [long + " cat"])


def test_a_pad_token_of_minus_one_is_none() -> None:
    tokenizer = encoder_tokenizer()
    tokenizer.pad_token = None
    hf_model = tiny_encoder("EuroBert", pad_token_id=-1)
    expected = torch.stack([by_hand(hf_model, tokenizer, text) for text in TEXTS])
    vectors = gen.embed(gen.from_transformers_encoder(hf_model, tokenizer), TEXTS)
    torch.testing.assert_close(vectors.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("limit", [-1, 0])
def test_a_config_may_say_that_there_is_no_position_limit(limit: int) -> None:
    hf_model = tiny_encoder()
    hf_model.config.max_position_embeddings = limit
    assert gen.from_transformers_encoder(hf_model, encoder_tokenizer()).context_length > 1000


def test_an_encoder_of_something_else_than_tokens_is_refused() -> None:
    model = tiny_encoder()
    model.set_input_embeddings(None)
    with pytest.raises(gen.ModelError, match="BertModel has no embedding of tokens, so it reads no texts"):
        gen.from_transformers_encoder(model, encoder_tokenizer())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", ["Bert", "Roberta"])
def test_encoders_of_every_type_pass_the_probe(shape: str, dtype: torch.dtype) -> None:
    model = gen.from_transformers_encoder(tiny_encoder(shape).to(dtype), encoder_tokenizer())
    assert model.placement.dtype == dtype
    assert model.may_pad


def test_an_encoder_put_back_into_training_mode_is_refused() -> None:
    hf_model = tiny_encoder()
    model = gen.from_transformers_encoder(hf_model, encoder_tokenizer())
    hf_model.encoder.layer[0].train()
    with pytest.raises(gen.ModelError, match=r"BertModel is in training mode.*model.eval\(\)"):
        gen.embed(model, TEXTS)


def test_an_encoder_that_was_moved_is_refused() -> None:
    with virtual_gpus(2):
        hf_model = tiny_encoder().to("cuda:1")
        model = gen.from_transformers_encoder(hf_model, encoder_tokenizer())
        hf_model.to("cuda:0")
        with pytest.raises(
            gen.ModelError, match=r"BertModel was on cuda:1 when .*, and is on cuda:0 now; move it back"
        ):
            gen.embed(model, TEXTS)


def test_an_encoder_whose_forward_fails_is_refused() -> None:
    model = tiny_encoder()
    model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(gen.ModelError, match="gen cannot run BertModel: ZeroDivisionError: division by zero"):
        gen.from_transformers_encoder(model, encoder_tokenizer())


def test_a_tokenizer_with_more_ids_than_the_embedding_is_refused() -> None:
    with pytest.raises(gen.ModelError, match="the tokenizer has ids up to 14, the embedding of BertModel only 5 rows"):
        gen.from_transformers_encoder(tiny_encoder(vocab_size=5), encoder_tokenizer())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "a cat"}, r"texts must be a list of texts, got str; give \[text\] for one"),
        ({"texts": b"a cat"}, "texts must be a list of texts, got bytes"),
        pytest.param(
            {"texts": (text for text in TEXTS)},
            "texts must be a list of texts, got generator; make a list of them",
            id="generator",
        ),
        ({"texts": None}, "texts must be a list of texts, got NoneType"),
        ({"texts": ["a", b"cat"]}, "text 1 must be a str, got bytes"),
        ({"texts": ["a", "c\ud800at"]}, r"text 1 has a lone surrogate \\ud800 at character 1"),
        ({"pooling": torch.tensor([1, 2])}, r"pooling must be one of .*, got Tensor \(2,\) int64"),
        ({"pooling": ["mean"]}, "pooling must be one of .*"),
        ({"normalize": "no"}, "normalize must be True or False, got 'no'"),
        ({"prompt_name": ["query"]}, r"prompt_name must be one of the model's prompts, .*; got \['query'\]"),
        ({"truncate": None}, "truncate must be True or False, got None"),
        ({"progress": "yes"}, "progress must be True or False, got 'yes'"),
        ({"batch_size": 0}, "batch_size must be a whole number at least 1, got 0"),
        ({"batch_size": 2.0}, "batch_size must be a whole number at least 1, got 2.0"),
        ({"batch_size": torch.tensor([1, 2])}, "batch_size must be a whole number at least 1, got Tensor"),
    ],
    ids=str,
)
def test_arguments_of_the_wrong_kind_are_refused(arguments: dict[str, Any], message: str) -> None:
    encoder = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    with pytest.raises(gen.ArgumentError, match=message):
        gen.embed(encoder, **({"texts": TEXTS} | arguments))


def test_token_ids_are_read_as_they_are() -> None:
    hf_model, tokenizer = tiny_encoder(), encoder_tokenizer()
    model = gen.from_transformers_encoder(hf_model, tokenizer)
    rows = model.tokenize(TEXTS)
    for given in (rows, [torch.tensor(row) for row in rows]):
        torch.testing.assert_close(gen.embed(model, given), gen.embed(model, TEXTS), rtol=0, atol=1e-5)  # type: ignore[arg-type]
    bare = [rows[0][1:-1]]  # without special tokens
    by_ids = hf_model(input_ids=torch.tensor(bare)).last_hidden_state[0].mean(0)
    torch.testing.assert_close(gen.embed(model, bare, normalize=False)[0], by_ids, rtol=0, atol=1e-5)
    long = [rows[0] * 100]
    cut = [long[0][: model.context_length]]
    torch.testing.assert_close(gen.embed(model, long, truncate=True), gen.embed(model, cut), rtol=0, atol=1e-5)
    for wrong, message in (
        ([[model.vocab_size]], f"text 0 has the token id {model.vocab_size}; the vocabulary is 0 to"),
        ([[1], []], "text 1, .* has no tokens and so no vector"),
        ([[1], "a"], "text 1 must be a token id or a list of token ids, got 'a'"),
        (long, r"text 0 has \d+ tokens, the encoder's context is"),
    ):
        with pytest.raises(gen.ArgumentError, match=message):
            gen.embed(model, wrong)  # type: ignore[arg-type]
    with pytest.raises(gen.ArgumentError, match="texts are token ids, and prompt_name is for texts"):
        gen.embed(model, rows, prompt_name="query")


def test_a_dtype_that_changes_later_is_the_encoders() -> None:
    encoder = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    before = gen.embed(encoder, ["a b c", "b"])
    encoder.hf_model.double()
    assert str(encoder.placement) == "cpu (float64)"
    torch.testing.assert_close(gen.embed(encoder, ["a b c", "b"]), before, atol=1e-5, rtol=1e-5)
