"""Memories of raw prompts, which begin alike and then go different ways.

A memory is sealed block by block, and only what comes after its last sealed block can be cut anywhere. So what several
prompts begin with is read into a memory that ends there, and theirs are forks of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from greenroom.engine import Engine
from greenroom.errors import EngineError
from greenroom.requests import Requested

__all__ = ["Begun", "Memories", "Usage"]

# Tokens of a sealed block.
_BLOCK = 256
# Tokens of a common beginning that are worth a memory of their own.
_WORTH = 16
# Memories that are known at once; the least recently used is forgotten.
_MOST = 64
# The version of the engine's format of requests (runner/backend/wire.rs).
_VERSION = 3
# What a request has, if it is not given.
_REQUEST: dict[str, Any] = {
    "parent": None,
    "retention": "Persistent",
    "max_tokens": 0,
    "fits_context": True,
    "max_thought_tokens": None,
    "counts_thought": True,
    "min_tokens": 0,
    "stop": [],
    "exact_stops": True,
    "whole_sentences": False,
    "max_call_tokens": 0,
    "constraint": None,
    "by_length": False,
    "grammar": None,
    "calls": "Never",
    "parallel_tool_calls": False,
    "logprobs": None,
    "next_use": None,
    "cold": False,
}
# `canonical`: a reply's tokens are those of its text, so that a prompt which goes on with it finds it.
_SAMPLING: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "repetition_window": 64,
    "canonical": True,
    "seed": 0,
}


@dataclass(frozen=True)
class Usage:
    """What all calls have cost together.

    Attributes:
        calls: Number of calls.
        read: Tokens of their prompts.
        prefilled: Tokens that were computed for these.
        generated: Tokens of replies.
    """

    calls: int = 0
    read: int = 0
    prefilled: int = 0
    generated: int = 0

    @property
    def reused(self) -> int:
        """Tokens of prompts that were not computed, since an earlier prompt began with them."""
        return self.read - self.prefilled


class Begun:
    """Requests that can be cancelled, also before they begin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[Requested] = []
        self.cancelled = False

    def add(self, requested: Requested) -> None:
        """Takes a request; it is cancelled if all are."""
        with self._lock:
            self._requests.append(requested)
            if self.cancelled:
                requested.cancel()

    def cancel(self) -> None:
        """Cancels all."""
        with self._lock:
            self.cancelled = True
            for requested in self._requests:
                requested.cancel()


@dataclass
class _Memory:
    ids: Sequence[int]
    used: int
    busy: bool = False

    def reusable(self, common: int) -> int:
        """How much of it a prompt can use that has this much in common with it."""
        sealed = len(self.ids) // _BLOCK * _BLOCK
        return common if common >= sealed else common // _BLOCK * _BLOCK


class Memories:
    """Answers prompts of token ids, each from the memory that spares most."""

    def __init__(self, engine: Engine, run: str = "concordia") -> None:
        self._engine, self._run = engine, run
        self._model: str = engine.request("/v1/models", method="GET").result()["data"][0]["id"]
        self._lock = threading.Lock()
        self._known: dict[str, _Memory] = {}
        self._clock = 0
        self.usage = Usage()

    def reply(self, ids: list[int], settings: dict[str, Any], begun: Begun) -> dict[str, Any]:
        """The completion of a prompt. Its requests are added to `begun`.

        Raises:
            EngineError: It is refused, or was cancelled.
        """
        with self._lock:
            name, parent, stem = self._place(ids)
        if stem:
            with self._lock:
                branch = self._new(ids[:stem])
            self._read(branch, parent, ids[:stem], {}, begun, is_call=False)
            parent = branch
        try:
            return self._read(name, parent, ids, settings, begun)
        finally:
            with self._lock:
                if name in self._known:
                    self._known[name].busy = False

    def _place(self, ids: list[int]) -> tuple[str, str | None, int]:
        """The memory for a prompt, the one that it begins with, and the length of the beginning that gets a memory of
        its own (0: none)."""
        commons = {name: _common(one.ids, ids) for name, one in self._known.items()}
        reusable = {name: self._known[name].reusable(common) for name, common in commons.items()}
        best = max(reusable, key=lambda name: reusable[name], default=None)
        spared = 0 if best is None else reusable[best]
        for name, one in self._known.items():
            # It goes on where the memory ends.
            if not one.busy and commons[name] == len(one.ids) == spared and spared:
                one.busy, one.used = True, self._now()
                return name, None, 0
        longest = max(commons.values(), default=0)
        stem = longest if longest - spared >= _WORTH and longest < len(ids) else 0
        if best is not None:
            self._known[best].used = self._now()
        name = self._new([])
        self._known[name].busy = True
        return name, best if spared else None, stem

    def _now(self) -> int:
        self._clock += 1
        return self._clock

    def _new(self, ids: list[int]) -> str:
        """A memory; another one is forgotten if there are too many."""
        if len(self._known) >= _MOST:
            free = [name for name, one in self._known.items() if not one.busy]
            if free:
                oldest = min(free, key=lambda name: self._known[name].used)
                del self._known[oldest]
                self._engine.request("/v1/turns/forget", {"model": self._model, "run": self._run, "agent": oldest}).result()
        name = f"{self._now()}"
        self._known[name] = _Memory(ids, self._clock)
        return name

    def _read(
        self,
        name: str,
        parent: str | None,
        ids: list[int],
        settings: dict[str, Any],
        begun: Begun,
        is_call: bool = True,
    ) -> dict[str, Any]:
        def key(agent: str) -> dict[str, str]:
            return {"tenant": "", "run": self._run, "agent": agent}

        given = {name: value for name, value in settings.items() if value is not None}
        options = given.pop("options", None)
        sampling = {field: given.pop(field, value) for field, value in _SAMPLING.items()}
        request = {
            **_REQUEST,
            **given,
            "session": key(name),
            "parent": None if parent is None else key(parent),
            "prompt": {"Ids": ids},
            "sampling": sampling,
            "constraint": None if options is None else {"OneOf": options},
        }
        requested = self._engine.request("/v1/turns", {"version": _VERSION, "model": self._model, "request": request})
        begun.add(requested)
        try:
            completion = _done(requested)
        except BaseException:
            with self._lock:
                self._known.pop(name, None)
            raise
        used = completion["usage"]
        with self._lock:
            if name in self._known:
                self._known[name].ids = [*ids, *completion["ids"]]
            before = self.usage
            self.usage = Usage(
                before.calls + is_call,
                before.read + (len(ids) if is_call else 0),
                before.prefilled + used["prefilled"] + used["recomputed"],
                before.generated + used["generated"],
            )
        return completion


def _done(events: Iterator[dict[str, Any]] | Requested) -> dict[str, Any]:
    """The completion at the end of a turn's events."""
    for event in events:
        if "done" in event:
            done: dict[str, Any] = event["done"]
            return done
        if "failed" in event:
            raise EngineError(event["failed"]["message"], str(event["failed"]["status"]))
    raise EngineError("the turn was taken back", "closed")


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of what both begin with."""
    n = min(len(one), len(other))
    if one[:n] == other[:n]:
        return n
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low
