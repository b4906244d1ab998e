"""Settings that every test needs: no network, one thread, no GPU unless `pytest -m gpu` asks for it. And fixtures for
GPUs, virtual ones or the machine's.
"""

import gc
import os
import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gen
from gen.loop.step_times import Costs
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.probing import probe_model
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.demo import short_demo
from tests.helpers.probes import remembered
from virtual_gpus import virtual_gpus

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)

LEFT_OUT = pytest.StashKey[list[pytest.Item]]()  # the tests that need more GPUs than they may use
_counts: Counter[int] = Counter()  # how many of these there are, by the number of GPUs that they need


def pytest_configure(config: pytest.Config) -> None:
    """Hide the machine's GPUs from torch and from child processes, before either looks for them.

    So all tests, except those for a GPU, run as on a machine without one; `pytest -m gpu` runs only those for a GPU.
    """
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `gpu` or `gpu(devices=2)` where there are not as many CUDA devices."""
    found = torch.cuda.device_count()
    left_out = config.stash[LEFT_OUT] = [item for item in items if devices_for(item) > found]
    _counts.update(map(devices_for, left_out))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if devices_for(item) <= found]


def pytest_collection_finish() -> None:
    """Leave existing objects out of Python's garbage collections, and have few of these: tests make many objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def devices_for(item: pytest.Item) -> int:
    """How many CUDA devices a test needs."""
    return max((mark.kwargs.get("devices", 1) for mark in item.iter_markers("gpu")), default=0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """If several processes run the tests, send this one's counts to the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = dict(_counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    for needed, count in getattr(node, "workeroutput", {}).get("left out", {}).items():
        _counts[needed] = max(_counts[needed], count)  # each process has collected all tests


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _counts:
        parts = [f"{count} need {needed} CUDA device(s)" for needed, count in sorted(_counts.items())]
        terminalreporter.write_line(f"tests left out: {', '.join(parts)}; `pytest -m gpu` runs them on GPUs")


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`admit_tokens` binds where no row waits, too: prompts are read in parts there."""
    monkeypatch.setattr("gen.loop.scheduler.WHOLE", 1)


@pytest.fixture
def soon_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is recorded or captured once it has come four times, so that short texts have such steps."""
    monkeypatch.setattr("gen.loop.replay.recorded._WORTH", {"cpu": 4, "cuda": 4})
    monkeypatch.setattr("gen.loop.replay.recorded._WORTH_OF_A_KNOWN_KIND", {"cpu": 3, "cuda": 4})


@pytest.fixture
def short_examinations(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gen doctor` compares texts of 2 and 4 tokens: two more tokens show the waits of each token as well as eight."""
    monkeypatch.setattr("gen.doctor.SHORT", 2)
    monkeypatch.setattr("gen.doctor.LONG", 4)


@pytest.fixture(scope="module")
def demo() -> TransformersModel:
    """The demo model with its first two layers."""
    return short_demo()


@pytest.fixture(scope="module")
def whole_demo() -> TransformersModel:
    """The demo model."""
    return gen.load("demo", device="cpu")


@pytest.fixture(scope="module")
def llama() -> TransformersModel:
    """A tiny Llama of one layer that writes bytes and their special tokens alone."""
    return gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())


@pytest.fixture(scope="session", autouse=True)
def no_clock() -> Iterator[None]:
    """No clock, and no call before, decides how many tokens a step reads: equal calls give equal bits, as jobs do."""
    judge = Costs.judge
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Costs, "mark", lambda costs: None)
        patch.setattr(Costs, "judge", lambda costs, *step: None if costs._learns else judge(costs, *step))
        yield


@pytest.fixture(autouse=True)
def same_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls without a seed draw the same texts in each run of a test, but different ones in each test and each call."""
    numbers = random.Random(request.node.nodeid)
    monkeypatch.setattr("gen.samplers.backends.random.secrets", SimpleNamespace(randbits=numbers.getrandbits))


@pytest.fixture(autouse=True)
def probes(request: pytest.FixtureRequest) -> Iterator[None]:
    """A model that equals one that has passed the probe is not probed again, except in tests of the probe and of logs.

    With `-m gpu` every model is probed, since the devices are what these tests are about.
    """
    file, real = request.path.name, request.config.option.markexpr == "gpu"
    if real or file == "test_probing.py" or "caplog" in request.fixturenames:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patches = request.getfixturevalue("monkeypatch")
        patch.setattr("gen.models.loading.probe_model", remembered(probe_model, patches))
        yield


@pytest.fixture(params=["virtual", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The test runs with cuda:0: a virtual one, and with `-m gpu` the machine's own."""
    device = torch.device("cuda:0")
    if request.param == "real":
        yield device
    else:
        with virtual_gpus(1):
            yield device


@pytest.fixture(params=["virtual", pytest.param("real", marks=pytest.mark.gpu(devices=2))])
def two_gpus(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs with cuda:0 and cuda:1, virtual ones and with `-m gpu` the machine's own, and cuda:0 is current."""
    if request.param == "real":
        with torch.cuda.device(0):
            yield
    else:
        with virtual_gpus(2):
            yield
