"""A pytest plugin: `pytest -p gen.testing.plugin --virtual-gpus 2` runs the tests of any project on virtual GPUs.

The block opens before the tests and their conftest are imported, and stays open until the end, so that conditions such
as "needs two GPUs" find the GPUs.
"""

from argparse import Namespace
from contextlib import ExitStack

import pytest

from gen.testing import commands
from gen.testing.cuda.memory import read_size
from gen.testing.emulator import virtual_gpus

_block = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("virtual GPUs")
    group.addoption("--virtual-gpus", type=int, default=0, metavar="N", help="run all tests with N virtual GPUs")
    group.addoption("--virtual-gpu-memory", default="80GiB", metavar="SIZE", help="what each of them has (80GiB)")
    group.addoption(
        "--virtual-gpus-in-commands", action="store_true", help="Python programs that the tests start have them too"
    )
    group.addoption("--check-streams", action="store_true", help="raise where two streams race")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    _open(early_config, early_config.known_args_namespace)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Open the block for a project whose conftest names the plugin: that is read too late for the hook above."""
    if _block not in config.stash:
        _open(config, config.option)


def _open(config: pytest.Config, options: Namespace) -> None:
    if options.virtual_gpus:
        block = config.stash[_block] = ExitStack()
        if options.virtual_gpus_in_commands:
            block.enter_context(commands.with_virtual_gpus(options.virtual_gpus, read_size(options.virtual_gpu_memory)))
        block.enter_context(
            virtual_gpus(options.virtual_gpus, memory=options.virtual_gpu_memory, check_streams=options.check_streams)
        )


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if _block in config.stash:
        config.stash[_block].close()


def pytest_report_header(config: pytest.Config) -> str | None:
    gpus = config.getoption("--virtual-gpus")
    return f"virtual GPUs: {gpus}" if gpus else None
