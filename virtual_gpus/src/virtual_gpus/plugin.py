"""The pytest plugin, which pytest finds by itself: `pytest --virtual-gpus 2`, and three fixtures.

With the option, all tests of a project run on virtual GPUs. The block opens before the tests and their conftest are
imported, and stays open until the end, so that conditions such as "needs two GPUs" find the GPUs. Without it the
fixtures `gen_virtual_gpus`, `gen_no_host_sync` and `virtual_gpu_placements` are there for tests that ask for them, and
nothing else happens: torch is not imported either.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from virtual_gpus.syncs import SyncReport

_block = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("virtual GPUs")
    group.addoption("--virtual-gpus", type=int, default=0, metavar="N", help="run all tests with N virtual GPUs")
    group.addoption("--virtual-gpu-memory", default="80GiB", metavar="SIZE", help="what each of them has (80GiB)")
    group.addoption("--virtual-gpu-device", default="cuda", metavar="TYPE", help="cuda, xpu, mps, hpu or npu (cuda)")
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
    if getattr(options, "virtual_gpus", 0):  # a test module may name the plugin after the options were read
        from virtual_gpus.children import for_the_process, with_virtual_gpus
        from virtual_gpus.cuda.memory import read_size
        from virtual_gpus.emulator import virtual_gpus

        for_the_process.close()  # a worker of xdist has a block already, which knows less than these options
        block = config.stash[_block] = ExitStack()
        gpus, memory, device = options.virtual_gpus, options.virtual_gpu_memory, options.virtual_gpu_device
        if options.virtual_gpus_in_commands:
            block.enter_context(with_virtual_gpus(gpus, read_size(memory), device))
        block.enter_context(virtual_gpus(gpus, device=device, memory=memory, check_streams=options.check_streams))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if _block in config.stash:
        config.stash[_block].close()


def pytest_report_header(config: pytest.Config) -> str | None:
    gpus = config.getoption("--virtual-gpus", 0)
    return f"virtual GPUs: {gpus}" if gpus else None


@pytest.fixture
def gen_virtual_gpus(request: pytest.FixtureRequest) -> Iterator[int]:
    """The test runs with virtual GPUs: two, or as many as an indirect parameter says. The value is their number.

    With `--virtual-gpus` the test takes those that are there.
    """
    from virtual_gpus.emulator import virtual_gpus

    if _block in request.config.stash and not hasattr(request, "param"):
        yield int(request.config.getoption("--virtual-gpus"))
        return
    gpus = int(getattr(request, "param", 2))
    with virtual_gpus(gpus):
        yield gpus


@pytest.fixture
def gen_no_host_sync(request: pytest.FixtureRequest) -> "Callable[..., AbstractContextManager[SyncReport]]":
    """`virtual_gpus.no_host_sync`, to use in the test: on real CUDA, or on virtual GPUs if there is none.

    If the test also asks for `gen_virtual_gpus`, in any order, it is for virtual GPUs.
    """
    import torch

    from virtual_gpus.syncs import no_host_sync

    if "gen_virtual_gpus" in request.fixturenames or not torch.cuda.is_available():
        request.getfixturevalue("gen_virtual_gpus")
    return no_host_sync


@pytest.fixture
def virtual_gpu_placements() -> Callable[..., None]:
    """A function that takes what `virtual_gpus.placements.examine` takes, and fails the test with its report if the
    model fails in a placement."""
    from virtual_gpus.placements import examine

    def check(*args: Any, **kwargs: Any) -> None:
        report = examine(*args, **kwargs)
        if report.failures:
            pytest.fail(str(report), pytrace=False)

    return check
