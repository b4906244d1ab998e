"""The demo model behind a server, for the tests of a file."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import gen
from gen.server import app
from tests.server.client import Client


@pytest.fixture(scope="module")
def demo() -> Any:
    return gen.load("demo", device="cpu")


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
