"""The study in Concordia (gdm-concordia 2.1): `OPENAI_API_KEY=… python concordia_framing.py MODEL`."""

import csv
import math
import sys
from pathlib import Path

import numpy as np
from concordia.associative_memory import basic_associative_memory
from concordia.language_model.gpt_model import GptLanguageModel
from concordia.language_model.language_model import InvalidResponseError
from concordia.prefabs.entity import minimal
from concordia.typing import entity

FACTS = {"saved": "The operation saves 90 of 100 patients.", "die": "Of 100 patients 10 die."}
PEOPLE = [row["who"] for row in csv.DictReader(open(Path(__file__).parent / "people.csv"))]
QUESTION = entity.ActionSpec(
    call_to_action="Does {name} agree to the operation?",
    output_type=entity.OutputType.CHOICE,
    options=("yes", "no"),
)


def wilson(count: int, n: int, z: float = 1.96) -> tuple[float, float]:
    if n == 0:
        return 0.0, 1.0
    rate, spread = count / n, z * z / n
    middle, half = rate + spread / 2, z * math.sqrt((rate * (1 - rate) + spread / 4) / n)
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def main() -> None:
    model = GptLanguageModel(sys.argv[1])
    for frame, fact in FACTS.items():
        answers = []
        for who in PEOPLE:
            memory = basic_associative_memory.AssociativeMemoryBank(sentence_embedder=lambda _: np.ones(3))
            prefab = minimal.Entity(params={"name": "Ada", "custom_instructions": f"Ada is {who}."})
            ada = prefab.build(model, memory)
            ada.observe(fact)
            try:
                answers.append(ada.act(QUESTION))
            except InvalidResponseError:
                answers.append("invalid")
        valid = [one for one in answers if one != "invalid"]
        low, high = wilson(valid.count("yes"), len(valid))
        print(f"{frame}: {valid.count('yes')} of {len(valid)} agree, from {low:.0%} to {high:.0%}; {answers.count('invalid')} invalid")


if __name__ == "__main__":
    main()
