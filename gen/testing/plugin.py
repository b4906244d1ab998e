"""A pytest plugin: `pytest -p gen.testing.plugin --virtual-gpus 2` runs the tests of any project on virtual GPUs.

The block is open from before the tests are imported, so that marks such as "needs two GPUs" find them, until the end.
"""

from contextlib import ExitStack

import pytest

from gen.testing.emulator import virtual_gpus

_block = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("virtual GPUs")
    group.addoption("--virtual-gpus", type=int, default=0, metavar="N", help="run all tests with N virtual GPUs")
    group.addoption("--virtual-gpu-memory", default="80GiB", metavar="SIZE", help="what each of them has (80GiB)")
    group.addoption("--check-streams", action="store_true", help="raise where two streams race")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    gpus = config.getoption("--virtual-gpus")
    if gpus:
        block = config.stash[_block] = ExitStack()
        memory, check = config.getoption("--virtual-gpu-memory"), config.getoption("--check-streams")
        block.enter_context(virtual_gpus(gpus, memory=memory, check_streams=check))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if _block in config.stash:
        config.stash[_block].close()


def pytest_report_header(config: pytest.Config) -> str | None:
    gpus = config.getoption("--virtual-gpus")
    return f"virtual GPUs: {gpus}" if gpus else None
