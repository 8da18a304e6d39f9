"""The study in Inspect (inspect-ai 0.3): `inspect eval inspect_framing.py --model openai/gpt-5-mini`."""

import csv
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Scorer, Target, grouped, mean, scorer, stderr
from inspect_ai.solver import TaskState, generate, system_message

FACTS = {"saved": "The operation saves 90 of 100 patients.", "die": "Of 100 patients 10 die."}
PEOPLE = [row["who"] for row in csv.DictReader(open(Path(__file__).parent / "people.csv"))]


@scorer(metrics=[grouped(mean(), "frame"), grouped(stderr(), "frame")])
def agrees() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        answer = state.output.completion.strip().lower()
        return Score(value=1 if answer.startswith("yes") else 0, answer=answer)

    return score


@task
def framing() -> Task:
    samples = [
        Sample(
            input=f"{fact} Do you agree to the operation? Reply with exactly one of: yes, no.",
            metadata={"frame": frame, "who": who},
        )
        for frame, fact in FACTS.items()
        for who in PEOPLE
    ]
    return Task(dataset=MemoryDataset(samples), solver=[system_message("You are Ada, {who}."), generate()], scorer=agrees())
