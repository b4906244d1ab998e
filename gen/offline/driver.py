"""Drives a job: makes its manifest or goes on with it, has a first worker check it, and runs the open parts."""

import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gen.errors import ArgumentError, ModelError, show
from gen.offline.executors.loop import Workers
from gen.offline.executors.processes import Answer, Processes
from gen.offline.executors.progress import Progress, say
from gen.offline.executors.schedule import Schedule, Task
from gen.offline.files import locked, remove, remove_left_aside
from gen.offline.folder import (
    NAME,
    Manifest,
    Result,
    counts_in,
    counts_of,
    done_parts,
    error_result,
    part_path,
    parts_of,
    read_manifest,
    read_meta,
    write_manifest,
    write_part,
)
from gen.offline.inputs import NAME as ROWS
from gen.offline.inputs import check_unchanged, digests, write_rows
from gen.offline.unchanged import difference, fingerprint, sources_of
from gen.receipts import versions

_PART = 8  # times as many rows as run at once
Report = dict[str, Any]


@dataclass(kw_only=True)
class Driver:
    """One call of `gen.run_batch`, with its arguments already read.

    Attributes:
        names: of the inputs.
        folder: the job's.
        settings: see `Manifest.settings`.
        executor: where its workers are.
        batch_size, part_rows: see `Manifest`; None for as many as fit.
        progress: whether stderr shows how far the job is.
        drafts: the folder of a job whose texts are drafts for those of rows with the same ids.
    """

    names: Sequence[str]
    folder: Path
    settings: Mapping[str, Any]
    executor: Processes
    batch_size: int | None
    part_rows: int | None
    progress: bool
    drafts: Path | None = None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._workers: Workers | None = None

    def run(self, *, retry_failed: bool) -> Report:
        """Run the open parts; returns the report of `gen.run_batch`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder), closing(self):
            remove_left_aside(self.folder)
            known = self._known()
            if known is not None and not self._open(known[0], retry_failed):
                return self._report(known[0])
            if known is None:
                try:
                    manifest = self._planned(self.folder)
                    known = manifest, write_manifest(self.folder, manifest)
                except BaseException:
                    remove(self.folder / ROWS)
                    raise
            else:
                self._check(known[0])
            self._run_open(*known, self._open(known[0], retry_failed))
            return self._report(known[0])

    def rehearse(self) -> Report:
        """Check everything that `run` would check, and tell what it would do."""
        with tempfile.TemporaryDirectory() as place, closing(self):
            known = self._known()
            if known is None:
                manifest = self._planned(Path(place))
            else:
                manifest, _ = known
                self._check(manifest)
            parts, done = len(manifest.parts), len(done_parts(self.folder, manifest))
            say(
                f"{manifest.rows} rows in {parts} parts of up to {manifest.part_rows}, {manifest.batch_size} rows at "
                f"once; {done} parts are done. Nothing was run."
            )
        return {"rows": 0, "failed": 0, "tokens": 0, "seconds": time.monotonic() - self._began, "parts": []}

    def close(self) -> None:
        """End all workers."""
        if self._workers is not None:
            self._workers.close()
        self.executor.close()

    def _known(self) -> tuple[Manifest, str] | None:
        """The manifest in the folder; None if there is none. Raises ArgumentError if it is another job's."""
        if not (self.folder / NAME).exists():
            if (part := min(self.folder.glob("part-*.jsonl"), default=None)) is not None:
                raise ArgumentError(f"{part} is there, and no {NAME} that says of which job; give another folder.")
            return None
        manifest, digest = read_manifest(self.folder)
        had = {**manifest.settings, "batch_size": manifest.batch_size, "part_rows": manifest.part_rows}
        asked = {**self.settings, "batch_size": self.batch_size, "part_rows": self.part_rows}
        for name in ("seed", "batch_size", "part_rows"):
            if asked[name] is None:
                asked[name] = had[name]
        for name in {**had, **asked}:  # a job that writes no receipts has no such setting
            if asked.get(name) != had.get(name):
                raise ArgumentError(
                    f"the job in {self.folder} has {name}={show(had.get(name))}, got {show(asked.get(name))}; give the "
                    "same, or another folder."
                )
        facts = {"versions": versions(), "sources": sources_of(self.settings["output_type"])}
        if self.executor.one_machine:  # a cluster may have another model of this name
            with suppress(ModelError):  # a job that is done does not need it
                facts["fingerprint"] = fingerprint(self.settings["model"])
        if (problem := difference(manifest, facts)) is not None:
            raise ArgumentError(f"{problem} Begin another job in another folder.")
        check_unchanged(manifest.inputs, self.names)
        return manifest, digest

    def _planned(self, folder: Path) -> Manifest:
        """The manifest of a new job, which a first worker has checked.

        Args:
            folder: where its rows are written.
        """
        inputs = digests(self.names)
        found = write_rows(self.names, self.settings["prompt_template"], folder)
        drawn = secrets.randbits(53) if self.settings["seed"] is None else self.settings["seed"]
        settings, threads = {**self.settings, "seed": drawn}, self.executor.threads
        facts = self._first(settings, threads, None if found.longest is None else asdict(found.longest))
        batch_size = self.batch_size or facts["batch_size"]
        part_rows = self.part_rows or _PART * batch_size
        return Manifest(
            settings=settings,
            inputs=[one if "sha256" in one else {**one, "sha256": found.stdin} for one in inputs],
            fingerprint=facts["fingerprint"],
            schema=facts["schema"],
            sources=facts["sources"],
            batch_size=batch_size,
            part_rows=part_rows,
            threads=threads,
            parts=parts_of(found.places, part_rows),
        )

    def _check(self, manifest: Manifest) -> None:
        """Raise an ArgumentError unless a worker has what the job began with."""
        facts = self._first(manifest.settings, manifest.threads, None)
        if (problem := difference(manifest, facts)) is not None:
            raise ArgumentError(f"{problem} Begin another job in another folder.")

    def _first(self, settings: Mapping[str, Any], threads: int, longest: Mapping[str, Any] | None) -> Answer:
        """The answer of a first worker, which checks the job."""
        self._workers = Workers(self.executor, settings, threads)
        return self._workers.check(longest)

    def _open(self, manifest: Manifest, retry_failed: bool) -> dict[int, int]:
        """The parts that are to be run: how many rows each has, by its number."""
        done = done_parts(self.folder, manifest)
        if retry_failed:
            done = {number for number in done if not read_meta(self.folder, manifest, number)["failed"]}
        return {number: part[-1] for number, part in enumerate(manifest.parts) if number not in done}

    def _run_open(self, manifest: Manifest, digest: str, open_parts: dict[int, int]) -> None:
        made = {*range(len(manifest.parts))} - {*open_parts}
        counts = counts_in(self.folder, manifest, made)

        def done(device: str, counts: Mapping[str, int]) -> None:
            progress.add(device, counts["rows"], counts["failed"], counts["tokens"])

        def write(task: Task) -> None:
            results = [task.results[row] for row in range(task.count)]
            write_part(self.folder, task.part, results, {"one by one": True})
            done("", counts_of(results))

        def blame(task: Task, row: int, reason: str) -> Result:
            [found] = manifest.rows_of(self.folder, task.part, row)
            return error_result(found, f"a worker {reason} while it ran this row alone")

        assert self._workers is not None  # a first one has checked the job; tells mypy
        schedule = Schedule(parts=open_parts, slots=self._workers.slots, write=write, blame=blame, say=say)
        asked = {"folder": str(self.folder), "digest": digest, "drafts": self.drafts and str(self.drafts)}
        with Progress(manifest.rows, counts["rows"], counts["failed"], shown=self.progress) as progress:
            self._workers.run(schedule, asked, done, progress.look)

    def _report(self, manifest: Manifest) -> Report:
        made = range(len(manifest.parts))
        paths = [part_path(self.folder, number) for number in made]
        return counts_in(self.folder, manifest, made) | {"seconds": time.monotonic() - self._began, "parts": paths}
