"""`gen batch`: runs jobs of many prompts and shows how far they are. None of its commands waits for torch."""

import json
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gen.cli.options import TextsOptions, flag, option, with_options
from gen.cli.terminal import say
from gen.cli.values import choose_output_type
from gen.errors import ArgumentError, GenError

app = typer.Typer(
    help="Continue the prompts of files, on many devices.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Out = Annotated[Path, typer.Argument(metavar="OUT", help="The job's folder.")]


_job = partial(option, "Job")


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Arguments of `gen.run_batch`, by their names."""

    devices: str | None = _job(
        'Such as "cuda:0,cuda:1". If you give none: every CUDA device, or else the CPU.', "DEVICES"
    )
    executor: str = _job('"local": processes of this machine; "ray": actors of a cluster.', "EXECUTOR", default="local")
    ray_address: str | None = _job("The Ray cluster. If you give none: one that starts on this machine.", "ADDRESS")
    batch_size: int | None = _job("Run N rows at once on each device.", "N", min=1)
    part_rows: int | None = _job("Write N rows into each part.", "N", min=1)
    prompt_template: str | None = _job('Make a prompt of each row\'s columns, such as "Classify: {text}".', "TEXT")
    retry_failed: bool = flag("Job", "Make parts with failed rows again.", "--retry-failed")
    drafts: str | None = _job("Take the texts of an earlier job as drafts, by the ids of rows.", "OLD_OUT")
    retries: int = _job(
        "Ask a chat up to N times again where a validator of the class refuses the value.", "N", min=0, default=0
    )
    receipts: bool = flag("Job", "Write a receipt into each result, to verify it later.", "--receipts")
    dry_run: bool = flag("Job", "Check everything, and run nothing.", "--dry-run")
    top_logprobs: int | None = option("Output", "Give the model's N likeliest tokens at each place.", "N", min=0)


@app.command("run", short_help="Begin a job, or go on with it.")
@with_options
def run_command(
    places: list[str] = typer.Argument(
        ...,
        metavar="IN... OUT",
        help="Files of rows (*.jsonl, *.csv, *.parquet, or - for stdin), then the job's folder.",
    ),
    *,
    job: JobOptions,
    type_: str | None = option(
        "Output type", "Write JSON that a pydantic class reads, such as people:Person.", "MODULE:CLASS", "--type"
    ),
    asked: TextsOptions,
    as_json: bool = flag("Output", "Print the report as a JSON object.", "--json"),
) -> None:
    """Continue the prompts of all rows, and write their texts into parts in the job's folder.

    If a job stops, the same command continues it. If rows fail, their errors are in the parts, and the exit code is 1.
    """
    from gen.offline.job import run_batch

    if len(places) < 2:
        raise ArgumentError("give the inputs, and then the job's folder: gen batch run IN... OUT")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # KeyboardInterrupt: workers end, and a message is printed
    try:
        report = run_batch(
            places[:-1],
            places[-1],
            model=asked.model,
            output_type=choose_output_type(asked.schema, asked.regex, asked.choice, type_),
            dtype=asked.dtype,
            context_length=asked.context_length,
            **vars(job),
            **asked.settings(),
        )
    except KeyboardInterrupt:
        typer.echo("gen: interrupted; the same command goes on where it stopped.", err=True)
        raise
    if job.dry_run:
        return
    told = {"rows": report.rows, "failed": report.failed, "tokens": report.tokens}
    line = ", ".join(f"{count} {name}" for name, count in told.items())
    if as_json:
        line = json.dumps({**told, "seconds": round(report.seconds, 3), "parts": [*map(str, report.parts)]})
    say(line, end="\n", failed=report.failed > 0)
    if report.failed:
        raise GenError(f"{report.failed} of {report.rows} rows failed; their errors are in {places[-1]}.")


@app.command("status", short_help="Tell how far a job is.")
def status_command(out: Out, *, as_json: bool = typer.Option(False, "--json", help="Print a JSON object.")) -> None:
    """Tell how many rows of a job are done, how many failed, and who works on it."""
    from gen.offline.status import status

    told = status(out)
    if as_json:
        say(json.dumps(told), end="\n")
    else:
        say("\n".join(f"{name}: {value}" for name, value in told.items() if value is not None), end="\n")


@app.command("merge", short_help="Write all results into one file.")
def merge_command(
    out: Out,
    file: Path = typer.Argument(..., metavar="FILE", help="*.jsonl or *.parquet."),
    *,
    incomplete: bool = typer.Option(False, "--incomplete", help="Leave out parts that are missing."),
) -> None:
    """Write the results of a job into one file, in the order of the inputs."""
    from gen.offline.status import merge

    merge(out, file, incomplete=incomplete)
