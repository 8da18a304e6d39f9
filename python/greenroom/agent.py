"""Agents of an engine: what they say and choose, and what they remember."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from greenroom import _greenroom, html
from greenroom.errors import EngineError
from greenroom.functions import Tool, as_schema, parsed

if TYPE_CHECKING:
    from greenroom.engine import Engine

__all__ = ["Agent", "Choice", "Memory", "Pending", "Ranked", "Reply", "TokenScore", "Usage"]

T = TypeVar("T")

# Maximum number of tool calls in one turn.
MAX_CALLS = 4
# The settings of `Agent.say` that are sampling settings of the engine.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "reasoning", "reasoning_budget")


@dataclass(frozen=True)
class Usage:
    """What a turn cost.

    Attributes:
        kind: How the prompt related to what the agent had read: `cold` (nothing was read), `extend` (it continues all of that),
            `exact`, `prefix` or `diverge`.
        source: Where the memory was: `memory`, `disk` or `none`.
        reused: Tokens of the prompt that were not computed.
        prefilled: Tokens of the prompt that were computed.
        recomputed: Those of them that had been computed before.
        generated: Tokens of the reply.
        ttft_ms: Milliseconds to the first token.
        total_ms: Milliseconds to the last one.
        memory_bytes: Bytes that the memories of all agents took in RAM at its end.
        reason: Why no more was reused, if that is not obvious.
    """

    kind: str
    source: str
    reused: int
    prefilled: int
    recomputed: int
    generated: int
    ttft_ms: float
    total_ms: float
    memory_bytes: int
    reason: str | None

    @classmethod
    def read(cls, usage: dict[str, Any]) -> Usage:
        """From what the engine writes."""
        fields = {name: usage[name] for name in cls.__dataclass_fields__}
        return cls(**{**fields, "kind": fields["kind"].lower(), "source": fields["source"].lower()})


@dataclass(frozen=True)
class Reply:
    """A reply; as a string it is its text.

    Attributes:
        text: What was said.
        thought: The model's reasoning before the reply, if it reasons.
        parsed: With a `schema`, the reply as a value: an instance of the pydantic model, dataclass or enumeration, else JSON
            data; `None` if the reply was cut before its end.
        stop: Why it ended: `end_of_turn`, `stop_string`, `length` or `sentence`.
        tokens: Its token ids, thoughts included.
        logprobs: With `logprobs`, each token of the text: `text`, `logprob`, and the likeliest alternatives in `top`.
        calls: Calls of tools: `tool`, `arguments`, `result`, `failed`.
        usage: What it cost.
    """

    text: str
    thought: str
    parsed: Any
    stop: str
    tokens: list[int] = field(repr=False)
    logprobs: list[dict[str, Any]] = field(repr=False)
    calls: list[dict[str, Any]] = field(repr=False)
    usage: Usage = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        cost = f"{self.usage.reused} tokens reused, {self.usage.prefilled} read, {self.usage.generated} generated"
        return f"<p>{escape(self.text)}</p><small>{escape(cost)}</small>"


@dataclass(frozen=True)
class Choice:
    """A choice among options; as a string it is the option.

    Attributes:
        option: The option that was chosen.
        index: Its position among the options, from 0.
        logprobs: The log-probability of each option, at temperature 1 (natural logarithm).
        mass: The total probability of the options among all that the model might have said.
        usage: What it cost.
    """

    option: str
    index: int
    logprobs: dict[str, float]
    mass: float
    usage: Usage = field(repr=False)

    def __str__(self) -> str:
        return self.option

    @property
    def shares(self) -> dict[str, float]:
        """The probability of each option among the options, at temperature 1."""
        top = max(self.logprobs.values())
        weights = {option: math.exp(value - top) for option, value in self.logprobs.items()}
        total = sum(weights.values())
        return {option: weight / total for option, weight in weights.items()}

    def _repr_html_(self) -> str:
        def row(option: str, share: float) -> tuple[str, str, str]:
            name = f"<b>{escape(option)}</b>" if option == self.option else escape(option)
            return name, f"<meter value={share:.4f}></meter>", f"{share:.1%}"

        mass = f"{self.mass:.1%}" if self.mass >= 0.001 else "under 0.1%"
        rows = html.table((row(*share) for share in self.shares.items()), raw=True)
        return f"{rows}<small>mass of all options: {mass}</small>"


@dataclass(frozen=True)
class Ranked:
    """An option, and its log-probability as the reply (natural logarithm)."""

    option: str
    logprob: float


@dataclass(frozen=True)
class TokenScore:
    """A token of a text: its log-probability, and whether it is the likeliest there."""

    text: str
    logprob: float
    is_likeliest: bool


@dataclass(frozen=True)
class Memory:
    """An agent's memory after its latest turn.

    Attributes:
        tokens: Tokens that it holds.
        bytes: Bytes that they take.
        kind: How the latest prompt related to it (see `Usage.kind`).
        source: Where it was: `memory`, `disk` or `none`.
        reused: Tokens of the latest prompt that were not computed.
        reason: Why no more was reused, if that is not obvious.
    """

    tokens: int
    bytes: int
    kind: str
    source: str
    reused: int
    reason: str | None

    def _repr_html_(self) -> str:
        rows = {"tokens": self.tokens, "bytes": self.bytes, "kind": self.kind, "source": self.source, "reused": self.reused}
        return html.table(rows.items())


def _taken_back() -> EngineError:
    return EngineError("the turn was taken back: it was cancelled, or its engine was closed", "closed")


def read_ranked(text: str) -> list[Ranked]:
    """Ranks from the JSON that the engine writes, likeliest first."""
    ranked = [Ranked(one["option"], one["logprob"]) for one in json.loads(text)]
    return sorted(ranked, key=lambda one: -one.logprob)


class Pending(Generic[T]):
    """A turn that has begun. There are several ways to wait for it:

        reply = await pending            # in a coroutine or a notebook
        reply = pending.result()         # anywhere else
        async for piece in pending: …    # piece by piece, then `await pending`
        for piece in pending: …          # piece by piece, then `pending.result()`

    If it is cancelled, or nothing refers to it any more before its end, the turn is taken back: the agent has neither
    read nor said anything.
    """

    def __init__(
        self,
        begin: Callable[[str], _greenroom.Turn],
        text: str,
        finish: Callable[[dict[str, Any], list[dict[str, Any]]], T],
        tools: Sequence[Tool] = (),
    ) -> None:
        self._begin = begin
        self._turn: _greenroom.Turn | None = begin(text)
        self._finish = finish
        self._tools = {one.name: one for one in tools}
        self._calls: list[dict[str, Any]] = []
        self._result: T | None = None
        self._error: BaseException | None = None

    def _taken(self, event: tuple[str, str] | None) -> tuple[str | None, list[dict[str, Any]]]:
        """What an event means: a piece of text, or calls to make; at the end neither."""
        if event is None:
            raise _taken_back()
        name, data = event
        if name == "text":
            return data, []
        done = json.loads(data)
        calls: list[dict[str, Any]] = done["calls"] if self._tools else []
        if not calls:
            self._turn = None
            self._result = self._finish(done, self._calls)
        return None, calls

    def _told(self, results: list[dict[str, Any]]) -> None:
        """Goes on with what the calls gave."""
        self._calls += results
        self._turn = self._begin("\n".join(one["result"] for one in results))

    def _failed(self, error: BaseException) -> None:
        self._error, turn, self._turn = error, self._turn, None
        if turn is not None:
            turn.cancel()

    def __iter__(self) -> Iterator[str]:
        try:
            while self._turn is not None:
                piece, calls = self._taken(self._turn.next())
                if piece:
                    yield piece
                if calls:
                    self._told([self._called(call) for call in calls])
        except GeneratorExit:
            return
        except BaseException as error:
            self._failed(error)
            raise

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            while self._turn is not None:
                piece, calls = self._taken(await self._turn.next_async())
                if piece:
                    yield piece
                if calls:
                    self._told([await self._called_async(call) for call in calls])
        except GeneratorExit:
            return
        except BaseException as error:
            self._failed(error)
            raise

    def _called(self, call: dict[str, Any]) -> dict[str, Any]:
        result, failed = self._tool(call).called(call["arguments"])
        return {**call, "result": result, "failed": failed}

    async def _called_async(self, call: dict[str, Any]) -> dict[str, Any]:
        result, failed = await self._tool(call).called_async(call["arguments"])
        return {**call, "result": result, "failed": failed}

    def _tool(self, call: dict[str, Any]) -> Tool:
        return self._tools[call["tool"]]

    def result(self) -> T:
        """Waits for the result."""
        for _ in self:
            pass
        return self._given()

    def _given(self) -> T:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    async def _awaited(self) -> T:
        async for _ in self:
            pass
        return self._given()

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    def cancel(self) -> None:
        """Cancels the turn: the agent has neither read nor said anything."""
        self._failed(_taken_back())

    def __repr__(self) -> str:
        if self._result is not None:
            return repr(self._result)
        return "<a turn that has begun: `await` it, or call `.result()`>"


class Agent:
    """An agent with a memory of its own, made by `Engine.agent`. Its turns are computed one after another; those of
    different agents are computed together."""

    def __init__(
        self,
        native: _greenroom.Agent,
        engine: Engine,
        name: str,
        run: str,
        tools: Sequence[Tool],
        seed: int,
        settings: dict[str, Any],
    ) -> None:
        unknown = set(settings) - {*_SAMPLING, "stop"}
        if unknown:
            raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}")
        self._native, self.engine, self.name, self.run = native, engine, name, run
        self._tools, self.seed, self._settings = list(tools), seed, dict(settings)
        self._usage: Usage | None = None

    def _set(self, given: dict[str, Any]) -> dict[str, Any]:
        """The settings of a turn, as the engine reads them."""
        all_of = {**self._settings, **{name: value for name, value in given.items() if value is not None}}
        sampling = {name: all_of[name] for name in _SAMPLING if name in all_of}
        return {"sampling": sampling, "seed": all_of.get("seed", self.seed), "stop": list(all_of.get("stop", ()))}

    def say(
        self,
        text: str,
        *,
        schema: Any = None,
        regex: str | None = None,
        lark: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        reasoning: str | None = None,
        reasoning_budget: int | None = None,
        seed: int | None = None,
        stop: Sequence[str] | None = None,
        logprobs: int | None = None,
    ) -> Pending[Reply]:
        """Lets the agent read a text and reply to it; both become part of its memory.

        Args:
            text: What it reads.
            schema: The form of the reply: a JSON Schema, a pydantic model, or a type such as `list[int]`.
            regex: The form of the reply as a regular expression.
            lark: The form of the reply as a Lark grammar.
            max_tokens: Maximum number of tokens of the reply; 256 by default.
            temperature: 0 is greedy; by default what the model suggests, else 0.7.
            top_p: Sample from the smallest set of tokens that reaches this probability.
            top_k: Sample from this many of the likeliest tokens; 0: from all.
            min_p: Sample no tokens less likely than this share of the likeliest one.
            repetition_penalty: Divides the logits of tokens already used in the reply; 1 is off.
            reasoning: `none` (the default), `low`, `medium` or `high`, if the model can reason.
            reasoning_budget: Maximum number of tokens of reasoning.
            seed: Seed of the agent's random numbers; each turn derives its own from it.
            stop: Texts at which the reply ends.
            logprobs: Also return the log-probabilities of its tokens, and of this many alternatives at each (at most 20).

        Raises:
            EngineError: When it is waited for: the memory is full, a grammar is wrong, ….
        """
        forms = {"schema": schema, "regex": regex, "lark": lark}
        given = {name: form for name, form in forms.items() if form is not None}
        if len(given) > 1:
            raise TypeError(f"{' and '.join(given)} exclude each other")
        grammar = {name: as_schema(form) if name == "schema" else form for name, form in given.items()}
        settings = self._set(
            {
                "max_tokens": max_tokens,
                "temperature": temperature,
                "top_p": top_p,
                "top_k": top_k,
                "min_p": min_p,
                "repetition_penalty": repetition_penalty,
                "reasoning": reasoning,
                "reasoning_budget": reasoning_budget,
                "seed": seed,
                "stop": stop,
            }
        )
        settings |= {"grammar": grammar or None, "logprobs": logprobs}
        tools = self._tools if not grammar else []
        left = iter(range(MAX_CALLS, -1, -1))

        def begin(text: str) -> _greenroom.Turn:
            may_call = bool(tools) and next(left, 0) > 0
            return self._native.begin(text, json.dumps({**settings, "may_call": may_call}))

        def finish(done: dict[str, Any], calls: list[dict[str, Any]]) -> Reply:
            self._usage = Usage.read(done["usage"])
            value = parsed(schema, done["text"]) if schema is not None else None
            kept = ("text", "thought", "stop", "tokens", "logprobs")
            return Reply(**{name: done[name] for name in kept}, parsed=value, calls=calls, usage=self._usage)

        return Pending(begin, text, finish, tools)

    def choose(
        self, text: str, options: Iterable[str], *, temperature: float | None = None, seed: int | None = None
    ) -> Pending[Choice]:
        """Lets the agent read a text and reply with exactly one of the options: the reply is decoded under this
        constraint, so it can't be anything else. Both become part of its memory.

        Raises:
            ValueError: There are no options, or one is given twice.
        """
        among = list(options)
        if not among or len(set(among)) != len(among):
            raise ValueError("expected one option or more, each once")
        settings = {**self._set({"temperature": temperature, "seed": seed}), "options": among}

        def finish(done: dict[str, Any], _: list[dict[str, Any]]) -> Choice:
            self._usage = Usage.read(done["usage"])
            choice = done["choice"]
            # An option that can't be said has no logarithm in JSON.
            weights = (-math.inf if value is None else value for value in choice["logprobs"])
            logprobs = dict(zip(among, weights, strict=True))
            mass = min(1.0, sum(math.exp(value) for value in logprobs.values()))
            return Choice(choice["option"], choice["chosen"], logprobs, mass, self._usage)

        return Pending(lambda text: self._native.begin(text, json.dumps(settings)), text, finish)

    def rank(self, text: str, options: Iterable[str]) -> list[Ranked]:
        """Options as the agent's reply to a text, likeliest first. Nothing becomes part of its memory."""
        return read_ranked(self._native.rank(text, list(options)))

    def fork(self, name: str, *, seed: int | None = None) -> Agent:
        """An agent of another name with the same past, which is not read again."""
        seed = self.seed if seed is None else seed
        twin = Agent(self._native.fork(self.engine.native, name), self.engine, name, self.run, self._tools, seed, self._settings)
        twin._usage = self._usage
        return twin

    @property
    def turns(self) -> list[dict[str, str]]:
        """What it has read and said: `user` and `said` of each turn, oldest first."""
        turns: list[dict[str, str]] = json.loads(self._native.past())["turns"]
        return turns

    @property
    def system(self) -> str | None:
        """Its system prompt."""
        system: str | None = json.loads(self._native.past())["system"]
        return system

    @property
    def memory(self) -> Memory:
        """Its memory after the latest turn of this process; without one, what is stored.

        Raises:
            EngineError: It had no turn here, and its engine stores no memories.
        """
        usage = self._usage
        if usage is not None:
            tokens = usage.reused + usage.prefilled + usage.generated
            in_memory = self._native.memory_bytes()
            return Memory(tokens, in_memory or 0, usage.kind, usage.source, usage.reused, usage.reason)
        stored = [one for one in self.engine.stored() if (one["run"], one["agent"]) == (self.run, self.name)]
        one = stored[0] if stored else {"tokens": 0, "bytes": 0}
        return Memory(one["tokens"], one["bytes"], "cold", "disk" if stored else "none", 0, None)

    def __repr__(self) -> str:
        return f"<agent {self.name!r} of run {self.run!r}: {len(self.turns)} turns>"

    def _repr_html_(self) -> str:
        past = json.loads(self._native.past())
        system = f"<p><i>{escape(past['system'])}</i></p>" if past["system"] else ""
        lines = "".join(
            f"<p style='opacity:.7;margin:.2em 0'>{escape(turn['user'])}</p>"
            f"<p style='margin:.2em 0 .8em'><b>{escape(self.name)}</b> {escape(turn['said'])}</p>"
            for turn in past["turns"]
        )
        return f"<div style='max-width:48em'>{system}{lines}</div>"


