"""What types cost with vocabularies of real models: large types, the masks of states, and schemas of MaskBench.

    python -m benchmarks.constraints.large_vocabularies large masks --json FILE
    python -m benchmarks.constraints.large_vocabularies schemas --maskbench jsonschemabench/maskbench/data --json FILE

Tokens are those of SmolLM2 (49,152, models/SmolLM2-135M-Instruct), of Llama 3 (128,256), of Qwen (151,936), and for
Gemma's size (262,144) those of Llama 4 and Qwen together, from the folder --tokens, which these packages fill:

    pip download --no-deps llama-models dashscope && unzip ... llama_models/llama*/tokenizer.model \\
        dashscope/resources/qwen.tiktoken

"large": 30 strings of 200 characters, and two lists of 20 such strings: CPU seconds until the type is compiled, with
the vocabulary's tables made, the median of three; then how many bytes the rows take that a device keeps, made on a
virtual GPU, which refuses more than 64 MB as a real one does. "masks": a thousand states of random types, whose rows
are compared with a walk of every token's bytes. "schemas": a sample of MaskBench, in both readings: how many of those
that compile, and do not refer to themselves, a virtual GPU takes. What a step takes with such types is measured by
`benchmarks.constraints.generation`.
"""

import base64
import json
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.constraints.generation import OBJECTS
from benchmarks.constraints.random_types import random_pattern, random_schema
from benchmarks.measuring import REAL, publish, read_arguments, work_on
from gen.constraints.automata.dfa import Table
from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
from gen.constraints.automata.regexes import regex_table
from gen.constraints.schema import schema_table
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.vocabulary import Vocabulary
from tests.constraints.vocabularies import walk_all
from virtual_gpus import virtual_gpus

STATES = 1000
GEMMA = 262_144
HERE, FULL, LARGE_AUTOMATON = "on the device", "too many rows", "too large an automaton"


def main() -> None:
    given = read_arguments(
        __doc__,
        parts_={"nargs": "+", "choices": ["large", "masks", "schemas"]},
        tokens=({"type": Path, "required": True}, "the folder with the packages' files"),
        model=REAL,
        sizes=([], "only vocabularies of these sizes"),
        maskbench=(Path, "MaskBench's folder"),
        work=(Path("schemas.jsonl"), "a line of JSON for each of its schemas; a run goes on behind them"),
        count=(600, "how many of its schemas"),
    )
    known = vocabularies(given.tokens, given.model, given.sizes)
    report: dict[str, Any] = {}
    if "large" in given.parts:
        report["large"] = [row for size, one in known.items() for row in large(size, one)]
    if "masks" in given.parts:
        report["masks"] = [masks(size, one) for size, one in known.items()]
    if "schemas" in given.parts:
        report["schemas"] = schemas(known, given.maskbench, given.count, given.work)
    publish(given, **report)


def vocabularies(folder: Path, model: Path, sizes: list[int]) -> dict[int, Vocabulary]:
    """The vocabularies by their sizes, the smallest first; tokens without a text fill what is left of a size."""
    from transformers import AutoTokenizer

    from gen.tokens.tokenizers import Tokenizer

    llama3, llama4 = (read_tiktoken(folder / f"llama_models/llama{one}/tokenizer.model") for one in (3, 4))
    qwen = read_tiktoken(folder / "dashscope/resources/qwen.tiktoken")
    both = [*dict.fromkeys([*llama4, *qwen])][:GEMMA]
    smollm2 = Tokenizer(AutoTokenizer.from_pretrained(model)).all_token_bytes()
    each = {49_152: smollm2, 128_256: llama3, 151_936: qwen, GEMMA: both}
    return {
        size: Vocabulary([*tokens, *[b""] * (size - len(tokens))])
        for size, tokens in each.items()
        if not sizes or size in sizes
    }


def read_tiktoken(file: Path) -> list[bytes]:
    return [base64.b64decode(line.split()[0]) for line in file.read_bytes().splitlines()]


def large(size: int, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """A row for each large type."""
    rows = []
    for name in ("30 strings", "2 lists of 20 strings"):
        schema = {"type": "object", "properties": OBJECTS[name], "required": [*OBJECTS[name]]}
        seconds = []
        for _ in range(3):
            begin = time.process_time()
            automaton = TokenAutomaton(schema_table(schema, closed=True, whitespace="line"), vocabulary)
            seconds.append(time.process_time() - begin)
        row: dict[str, Any] = {"vocabulary": size, "type": name, "states": automaton.states}
        row |= {"groups": len(automaton.found.examples) - 1, "compile CPU s": round(statistics.median(seconds), 3)}
        try:
            with virtual_gpus(1):
                placed = automaton.place(torch.device("cuda:0"))
            row |= {"rows": len(placed.rows), "MB of rows": round(placed.rows.nbytes / 2**20, 1)}
            row["MB in all"] = round(sum(tensor.nbytes for tensor in vars(placed).values()) / 2**20, 1)
        except TooLarge as error:
            row |= {"rows": str(error), "MB of rows": "-", "MB in all": "-"}
        rows.append(row)
        print(row, flush=True)
    return rows


def masks(size: int, vocabulary: Vocabulary) -> dict[str, Any]:
    """Compare the rows of a thousand states with a walk of every token's bytes."""
    chance, looked, types, wrong = random.Random(size), 0, 0, 0
    while looked < STATES:
        table = _table(chance)
        if table is None:
            continue
        types += 1
        automaton = TokenAutomaton(table, vocabulary)
        states = range(1, automaton.states + 1)
        for state in chance.sample(states, min(4, len(states))):
            looked += 1
            rows = automaton.rows(int(automaton.group_of[state]))[0]
            after = np.array(walk_all(automaton.table, state, vocabulary.tokens))
            change = automaton.needed[after] - automaton.needed[state]
            kinds = [after > 0, (after > 0) & (change <= 0), (after > 0) & (change < 0)]
            packed = [np.packbits(kind, bitorder="little") for kind in kinds]
            wrong += any(not np.array_equal(row, kind) for row, kind in zip(rows, packed, strict=True))
    return {"vocabulary": size, "types": types, "states": looked, "states that differ": wrong}


def _table(chance: random.Random) -> Table | None:
    """The automaton of a random type; None if it has none."""
    try:
        if chance.random() < 0.4:
            return regex_table(random_pattern(chance))
        whitespace = chance.choice(["line", "compact", "indent"])
        return schema_table(random_schema(chance), closed=chance.random() < 0.5, whitespace=whitespace)  # type: ignore[arg-type]
    except (Empty, TooLarge, Unsupported):
        return None


def schemas(known: dict[int, Vocabulary], folder: Path, count: int, work: Path) -> list[dict[str, Any]]:
    """For each vocabulary and reading, how many schemas are on the device."""
    chosen = random.Random(1).sample(sorted(folder.glob("*.json")), count)

    def find(name: str) -> dict[str, Any]:
        schema = json.loads((folder / name).read_text(encoding="utf-8"))["schema"]
        return {reading: _engines(schema, known, reading == "closed") for reading in ("open", "closed")}

    lines = work_on(work, [file.name for file in chosen], find)
    rows: list[dict[str, Any]] = []
    for size in known:
        for reading in ("open", "closed"):
            counts = Counter(line[reading][str(size)] for line in lines)
            flat = counts[HERE] + counts[FULL] + counts[LARGE_AUTOMATON]
            row = {"vocabulary": size, "reading": reading, "schemas": len(lines)}
            row |= {kind: counts[kind] for kind in (HERE, FULL, LARGE_AUTOMATON, "refers to itself", "refused")}
            rows.append(row | {"of those without recursion": f"{counts[HERE] / max(1, flat):.2%}"})
    return rows


def _engines(schema: Any, known: dict[int, Vocabulary], closed: bool) -> dict[int, str]:
    """For each vocabulary what becomes of a schema."""
    try:
        table = schema_table(schema, closed=closed, whitespace="compact")
    except (Empty, Unsupported):
        return dict.fromkeys(known, "refused")
    except TooLarge as error:
        return dict.fromkeys(known, "refers to itself" if "refers to itself" in str(error) else LARGE_AUTOMATON)
    return {size: HERE if _placed(table, vocabulary) else FULL for size, vocabulary in known.items()}


def _placed(table: Table, vocabulary: Vocabulary) -> bool:
    """Whether a device takes an automaton: its distinct rows have at most 64 MB."""
    try:
        with virtual_gpus(1):
            TokenAutomaton(table, vocabulary).place(torch.device("cuda:0"))
    except TooLarge:
        return False
    return True


if __name__ == "__main__":
    main()
