"""Whether a job goes on after a real disk was full: it uses a small file system in memory, which then grows.

    unshare --map-root-user --mount .venv/bin/python -m benchmarks.batch_full_disk

The job must end with exit code 1 and say why, and keep what it has written; the same command must make the rest. All
parts must be byte for byte those of a job on a disk with room.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.batch_kills import parts

ROWS = 300


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        small, rows = Path(name) / "small", Path(name) / "rows.jsonl"
        small.mkdir()
        rows.write_text("".join(json.dumps({"prompt": f"Once {number}"}) + "\n" for number in range(ROWS)))
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "none", small], check=True)
        try:
            ended = _run(rows, small / "out")
            assert ended.returncode == 1 and "No space left on device. What is done stays" in ended.stderr, ended
            before = parts(small / "out")
            subprocess.run(["mount", "-o", "remount,size=9m", small], check=True)
            assert _run(rows, small / "out").returncode == 0
            assert _run(rows, Path(name) / "roomy").returncode == 0
            expected = parts(Path(name) / "roomy")
            assert before.items() < expected.items() and parts(small / "out") == expected
        finally:
            subprocess.run(["umount", small], check=True)
    print(f"the disk was full after {len(before)} of {len(expected)} parts; all are equal to those on a roomy one")


def _run(rows: Path, out: Path) -> subprocess.CompletedProcess[str]:
    options = ["--devices", "cpu", "--batch-size", 16, "--part-rows", 30, "--seed", 1, "--max-new-tokens", 60]
    command = [sys.executable, "-m", "gen", "batch", "run", rows, out, *options]
    return subprocess.run([*map(str, command)], capture_output=True, text=True)


if __name__ == "__main__":
    main()
