"""The study in AutoGen (autogen-agentchat 0.7, autogen-ext[openai]): `python autogen_framing.py MODEL`."""

import asyncio
import csv
import math
import sys
from pathlib import Path
from typing import Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

FACTS = {"saved": "The operation saves 90 of 100 patients.", "die": "Of 100 patients 10 die."}
PEOPLE = [row["who"] for row in csv.DictReader(open(Path(__file__).parent / "people.csv"))]


class Answer(BaseModel):
    agrees: Literal["yes", "no"]


def wilson(count: int, n: int, z: float = 1.96) -> tuple[float, float]:
    rate, spread = count / n, z * z / n
    middle, half = rate + spread / 2, z * math.sqrt((rate * (1 - rate) + spread / 4) / n)
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


async def main() -> None:
    info = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown"}
    client = OpenAIChatCompletionClient(model=sys.argv[1], model_info=info)  # the key and the address from OPENAI_…

    async def ask(who: str, fact: str) -> str:
        ada = AssistantAgent("ada", client, system_message=f"You are Ada, {who}.", output_content_type=Answer)
        result = await ada.run(task=f"{fact} Do you agree to the operation?")
        return result.messages[-1].content.agrees

    for frame, fact in FACTS.items():
        answers = await asyncio.gather(*(ask(who, fact) for who in PEOPLE))
        low, high = wilson(answers.count("yes"), len(answers))
        print(f"{frame}: {answers.count('yes')} of {len(answers)} agree, from {low:.0%} to {high:.0%}")


if __name__ == "__main__":
    asyncio.run(main())
