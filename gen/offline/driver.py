"""What drives a job: makes its manifest or goes on with it, has a first worker check it, and runs what is open."""

import os
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gen.errors import ArgumentError, GenError, show
from gen.offline.engines.local import Answer, Worker, WorkerDied, WorkerProcess, run_work
from gen.offline.engines.progress import Progress, say
from gen.offline.engines.schedule import Schedule, Seat, Work
from gen.offline.files import remove_left_aside, write_aside
from gen.offline.inputs.opening import check_unchanged, open_inputs
from gen.offline.lock import Lock
from gen.offline.manifest import (
    NAME,
    Manifest,
    Scan,
    difference,
    read_manifest,
    scan,
    shards_of,
    versions,
    write_manifest,
)
from gen.offline.parts import done_parts, error_result, join_pieces, lines, part_path, piece_path, read_meta

_SHARD = 8  # times as many rows as run at once
_TRIES = 3  # of a device before another one is asked
Report = dict[str, Any]


@dataclass(kw_only=True)
class Driver:
    """One call of `gen.run_batch`, its arguments read.

    Attributes:
        names: of the inputs.
        folder: the job's.
        settings: see `Manifest.settings`.
        devices: their names; None for all there are.
        rows, shard_rows: see `Manifest`; None for what fits.
        progress: whether stderr tells how far it is.
    """

    names: Sequence[str]
    folder: Path
    settings: Mapping[str, Any]
    devices: Sequence[str] | None
    rows: int | None
    shard_rows: int | None
    progress: bool
    _began: float = field(default_factory=time.monotonic)

    def run(self, *, retry_failed: bool) -> Report:
        """Run what is open; what `gen.run_batch` returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with Lock(self.folder) as lock, ExitStack() as workers:
            for place in (self.folder, self.folder / "inputs", self.folder / "pieces"):
                remove_left_aside(place)
            known = self._known()
            self._settle_seed(known)
            scanned = self._scan(self.folder / "inputs") if known is None else None
            if known is not None and not self._open(known[0], retry_failed):
                return self._report(known[0])
            seats, ready, facts = self._first_worker(None if scanned is None else scanned[1])
            for worker in ready.values():
                workers.callback(worker.end)
            if known is None:
                assert scanned is not None  # tells mypy
                manifest = self._planned(*scanned, facts)
                digest = write_manifest(self.folder, manifest)
            else:
                manifest, digest = known
                if (problem := difference(manifest, facts)) is not None:
                    raise ArgumentError(f"{problem} Begin another job in another folder.")
            self._run_open(lock, manifest, digest, seats, ready, retry_failed)
            return self._report(manifest)

    def rehearse(self) -> Report:
        """Check all that `run` would, and tell what it would do."""
        with tempfile.TemporaryDirectory() as copies, ExitStack() as workers:
            known = self._known()
            self._settle_seed(known)
            scanned = self._scan(Path(copies)) if known is None else None
            _, ready, facts = self._first_worker(None if scanned is None else scanned[1])
            for worker in ready.values():
                workers.callback(worker.end)
            if known is None:
                assert scanned is not None  # tells mypy
                manifest = self._planned(*scanned, facts)
            elif (problem := difference(known[0], facts)) is not None:
                raise ArgumentError(f"{problem} Begin another job in another folder.")
            else:
                manifest = known[0]
            count, done = len(manifest.shards), len(done_parts(self.folder, manifest))
            rows = sum(shard[-1] for shard in manifest.shards)
            say(
                f"{rows} rows in {count} parts of up to {manifest.shard_rows}, {manifest.rows} rows at once; {done} "
                "parts are done. Nothing was run."
            )
        return {"rows": 0, "failed": 0, "tokens": 0, "seconds": time.monotonic() - self._began, "parts": []}

    def _known(self) -> tuple[Manifest, str] | None:
        """The manifest of the job that the folder has, if it has one and it is this job."""
        if not (self.folder / NAME).exists():
            return None
        manifest, digest = read_manifest(self.folder)
        asked = {**self.settings, "seed": manifest.settings["seed"]} if self.settings["seed"] is None else self.settings
        had: dict[str, Any] = {**manifest.settings, "rows": manifest.rows, "shard_rows": manifest.shard_rows}
        asked = {**asked, "rows": self.rows or manifest.rows, "shard_rows": self.shard_rows or manifest.shard_rows}
        for name, value in had.items():
            if asked.get(name) != value:
                raise ArgumentError(
                    f"the job in {self.folder} has {name}={show(value)}, got {show(asked.get(name))}; give the same, "
                    "or another folder."
                )
        if (problem := difference(manifest, {"versions": versions()})) is not None:
            raise ArgumentError(f"{problem} Begin another job in another folder.")
        check_unchanged([dict(one) for one in manifest.inputs], self.names)
        return manifest, digest

    def _settle_seed(self, known: tuple[Manifest, str] | None) -> None:
        """The job's seed: the one that is given or was drawn at its begin, or one that is drawn now."""
        if self.settings["seed"] is None:
            seed = secrets.randbits(53) if known is None else known[0].settings["seed"]
            self.settings = {**self.settings, "seed": seed}

    def _scan(self, copies: Path) -> tuple[list[dict[str, Any]], Scan]:
        inputs = open_inputs(self.names, copies)
        return inputs, scan(inputs, self.settings["prompt_template"])

    def _planned(self, inputs: list[dict[str, Any]], scanned: Scan, facts: Answer) -> Manifest:
        rows = self.rows or facts["rows"]
        shard_rows = self.shard_rows or _SHARD * rows
        return Manifest(
            settings=self.settings,
            inputs=inputs,
            fingerprint=facts["fingerprint"],
            schema=facts["schema"],
            rows=rows,
            shard_rows=shard_rows,
            threads=self._threads(),
            columns=scanned.columns,
            shards=shards_of(scanned.places, shard_rows),
        )

    def _threads(self) -> int:
        """How many threads each worker on a CPU has, if the job begins now."""
        sharing = max(1, sum(name == "cpu" for name in self.devices or ()))
        given = os.environ.get("OMP_NUM_THREADS", "")
        return int(given) if given.isdecimal() and int(given) else max(1, len(os.sched_getaffinity(0)) // sharing)

    def _first_worker(self, scanned: Scan | None) -> tuple[list[Seat], dict[int, Worker], Answer]:
        """The seats, a worker on the first of them that has one, and what it says of the job."""
        asked = list(self.devices) if self.devices is not None else []
        longest = None if scanned is None or scanned.longest is None else asdict(scanned.longest)
        reason = ""
        for number, device in enumerate(asked or [None]):
            for _ in range(_TRIES):
                worker = WorkerProcess()
                try:
                    self._load(worker, device)
                    facts = worker.ask(check=longest, devices=asked)
                except WorkerDied as death:
                    reason = str(death)
                    say(f"a worker of {device or 'this machine'} {reason}, before the first row")
                    worker.end()
                except BaseException:
                    worker.end()
                    raise
                else:
                    names = asked or facts["devices"]
                    seats = [Seat(name, out=index < number) for index, name in enumerate(names)]
                    return seats, {number: worker}, facts
            say(f"{device or 'this machine'} is left out: {_TRIES} workers died there before the first row.")
        raise GenError(f"no device is left: workers died on each of them. The last one {reason}.")

    def _load(self, worker: Worker, device: str | None) -> None:
        worker.ask(settings=dict(self.settings), device=device, threads=self._threads())

    def _open(self, manifest: Manifest, retry_failed: bool) -> dict[int, int]:
        """How many rows each shard has that is to be run, by its number."""
        done = done_parts(self.folder, manifest)
        if retry_failed:
            done = {number for number in done if not read_meta(self.folder, number)["failed"]}
        return {number: shard[-1] for number, shard in enumerate(manifest.shards) if number not in done}

    def _run_open(
        self,
        lock: Lock,
        manifest: Manifest,
        digest: str,
        seats: list[Seat],
        ready: dict[int, Worker],
        retry_failed: bool,
    ) -> None:
        open_shards = self._open(manifest, retry_failed)
        done = [read_meta(self.folder, number) for number in range(len(manifest.shards)) if number not in open_shards]
        total = sum(shard[-1] for shard in manifest.shards)
        failed = sum(one["failed"] for one in done)

        def start(seat: Seat) -> Worker:
            worker = WorkerProcess()
            try:
                worker.ask(settings=dict(manifest.settings), device=seat.name, threads=manifest.threads)
            except BaseException:
                worker.end()
                raise
            return worker

        def join(number: int) -> None:
            lock.check()
            join_pieces(self.folder, manifest, number)

        def blame(work: Work, reason: str) -> None:
            lock.check()
            [row] = manifest.shard(work.shard, work.first, 1)
            message = f"a worker {reason} while it ran this row alone"
            path = piece_path(self.folder, work.shard, work.first, 1)
            path.parent.mkdir(exist_ok=True)
            write_aside(path, lines([error_result(manifest, row, message)]))
            progress.add("", 1, 1, 0)

        def told(seat: Seat, work: Work, answer: Answer) -> None:
            lock.check()
            progress.add(seat.name, answer["rows"], answer["failed"], answer["tokens"])

        for left in self.folder.glob("pieces/part-*"):
            left.unlink()
        with Progress(total, total - sum(open_shards.values()), failed, shown=self.progress) as progress:
            schedule = Schedule(shards=open_shards, seats=seats, joined=join, blame=blame, say=say)
            asking = {"folder": str(self.folder), "digest": digest}
            run_work(schedule, start, asking, told, ready)

    def _report(self, manifest: Manifest) -> Report:
        metas = [read_meta(self.folder, number) for number in range(len(manifest.shards))]
        return {
            **{name: sum(meta[name] for meta in metas) for name in ("rows", "failed", "tokens")},
            "seconds": time.monotonic() - self._began,
            "parts": [part_path(self.folder, manifest, number) for number in range(len(manifest.shards))],
        }
