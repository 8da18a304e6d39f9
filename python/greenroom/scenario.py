"""Scenarios: read from a file, a string or a dictionary, or built in code."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from greenroom import _greenroom, html
from greenroom.errors import Diagnostic, read_diagnostics
from greenroom.functions import Player, Tool

__all__ = ["PlannedTurn", "Scenario"]


@dataclass(frozen=True)
class PlannedTurn:
    """A turn of a plan: where it is, whose it is, and the turns that it waits for."""

    path: str
    agent: str
    phase: str
    round: int | None
    needs: list[str]


class Scenario:
    """A checked scenario. Built in code, it has the fields of a file (docs/reference.md):

        gr.Scenario(
            id="hello",
            agents={"ann": {"system_prompt": "You are Ann."}, "ben": {"system_prompt": "You are Ben."}},
            phases=[{"name": "talk", "agents": ["ann", "ben"], "rounds": 2}],
        )

    An agent's `tools` may contain a `Tool`, and its `strategy` may be a `Player`; a run then uses them.

    Raises:
        ScenarioError: It has errors; all are listed, each with its place.
    """

    def __init__(self, **fields: Any) -> None:
        tools: dict[str, Tool] = {}
        players: dict[str, Player] = {}
        data = _plain(fields, tools, players)
        self._begin(f"{data.get('id', 'scenario')}.yaml", _greenroom.to_yaml(json.dumps(data)), {})
        self.tools |= tools
        self.players |= players

    def _begin(self, name: str, text: str | None, variables: Mapping[str, Any]) -> None:
        self._variables = dict(variables)
        self._native = _greenroom.Scenario(name, text, json.dumps(list(self._variables.items())))
        self.path: Path | None = Path(name) if text is None else None
        """The file that it was read from; `None` if it was read from a string or built in code."""
        self._described: dict[str, Any] = json.loads(self._native.described())
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.tools: dict[str, Tool] = {}
        """The tools that were given with it."""
        self.players: dict[str, Player] = {}
        """The players that were given with it."""

    @classmethod
    def load(cls, source: str | os.PathLike[str] | Mapping[str, Any], **variables: Any) -> Scenario:
        """Loads a scenario from a file, a string (with more than one line) or a dictionary. `variables` are other values
        of its variables.

        Raises:
            ScenarioError: It has errors; all are listed, each with its place.
            GreenroomError: The file can't be read.
        """
        if isinstance(source, Mapping):
            if variables:
                raise TypeError("write the values of the variables into the dictionary")
            return cls(**source)
        loaded = cls.__new__(cls)
        if isinstance(source, str) and "\n" in source:
            loaded._begin("scenario.yaml", source, variables)
        else:
            loaded._begin(os.fspath(source), None, variables)
        return loaded

    @classmethod
    def of(cls, source: Scenario | str | os.PathLike[str] | Mapping[str, Any]) -> Scenario:
        """Returns a scenario as it is, and loads anything else."""
        return source if isinstance(source, Scenario) else cls.load(source)

    @property
    def id(self) -> str:
        """Its id."""
        return str(self._described["id"])

    @property
    def title(self) -> str | None:
        """Its title."""
        title: str | None = self._described["title"]
        return title

    @property
    def model(self) -> str | None:
        """The model that it names for agents without one of their own, unless that is a remote engine."""
        model: str | None = self._described["model"]
        return model

    @property
    def agents(self) -> dict[str, dict[str, Any]]:
        """Its agents by their keys: `name`, `system`, `is_human`, `tools`."""
        return {one["key"]: one for one in self._described["agents"]}

    @property
    def n_cases(self) -> int:
        """The number of its cases; 0 if it has none."""
        return int(self._described["n_cases"])

    @property
    def variables(self) -> dict[str, Any]:
        """The values of its variables."""
        return dict(self._described["variables"])

    @property
    def plan(self) -> list[PlannedTurn]:
        """Its turns in the order of the plan; a turn with a condition may be skipped in a run."""
        return [PlannedTurn(**turn) for turn in self._described["turns"]]

    @property
    def plan_hash(self) -> str:
        """BLAKE3 hash of the plan."""
        return str(self._described["plan_hash"])

    @property
    def warnings(self) -> list[Diagnostic]:
        """What is valid, but may not be intended."""
        return read_diagnostics(self._native.warnings[0])

    def check(self) -> str:
        """The warnings as `greenroom check` prints them; empty if there are none."""
        return self._native.warnings[1]

    def to_yaml(self) -> str:
        """The scenario as YAML."""
        return self._native.text

    def with_variables(self, **variables: Any) -> Scenario:
        """The same scenario with other values of its variables."""
        other = Scenario.__new__(Scenario)
        name, text = (str(self.path), None) if self.path else (f"{self.id}.yaml", self.to_yaml())
        other._begin(name, text, {**self._variables, **variables})
        other.tools, other.players = self.tools, self.players
        return other

    def with_cases(self, cases: Iterable[Mapping[str, Any]]) -> Scenario:
        """The same scenario, played once with each of these values of variables.

        Raises:
            ValueError: It is a file, which has a place for cases of its own, or there are no cases.
        """
        if self.path is not None:
            raise ValueError(
                f"{self.path} is a file: write `cases: FILE.csv` into it, or load its text "
                "(`Scenario.load(path.read_text())`) and give `cases` here"
            )
        lines = [json.dumps(dict(case), ensure_ascii=False) + "\n" for case in cases]
        if not lines:
            raise ValueError("there are no cases")
        folder = tempfile.TemporaryDirectory(prefix="greenroom-")
        (Path(folder.name) / "cases.jsonl").write_text("".join(lines), encoding="utf-8")
        file = Path(folder.name) / f"{self.id}.yaml"
        file.write_text(f"{self.to_yaml().rstrip()}\ncases: cases.jsonl\n", encoding="utf-8")
        other = Scenario.load(file, **self._variables)
        other.tools, other.players, other._folder = self.tools, self.players, folder
        return other

    def file(self) -> Path:
        """A file of it, which lasts as long as this object."""
        if self.path is not None:
            return self.path
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="greenroom-")
            (Path(self._folder.name) / f"{self.id}.yaml").write_text(self.to_yaml(), encoding="utf-8")
        return Path(self._folder.name) / f"{self.id}.yaml"

    def flags(self) -> list[str]:
        """The flags of the program that set its variables."""
        return [flag for name, value in self._variables.items() for flag in ("--set", f"{name}={json.dumps(value)}")]

    def __repr__(self) -> str:
        return f"<scenario {self.id!r}: {len(self.agents)} agents, {len(self._described['turns'])} turns>"

    def _repr_html_(self) -> str:
        agents = [(one["name"], one["system"] or ("a player" if one["is_human"] else "")) for one in self.agents.values()]
        phases: dict[str, int] = {}
        for turn in self.plan:
            phases[turn.phase] = phases.get(turn.phase, 0) + 1
        title = f"<b>{html.value(self.title or self.id)}</b>"
        return title + html.table(agents, ["agent", "system prompt"]) + html.table(phases.items(), ["phase", "turns"])


def _plain(fields: Mapping[str, Any], tools: dict[str, Tool], players: dict[str, Player]) -> dict[str, Any]:
    """The fields as data; the tools and players that stood in them are added to these."""
    data = json.loads(json.dumps(fields, default=_marked))
    agents: Any = fields.get("agents")
    if not isinstance(agents, Mapping):
        return dict(data)
    for key, agent in cast("Mapping[str, Any]", agents).items():
        if not isinstance(agent, Mapping):
            continue
        agent = cast("Mapping[str, Any]", agent)
        if isinstance(agent.get("strategy"), Player):
            players[key] = agent["strategy"]
            data["agents"][key]["strategy"] = "human"
        own: Iterable[Any] = agent.get("tools") or ()
        for at, one in enumerate(own):
            if isinstance(one, Tool):
                tools[one.name] = one
                data["agents"][key]["tools"][at] = one.name
                data.setdefault("tools", {})[one.name] = one.declared()
    return dict(data)


def _marked(value: Any) -> Any:
    if isinstance(value, (Tool, Player)):
        return None
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    raise TypeError(f"{value!r} can't stand in a scenario")
