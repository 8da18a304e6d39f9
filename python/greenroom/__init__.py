"""Multi-agent scenarios on a local language model, with memory that is never computed twice.

    import greenroom as gr

    run = gr.run("prisoners-dilemma.yaml", seed=7)     # plays a scenario
    run.choices                                        # tables, for pandas, polars or DuckDB

    ada = gr.Engine("understudy").agent("ada", system="You are Ada.")
    print(ada.say("Who are you?").result())            # or: await ada.say("Who are you?")
"""

from __future__ import annotations

from importlib import import_module

# As `typing` has it: to import that would take half as long as everything else that the program imports.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from greenroom._greenroom import VERSION as __version__
    from greenroom.agent import Agent, Choice, Memory, Pending, Ranked, Reply, TokenScore, Usage
    from greenroom.engine import Engine, Model, models
    from greenroom.errors import Diagnostic, EngineError, GreenroomError, ModelError, RunError, ScenarioError
    from greenroom.functions import Player, Scorer, Tool, View, player, scorer, tool
    from greenroom.play import Event, Playing, experiment, run, start
    from greenroom.requests import Requested
    from greenroom.results import Diff, Experiment, Explanation, Report, Run, Verdict
    from greenroom.scenario import PlannedTurn, Scenario
    from greenroom.tables import Table

# Names are imported when they are used: the program starts as fast as it can.
_HOMES = {
    "greenroom.agent": ["Agent", "Choice", "Memory", "Pending", "Ranked", "Reply", "TokenScore", "Usage"],
    "greenroom.engine": ["Engine", "Model", "models"],
    "greenroom.errors": ["Diagnostic", "EngineError", "GreenroomError", "ModelError", "RunError", "ScenarioError"],
    "greenroom.functions": ["Player", "Scorer", "Tool", "View", "player", "scorer", "tool"],
    "greenroom.play": ["Event", "Playing", "experiment", "run", "start"],
    "greenroom.requests": ["Requested"],
    "greenroom.results": ["Diff", "Experiment", "Explanation", "Report", "Run", "Verdict"],
    "greenroom.scenario": ["PlannedTurn", "Scenario"],
    "greenroom.tables": ["Table"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Agent",
    "Choice",
    "Diagnostic",
    "Diff",
    "Engine",
    "EngineError",
    "Event",
    "Experiment",
    "Explanation",
    "GreenroomError",
    "Memory",
    "Model",
    "ModelError",
    "Pending",
    "PlannedTurn",
    "Player",
    "Playing",
    "Ranked",
    "Reply",
    "Report",
    "Requested",
    "Run",
    "RunError",
    "Scenario",
    "ScenarioError",
    "Scorer",
    "Table",
    "TokenScore",
    "Tool",
    "Usage",
    "Verdict",
    "View",
    "__version__",
    "experiment",
    "models",
    "player",
    "run",
    "scorer",
    "start",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("greenroom._greenroom").VERSION
    if name not in _HOME_OF:
        raise AttributeError(f"module 'greenroom' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
