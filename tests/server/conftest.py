"""The demo model behind a server, for the tests of a file."""

import logging
import os
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import pytest

import gen
from gen.server import app
from tests.server.client import Client


@pytest.fixture(scope="package", autouse=True)
def compiling_in_forks() -> Iterator[None]:
    """A process that compiles is a fork of one that has imported all that it needs."""
    context, own = get_context("forkserver"), os.getpid()
    context.set_forkserver_preload(["gen.server.compiling", "pytest"])

    def found(method: str) -> Any:
        return context if os.getpid() == own else get_context(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gen.server.compiling.get_context", found)
        yield


@pytest.fixture(scope="module")
def engine(demo: Any) -> Iterator[gen.Engine]:
    with gen.Engine(demo, rows=8) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: gen.Engine) -> Client:
    return Client(app(engine, names=["demo", "other"]))


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """What the test sets up of gen's logs is gone after it."""
    log = logging.getLogger("gen")
    handlers, level = [*log.handlers], log.level
    yield
    log.handlers[:] = handlers
    log.setLevel(level)
