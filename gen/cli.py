"""The command line: `gen generate`, `stream` and `doctor`. Text goes to stdout, progress and errors to stderr."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from gen.decoding import generate, stream
from gen.errors import ArgumentError, GenError
from gen.models.loading import load
from gen.samplers import MultinomialSampler

app = typer.Typer(
    help="Generate text with local language models.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)

Prompts = Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]...", help="None: stdin is one prompt.")]
OnePrompt = Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="None: stdin is the prompt.")]
File = Annotated[Path | None, typer.Option("--file", help='Prompts, one a line; "-" is stdin.')]
ModelName = Annotated[str, typer.Option("--model", help='A directory, a Hub id, or "demo".')]
Device = Annotated[str | None, typer.Option(help='As "cuda:1"; default: the current CUDA device, else cpu.')]
DType = Annotated[str | None, typer.Option(help='As "bfloat16"; default: the checkpoint\'s.')]
MaxNewTokens = Annotated[int, typer.Option(help="Most new tokens for each text.")]
Temperature = Annotated[float | None, typer.Option(help="Divides the logits; 0 is greedy.")]
TopK = Annotated[int | None, typer.Option(help="Keep the k most likely tokens.")]
TopP = Annotated[float | None, typer.Option(help="Keep the most likely tokens up to this mass.")]
MinP = Annotated[float | None, typer.Option(help="Keep tokens at least this likely against the best.")]
Samples = Annotated[int, typer.Option(help="Texts for each prompt.")]
Seed = Annotated[int | None, typer.Option(help="Gives the same texts again.")]
Stop = Annotated[list[str] | None, typer.Option(help="A string that ends a text; may be given again.")]
Chat = Annotated[bool, typer.Option("--chat", help="Use the tokenizer's chat template.")]
AsJson = Annotated[bool, typer.Option("--json", help="A JSON object a line for each text.")]
BatchSize = Annotated[int, typer.Option(min=1, help="How many prompts run together.")]


@app.command("generate")
def generate_command(
    prompts: Prompts = None,
    *,
    file: File = None,
    model: ModelName = "demo",
    device: Device = None,
    dtype: DType = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    samples: Samples = 1,
    seed: Seed = None,
    stop: Stop = None,
    chat: Chat = False,
    as_json: AsJson = False,
    batch_size: BatchSize = 8,
) -> None:
    """Continue each prompt; texts come in the order of the prompts."""
    sampler = MultinomialSampler(samples, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    given = _read_prompts(prompts, file)
    loaded = load(model, device=device, dtype=dtype)
    with tqdm(total=len(given), unit="prompt", file=sys.stderr, disable=len(given) < 2) as progress:
        for first in range(0, len(given), batch_size):
            batch = given[first : first + batch_size]
            results = generate(
                loaded,
                batch,
                sampler=sampler,
                max_new_tokens=max_new_tokens,
                stop=stop,
                seed=seed,
                chat=chat,
                details=True,
            )
            for prompt, result in zip(batch, results, strict=True):
                for completion in result if isinstance(result, list) else [result]:
                    print(json.dumps({"prompt": prompt, **asdict(completion)}) if as_json else completion.text)
            progress.update(len(batch))


@app.command("stream")
def stream_command(
    prompt: OnePrompt = None,
    *,
    model: ModelName = "demo",
    device: Device = None,
    dtype: DType = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    chat: Chat = False,
) -> None:
    """Continue one prompt and print the text while it grows."""
    sampler = MultinomialSampler(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    [given] = _read_prompts([prompt] if prompt is not None else None, None)
    loaded = load(model, device=device, dtype=dtype)
    pieces = stream(loaded, given, sampler=sampler, max_new_tokens=max_new_tokens, stop=stop, seed=seed, chat=chat)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


@app.command("doctor")
def doctor_command(
    model: Annotated[str, typer.Argument(help='A directory, a Hub id, "demo", or an exported program.')] = "demo",
    *,
    device: Annotated[str | None, typer.Option(help='As "cuda:1"; default: the last virtual one.')] = None,
    device_map: Annotated[str | None, typer.Option(help='"auto" spreads the model over the devices.')] = None,
    devices: Annotated[
        int | None, typer.Option(min=0, help="How many virtual GPUs; 0: real ones. Default: 2 where there are none.")
    ] = None,
    encoder: Annotated[bool, typer.Option("--encoder", help="The model embeds, it does not generate.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="Of an exported program: a directory or Hub id.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The diagnosis as a JSON object.")] = False,
) -> None:
    """Look where a model's parts are, and where the host waits for each token; exit code 1 if anything is amiss."""
    from gen.doctor import diagnose

    diagnosis = diagnose(
        model, device=device, device_map=device_map, virtual=devices, encoder=encoder, tokenizer=tokenizer
    )
    print(json.dumps({"model": model, **diagnosis.as_dict()}) if as_json else diagnosis)
    if diagnosis.problems:
        raise typer.Exit(1)


def _read_prompts(prompts: list[str] | None, file: Path | None) -> list[str]:
    """The prompts from one place: the arguments, the lines of a file, or stdin as a whole."""
    if prompts and file:
        raise typer.BadParameter("give prompts as arguments or with --file, not both")
    if prompts:
        return prompts
    if file is None:
        return [sys.stdin.read()]
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"cannot read the prompts: {error}") from error
    if not text:
        raise ArgumentError(f"{file} has no prompts; write one a line.")
    return text.splitlines()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 1 failure, 2 usage, 130 interrupt."""
    try:
        app(arguments, prog_name="gen")
    except GenError as error:
        print(f"gen: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ArgumentError) else 1)
