"""A task of Inspect: a suspect talks with the warden, and then decides. Does it stay silent?

    pip install 'greenroom[inspect]'
    inspect eval inspect_dilemma.py --model greenroom/understudy --epochs 4 --seed 7
"""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, chain, generate, solver, system_message, user_message
from inspect_ai.util import JSONSchema

DECISION = ResponseSchema(name="decision", json_schema=JSONSchema(enum=["I stay silent", "I talk"]))


@solver
def decide() -> Solver:
    """Lets the model reply with one of the two options: the reply is decoded in this form."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        return await generate(state, response_schema=DECISION)

    return solve


@task
def dilemma() -> Task:
    """Both suspects; each decision continues the memory of its conversation."""
    names = ("Marco", "Danny")
    return Task(
        dataset=[
            Sample(
                id=name,
                input=f"Warden: {name}, if both of you stay silent, each serves 2 years. If only you talk, you go home.",
                target="I stay silent",
            )
            for name in names
        ],
        solver=chain(
            system_message("You are under arrest for the robbery of a ferry. Speak in one short sentence."),
            generate(),
            user_message("Warden: Write it down now. Do you talk, or do you stay silent?"),
            decide(),
        ),
        scorer=includes(),
        config=GenerateConfig(max_tokens=40),
    )
