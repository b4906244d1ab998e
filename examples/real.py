"""What a real model says, here SmolLM2-135M-Instruct: a chat answer, a summary, and four questions as one batch.

make real    # fetches and converts the model, then runs this
"""

import sys
import textwrap
import time

import gen

QUESTION = "What is the capital of France, and what is it known for?"
ARTICLE = (
    "The honey bee lives in colonies of up to sixty thousand. One queen lays all the eggs. The workers, all of them "
    "female, clean the cells, feed the larvae, build the comb, guard the entrance and in their last weeks fly out for "
    "nectar and pollen. A worker that has found a rich field of flowers tells the others by a dance, whose direction "
    "shows the angle to the sun and whose length shows the distance."
)
QUESTIONS = [
    "Name three colours.",
    "What is 7 plus 5?",
    "Write one sentence about the sea.",
    "Translate to French: Good morning.",
]


def main() -> None:
    begin = time.perf_counter()
    model = gen.load(sys.argv[1], dtype="float32")
    print(f"{sys.argv[1]} on {model.placement}, loaded in {time.perf_counter() - begin:.1f} s\n")

    print(f"> {QUESTION}")
    sampler = gen.samplers.multinomial(temperature=0.2, top_p=0.9)
    for piece in gen.stream(model, QUESTION, chat=True, sampler=sampler, seed=7, max_new_tokens=96):
        print(piece, end="", flush=True)
    print("\n")

    greedy = gen.samplers.greedy()
    summary = gen.generate(
        model, f"Summarize this in one sentence.\n\n{ARTICLE}", chat=True, sampler=greedy, max_new_tokens=80
    )
    print(textwrap.fill(f"> Summarize: {ARTICLE}", 100))
    print(f"{textwrap.fill(summary, 100)}\n")

    begin = time.perf_counter()
    answers = gen.generate(model, QUESTIONS, chat=True, sampler=greedy, max_new_tokens=48, details=True)
    seconds = time.perf_counter() - begin
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"> {question}\n{answer.text.strip()}\n")
    tokens = sum(len(answer.token_ids) for answer in answers)
    print(f"{tokens} tokens in {seconds:.1f} s, {len(QUESTIONS)} texts at a time: {tokens / seconds:.0f} tokens/s")


if __name__ == "__main__":
    main()
