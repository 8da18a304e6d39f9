"""Playing scenarios: one run, many runs, or a run in the background."""

from __future__ import annotations

import asyncio
import json
import math
import os
import queue
import re
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from greenroom import _greenroom
from greenroom.engine import Engine, Model
from greenroom.errors import RunError
from greenroom.functions import Player, View, players_of, tools_of
from greenroom.live import Count, Live, in_notebook
from greenroom.results import Experiment, Run, said
from greenroom.scenario import Scenario

__all__ = ["Event", "Playing", "experiment", "run", "start"]

# What the program says of a run that is complete, where it was to be resumed with the settings that it has.
_IS_COMPLETE = re.compile(r"this run is complete \(\d+ turns\);")

Source = Scenario | str | os.PathLike[str] | Mapping[str, Any]
Watch = Callable[["Event"], None] | bool | None


class Event(NamedTuple):
    """What happens in a run: `plan`, `started`, `reading`, `text`, `call`, `turn`, `skipped`, `stage`, `route`, `asked`,
    `paused`. Their data are those of `POST /v1/runs` (docs/server.md)."""

    name: str
    data: dict[str, Any]


_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def _flags(
    source: Source,
    set: Mapping[str, Any] | None,
    out: str | os.PathLike[str] | None,
    resume: bool,
    case: str | int | None,
    allow_tools: bool,
    sampling: Mapping[str, Any],
) -> tuple[Scenario, list[str | os.PathLike[str]]]:
    """The flags that a run and an experiment share."""
    unknown = [name for name in sampling if name not in _SAMPLING]
    if unknown:
        raise TypeError(f"unknown settings: {', '.join(unknown)}; expected some of {', '.join(_SAMPLING)}")
    scenario = Scenario.of(source)
    flags: list[str | os.PathLike[str]] = ["run", scenario.file(), "--quiet", *scenario.flags()]
    flags += [flag for name, value in (set or {}).items() for flag in ("--set", f"{name}={json.dumps(value)}")]
    for name, value in sampling.items():
        flags += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    if out is not None:
        flags += ["--out", out]
    if case is not None:
        flags += ["--case", str(case)]
    flags += ["--resume"] if resume else []
    flags += ["--allow-tools"] if allow_tools else []
    return scenario, flags


class _Host:
    """What Python adds to a call of the program: players, tools, and a function that gets the events."""

    def __init__(
        self,
        players: Mapping[str, Any],
        tools: Iterable[Any],
        watch: Callable[[Event], None] | None,
        scenario: Scenario | None = None,
    ) -> None:
        self.scenario = scenario  # whose file may last no longer than it
        self.players, self.tools, self.watch = players_of(dict(players)), tools_of(tools), watch
        self.control = _greenroom.Control(self._asked if self.players else None)

    def _asked(self, text: str) -> str:
        view = View.read(text)
        found: Player | None = self.players.get(view.agent)
        if found is None:
            known = ", ".join(sorted(self.players))
            raise KeyError(f"there is no player for `{view.agent}`; there are players for {known}")
        return found.reply(view)

    def _called(self, name: str, arguments: str) -> str:
        return self.tools[name].result(json.loads(arguments))

    def call(
        self,
        flags: Sequence[str | os.PathLike[str]],
        engine: Engine,
        on_run: Callable[[os.PathLike[str]], None] | None = None,
    ) -> dict[str, Any]:
        watch = self.watch

        def seen(name: str, data: str) -> None:
            if watch is not None:
                watch(Event(name, json.loads(data)))

        tools = (set(self.tools), self._called) if self.tools else None
        try:
            return _greenroom.call(
                flags, engine.native, control=self.control, tools=tools, events=seen if watch else None, on_run=on_run
            )
        finally:
            if isinstance(watch, Live):
                watch.close()


def _checked(done: dict[str, Any]) -> str:
    """The folder or file that a run has printed.

    Raises:
        RunError: It failed.
    """
    if done["raised"] is not None:
        raise RunError(said(done["err"]) or str(done["raised"]), done["exit"]) from done["raised"]
    if done["exit"] not in (0, 1, 130) or not done["out"].strip():
        raise RunError(said(done["err"]), done["exit"])
    return str(done["out"].strip().splitlines()[-1])


def _played(done: dict[str, Any]) -> Run:
    """The run that was played.

    Raises:
        RunError: It failed, or was stopped before it began.
    """
    folder = Path(_checked(done)).parent
    if not Run.exists(folder):
        raise RunError("the run was stopped before it began, so nothing is recorded", done["exit"])
    return Run(folder)


def _shown(watch: Watch) -> Callable[[Event], None] | None:
    """Who watches: in a notebook a live view, unless it is turned off."""
    if callable(watch):
        return watch
    if watch or (watch is None and in_notebook()):
        return Live()
    return None


def played(
    flags: Sequence[str | os.PathLike[str]],
    *,
    model: Engine | Model | str | os.PathLike[str] | None = None,
    players: Mapping[str, Any] | None = None,
    tools: Iterable[Any] = (),
    watch: Watch = None,
    allow_tools: bool = False,
) -> Run:
    """The run that a command has played."""
    engine = Engine.of(model)
    named = [] if model is None else ["--model", os.fspath(engine.model.name)]
    flags = [*flags, *named, *(["--allow-tools"] if allow_tools else [])]
    flags += [] if "--quiet" in flags else ["--quiet"]
    host = _Host(players or {}, tools, _shown(watch))
    return _played(host.call(flags, engine))


def run(
    scenario: Source,
    model: Engine | Model | str | os.PathLike[str] | None = None,
    *,
    seed: int | None = None,
    set: Mapping[str, Any] | None = None,
    case: str | int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    continues: Run | str | os.PathLike[str] | None = None,
    players: Mapping[str, Any] | None = None,
    tools: Iterable[Any] = (),
    scorers: Iterable[Callable[[Run], Any]] = (),
    watch: Watch = None,
    cold: bool = False,
    allow_tools: bool = False,
    **sampling: Any,
) -> Run:
    """Plays a scenario, exactly as `greenroom run` does: the same seed gives the same transcript.

    Args:
        scenario: A `Scenario`, or what `Scenario.load` takes.
        model: An open `Engine`, a `Model`, or a model's name; by default the scenario's own, else the bundled one.
        seed: The seed from which all random numbers of the run are derived; by default 0, or that of the run which is
            resumed.
        set: Other values of variables.
        case: One of the scenario's cases, by name or number.
        out: The folder for the results; by default a new one, `runs/ID-N`.
        resume: Continue the interrupted run in `out`. One that is complete is returned as it is.
        continues: Begin with the agents' memories of this run.
        players: Functions that play agents with `strategy: human`, by the agents' keys (see `greenroom.player`).
        tools: Functions that the scenario lists as tools (`function: NAME`; see `greenroom.tool`).
        scorers: Functions that score the run (see `greenroom.scorer`).
        watch: A function that is called with each `Event`. `True` shows the run below a notebook's cell, which is the
            default there; `False` does not.
        cold: Compute every prompt from scratch, to see what memory saves.
        allow_tools: Let agents call the programs and servers that the scenario declares.
        sampling: `max_tokens`, `temperature`, `top_p`, `top_k`, `min_p`, `repetition_penalty`: they override the
            scenario's.

    Raises:
        ScenarioError: The scenario has errors.
        ModelError: The model can't be opened.
        RunError: A turn failed. What was recorded is kept, and `resume=True` continues the run.
        KeyboardInterrupt: Ctrl-C was pressed; likewise.
    """
    return _prepared(
        scenario,
        model,
        seed=seed,
        set=set,
        case=case,
        out=out,
        resume=resume,
        continues=continues,
        players=players,
        tools=tools,
        scorers=scorers,
        watch=watch,
        cold=cold,
        allow_tools=allow_tools,
        sampling=sampling,
    ).here()


class Playing:
    """A run in the background. It can be awaited, or waited for with `result()`; `for` and `async for` yield its events.
    If the task that awaits it is cancelled, the run stops, and what was recorded is kept."""

    def __init__(self, play: Callable[[Callable[[Event], None]], Run], control: _greenroom.Control) -> None:
        self._play, self._control = play, control
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._run: Run | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def here(self) -> Run:
        """Plays in this thread, where Ctrl-C ends the run."""
        return self._play(lambda _: None)

    def begin(self) -> Playing:
        """Begins in the background."""

        def body() -> None:
            try:
                self._run = self._play(self._events.put)
            except BaseException as error:  # raised where it is waited for
                self._error = error
            finally:
                self._ended.set()
                self._events.put(None)

        # A process that ends does not wait for it: what is on record is kept.
        self._thread = threading.Thread(target=body, name="greenroom-run", daemon=True)
        self._thread.start()
        return self

    def pause(self) -> None:
        """Lets no further turn begin."""
        self._control.pause()

    def resume(self) -> None:
        """Lets turns begin again."""
        self._control.resume()

    def step(self) -> None:
        """Lets one more turn begin; then the run is paused."""
        self._control.step()

    def stop(self) -> None:
        """Ends the run as an interruption would; it can be resumed."""
        self._control.stop()

    def answer(self, path: str, text: str) -> None:
        """Answers in place of a human, after an event `asked`.

        Raises:
            GreenroomError: Nobody is asked at this turn now, or the text is not a valid answer.
        """
        self._control.answer(path, text)

    @property
    def done(self) -> bool:
        """True if it has ended."""
        return self._ended.is_set()

    def result(self, timeout: float | None = None) -> Run:
        """Waits for the run, at most `timeout` seconds.

        Raises:
            TimeoutError: It has not ended by then.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError("the run goes on")
        if self._error is not None:
            raise self._error
        assert self._run is not None
        return self._run

    def __iter__(self) -> Iterator[Event]:
        while (event := self._events.get()) is not None:
            yield event
        self._events.put(None)

    async def __aiter__(self) -> AsyncIterator[Event]:
        def next_event() -> Event | None:
            # Not for ever: a loop that ends waits for its threads.
            return self._events.get(timeout=0.1)

        while True:
            try:
                event = await asyncio.to_thread(next_event)
            except queue.Empty:
                continue
            if event is None:
                self._events.put(None)
                return
            yield event

    def __await__(self) -> Generator[Any, None, Run]:
        return self._awaited().__await__()

    async def _awaited(self) -> Run:
        try:
            while not self._ended.is_set():
                await asyncio.to_thread(self._ended.wait, 0.1)
        except asyncio.CancelledError:
            self.stop()
            raise
        return self.result()

    def __repr__(self) -> str:
        return repr(self._run) if self._run else "<a run that is being played: `await` it, or call `.result()`>"


def start(
    scenario: Source,
    model: Engine | Model | str | os.PathLike[str] | None = None,
    *,
    seed: int | None = None,
    set: Mapping[str, Any] | None = None,
    case: str | int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    continues: Run | str | os.PathLike[str] | None = None,
    players: Mapping[str, Any] | None = None,
    tools: Iterable[Any] = (),
    scorers: Iterable[Callable[[Run], Any]] = (),
    watch: Watch = False,
    cold: bool = False,
    allow_tools: bool = False,
    **sampling: Any,
) -> Playing:
    """Plays a scenario in the background. It takes the arguments of `run`; see `Playing` for what can be done with it.

        playing = gr.start("gossip.yaml")
        async for event in playing:
            …
        run = await playing
    """
    return _prepared(
        scenario,
        model,
        seed=seed,
        set=set,
        case=case,
        out=out,
        resume=resume,
        continues=continues,
        players=players,
        tools=tools,
        scorers=scorers,
        watch=watch,
        cold=cold,
        allow_tools=allow_tools,
        sampling=sampling,
    ).begin()


def _prepared(
    scenario: Source,
    model: Engine | Model | str | os.PathLike[str] | None,
    *,
    seed: int | None,
    set: Mapping[str, Any] | None,
    case: str | int | None,
    out: str | os.PathLike[str] | None,
    resume: bool,
    continues: Run | str | os.PathLike[str] | None,
    players: Mapping[str, Any] | None,
    tools: Iterable[Any],
    scorers: Iterable[Callable[[Run], Any]],
    watch: Watch,
    cold: bool,
    allow_tools: bool,
    sampling: Mapping[str, Any],
) -> Playing:
    """A run that is ready to begin."""
    own, flags = _flags(scenario, set, out, resume, case, allow_tools, sampling)
    earlier = Run(out) if resume and out is not None and Run.exists(out) else None
    if seed is None:
        seed = 0 if earlier is None else earlier.seed
    flags += ["--seed", str(seed)]
    if continues is not None:
        flags += ["--continue", continues.folder if isinstance(continues, Run) else continues]
    flags += ["--cold"] if cold else []
    if model is not None:
        engine = Engine.of(model)
        flags += ["--model", os.fspath(engine.model.name)]
    seats = {**own.players, **(players or {})}
    _seated(own, seats)
    functions = {**own.tools, **tools_of(tools)}
    shown = _shown(watch)
    told: list[Callable[[Event], None]] = []

    def seen(event: Event) -> None:
        for each in told:
            each(event)

    host = _Host(seats, functions.values(), seen, own)
    scoring = list(scorers)

    def play(tell: Callable[[Event], None]) -> Run:
        told.extend([tell] if shown is None else [tell, shown])
        try:
            done = host.call(flags, Engine.of(model or own.model))
        finally:
            if isinstance(shown, Live):
                shown.close()
        is_whole = earlier is not None and earlier.complete and _IS_COMPLETE.search(done["err"]) is not None
        run = earlier if earlier is not None and is_whole else _played(done)
        if scoring and run.complete:
            run.score(*scoring)
        return run

    return Playing(play, host.control)


def _seated(scenario: Scenario, players: Mapping[str, Any]) -> None:
    """Refuses players of agents that are not `strategy: human`."""
    for name in players:
        agent = scenario.agents.get(name)
        if agent is None:
            known = ", ".join(scenario.agents)
            raise ValueError(f"there is no agent `{name}` for this player; the scenario's agents are {known}")
        if not agent["is_human"]:
            raise ValueError(
                f"`{name}` is played by a model; write `strategy: human` under `agents: {name}:`, so that a player takes "
                "its place"
            )


def experiment(
    scenario: Source,
    models: Sequence[str | os.PathLike[str]] | Engine | Model | str | None = None,
    *,
    seeds: int | range = 1,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    cases: Iterable[Mapping[str, Any]] | None = None,
    jobs: int | None = None,
    by: Sequence[str] = (),
    over: str | None = None,
    set: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    players: Mapping[str, Any] | None = None,
    tools: Iterable[Any] = (),
    scorers: Iterable[Callable[[Run], Any]] = (),
    progress: Callable[[Run], None] | bool | None = None,
    allow_tools: bool = False,
    **sampling: Any,
) -> Experiment:
    """Plays a scenario many times and computes figures with 95 % confidence intervals, as `greenroom run --repeat` does.

    Args:
        scenario: A `Scenario`, or what `Scenario.load` takes.
        models: A model as `run` has it, or the names of several, which are compared.
        seeds: How many runs to play of each condition and case, or the range of their seeds.
        sweep: Values of variables (or of `temperature`, `top_p`, …); each combination is a condition.
        cases: Values of variables for each case; a scenario with `cases` of its own needs none.
        jobs: Number of runs played at once; the results do not depend on it.
        by: Variables, columns of the cases or choices by which the runs of each condition are grouped.
        over: `agents` pools choices and payoffs over the agents of a phase.
        progress: Called with each run that has ended. `True` counts the runs below a notebook's cell, which is the default
            there; `False` does not.

    Other arguments are those of `run`.

    Raises:
        RunError: Runs failed; the others are kept, and `resume=True` continues the experiment.
    """
    own = Scenario.of(scenario)
    if cases is not None:
        own = own.with_cases(cases)
    _, flags = _flags(own, set, out, resume, None, allow_tools, sampling)
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    if not numbers or numbers.step != 1:
        raise ValueError(f"seeds is {seeds!r}; expected a number from 1, or a range that leaves nothing out")
    flags += ["--seed", str(numbers.start), "--repeat", str(len(numbers))]
    several = [os.fspath(one) for one in models] if isinstance(models, (list, tuple)) else []
    swept = {**({"model": several} if several else {}), **(sweep or {})}
    for name, values in swept.items():
        flags += ["--sweep", f"{name}={','.join(json.dumps(value) for value in values)}"]
    flags += [] if jobs is None else ["--jobs", str(jobs)]
    flags += [flag for name in by for flag in ("--by", name)]
    flags += [] if over is None else ["--over", over]
    model: Any = several[0] if several else models
    engine = Engine.of(model or own.model)
    if model is not None:
        flags += ["--model", os.fspath(engine.model.name)]
    seats = {**own.players, **(players or {})}
    _seated(own, seats)
    scoring = list(scorers)
    host = _Host(seats, {**own.tools, **tools_of(tools)}.values(), None, own)

    count: Callable[[Run], None] | None = progress if callable(progress) else None
    if progress is True or (progress is None and in_notebook()):
        n_conditions = math.prod(len(values) for values in swept.values())
        count = Count(own.title or own.id, n_conditions * len(numbers) * max(own.n_cases, 1))

    def ended(folder: os.PathLike[str]) -> None:
        run = Run(folder)
        if scoring and run.complete:
            run.score(*scoring)
        if count is not None:
            count(run)

    done = host.call(flags, engine, on_run=ended if scoring or count else None)
    return Experiment(_checked(done))

