"""Changes of a model with packed layers between calls: each is either refused, or in the next text.

The oracle is the most likely tokens by transformers' own forward, with the model's numbers in plain layers of float64.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

import gen
from gen.models.transformers.packed_weight import PackedWeight
from tests.helpers.demo import short_demo
from tests.models.transformers.test_cpu_layouts import needs

pytestmark = [
    pytest.mark.usefixtures("small_layers", "soon_worth_it"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # PEFT reads what is going
]

PROMPT, TOKENS = "Once upon a time", 8
PACKED = 2 * 7 + 1  # weights: of two layers, and the head


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, demo = tmp_path_factory.mktemp("demo"), short_demo()
    demo.hf_model.save_pretrained(folder)
    cast(Any, demo.tokenizer)._tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def model(saved: Path) -> Any:
    needs(torch.float32)
    made = gen.load(saved, device="cpu", pack=True)
    assert sum(isinstance(one, PackedWeight) for one in made.hf_model.parameters()) == PACKED
    return made


def text(model: Any) -> Any:
    return gen.generate(model, PROMPT, sampler=gen.samplers.greedy(), max_new_tokens=TOKENS, details=True).token_ids


def by_transformers(model: Any) -> list[int]:
    prompt = model.tokenizer.encode(PROMPT)
    plain, found = copy.deepcopy(model.hf_model).double(), list[int]()
    while len(found) < TOKENS and not {*found[-1:]} & {*model.eos_token_ids}:
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([[*prompt, *found]])).logits[0, -1, : model.tokenizer.vocab_size]
        found.append(int(logits.argmax()))
    return [token for token in found if token not in model.eos_token_ids]


def layer(model: Any, number: int = 0) -> Any:
    return model.hf_model.model.layers[number]


class Own(nn.Module):
    """An adapter of the user's, as one writes it by hand."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, self.scale = base, 0.0
        self.own = nn.Parameter(torch.randn_like(base.weight))

    def forward(self, states: Any) -> Any:
        return self.base(states) + self.scale * functional.linear(states, self.own)


class Negated(nn.Module):
    def forward(self, weight: Any) -> Any:
        return -weight


def negated(state: dict[str, Any]) -> dict[str, Any]:
    return {name: -one if "down_proj" in name else one for name, one in state.items()}


def with_own(model: Any) -> None:
    layer(model).mlp.down_proj = Own(layer(model).mlp.down_proj)


def without_gradients(change: Callable[[Any], object]) -> Callable[[Any], object]:
    return torch.no_grad()(change)


REFUSED: dict[str, Callable[[Any], object]] = {  # test_packed_weight.py has the ways to change one weight
    "rows of the embedding": lambda m: m.hf_model.model.embed_tokens.weight.data.__setitem__(slice(0, 40), 0),
    "foreach": without_gradients(lambda m: torch._foreach_mul_([*m.hf_model.parameters()], -1.0)),
    "parametrize": lambda m: parametrize.register_parametrization(layer(m).mlp.down_proj, "weight", Negated()),
}

# what is first, and then between two calls; tests/loop/replay has what concerns no weights
SEEN: dict[str, tuple[Callable[[Any], object] | None, Callable[[Any], object]]] = {
    "a norm": (None, without_gradients(lambda m: m.hf_model.model.norm.weight.mul_(-1))),
    "a buffer replaced": (
        None,
        lambda m: setattr(m.hf_model.model.rotary_emb, "inv_freq", 3 * m.hf_model.model.rotary_emb.inv_freq),
    ),
    "hook": (None, lambda m: layer(m).mlp.register_forward_hook(lambda part, given, made: -3 * made)),
    "hook before": (None, lambda m: m.hf_model.lm_head.register_forward_pre_hook(lambda part, given: (-given[0],))),
    "forward of a layer": (
        None,
        lambda m: setattr(
            layer(m).mlp.down_proj,
            "forward",
            MethodType(lambda own, x: functional.linear(x, -own.weight), layer(m).mlp.down_proj),
        ),
    ),
    "a layer replaced": (None, lambda m: setattr(layer(m), "mlp", nn.Identity())),
    "a weight replaced": (
        None,
        lambda m: setattr(layer(m).mlp.down_proj, "weight", nn.Parameter(-layer(m).mlp.down_proj.weight.detach())),
    ),
    "an own adapter": (with_own, lambda m: setattr(layer(m).mlp.down_proj, "scale", 3.0)),
    "weight_norm": (
        lambda m: nn.utils.parametrizations.weight_norm(layer(m).mlp.down_proj),
        lambda m: layer(m).mlp.down_proj.parametrizations.weight.original0.data.mul_(-5),
    ),
    "load_state_dict": (None, lambda m: m.hf_model.load_state_dict(negated(m.hf_model.state_dict()))),
    "load_state_dict, assign": (
        None,
        lambda m: m.hf_model.load_state_dict(negated(m.hf_model.state_dict()), assign=True),
    ),
    "eager attention": (None, lambda m: m.hf_model.set_attn_implementation("eager")),
    "moved to another type and back": (None, lambda m: m.hf_model.double().float()),
}
UNCHANGED = ["eager attention", "moved to another type and back"]  # texts stay the same


@pytest.mark.parametrize("change", REFUSED)
def test_changes_of_packed_weights_are_refused(change: str, model: Any) -> None:
    before = [text(model) for _ in range(2)]
    with pytest.raises(gen.ModelError, match=r"cannot be changed .*gen.load\(..., pack=False\)"):
        REFUSED[change](model)
    if change != "foreach":
        assert before == 2 * [text(model)]
    assert text(model) == by_transformers(model)


@pytest.mark.parametrize("change", SEEN)
def test_other_changes_are_in_the_next_text(change: str, model: Any) -> None:
    torch.manual_seed(0)
    first, then = SEEN[change]
    if first:
        first(model)
    before = [text(model) for _ in range(2)]
    then(model)
    assert text(model) == by_transformers(model)
    assert text(model) == by_transformers(model)
    assert (before == 2 * [text(model)]) == (change in UNCHANGED)


@pytest.fixture
def adapted(model: Any) -> tuple[Any, Any]:
    """A model with two adapters of PEFT on packed layers, and its PEFT model."""
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    theirs: Any = get_peft_model(model.hf_model, config, adapter_name="one")
    theirs.add_adapter("two", config)
    for number, name in enumerate(("one", "two")):
        torch.manual_seed(number)
        for own, weight in theirs.named_parameters():
            if "lora_B" in own and name in own:
                nn.init.normal_(weight, 0.0, 1.0)
    theirs.eval()
    assert sum(isinstance(one, PackedWeight) for one in theirs.parameters()) == PACKED
    return gen.from_transformers(theirs, model.tokenizer._tokenizer), theirs


def test_adapters_are_switched_on_packed_layers(adapted: tuple[Any, Any]) -> None:
    model, theirs = adapted
    found = {}
    for name in ("one", "two", "one", "two"):
        theirs.set_adapter(name)
        found[name] = text(model)
        assert found[name] == by_transformers(model)
    with theirs.disable_adapter():
        found[""] = text(model)
        assert found[""] == by_transformers(model)
    assert len({*map(tuple, found.values())}) == 3
    for part in theirs.modules():
        if isinstance(getattr(part, "scaling", None), dict):
            cast(Any, part).scaling["two"] *= 5
    assert text(model) == by_transformers(model) != found["two"]
    assert sum(isinstance(one, PackedWeight) for one in theirs.parameters()) == PACKED


@pytest.mark.parametrize("safe", [False, True])
def test_merging_adapters_unpacks_their_layers_first(safe: bool, adapted: tuple[Any, Any]) -> None:
    model, theirs = adapted
    before = text(model)
    theirs.merge_adapter(safe_merge=safe)
    assert sum(isinstance(one, PackedWeight) for one in theirs.parameters()) == PACKED - 2 * 3
    assert text(model) == by_transformers(model) == before
    theirs.unmerge_adapter()
    theirs.set_adapter("two")
    assert text(model) == by_transformers(model) != before
    theirs.set_adapter("one")
    assert text(gen.from_transformers(theirs.merge_and_unload(), model.tokenizer._tokenizer)) == before


def test_adapters_are_trained_on_packed_layers(adapted: tuple[Any, Any]) -> None:
    model, theirs = adapted
    before = text(model)
    optimiser = torch.optim.SGD([one for one in theirs.parameters() if one.requires_grad], lr=5.0)
    theirs.train()
    token_ids = torch.arange(5, 37).reshape(2, 16)
    theirs(token_ids, labels=token_ids).loss.backward()
    optimiser.step()
    theirs.eval()
    assert text(model) == by_transformers(model) != before


@pytest.mark.parametrize(
    "options", [{"use_dora": True}, {"init_lora_weights": "pissa"}, {"modules_to_save": ["o_proj"]}], ids=str
)
def test_other_adapters_are_put_on_packed_layers(options: dict[str, Any], model: Any) -> None:
    theirs: Any = get_peft_model(model.hf_model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], **options))
    theirs.eval()
    ours = gen.from_transformers(theirs, model.tokenizer._tokenizer)
    assert text(ours) == by_transformers(ours)
    theirs.merge_adapter()
    assert text(ours) == by_transformers(ours)
