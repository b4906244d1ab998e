"""What a module reads from objects without tensors: followed where a user vouches for it, else not recorded.

Oracle: the same text with `replay=False`, which runs the model as it is.
"""

import argparse
import contextvars
import json
import logging
import sys
import types
from collections import UserDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gen
from gen.models.transformers import snapshot
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.snapshot import Snapshot
from tests.helpers import byte_tokenizer, stored, tiny_model
from tests.loop.calls import kept_rows

SETTINGS: dict[str, Any] = {"sampler": gen.samplers.greedy(), "max_new_tokens": 28, "eos_token_id": []}
Change = Callable[[], object]


def text(model: TransformersModel, **settings: Any) -> list[int]:
    token_ids: list[int] = gen.generate(model, "to be", details=True, **SETTINGS, **settings).token_ids
    return token_ids


class Scaled(torch.nn.Linear):
    """A head that multiplies its weights by a number that a function finds."""

    def forward(self, states: Any) -> Any:
        return super().forward(states) * self.scale()

    scale: Callable[[], float]


def scaled(scale: Callable[..., Any]) -> Any:
    """A model with such a head; a forward that is a function of its own would be the same."""
    hf_model: Any = tiny_model()
    hf_model.lm_head.__class__ = Scaled
    hf_model.lm_head.scale = scale
    return hf_model


@dataclass
class Inner:
    scale: float = 1.0


@dataclass
class Args:
    inner: Inner = field(default_factory=Inner)


class Slots:
    __slots__ = ("__hidden", "scale")

    def __init__(self) -> None:
        self.scale, self.__hidden = 1.0, 1.0

    def hide(self) -> None:
        self.__hidden = -1.0

    def read(self) -> float:
        return self.scale * self.__hidden


class Settings:
    """A class whose attributes are settings."""

    scale = 1.0


class Derived(Settings):
    factor = 1.0

    def read(self) -> float:
        return self.scale * self.factor

    @property
    def also(self) -> float:
        return self.read()

    @staticmethod
    def fixed() -> float:
        return 1.0


class Called:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self) -> float:
        return self.scale

    @cached_property
    def unread(self) -> float:
        return 1.0


class Own(dict[str, float]):
    other = 1.0


Pair = namedtuple("Pair", "one two")


def _closure() -> tuple[Callable[..., Any], Change]:
    box = 1.0

    def scale() -> float:
        return box

    def change() -> None:
        nonlocal box
        box = -1.0

    return scale, change


def _default() -> tuple[Callable[..., Any], Change]:
    def scale(by: float = 1.0, *, again: float = 1.0) -> float:
        return by * again

    return scale, lambda: setattr(scale, "__kwdefaults__", {"again": -1.0})


def _attribute() -> tuple[Callable[..., Any], Change]:
    def scale() -> Any:
        return vars(scale)["by"]

    vars(scale)["by"] = 1.0
    return scale, lambda: vars(scale).update(by=-1.0)


def _class_attribute() -> tuple[Callable[..., Any], Change]:
    class Local(Derived):
        factor = 1.0

    return Local().read, lambda: setattr(Local, "factor", -1.0)


def _namespace_class() -> tuple[Callable[..., Any], Change]:
    class Local:
        scale = 1.0

    return partial(getattr, Local, "scale"), lambda: setattr(Local, "scale", -1.0)


def _patched_method() -> tuple[Callable[..., Any], Change]:
    class Local:
        def read(self) -> float:
            return 1.0

    one = Local()
    return lambda: one.read(), lambda: setattr(Local, "read", lambda self: -1.0)


def _cached() -> tuple[Callable[..., Any], Change]:
    box = {"scale": 1.0}

    @lru_cache(maxsize=1)
    def cached() -> dict[str, float]:
        return box

    cached()
    return lambda: cached()["scale"], lambda: box.update(scale=-1.0)


def _of(holder: Any, read: Callable[[Any], Any], change: Callable[[Any], object]) -> Callable[[], Any]:
    return lambda: (partial(read, holder), lambda: change(holder))


CASES: dict[str, Callable[[], tuple[Callable[..., Any], Change]]] = {
    "dataclass": _of(Args(), lambda one: one.inner.scale, lambda one: setattr(one.inner, "scale", -1.0)),
    "slots": _of(Slots(), lambda one: one.read(), lambda one: setattr(one, "scale", -1.0)),
    "private slot": _of(Slots(), lambda one: one.read(), lambda one: one.hide()),
    "namespace": _of(types.SimpleNamespace(s=1.0), lambda one: one.s, lambda one: setattr(one, "s", -1.0)),
    "argparse": _of(argparse.Namespace(s=1.0), lambda one: one.s, lambda one: setattr(one, "s", -1.0)),
    "dict": _of({"a": [{"s": 1.0}]}, lambda one: one["a"][0]["s"], lambda one: one["a"][0].update(s=-1.0)),
    "dict of its own": _of(Own(s=1.0), lambda one: one["s"] * one.other, lambda one: setattr(one, "other", -1.0)),
    "user dict": _of(UserDict(s=1.0), lambda one: one["s"], lambda one: one.update(s=-1.0)),
    "view": _of(types.MappingProxyType({"s": [1.0]}), lambda one: one["s"][0], lambda one: one["s"].insert(0, -1.0)),
    "tuple": _of(Pair(1, [1.0]), lambda one: one.two[0], lambda one: one.two.insert(0, -1.0)),
    "deque": _of(deque([1.0]), lambda one: one[0], lambda one: one.appendleft(-1.0)),
    "callable": lambda: (lambda one: (one, lambda: setattr(one, "scale", -1.0)))(Called(1.0)),
    "method": lambda: (lambda one: (one.__call__, lambda: setattr(one, "scale", -1.0)))(Called(1.0)),
    "array": _of(np.ones(3), lambda one: float(one[1]), lambda one: one.__setitem__(1, -1.0)),
    "context variable": _of(contextvars.ContextVar("s", default=1.0), lambda one: one.get(), lambda one: one.set(-1.0)),
    "closure": _closure,
    "default": _default,
    "attribute of a function": _attribute,
    "attribute of a class": _class_attribute,
    "class of settings": _namespace_class,
    "patched method": _patched_method,
    "behind lru_cache": _cached,
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_followed_drops_recordings(case: str) -> None:
    scale, change = CASES[case]()
    model = gen.from_transformers(scaled(scale), byte_tokenizer(), replay=True, probe=False)
    for _ in range(2):
        before = text(model)
    assert kept_rows(model).recordings and model.check() == model.check()
    change()
    after = text(model)
    assert after == text(model, replay=False)
    assert after != before


def test_a_forward_of_an_instance_is_followed() -> None:
    hf_model: Any = tiny_model()
    box, plain = {"scale": 1.0}, hf_model.lm_head.forward
    hf_model.lm_head.forward = lambda states: plain(states) * box["scale"]
    model = gen.from_transformers(hf_model, byte_tokenizer(), replay=True, probe=False)
    for _ in range(2):
        before = text(model)
    assert kept_rows(model).recordings
    box["scale"] = -1.0
    assert text(model) == text(model, replay=False) != before


everywhere = {"scale": 1.0}
variable = contextvars.ContextVar("variable", default=1.0)


def patched_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    hf_model: Any = tiny_model()
    kind, plain = type(hf_model.model.norm), type(hf_model.model.norm).forward
    monkeypatch.setattr(kind, "forward", lambda self, states: plain(self, states) * everywhere["scale"])
    return hf_model


def registered(monkeypatch: pytest.MonkeyPatch) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    def attend(*arguments: Any, **settings: Any) -> Any:
        out, weights = sdpa_attention_forward(*arguments, **settings)
        return out * everywhere["scale"], weights

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "own", attend)
    assert AttentionInterface()["own"] is attend
    hf_model: Any = tiny_model()
    hf_model.config._attn_implementation = "own"
    return hf_model


def activation(monkeypatch: pytest.MonkeyPatch) -> Any:
    hf_model: Any = tiny_model()
    mlp = hf_model.model.layers[0].mlp
    del mlp.act_fn
    mlp.act_fn = lambda states: torch.nn.functional.silu(states) * everywhere["scale"]
    return hf_model


@pytest.mark.parametrize(
    "make",
    [
        lambda patches: scaled(lambda: everywhere["scale"]),
        lambda patches: scaled(lambda: variable.get() * everywhere["scale"]),
        patched_class,
        registered,
        activation,
    ],
)
def test_what_cannot_be_followed_is_not_recorded_and_nothing_is_kept(
    make: Callable[[pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gen")
    monkeypatch.setitem(everywhere, "scale", 1.0)
    model = gen.from_transformers(make(monkeypatch), byte_tokenizer(), probe=False)
    prompt = "to be or not to be, that is the question: whether 'tis nobler in the mind"
    with gen.Engine(model) as engine:
        for _ in range(2):
            before = engine.generate(prompt, details=True, **SETTINGS)
        everywhere["scale"] = -1.0
        variable.set(2.0)
        after = engine.generate(prompt, details=True, **SETTINGS)
        assert before.cached_tokens == after.cached_tokens == 0
    assert not kept_rows(model).recordings
    assert before.token_ids != after.token_ids
    assert after.token_ids == gen.generate(model, prompt, details=True, replay=False, **SETTINGS).token_ids
    [line] = [line for line in caplog.messages if "are not recorded" in line]
    assert f"of {__name__}. If nothing changes that they read elsewhere, give replay=True" in line


def test_classes_of_known_packages_are_recorded_with_objects_of_a_users_beside_them() -> None:
    hf_model: Any = tiny_model()
    hf_model.model.args = args = Args()  # which no forward of transformers reads
    model = gen.from_transformers(hf_model, byte_tokenizer(), probe=False)
    for _ in range(2):
        text(model)
    assert kept_rows(model).recordings
    checked = model.check()
    args.inner.scale = -1.0
    assert checked is not None and checked != model.check()
    args.inner.scale = 1.0
    assert checked == model.check()


def test_more_objects_than_the_bound_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    hf_model: Any = tiny_model()
    hf_model.model.many = [[number] for number in range(100)]
    assert not Snapshot(hf_model).unseen
    monkeypatch.setattr(snapshot, "_MOST", 50)
    assert Snapshot(hf_model).unseen == "reach more than 50 objects"
    assert gen.from_transformers(hf_model, byte_tokenizer(), replay=True, probe=False).check() is None


def test_replay_is_a_flag_of_both_loaders() -> None:
    assert gen.load("demo", device="cpu", replay=True).replay and not gen.load("demo", device="cpu").replay
    wrong: Any = "yes"
    with pytest.raises(gen.ArgumentError, match="replay must be True or False, got 'yes'"):
        gen.load("demo", replay=wrong)
    with pytest.raises(gen.ArgumentError, match="replay must be True or False, got 'yes'"):
        gen.from_transformers(tiny_model(), byte_tokenizer(), replay=wrong)


REMOTE = """
from transformers import LlamaForCausalLM

class RemoteForCausalLM(LlamaForCausalLM):
    pass
"""


def test_code_that_comes_with_a_checkpoint_is_recorded_if_its_user_vouches_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "remote"
    stored(tiny_model(), folder)
    (folder / "modeling_remote.py").write_text(REMOTE)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_remote.RemoteForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path / "modules")])
    found = []
    for replay in (False, True):
        model = gen.load(folder, device="cpu", trust_remote_code=True, replay=replay)
        assert type(model.hf_model).__name__ == "RemoteForCausalLM"
        for _ in range(2):
            found.append(text(model))
        assert bool(kept_rows(model).recordings) == replay
    assert found == [found[0]] * 4
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "library", ["bitsandbytes.nn.modules", "gptqmodel.nn_modules", "optimum.quanto", "torchao", "hqq"]
)
def test_layers_of_quantisers_are_known(library: str) -> None:
    """These are not installed here: a class with such a name stands for theirs."""
    hf_model: Any = tiny_model()
    hf_model.lm_head.__class__ = type("Quantised", (torch.nn.Linear,), {"__module__": library})
    model = gen.from_transformers(hf_model, byte_tokenizer(), probe=False)
    for _ in range(2):
        text(model)
    assert kept_rows(model).recordings
