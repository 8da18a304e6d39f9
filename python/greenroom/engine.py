"""Models, and the engines that run them."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakValueDictionary

from greenroom import _greenroom, html
from greenroom.agent import Agent, Ranked, TokenScore, read_ranked
from greenroom.errors import EngineError
from greenroom.functions import Tool, tool
from greenroom.requests import Requested

__all__ = ["Engine", "Model", "models"]


@dataclass(frozen=True)
class Model:
    """A model and its settings, which are the flags of `greenroom run` of the same names.

    Args:
        name: `understudy` (the bundled model), the path of a GGUF, a name of `greenroom pull`, `ollama:NAME[:TAG]`,
            `lmstudio:NAME`, `llama.cpp:NAME`, `hf:OWNER/REPO/FILE.gguf`, or the address of a remote engine.
        device: `cpu`, `gpu`, `gpu:NAME` or `auto`.
        kv: Formats of cached keys and values: `auto`, `q4`, `q8`, `f16`, ….
        threads: CPU threads; by default all cores.
        cache_dir: The folder of memories, or an object store; by default the user's cache folder.
        cache_memory: Bytes that memories may take in RAM, as a number or e.g. `2G`.
        cache_disk: Bytes that memories may take on disk, or `unlimited`.
        draft: A smaller model with the same vocabulary, for speculative decoding; the replies stay the same.
        adopt: Use memories that another device computed.
        allow_remote: Let scenarios name remote engines, to which agents' texts are then sent.
    """

    name: str | os.PathLike[str] = "understudy"
    device: str = "cpu"
    kv: str = "auto"
    threads: int | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_memory: int | str | None = None
    cache_disk: int | str | None = None
    draft: str | None = None
    adopt: bool = False
    allow_remote: bool = False

    def flags(self) -> list[str]:
        """The flags of the program that say the same."""
        flags = ["--model", os.fspath(self.name), "--device", self.device, "--kv", self.kv]
        for name in ("threads", "cache_dir", "cache_memory", "cache_disk", "draft"):
            value = getattr(self, name)
            if value is not None:
                flags += [f"--{name.replace('_', '-')}", str(value)]
        flags += [f"--{name.replace('_', '-')}" for name in ("adopt", "allow_remote") if getattr(self, name)]
        return flags


def models() -> list[dict[str, Any]]:
    """The models that Hugging Face, Ollama, LM Studio and llama.cpp have downloaded to this machine.

    Returns:
        For each its `name` (as `Model` takes it), `source`, `file`, and from its header `family`, `weights` (the format
        of most), `parameters`, `bytes`, and `fits` (in this machine's memory). `refusal` is the reason why it is not
        supported or can't be read, or `None`.
    """
    listed: list[dict[str, Any]] = json.loads(_greenroom.call(["models", "--json"])["out"])
    return listed


class Engine:
    """An open model, with the memories of its agents.

    Opening an engine loads the model, so keep it. What agents read and say is stored, and another process can continue
    from there.

    Raises:
        ModelError: The model can't be found or opened, or a setting is wrong.
    """

    # What is open in this process, so that the same model is opened once.
    _open: WeakValueDictionary[tuple[int, Model], Engine] = WeakValueDictionary()
    # The latest model that was opened for a call that named it: the next call finds it open.
    _latest: Engine | None = None

    def __init__(self, model: str | os.PathLike[str] | Model = "understudy", **settings: Any) -> None:
        if isinstance(model, Model):
            if settings:
                raise TypeError(f"{', '.join(settings)}: give these settings to Model")
            self._spec = model
        else:
            self._spec = Model(model, **settings)
        self.native = _greenroom.Engine(self._spec.flags())
        """The part that computes."""
        self._closed = False
        self._info: dict[str, Any] = {}
        Engine._open[os.getpid(), self._spec] = self

    @classmethod
    def of(cls, model: Engine | Model | str | os.PathLike[str] | None) -> Engine:
        """The engine of a model: one that is open in this process, or a new one, which stays open until another
        model is asked for."""
        if isinstance(model, Engine):
            return model
        spec = model if isinstance(model, Model) else Model(model or "understudy")
        found = cls._open.get((os.getpid(), spec))
        if found is None or found._closed:
            found = cls(spec)
        cls._latest = found
        return found

    @classmethod
    def holding(cls, identity: str) -> Engine | None:
        """An engine of this process that has opened the model of this identity."""
        for (process, _), engine in list(cls._open.items()):
            if process == os.getpid() and not engine._closed and engine._identity() == identity:
                return engine
        return None

    def _identity(self) -> str | None:
        try:
            return str(self.info["identity"])
        except EngineError:  # an engine elsewhere
            return None

    @property
    def model(self) -> Model:
        """The model and its settings."""
        return self._spec

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the model: `name`, `family`, `identity` (a hash), `n_params`, `n_layers`, `n_vocab`,
        `context_length` (tokens), `kv` (the cache's formats), `numerics`, `file_bytes`, and suggested `sampling`."""
        if not self._info:
            self._info = json.loads(self.native.info())
        return dict(self._info)

    def agent(
        self,
        name: str,
        *,
        system: str | None = None,
        run: str = "python",
        tools: Sequence[Tool | Any] = (),
        replace: bool = False,
        seed: int = 0,
        **settings: Any,
    ) -> Agent:
        """An agent with a memory of its own, stored by `run` and `name`.

        Args:
            name: Its name.
            system: Its system prompt.
            run: The run to which its memory belongs. Agents with the same name in two runs are two agents.
            tools: Functions that it may call (see `greenroom.tool`).
            replace: Replace a stored memory of this name. Without this, the first turn is refused if it would overwrite
                another conversation; `resume` continues that one.
            seed: Seed of its random numbers.
            settings: Settings of all its replies, as `Agent.say` has them.
        """
        own = [one if isinstance(one, Tool) else tool(one) for one in tools]
        setting = {"system": system, "tools": [one.described() for one in own], "replace": replace}
        native = self.native.agent(run, name, json.dumps(setting), False)
        return Agent(native, self, name, run, own, seed, settings)

    def resume(
        self, name: str, *, run: str = "python", tools: Sequence[Tool | Any] = (), seed: int = 0, **settings: Any
    ) -> Agent:
        """Continues an agent whose memory is stored, with everything that it has read and said.

        Raises:
            EngineError: There is no such memory (`kind` is `notfound`), or another model computed it.
        """
        own = [one if isinstance(one, Tool) else tool(one) for one in tools]
        native = self.native.agent(run, name, json.dumps({"tools": [one.described() for one in own]}), True)
        return Agent(native, self, name, run, own, seed, settings)

    def request(self, path: str, body: Mapping[str, Any] | None = None, method: str = "POST") -> Requested:
        """Answers a request to one of the APIs of `greenroom serve` in this process (docs/server.md). A request holds a
        whole conversation, of which only what is new is read.

            engine.request("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello."}]}).result()
        """
        return Requested(self.native.request(method, path, "" if body is None else json.dumps(body)))

    def rank(self, text: str, options: Iterable[str], *, system: str | None = None) -> list[Ranked]:
        """Options as replies to a text, likeliest first, with their log-probabilities (natural logarithm)."""
        return read_ranked(self.native.rank(system, text, list(options)))

    def score(self, text: str) -> list[TokenScore]:
        """How likely the model finds each token of a text, from the second on (natural logarithms)."""
        return [TokenScore(one["text"], one["logprob"], one["is_likeliest"]) for one in json.loads(self.native.score(text))]

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Texts as vectors of length 1: `len(texts)` of the model's width."""
        return self.native.embed(list(texts))

    def embed_async(self, texts: Sequence[str]) -> Awaitable[list[list[float]]]:
        """Like `embed`, but to be awaited."""
        return self.native.embed_async(list(texts))

    def count(self, text: str) -> int:
        """Number of tokens of a text."""
        return self.native.count(text)

    def stored(self) -> list[dict[str, Any]]:
        """Memories that are stored: `run`, `agent`, `model`, `tokens`, `turns`, `bytes`, `saved_at` (Unix seconds), ….

        Raises:
            EngineError: The engine stores no memories.
        """
        stored: list[dict[str, Any]] = json.loads(self.native.stored())
        return stored

    def remove(self, name: str, *, run: str = "python") -> None:
        """Removes a stored memory."""
        self.native.remove(run, name)

    def close(self) -> None:
        """Closes the engine and its agents; stored memories stay. An engine that nothing refers to any more is closed
        automatically."""
        self.native.close()
        self._closed = True
        if Engine._latest is self:
            Engine._latest = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        given = {name: value for name, value in asdict(self._spec).items() if value != getattr(Model, name)}
        given.pop("name", None)
        rest = "".join(f", {name}={value!r}" for name, value in given.items())
        return f"Engine({os.fspath(self._spec.name)!r}{rest})"

    def _repr_html_(self) -> str:
        rows = [one for one in self.info.items() if one[0] not in ("sampling", "identity")]
        return html.preformatted(repr(self)) + html.table(rows)
