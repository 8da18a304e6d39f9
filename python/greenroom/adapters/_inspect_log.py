"""Runs as logs of Inspect, which its viewer, its data frames and Inspect Scout read."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from inspect_ai.event import Event, InfoEvent, ModelEvent, ScoreEvent, SpanBeginEvent, SpanEndEvent, ToolEvent
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    StopReason,
)
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall, ToolCallError

import greenroom
from greenroom.errors import GreenroomError
from greenroom.results import Experiment, Run

__all__ = ["eval_log", "write_log"]

_STOPS: dict[str, StopReason] = {"end_of_turn": "stop", "stop_string": "stop", "length": "max_tokens", "sentence": "max_tokens"}


def write_log(
    played: Run | Experiment | Iterable[Run] | str | os.PathLike[str], path: str | os.PathLike[str]
) -> Path:
    """Writes runs as a log of Inspect, one sample for each run, and returns its file.

    Args:
        played: A run, several of one scenario, an experiment, or the folder of either.
        path: A file whose name ends with `.eval` or `.json`, or a folder (such as `logs`) for a file with a name like
            those of Inspect.
    """
    log, file = eval_log(played), Path(path)
    if file.suffix not in (".eval", ".json"):
        created = datetime.fromisoformat(log.eval.created).strftime("%Y-%m-%dT%H-%M-%S+00-00")
        file = file / f"{created}_{log.eval.task.replace('_', '-')}_{log.eval.task_id}.eval"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_eval_log(log, str(file))
    return file


def eval_log(played: Run | Experiment | Iterable[Run] | str | os.PathLike[str]) -> EvalLog:
    """Runs as a log of Inspect: what `write_log` writes.

    Raises:
        GreenroomError: There is no run, or the runs are of several scenarios.
    """
    runs, folder = _runs(played)
    if not runs:
        raise GreenroomError("found no complete run; expected one at least: play the scenario, or go on with `resume=True`")
    scenarios = sorted({str(run.header["scenario"]["id"]) for run in runs})
    if len(scenarios) > 1:
        raise GreenroomError(f"found runs of {', '.join(scenarios)}; expected one scenario: write a log for each")
    epochs: dict[str, int] = defaultdict(int)
    samples: list[EvalSample] = []
    for run in runs:
        name = _name(run, folder)
        epochs[name] += 1
        samples.append(_Sample(run).sample(name, epochs[name]))
    header = runs[0].header
    identity = _digest(*(str(run.header["hash"]) for run in runs))
    models = sorted({f"greenroom/{run.header['model']['name']}" for run in runs})
    begun = [str(one.started_at) for one in samples if one.started_at]
    ended = [str(one.completed_at) for one in samples if one.completed_at]
    names = list(dict.fromkeys(str(sample.id) for sample in samples))
    return EvalLog(
        status="success" if all(run.complete for run in runs) else "cancelled",
        eval=EvalSpec(
            eval_id=identity,
            run_id=identity,
            task_id=_digest(scenarios[0], str(header["plan"])),
            created=min(begun),
            task=scenarios[0],
            task_file=header["scenario"]["path"],
            task_args=_common([run.header.get("variables") or {} for run in runs]),
            dataset=EvalDataset(name=scenarios[0], samples=len(names), sample_ids=list(names)),
            model=",".join(models),
            model_generate_config=_config(header),
            config=EvalConfig(epochs=max(epochs.values())),
            packages={"greenroom": greenroom.__version__},
            metadata={"plan": header["plan"], "kv": header["kv"], "numerics": header["numerics"], "model": header["model"]},
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=sum(run.complete for run in runs),
            scores=_results(samples),
        ),
        stats=EvalStats(
            started_at=min(begun),
            completed_at=max(ended),
            model_usage=_total(one.model_usage for one in samples),
            role_usage=_total(one.role_usage for one in samples),
        ),
        samples=samples,
    )


def _runs(played: Run | Experiment | Iterable[Run] | str | os.PathLike[str]) -> tuple[list[Run], Path | None]:
    """The runs, and the folder of their experiment."""
    if isinstance(played, (str, os.PathLike)):
        played = Experiment(played) if (Path(played) / "experiment.json").is_file() else Run(played)
    if isinstance(played, Experiment):
        return played.runs, played.folder
    return ([played] if isinstance(played, Run) else list(played)), None


def _name(run: Run, folder: Path | None) -> str:
    """A run's condition, else its scenario."""
    scenario = str(run.header["scenario"]["id"])
    if folder is None:
        return scenario
    parent = run.folder.relative_to(folder).parent
    return scenario if parent == Path() else parent.as_posix()


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=11).hexdigest()


def _common(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all of them have in common."""
    first = several[0]
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in several)}


def _config(header: Mapping[str, Any]) -> GenerateConfig:
    sampling: dict[str, Any] = header.get("sampling") or {}
    known: dict[str, Any] = {name: sampling.get(name) for name in ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")}
    return GenerateConfig(max_tokens=header.get("max_tokens"), seed=header.get("seed"), **known)


def _total(each: Iterable[Mapping[str, ModelUsage]]) -> dict[str, ModelUsage]:
    total: dict[str, ModelUsage] = {}
    for one in each:
        for name, usage in one.items():
            total[name] = total[name] + usage if name in total else usage
    return total


def _results(samples: Sequence[EvalSample]) -> list[EvalScore]:
    """Each score's mean; of texts, how often each was it."""
    values: dict[str, list[Any]] = defaultdict(list)
    for sample in samples:
        for name, score in (sample.scores or {}).items():
            values[name].append(score.value)
    return [_result(name, found, len(samples) - len(found)) for name, found in values.items()]


def _result(name: str, found: list[Any], missing: int) -> EvalScore:
    metrics: dict[str, float]
    if all(isinstance(one, (int, float)) for one in found):
        metrics = {"mean": fmean(found)}
        if len(found) > 1:
            metrics["stderr"] = stdev(found) / math.sqrt(len(found))
    else:
        metrics = {str(one): found.count(one) / len(found) for one in sorted(set(map(str, found)))}
    return EvalScore(
        name=name,
        scorer="greenroom",
        scored_samples=len(found),
        unscored_samples=missing,
        metrics={label: EvalMetric(name=label, value=value) for label, value in metrics.items()},
    )


class _Sample:
    """A run on its way to a sample."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.agents: dict[str, dict[str, Any]] = run.header["agents"]
        self.costs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.begun = datetime.fromtimestamp(run.transcript.stat().st_mtime, timezone.utc)
        self._read_trace()
        self.now = self.begun
        self.events: list[Event] = []
        self.messages: list[ChatMessage] = []
        self.past: dict[str, list[ChatMessage]] = {}
        self.usage: list[dict[str, ModelUsage]] = []
        self.roles: list[dict[str, ModelUsage]] = []
        self.output: ModelOutput | None = None
        self.span, self._span_id = "", ""

    def _read_trace(self) -> None:
        """What each turn cost, and when it was answered."""
        file = self.run.folder / "trace.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        started: datetime | None = None
        for one in map(json.loads, lines):
            if one["type"] == "run":
                started = datetime.fromtimestamp(one["started"], timezone.utc)
                self.begun = min(self.begun, started)
            elif one["type"] == "turn":
                at = (started or self.begun) + timedelta(milliseconds=one.get("answered_ms") or 0)
                self.costs[one["path"]].append({**one, "at": at})

    def sample(self, name: str, epoch: int) -> EvalSample:
        run = self.run
        for line in run.lines:
            self._turn(line)
        self._enter("")
        scores = _scores(run)
        self.events += [
            ScoreEvent(score=score, scorer=name, timestamp=self.now, working_start=self._working(self.now))
            for name, score in scores.items()
        ]
        seconds = (self.now - self.begun).total_seconds()
        identity = {"hash": run.header["hash"], "plan": run.header["plan"], "folder": str(run.folder)}
        return EvalSample(
            id=name,
            epoch=epoch,
            input=run.lines[0]["delta"] if run.lines else "",
            target="",
            messages=self.messages,
            output=self.output or ModelOutput(),
            scores=scores,
            metadata={"seed": run.seed, "variables": run.header.get("variables") or {}, "agents": self.agents, **identity},
            events=self.events,
            model_usage=_total(self.usage),
            role_usage=_total(self.roles),
            started_at=self.begun.isoformat(),
            completed_at=self.now.isoformat(),
            total_time=seconds,
            working_time=seconds,
            uuid=_digest(str(run.header["hash"]), str((run.footer or {}).get("hash"))),
            turn_count=len(run.lines),
        )

    def _working(self, at: datetime) -> float:
        return max(0.0, (at - self.begun).total_seconds())

    def _enter(self, phase: str) -> None:
        """Ends the span of the phase before, and begins this one's."""
        if self.span == phase:
            return
        at: dict[str, Any] = {"timestamp": self.now, "working_start": self._working(self.now)}
        if self.span:
            self.events.append(SpanEndEvent(id=self._span_id, **at))
        self.span = phase
        if phase:
            self._span_id = _digest(str(self.run.folder), phase, str(len(self.events)))
            self.events.append(SpanBeginEvent(id=self._span_id, name=phase, type="phase", **at))

    def _turn(self, line: Mapping[str, Any]) -> None:
        key, path = line["agent"], line["path"]
        self._enter(path.split("/")[0])
        agent = self.agents.get(key, {"name": key, "system": ""})
        about = {"agent": key, "name": agent["name"], "path": path}
        past = self.past.get(key)
        if past is None:
            system = agent.get("system") or ""
            past = self.past[key] = [ChatMessageSystem(content=system, metadata={"agent": key})] if system else []
            self.messages += past
        if line["delta"]:
            self._add(past, ChatMessageUser(content=line["delta"], metadata=about))
        model = f"greenroom/{agent.get('model') or self.run.header['model']['name']}"
        call = line.get("call")
        calls: list[ToolCall] | None = None
        if call is not None and call["tool"]:
            calls = [ToolCall(id=_digest(path, str(len(past))), function=call["tool"], arguments=call["arguments"] or {})]
        said = ChatMessageAssistant(
            content="" if calls else line["spoken"], tool_calls=calls, model=model, source="generate", metadata=about
        )
        cost = self.costs[path].pop(0) if self.costs[path] else None
        at = cost["at"] if cost else self.now
        read = list(past)
        self._add(past, said)
        if agent.get("strategy"):
            self._event(InfoEvent(source=agent["strategy"], data={**about, "spoken": line["spoken"]}, **self._at(at)))
        else:
            self._replied(line, read, said, model, cost, at)
        self.now = max(self.now, at)
        if calls and call is not None:
            self._called(past, calls[0], call, about)

    def _add(self, past: list[ChatMessage], message: ChatMessage) -> None:
        past.append(message)
        self.messages.append(message)

    def _at(self, at: datetime) -> dict[str, Any]:
        return {"timestamp": at, "working_start": self._working(at), "span_id": self._span_id}

    def _event(self, event: Event) -> None:
        self.events.append(event)

    def _replied(
        self,
        line: Mapping[str, Any],
        read: list[ChatMessage],
        said: ChatMessageAssistant,
        model: str,
        cost: Mapping[str, Any] | None,
        at: datetime,
    ) -> None:
        usage, seconds = None, 0.0
        if cost is not None:
            tokens, seconds = cost["tokens"], cost["total_ms"] / 1000
            computed = tokens["prefilled"] + tokens["recomputed"]
            usage = ModelUsage(
                input_tokens=computed,
                output_tokens=tokens["generated"],
                total_tokens=computed + tokens["reused"] + tokens["generated"],
                input_tokens_cache_read=tokens["reused"],
            )
            self.usage.append({model: usage})
            self.roles.append({line["agent"]: usage})
        stop: StopReason = "tool_calls" if said.tool_calls else _STOPS.get(line["stop"], "unknown")
        self.output = ModelOutput(
            model=model, choices=[ChatCompletionChoice(message=said, stop_reason=stop)], usage=usage, time=seconds
        )
        self._event(
            ModelEvent(
                model=model,
                role=line["agent"],
                input=read,
                tools=[],
                tool_choice="auto" if said.tool_calls else "none",
                config=GenerateConfig(seed=line["seed"]),
                output=self.output,
                completed=at,
                working_time=seconds,
                metadata={"path": line["path"], "constraint": line.get("constraint"), "form": line.get("form")},
                **self._at(at - timedelta(seconds=seconds)),
            )
        )

    def _called(
        self, past: list[ChatMessage], made: ToolCall, call: Mapping[str, Any], about: dict[str, Any]
    ) -> None:
        error = ToolCallError(type="unknown", message=call["result"]) if call["failed"] else None
        self._add(
            past,
            ChatMessageTool(
                content=call["result"], tool_call_id=made.id, function=made.function, error=error, metadata=about
            ),
        )
        self._event(
            ToolEvent(
                id=made.id,
                function=made.function,
                arguments=made.arguments,
                result=call["result"],
                error=error,
                metadata=about,
                **self._at(self.now),
            )
        )


def _scores(run: Run) -> dict[str, Score]:
    """Outcomes, payoffs, choices, decisions and assertions of a run."""
    scores = {name: Score(value=_value(value)) for name, value in run.outcomes.items() if value is not None}
    for agent, payoff in run.payoff.items():
        scores[f"payoff.{agent}"] = Score(value=payoff)
    for phase, decision in run.decisions.items():
        if decision is not None:
            scores[f"decision.{phase}"] = Score(value=_value(decision))
    for line in run.lines:
        if (choice := line.get("constraint")) is not None:
            scores[f"choice.{line['path']}"] = _chosen(line, choice)
    held: list[dict[str, Any]] = (run.footer or {}).get("assertions") or []
    if held:
        failed = [f"{one['that']} ({one['why']})" if one.get("why") else str(one["that"]) for one in held if not one["holds"]]
        scores["assertions"] = Score(value=not failed, explanation="; ".join(failed) or f"{len(held)} of {len(held)} hold")
    return scores


def _chosen(line: Mapping[str, Any], choice: Mapping[str, Any]) -> Score:
    logprobs = {str(one["text"]): one["logprob"] for one in choice["options"]}
    known = [value for value in logprobs.values() if value is not None]
    mass = min(1.0, sum(map(math.exp, known))) if known else None
    value = "invalid" if choice["chosen"] is None else _value(choice["chosen"])
    return Score(value=value, answer=line["spoken"], metadata={"agent": line["agent"], "logprobs": logprobs, "mass": mass})


def _value(value: Any) -> str | int | float | bool:
    return value if isinstance(value, (str, int, float, bool)) else json.dumps(value, ensure_ascii=False)
