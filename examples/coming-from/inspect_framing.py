"""The study in Inspect (inspect-ai 0.3): `inspect eval inspect_framing.py --model openai/MODEL`."""

import csv
from pathlib import Path
from typing import Literal

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, ResponseSchema
from inspect_ai.scorer import Score, Scorer, Target, grouped, mean, scorer, stderr
from inspect_ai.solver import TaskState, generate, system_message
from inspect_ai.util import json_schema
from pydantic import BaseModel, ValidationError

FACTS = {"saved": "The operation saves 90 of 100 patients.", "die": "Of 100 patients 10 die."}
PEOPLE = [row["who"] for row in csv.DictReader(open(Path(__file__).parent / "people.csv"))]


class Answer(BaseModel):
    agrees: Literal["yes", "no"]


@scorer(
    metrics=[
        grouped(mean(), "frame", all=False),
        grouped(stderr(), "frame", all=False, name_template="{group_name}_stderr"),
    ]
)
def agrees() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        try:
            answer = Answer.model_validate_json(state.output.completion).agrees
        except ValidationError:
            return Score.unscored(answer=state.output.completion)
        return Score(value=1 if answer == "yes" else 0, answer=answer)

    return score


@task
def framing() -> Task:
    samples = [
        Sample(input=f"{fact} Do you agree to the operation?", metadata={"frame": frame, "who": who})
        for frame, fact in FACTS.items()
        for who in PEOPLE
    ]
    schema = ResponseSchema(name="answer", json_schema=json_schema(Answer), strict=True)
    return Task(
        dataset=MemoryDataset(samples),
        solver=[system_message("You are Ada, {who}."), generate()],
        scorer=agrees(),
        config=GenerateConfig(response_schema=schema),
    )
