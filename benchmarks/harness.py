"""How long lm-evaluation-harness takes with gen as its model, compared with its own model of transformers (HFLM).

    python -m benchmarks.harness --model models/SmolLM2-135M-Instruct

48 documents of each of two tasks: questions with four choices each, after two examples, and paragraphs of this
project's docs, whose perplexity is asked for. The models run each task in turns, in CPU seconds of one thread; loading
is not counted. "HFLM 16" runs in batches of 16. "ratio" is gen's time divided by that of the faster HFLM.
"log-likelihoods" is the largest difference between gen's and theirs.
"""

import json
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

from lm_eval import __version__, simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from benchmarks.measuring import REAL, interleave, publish, read_arguments
from gen.integrations.lm_eval import GenLM

DOCUMENTS = 48
BATCHES = 1, 16
DOCS = Path(__file__).parents[1] / "docs"
CAPITALS = {"Germany": "Berlin", "France": "Paris", "Italy": "Rome", "Austria": "Vienna", "Spain": "Madrid"}
LEGS = {"a spider": "eight", "a dog": "four", "a bee": "six", "a hen": "two", "a fish": "no legs at all"}
OPPOSITES = {"hot": "cold", "tall": "short", "dry": "wet", "loud": "quiet", "old": "young"}


def questions() -> list[dict[str, Any]]:
    """Questions with four choices each; the first two are the examples."""
    random, found = Random(0), []
    asked = ("What is the capital of {}?", CAPITALS), ("How many legs has {}?", LEGS), ("What is not {}?", OPPOSITES)
    for number in range(DOCUMENTS + 2):
        question, answers = asked[number % 3]
        thing, answer = random.choice([*answers.items()])
        choices = [answer, *random.sample([other for other in answers.values() if other != answer], 3)]
        random.shuffle(choices)
        found.append({"question": question.format(thing), "choices": choices, "answer": choices.index(answer)})
    return found


def paragraphs() -> list[dict[str, Any]]:
    """The first paragraphs of the docs' pages that have at least 150 characters."""
    texts = chain.from_iterable(page.read_text().split("\n\n") for page in sorted(DOCS.glob("*.md")))
    return [{"text": text} for text in texts if len(text) >= 150][:DOCUMENTS]


def tasks(folder: Path) -> TaskManager:
    """Both tasks, from files in a folder."""
    asked = questions()
    for name, documents in (("examples", asked[:2]), ("choices", asked[2:]), ("rolling", paragraphs())):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, documents)))
    kinds: dict[str, dict[str, Any]] = {
        "choices": {
            "output_type": "multiple_choice",
            "fewshot_split": "few",
            "fewshot_config": {"sampler": "first_n"},
            "num_fewshot": 2,
            "doc_to_text": "Question: {{question}}\nAnswer:",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}],
        },
        "rolling": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "word_perplexity"}],
        },
    }
    for name, kind in kinds.items():
        files = {"test": str(folder / f"{name}.jsonl"), "few": str(folder / "examples.jsonl")}
        if name == "rolling":
            del files["few"]
        data = {"data_files": files, "cache_dir": str(folder / "cache")}
        task = {"task": f"gen_{name}", "dataset_path": "json", "dataset_kwargs": data, "test_split": "test", **kind}
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return TaskManager(include_path=str(folder), include_defaults=False)


def found(samples: list[dict[str, Any]]) -> list[float]:
    """The log-likelihoods of a task's requests."""
    answers = [answer for one in samples for [answer] in one["resps"]]
    return [answer[0] if isinstance(answer, tuple) else answer for answer in answers]


def measure(path: str, rounds: int) -> list[dict[str, Any]]:
    models: dict[str, Any] = {
        "gen": GenLM(path, device="cpu", dtype="float32"),
        **{f"HFLM {n}": HFLM(pretrained=path, device="cpu", dtype="float32", batch_size=n) for n in BATCHES},
    }
    rows = []
    with TemporaryDirectory() as name:
        manager = tasks(Path(name))
        for task in ("gen_choices", "gen_rolling"):
            results: dict[str, Any] = {}

            def case(one: str, task: str = task, results: dict[str, Any] = results) -> None:
                results[one] = simple_evaluate(
                    model=models[one], tasks=[task], task_manager=manager, bootstrap_iters=0, log_samples=True
                )

            seconds = interleave({one: partial(case, one) for one in models}, rounds, clock=thread_time, warm=0)
            ours, *theirs = (found(results[one]["samples"][task]) for one in models)
            own, *others = (median(one) for one in seconds.values())
            metric = "acc,none" if task == "gen_choices" else "word_perplexity,none"
            rows.append(
                {
                    "task": task,
                    "documents": DOCUMENTS,
                    **{f"seconds of {one}": round(median(seconds[one]), 2) for one in models},
                    "ratio": round(own / min(others), 3),
                    **{f"{metric} of {one}": results[one]["results"][task][metric] for one in models},
                    "log-likelihoods": max(abs(x - y) for other in theirs for x, y in zip(ours, other, strict=True)),
                }
            )
    return rows


def main() -> None:
    given = read_arguments(__doc__, model=(str(REAL), "a directory, or a Hub id"), rounds=3)
    model = Path(given.model).name
    publish(given, lm_eval=__version__, model=model, rows=measure(given.model, given.rounds))


if __name__ == "__main__":
    main()
