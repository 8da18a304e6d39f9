"""Runs and experiments: results, tables, reports, replays and forks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenroom import _greenroom, html
from greenroom.errors import GreenroomError, RunError
from greenroom.tables import Table

if TYPE_CHECKING:
    from greenroom.engine import Engine, Model

__all__ = ["Diff", "Experiment", "Explanation", "Report", "Run", "Verdict"]


def called(arguments: Sequence[str | os.PathLike[str]], allowed: Sequence[int] = (0,)) -> str:
    """What a command of the program prints.

    Raises:
        GreenroomError: Its exit code is another than these.
    """
    done = _greenroom.call(arguments)
    if done["exit"] not in allowed:
        raise GreenroomError(said(done["err"] or done["out"]))
    return str(done["out"])


def said(text: str) -> str:
    """An error as an exception words it: flags of the program are arguments here."""
    text = text.strip().removeprefix("error: ").split("\n\nFor more information, try", 1)[0]
    return re.sub(r"(?<![\w-])['`]?--([a-z][a-z-]*)(?: <[A-Z_]+>)?['`]?", lambda flag: f"`{flag[1].replace('-', '_')}`", text)


class Explanation(str):
    """What an agent had read at a turn, where each part came from, and what was in its memory."""

    def _repr_html_(self) -> str:
        return html.preformatted(self)


class Report(str):
    """A page as HTML, which loads nothing from elsewhere."""

    path: Path | None = None
    """The file of the page."""

    def inline(self) -> str:
        """The page as a frame within another one."""
        style = "width:100%;height:42em;border:1px solid rgba(128,128,128,.4);border-radius:6px;resize:vertical"
        file = f"<small>{escape(str(self.path))}</small>" if self.path else ""
        return f'<iframe sandbox srcdoc="{escape(self)}" style="{style}"></iframe>{file}'

    def __repr__(self) -> str:
        return f"<report {str(self.path) if self.path else ''!r}: {len(self) // 1024} KiB of HTML>"

    def _repr_html_(self) -> str:
        return self.inline()


@dataclass(frozen=True)
class Diff:
    """What differs between two runs.

    Attributes:
        differences: Each difference, as `greenroom diff --json` lists it.
        text: All of them as `greenroom diff` prints them.
    """

    differences: list[dict[str, Any]]
    text: str

    def __bool__(self) -> bool:
        return bool(self.differences)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return html.preformatted(self.text)


@dataclass(frozen=True)
class Verdict:
    """What a replay found.

    Attributes:
        passed: True if the recording agrees with the current scenario, and its assertions hold.
        details: The verdicts as `greenroom replay --json` writes them.
        text: What `greenroom replay` prints.
    """

    passed: bool
    details: Any
    text: str

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return html.preformatted(self.text)


class _Folder:
    """A folder with tables."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        """The folder with everything that was recorded."""
        self._tables: dict[str, Table] | None = None

    @property
    def _shown(self) -> str:
        """The folder as it is printed: below the current folder without the path to that."""
        try:
            return str(self.folder.relative_to(Path.cwd()))
        except (ValueError, OSError):
            return str(self.folder)

    @property
    def tables(self) -> dict[str, Table]:
        """Tables by their names (docs/experiments.md), for pandas, polars and DuckDB (see `greenroom.Table`)."""
        if self._tables is None:
            self._tables = {table.name: Table(table) for table in _greenroom.read_tables(self.folder)}
        return dict(self._tables)

    @property
    def turns(self) -> Table:
        """A row for each turn: `path`, `phase`, `round`, `agent`, `spoken`, `n_tokens`, `stop`, …."""
        return self.tables["turns"]

    @property
    def choices(self) -> Table:
        """A row for each choice: `agent`, `option`, which was chosen, its `logprob` and `share` (its probability among the
        options), `mass`, …. How likely one option was in all choices is in `options`."""
        return self.tables["choices"]

    @property
    def options(self) -> Table:
        """A row for each option of each choice, chosen or not: `option`, `logprob`, `share`, `chosen`, …."""
        return self.tables["options"]

    @property
    def payoffs(self) -> Table:
        """A row for each round and agent: what the round was worth."""
        return self.tables["payoffs"]

    @property
    def state(self) -> Table | None:
        """A row for each value of the state; `None` without a state."""
        return self.tables.get("state")

    def report(self) -> Report:
        """The report as a page, which is also written into the folder."""
        path = Path(called(["report", self.folder]).strip())
        page = Report(path.read_text(encoding="utf-8"))
        page.path = path
        return page

    def replay(self) -> Verdict:
        """Compares the recordings with the current scenarios, without a model."""
        text = _greenroom.call(["replay", self.folder])
        if text["exit"] == 4 and not text["out"]:
            raise GreenroomError(said(text["err"]))
        details = _greenroom.call(["replay", self.folder, "--json"])
        return Verdict(text["exit"] == 0, json.loads(details["out"]), text["out"] + text["err"])

    def _repr_html_(self) -> str:
        return self.report().inline()


class Run(_Folder):
    """A run: what `greenroom.run` gives, or any run's folder.

    Raises:
        GreenroomError: There is no run in the folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        if not self.transcript.is_file():
            raise GreenroomError(f"there is no run in {self.folder}: {self.transcript.name} is missing")
        records = [json.loads(line) for line in self.transcript.read_text(encoding="utf-8").splitlines()]
        self.header: dict[str, Any] = records[0]
        """The first line of the transcript: everything that the run depends on."""
        self.footer: dict[str, Any] | None = records[-1] if records[-1]["type"] == "footer" else None
        """The last line of the transcript: its results; `None` if the run did not end."""
        self.lines: list[dict[str, Any]] = [one for one in records if one["type"] == "turn"]
        """The turns as they are recorded: `path`, `agent`, `delta` (what was read), `spoken`, `tokens`, …."""

    @property
    def transcript(self) -> Path:
        """The file of the transcript."""
        return self.folder / "transcript.jsonl"

    @property
    def complete(self) -> bool:
        """True if it was played to its end."""
        return self.footer is not None

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.header["seed"])

    @property
    def outcomes(self) -> dict[str, Any]:
        """The scenario's outcomes by their names, and then the scores."""
        found: list[dict[str, Any]] = self.footer["outcomes"] if self.footer else []
        return {**{one["name"]: one["value"] for one in found}, **self.scores}

    @property
    def scores(self) -> dict[str, Any]:
        """The scores of `scorers`, by their names."""
        scores: dict[str, Any] = json.loads(_greenroom.read_scores(self.folder))
        return scores

    @property
    def decisions(self) -> dict[str, Any]:
        """What was decided, by phase."""
        return dict(self.footer["decisions"]) if self.footer else {}

    @property
    def payoff(self) -> dict[str, float]:
        """The total payoff of each agent; empty without a payoff."""
        return dict(self.footer["payoffs"]["totals"]) if self.footer and self.footer["payoffs"] else {}

    @property
    def holds(self) -> bool:
        """True if all assertions hold."""
        return self.footer is not None and all(one["holds"] for one in self.footer["assertions"])

    @property
    def cost(self) -> dict[str, Any]:
        """What it cost: tokens reused and computed, seconds, by agent (`summary.json`)."""
        cost: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return cost

    def explain(self, agent: str, at: int | str | None = None) -> Explanation:
        """What an agent had read at a turn (its number from 1, or its path; by default its last one), where each part
        came from, and what was in its memory."""
        at_turn = [] if at is None else ["--turn", str(at)]
        return Explanation(called(["explain", self.folder, "--agent", agent, *at_turn]))

    def prompt(self, agent: str, at: int | str | None = None) -> Explanation:
        """The prompt that an agent's model read at a turn, with all its special tokens."""
        at_turn = [] if at is None else ["--turn", str(at)]
        return Explanation(called(["explain", self.folder, "--agent", agent, *at_turn, "--prompt"]))

    def diff(self, other: Run | str | os.PathLike[str]) -> Diff:
        """What differs between this run and another one."""
        folder = other.folder if isinstance(other, Run) else other
        found = json.loads(called(["diff", self.folder, folder, "--json"], (0, 3)))
        return Diff(found, called(["diff", self.folder, folder, "--all"], (0, 3)))

    def fork(
        self,
        at: str | None = None,
        *,
        say: Mapping[str, str] | None = None,
        tell: Mapping[str, str] | None = None,
        set: Mapping[str, Any] | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        model: Engine | Model | str | None = None,
        out: str | os.PathLike[str] | None = None,
        **playing: Any,
    ) -> Run:
        """Continues from a turn in a different way. This run stays as it is, and what both share is not computed again.

        Args:
            at: The first turn or phase that is played again; by default the first that is changed.
            say: Texts that are said at these turns, e.g. `{"yard/1/marco": "I said nothing."}`.
            tell: Texts that the cast of these turns' phases reads before them, or one agent: `{"danny@yard/1/danny": "…"}`.
            set: Other values of variables.
            seed: Another seed.
            temperature: Another temperature.
            model: The model; by default that of this run.
            out: The folder of the fork.
            playing: `players`, `tools`, `watch` and `allow_tools` of `greenroom.run`.
        """
        from greenroom.play import played

        flags: list[str | os.PathLike[str]] = ["fork", self.folder]
        for flag, value in (("--at", at), ("--seed", seed), ("--temperature", temperature)):
            flags += [] if value is None else [flag, str(value)]
        flags += [one for turn, text in (say or {}).items() for one in ("--say", f"{turn}={text}")]
        flags += [one for turn, text in (tell or {}).items() for one in ("--tell", f"{turn}={text}")]
        flags += [one for name, value in (set or {}).items() for one in ("--set", f"{name}={json.dumps(value)}")]
        if out is not None:
            flags += ["--out", out]
        return played(flags, model=self._engine() if model is None else model, **playing)

    def _engine(self) -> Engine | str | None:
        """The model that played it: an open engine, else its name in the trace."""
        from greenroom.engine import Engine

        if found := Engine.holding(self.header["model"]["identity"]):
            return found
        try:
            with (self.folder / "trace.jsonl").open(encoding="utf-8") as trace:
                name: str = json.loads(trace.readline())["model"]
                return name
        except (OSError, ValueError, LookupError):
            return None

    def score(self, *scorers: Callable[[Run], Any]) -> dict[str, Any]:
        """Scores the run, and stores the scores beside its transcript.

        Raises:
            RunError: A scorer failed.
        """
        scores = self.scores
        for one in scorers:
            name = str(getattr(one, "name", None) or getattr(one, "__name__", "score"))
            try:
                scores[name] = one(self)
            except Exception as error:
                raise RunError(f"the scorer `{name}` failed on {self.folder}: {error!r}") from error
        _greenroom.write_scores(self.folder, json.dumps(scores))
        self._tables = None
        return scores

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        """True if there is a run in this folder."""
        return (Path(folder) / "transcript.jsonl").is_file()

    def __repr__(self) -> str:
        state = f"{len(self.lines)} turns" if self.complete else f"{len(self.lines)} turns so far"
        outcomes = "".join(f", {name}={value!r}" for name, value in self.outcomes.items())
        return f"<run {self._shown!r}: {state}{outcomes}>"

    def dialogue(self) -> str:
        """What was said, turn by turn."""
        names = {key: one["name"] for key, one in self.header["agents"].items()}
        said = [one for one in self.lines if not one.get("call")]
        return "\n".join(f"{names.get(one['agent'], one['agent'])}: {one['spoken']}" for one in said)


class Experiment(_Folder):
    """Many runs of a scenario: what `greenroom.experiment` gives, or any experiment's folder.

    Raises:
        GreenroomError: There is no experiment in the folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        if not (self.folder / "experiment.json").is_file():
            raise GreenroomError(f"there is no experiment in {self.folder}: experiment.json is missing")

    @property
    def summary(self) -> dict[str, Any]:
        """All pooled figures with 95 % confidence intervals and comparisons, as docs/experiments.md describes them."""
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return summary

    @property
    def figures(self) -> Table:
        """A row for each figure of each condition, with its 95 % confidence interval (`low`, `high`)."""
        return self.tables["figures"]

    @property
    def differences(self) -> list[dict[str, Any]]:
        """Each figure of a condition that is compared with another one: `figure`, `condition`, `compared_with`,
        `pairs`, `difference`, its 95 % interval from `low` to `high`, `p`, `p_holm`, and `needed` (how many pairs
        would show it in 80 of 100 experiments). `figures` has them as columns, too."""
        names = ("figure", "condition", "compared_with", "pairs", "difference", "low", "high", "p", "p_holm", "needed")
        found = [row for row in self.figures.rows() if row.get("difference") is not None]
        return [{one: row[f"difference_{one}" if one in ("low", "high") else one] for one in names} for row in found]

    @property
    def runs(self) -> list[Run]:
        """The complete runs."""
        return [Run(self.folder / str(name)) for name in self.tables["runs"].to_dict()["run"]]

    def __repr__(self) -> str:
        return f"<experiment {self._shown!r}: {len(self.tables['runs'])} runs>"
