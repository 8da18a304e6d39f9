"""Requests to the server in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, cast

from greenroom import _greenroom
from greenroom.errors import EngineError

__all__ = ["Requested"]


class Requested:
    """A request that is being answered:

        answer = await requested         # in a coroutine or a notebook
        answer = requested.result()      # anywhere else
        async for event in requested: …  # a streamed answer, event by event; `for` does it, too

    If it is cancelled, or dropped before its end, the turn is taken back.

    Raises:
        EngineError: The server refuses it; `kind` is the status of HTTP.
    """

    def __init__(self, turn: _greenroom.Turn) -> None:
        self._turn = turn
        self._status = 0
        self._text = ""

    def _took(self, event: tuple[str, str] | None) -> bool:
        """Takes an event; true at the end."""
        if event is None:
            if self._status >= 400 or self._status == 0:
                message, code = _refusal(self._text)
                raise EngineError(message, str(self._status), code)
            return True
        name, data = event
        if name == "status":
            self._status = int(data)
        else:
            self._text += data
        return False

    def _answer(self) -> Any:
        try:
            return json.loads(self._text)
        except ValueError:
            return self._text

    def _streamed(self) -> Iterator[dict[str, Any]]:
        """The whole events that have come (text/event-stream, or a line of JSON each)."""
        if self._status >= 400:
            return
        *lines, self._text = self._text.split("\n")
        for line in lines:
            data = line.removeprefix("data:").strip()
            if data.startswith("{"):
                yield json.loads(data)

    def result(self) -> Any:
        """The answer, waited for: JSON as data, anything else as text."""
        while not self._took(self._turn.next()):
            pass
        return self._answer()

    async def _awaited(self) -> Any:
        while not self._took(await self._turn.next_async()):
            pass
        return self._answer()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._awaited().__await__()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while not self._took(self._turn.next()):
            yield from self._streamed()

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while not self._took(await self._turn.next_async()):
            for event in self._streamed():
                yield event

    def cancel(self) -> None:
        """Takes it back."""
        self._turn.cancel()


def _refusal(text: str) -> tuple[str, str | None]:
    """What a refusal says, and what it is called."""
    try:
        error: Any = json.loads(text)["error"]
        told = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
        return str(told["message"]), told.get("code")
    except (ValueError, KeyError, TypeError):
        return text.strip() or "the request was taken back", None
