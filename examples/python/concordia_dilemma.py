"""A simulation of Concordia on Greenroom: two agents talk, and then each decides; a game master keeps the score.

    pip install 'greenroom[concordia]'
    python concordia_dilemma.py
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

import concordia.prefabs.entity as entities
import concordia.prefabs.game_master as game_masters
from concordia.prefabs.simulation import generic
from concordia.typing import entity, prefab, scene
from concordia.utils import helper_functions

from greenroom.adapters import concordia

MODEL = os.environ.get("GREENROOM_MODEL", "understudy")
MARCO, DANNY = "Marco", "Danny"
SILENT, TALK = "stays silent", "talks"
YEARS = {(SILENT, SILENT): 2, (TALK, TALK): 5, (SILENT, TALK): 10, (TALK, SILENT): 0}


def payoff(actions: Mapping[str, str]) -> Mapping[str, float]:
    """Minus the years that each serves."""
    marco, danny = actions[MARCO], actions[DANNY]
    return {MARCO: -YEARS[marco, danny], DANNY: -YEARS[danny, marco]}


def sentence(scores: Mapping[str, float]) -> Mapping[str, str]:
    """What each learns of it."""
    return {name: f"{name} serves {-score:g} years." for name, score in scores.items()}


def scenes() -> list[scene.SceneSpec]:
    """A talk in the yard, and a decision in the cells."""
    premise = {name: [f"{name} is under arrest. The warden wants one of them to talk."] for name in (MARCO, DANNY)}
    yard = scene.SceneTypeSpec(
        name="yard",
        game_master_name="yard rules",
        action_spec=entity.free_action_spec(call_to_action=entity.DEFAULT_CALL_TO_SPEECH),
    )
    cells = scene.SceneTypeSpec(
        name="cells",
        game_master_name="court rules",
        action_spec=entity.choice_action_spec(call_to_action="What does {name} do in court?", options=[SILENT, TALK]),
    )
    return [scene.SceneSpec(one, [MARCO, DANNY], num_rounds=2, premise=premise) for one in (yard, cells)]


def main() -> concordia.LanguageModel:
    """Plays the simulation, prints what happened, and returns the model."""
    model = concordia.LanguageModel(MODEL, seed=7, max_tokens=40)
    master = {"scenes": scenes(), "action_to_scores": payoff, "scores_to_observation": sentence}

    def instance(kind: str, role: prefab.Role, **params: Any) -> prefab.InstanceConfig:
        return prefab.InstanceConfig(prefab=kind, role=role, params=params)

    config = prefab.Config(
        default_premise="It is the morning before the trial.",
        default_max_steps=4,
        prefabs={
            **helper_functions.get_package_classes(entities),
            **helper_functions.get_package_classes(game_masters),
        },
        instances=[
            instance("basic__Entity", prefab.Role.ENTITY, name=MARCO, goal="go home soon"),
            instance("basic__Entity", prefab.Role.ENTITY, name=DANNY, goal="not to betray a friend"),
            instance(
                "dialogic_and_dramaturgic__GameMaster", prefab.Role.GAME_MASTER, name="yard rules", scenes=master["scenes"]
            ),
            instance("game_theoretic_and_dramaturgic__GameMaster", prefab.Role.GAME_MASTER, name="court rules", **master),
        ],
    )
    simulation = generic.Simulation(config=config, model=model, embedder=concordia.embedder(model.engine))
    with contextlib.redirect_stdout(io.StringIO()):  # Concordia prints its prompts
        simulation.play()
    for line in simulation.game_master_memory_bank.get_all_memories_as_text():
        print(line[:150])
    usage = model.usage
    print(f"{usage.calls} calls; of {usage.read} tokens of prompts, {usage.reused} were not read again")
    return model


if __name__ == "__main__":
    main()
