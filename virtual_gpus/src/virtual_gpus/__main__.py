"""`python -m virtual_gpus run script.py`: runs a program with virtual GPUs."""

import argparse
import os
import runpy
import sys


def main() -> None:
    """Read the command line, and run what it names as `python` would: a file, or with `-m` a module."""
    parser = argparse.ArgumentParser(prog="python -m virtual_gpus")
    run = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser(
        "run", help="run a program with virtual GPUs", usage="%(prog)s [options] (script.py | -m module) [arguments]"
    )
    run.add_argument("--gpus", type=int, default=2, metavar="N", help="how many virtual GPUs (2)")
    run.add_argument("--device", default="cuda", metavar="TYPE", help="cuda, xpu, mps, hpu or npu (cuda)")
    run.add_argument("--memory", default="80GiB", metavar="SIZE", help="what each of them has (80GiB)")
    run.add_argument("--check-streams", action="store_true", help="raise where two streams race")
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    run.add_argument("program", help="the file or module to run")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    given = parser.parse_args()
    from virtual_gpus.children import with_virtual_gpus
    from virtual_gpus.cuda.memory import read_size
    from virtual_gpus.emulator import virtual_gpus

    sys.argv = [given.program, *given.arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if given.module else os.path.dirname(os.path.abspath(given.program))
    with (
        with_virtual_gpus(given.gpus, read_size(given.memory), given.device),
        virtual_gpus(given.gpus, device=given.device, memory=given.memory, check_streams=given.check_streams),
    ):
        if given.module:
            runpy.run_module(given.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(given.program, run_name="__main__")


if __name__ == "__main__":
    main()
