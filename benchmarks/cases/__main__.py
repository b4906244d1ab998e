"""Random cases of one kind, each compared with an oracle: how many differ, and where.

    python -m benchmarks.cases prefixes --count 1000
    python -m benchmarks.cases guesses --count 60 --longest 12 --model models/SmolLM2-135M-Instruct

    prefixes      calls and engines whose prompts begin alike, against a call for each prompt in which nothing is shared
    guesses       steps that read what may come next, against plain steps
    drafts        the same with drafts that are given: right, wrong, shortened and foreign ones
    engines       engines with 50 requests that join, are read and leave at random moments, against calls alone
    bits          texts and prompts with exact=True: equal bit by bit alone, in any batch and through an engine
    thoughts      thoughts before answers of types: what the model thinks without a type, and an answer of its type
    verdicts      48 receipts of which a token, a setting or a weight is changed, against the texts that are made anew
    unchanged     48 receipts in bfloat16 that are verified in other batches than they were made in
    faults        calls under faults of virtual GPUs: an error, or the plain CPU's texts
    limits        texts of types under different limits: none is changed by its limit without being told
    compositions  20 types made of types: texts are whole at every limit, and read as by brute force
    schemas       a random schema, against jsonschema: `benchmarks.constraints.fuzz`
    regexes       a random pattern, against Python's re
    both          a random schema or pattern on both engines
    walks         random texts of a schema of MaskBench on the host engine: `benchmarks.constraints.host_walks`
    bfcl          calls of an item of BFCL, right ones and changed ones: `benchmarks.constraints.bfcl`
    suite         a schema of the specification's own tests: `benchmarks.constraints.suite`

A case is drawn by its number. Each difference is printed with it, and the exit code is 1 if there is one. "thoughts"
gives every second case the weights of `--model`, and the others random ones.
"""

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.measuring import check_cases, publish, read_arguments

KINDS = {
    **{name: f"cases.{name}" for name in ("prefixes", "drafts", "engines", "bits", "thoughts", "verdicts", "faults")},
    **{name: f"constraints.{name}" for name in ("limits", "compositions", "bfcl", "suite")},
    **dict.fromkeys(("schemas", "regexes", "both"), "constraints.fuzz"),
    "guesses": "cases.drafts",
    "unchanged": "cases.verdicts",
    "walks": "constraints.host_walks",
}
"""The module of each kind, whose `checker` gives the function that checks a case by its number."""


def main() -> int:
    given = read_arguments(
        __doc__,
        kind_={"choices": [*KINDS]},
        count=(100, "how many cases"),
        first=(0, "the number of the first one"),
        longest=(0, "about how many tokens texts of guesses, drafts and walks, and prompts of bits, have at most"),
        model=(str, 'a folder or "demo"; what the cases run on otherwise is the kind\'s own choice'),
        dtype=(str, "of that model, and of bits"),
        material=(Path, "what walks, bfcl and suite read: MaskBench's folder, BFCL's data, JSON Schema's tests"),
        threads=(1, "torch's threads"),
        work=(Path, "a file of what was done: a run that is begun again goes on behind it"),
    )
    check = import_module(f"benchmarks.{KINDS[given.kind]}").checker(given)
    results = check_cases(range(given.first, given.first + given.count), check, given.work)
    publish(given, kind=given.kind, results=results)
    return bool(results["different"])


if __name__ == "__main__":
    sys.exit(main())
