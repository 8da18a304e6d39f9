"""Python functions that take part in runs: tools that agents call, players in the place of agents, scorers."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from greenroom.results import Run

__all__ = ["Player", "Scorer", "Tool", "View", "as_schema", "parsed", "player", "scorer", "tool"]

_BASIC: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    list: {"type": "array"},
    dict: {"type": "object"},
}


def as_schema(form: Any) -> dict[str, Any]:
    """The JSON Schema of a type: a schema itself, a pydantic model, a dataclass, an enumeration, `Literal`, unions,
    lists and dictionaries of these, and the basic types.

    Raises:
        TypeError: There is no schema of such a type.
    """
    if isinstance(form, dict):
        return cast("dict[str, Any]", form)
    if hasattr(form, "model_json_schema"):
        schema: dict[str, Any] = form.model_json_schema()
        return schema
    if form in _BASIC:
        return dict(_BASIC[form])
    origin, arguments = get_origin(form), get_args(form)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [as_schema(one) for one in arguments]}
    if origin is list:
        return {"type": "array", "items": as_schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": as_schema(arguments[1])}
    if origin is typing.Annotated:
        about = next((one for one in arguments[1:] if isinstance(one, str)), None)
        return {**as_schema(arguments[0]), **({"description": about} if about else {})}
    if inspect.isclass(form) and issubclass(form, enum.Enum):
        return {"enum": [member.value for member in form]}
    if dataclasses.is_dataclass(form):
        hints = get_type_hints(form, include_extras=True)
        needed = [
            one.name
            for one in dataclasses.fields(form)
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        ]
        return _object({one.name: hints[one.name] for one in dataclasses.fields(form)}, needed)
    raise TypeError(f"{form!r} has no JSON Schema; expected a schema, a pydantic model, a dataclass or a basic type")


def _object(hints: dict[str, Any], needed: list[str]) -> dict[str, Any]:
    properties = {name: as_schema(hint) for name, hint in hints.items()}
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def parsed(form: Any, text: str) -> Any:
    """A text of this form as a value: an instance of the pydantic model, dataclass or enumeration, else JSON data; `None`
    if the text was cut before its end."""
    if hasattr(form, "model_validate_json"):
        try:
            return form.model_validate_json(text)
        except ValueError:
            return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if isinstance(form, type) and dataclasses.is_dataclass(form) and isinstance(value, dict):
        return form(**value)
    if isinstance(form, type) and issubclass(form, enum.Enum):
        return form(value)
    return value


def _text(result: Any) -> str:
    """What a tool gave, as agents read it."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


def _why(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(frozen=True)
class Tool:
    """A function that agents may call. Calls are recorded with their results, so a replay needs no Python. An exception is
    recorded as a failed call, whose message the agent reads."""

    function: Callable[..., Any]
    name: str
    about: str
    arguments: dict[str, Any] = field(repr=False)

    def described(self) -> dict[str, Any]:
        """The tool as it is described to models."""
        return {"name": self.name, "about": self.about, "arguments": self.arguments}

    def declared(self) -> dict[str, Any]:
        """The tool as a scenario declares it under `tools`."""
        return {"function": self.name, "about": self.about, "arguments": self.arguments}

    def result(self, arguments: dict[str, Any]) -> str:
        """The result of a call, as agents read it."""
        result = self.function(**arguments)
        return _text(asyncio.run(result) if inspect.iscoroutine(result) else result)

    def called(self, arguments: dict[str, Any]) -> tuple[str, bool]:
        """The result of a call, and whether it failed."""
        try:
            return self.result(arguments), False
        except Exception as error:  # whatever it is, the agent is told
            return _why(error), True

    async def called_async(self, arguments: dict[str, Any]) -> tuple[str, bool]:
        """The same as a coroutine; a function that is not `async` is called on another thread."""
        try:
            if inspect.iscoroutinefunction(self.function):
                return _text(await self.function(**arguments)), False
            return _text(await asyncio.to_thread(self.function, **arguments)), False
        except Exception as error:  # whatever it is, the agent is told
            return _why(error), True

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


def tool(function: Callable[..., Any]) -> Tool:
    """Makes a function a tool, described by its name, the first paragraph of its docstring and its type hints.

        @gr.tool
        def weather(town: str, day: Literal["today", "tomorrow"] = "today") -> str:
            "Tells the weather of a town."
            return …

    Raises:
        TypeError: It has no docstring, or an argument has no type hint for which there is a JSON Schema.
    """
    name = function.__name__
    about = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    if not about:
        raise TypeError(f"the tool `{name}` has no docstring; agents read there what it does")
    hints = get_type_hints(function, include_extras=True)
    needed: list[str] = []
    given: dict[str, Any] = {}
    for one in inspect.signature(function).parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise TypeError(f"the tool `{name}` takes {one}; expected arguments that have names")
        if one.name not in hints:
            raise TypeError(f"the argument `{one.name}` of the tool `{name}` has no type hint")
        given[one.name] = hints[one.name]
        if one.default is one.empty:
            needed.append(one.name)
    return Tool(function, name, about, _object(given, needed))


@dataclass(frozen=True)
class View:
    """What a player knows at a turn.

    Attributes:
        agent: The agent that it plays.
        path: The turn, e.g. `yard/1/marco`.
        system: The agent's system prompt.
        heard: What the agent hears before this turn.
        past: What it heard and said in earlier turns, oldest first.
        options: The options of a choice; empty if any text is a reply.
        form: The form that the reply must have, as text; `None` if any will do.
    """

    agent: str
    path: str
    system: str | None
    heard: str
    past: list[tuple[str, str]]
    options: list[str]
    form: str | None

    @classmethod
    def read(cls, text: str) -> View:
        """From the JSON that the program writes."""
        fields: dict[str, Any] = json.loads(text)
        fields["past"] = [tuple(turn) for turn in fields["past"]]
        return cls(**fields)


@dataclass(frozen=True)
class Player:
    """A function in the place of an agent, which has `strategy: human` in the scenario. Replies are recorded like a human's,
    so a replay needs no Python."""

    function: Callable[[View], Any]

    def reply(self, view: View) -> str:
        """The reply at a turn."""
        result = self.function(view)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        if not isinstance(result, str):
            raise TypeError(f"the player of `{view.agent}` gave {result!r} at {view.path}; expected a text")
        return result

    def __call__(self, view: View) -> Any:
        return self.function(view)


def player(function: Callable[[View], Any]) -> Player:
    """Makes a function a player, which takes the place of an agent. It gets a `View` and returns the reply, and may be
    `async def`.

        @gr.player
        def tit_for_tat(view: gr.View) -> str:
            return view.options[0] if not view.past else …
    """
    return Player(function)


@dataclass(frozen=True)
class Scorer:
    """A function that scores a complete run. The score is stored beside the transcript, and figures treat it as an outcome
    of this name."""

    function: Callable[[Run], float | int | bool | str | None]

    @property
    def name(self) -> str:
        """The name of its score."""
        return self.function.__name__

    def __call__(self, run: Run) -> float | int | bool | str | None:
        return self.function(run)


def scorer(function: Callable[[Run], float | int | bool | str | None]) -> Scorer:
    """Makes a function a scorer of complete runs. It returns a number, a boolean or a string; `None` is no value.

        @gr.scorer
        def words(run: gr.Run) -> int:
            return sum(len(line["spoken"].split()) for line in run.lines)
    """
    return Scorer(function)


def players_of(given: dict[str, Any]) -> dict[str, Player]:
    """Players by the names of their agents."""
    return {name: one if isinstance(one, Player) else Player(one) for name, one in given.items()}


def tools_of(given: Iterable[Any]) -> dict[str, Tool]:
    """Tools by their names."""
    tools = [one if isinstance(one, Tool) else tool(one) for one in given]
    return {one.name: one for one in tools}
