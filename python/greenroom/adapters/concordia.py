"""Concordia (https://github.com/google-deepmind/concordia): its simulations on Greenroom's models.

    from greenroom.adapters import concordia

    model = concordia.LanguageModel("understudy")
    memory = AssociativeMemoryBank(sentence_embedder=concordia.embedder(model.engine))

Concordia's prompts are long texts, most of which was in an earlier prompt. What a prompt has in common with an earlier
one from its beginning on is not read again; `model.usage` counts it. A choice is decoded among the options, so it can't
be anything else, and it comes with the log-probability of each."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from concordia.language_model import language_model
from numpy.typing import NDArray

from greenroom.adapters._shared import opened
from greenroom.engine import Engine, Model
from greenroom.errors import EngineError

__all__ = ["SYSTEM", "LanguageModel", "Usage", "embedder"]

# What an instruct model is told to do with a prompt.
SYSTEM = (
    "Continue the user's text. Write only what comes next, in the same style, and never repeat the text. For example, "
    "after 'Question: What is Priya doing?\nAnswer: Priya is' write 'repairing the sink.'"
)
# Separates what comes before a prompt in the chat template from what comes after it.
_MARK = "\u241e"


@dataclass(frozen=True)
class Usage:
    """What all calls have cost together.

    Attributes:
        calls: Number of calls.
        read: Tokens of their prompts.
        reused: Those of them that were not computed, since an earlier prompt began with them.
        generated: Tokens of replies.
    """

    calls: int = 0
    read: int = 0
    reused: int = 0
    generated: int = 0


class LanguageModel(language_model.LanguageModel):  # type: ignore[misc]  # its base has no types
    """A model of Greenroom's for Concordia.

    Args:
        model: An open `greenroom.Engine`, a `greenroom.Model`, or a model's name.
        form: `chat`: a prompt is sent as a user's message after `system`, for models trained on chats. `text`: a
            prompt is continued as it is, for base models.
        system: The system prompt of `form="chat"`.
        max_tokens: Maximum number of tokens of any reply, whatever a component asks for.
        top_p: Sample from the smallest set of tokens that reaches this probability.
        top_k: Sample from this many of the likeliest tokens; 0: from all.
        choice_temperature: 1 draws options with their probabilities, 0 takes the likeliest.
        seed: Calls without a seed derive theirs from this one and from how often the prompt was asked; `None`: random.

    Raises:
        GreenroomError: The model can't be opened.
    """

    def __init__(
        self,
        model: Engine | Model | str | os.PathLike[str] = "understudy",
        *,
        form: Literal["chat", "text"] = "chat",
        system: str = SYSTEM,
        max_tokens: int | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        choice_temperature: float = 1.0,
        seed: int | None = None,
    ) -> None:
        if form not in ("chat", "text"):
            raise ValueError(f"form is {form!r}; expected 'chat' or 'text'")
        self.engine = opened(model)
        self._form, self._max_tokens, self._choice_temperature = form, max_tokens, choice_temperature
        self._top_p, self._top_k = top_p, top_k
        self._seed, self._lock = seed, threading.Lock()
        self._asked_before: dict[str, int] = {}
        self._before, self._after = self._around(system) if form == "chat" else ([], [])
        self._usage = Usage()

    @property
    def usage(self) -> Usage:
        """What all calls have cost so far."""
        return self._usage

    def sample_text(
        self,
        prompt: str,
        *,
        max_tokens: int = language_model.DEFAULT_MAX_TOKENS,
        terminators: Collection[str] = language_model.DEFAULT_TERMINATORS,
        temperature: float = language_model.DEFAULT_TEMPERATURE,
        top_p: float | None = None,
        top_k: int | None = None,
        timeout: float = language_model.DEFAULT_TIMEOUT_SECONDS,
        seed: int | None = None,
    ) -> str:
        """Continues the prompt.

        Args:
            prompt: The text that is continued.
            max_tokens: Maximum number of tokens of the reply; it is shorter if the context has less room.
            terminators: The reply ends before any of these.
            temperature: 0 is greedy.
            top_p: Instead of the model's own.
            top_k: Instead of the model's own.
            timeout: Maximum number of seconds; 0 or less: no limit.
            seed: The same seed gives the same reply to the same prompt.

        Raises:
            TimeoutError: It took longer.
        """
        settings = {
            "max_tokens": max_tokens if self._max_tokens is None else min(max_tokens, self._max_tokens),
            "stop": [one for one in terminators if one],
            "temperature": temperature,
            "top_p": self._top_p if top_p is None else top_p,
            "top_k": self._top_k if top_k is None else top_k,
        }
        text: str = self._asked(prompt, settings, seed, timeout)["text"]
        return text

    def sample_choice(
        self, prompt: str, responses: Sequence[str], *, seed: int | None = None
    ) -> tuple[int, str, Mapping[str, Any]]:
        """One of the responses, drawn as a whole.

        Returns:
            Its index, the response, and `logprobs` (the natural log-probability of each response as the text that comes
            next), `shares` (their probabilities among the responses) and `mass` (the probability of any of them).

        Raises:
            ValueError: There are no responses, or one is given twice.
        """
        among = list(responses)
        if not among or len(set(among)) != len(among):
            raise ValueError(f"found the responses {among}; expected one or more, each once")
        settings = {"guided_choice": among, "temperature": self._choice_temperature}
        drawn = self._asked(prompt, settings, seed, 0)["greenroom"]["choice"]
        index: int = drawn["chosen"]
        # What can't be said has no logarithm in JSON.
        logprobs = [-math.inf if value is None else float(value) for value in drawn["logprobs"]]
        mass = sum(map(math.exp, logprobs))
        shares = [math.exp(value - max(logprobs)) for value in logprobs]
        info = {
            "logprobs": dict(zip(among, logprobs, strict=True)),
            "shares": {one: share / sum(shares) for one, share in zip(among, shares, strict=True)},
            "mass": min(1.0, mass),
        }
        return index, among[index], info

    def _asked(self, prompt: str, settings: dict[str, Any], seed: int | None, timeout: float) -> dict[str, Any]:
        """A completion, as the server describes it."""
        request = {
            "prompt": self._ids(prompt),
            "seed": self._drawn(prompt) if seed is None else seed % 2**64,
            "prompt_cache_key": "concordia",
            "greenroom": True,
            **{name: value for name, value in settings.items() if value is not None},
        }
        requested = self.engine.request("/v1/completions", request)
        late = threading.Event()

        def stop() -> None:
            late.set()
            requested.cancel()

        timer = threading.Timer(timeout, stop) if timeout > 0 else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            answer = requested.result()
        except EngineError as error:
            if late.is_set():
                raise TimeoutError(
                    f"the reply took longer than {timeout:g} seconds; give a longer `timeout`, or fewer `max_tokens`"
                ) from error
            raise
        finally:
            if timer is not None:
                timer.cancel()
        used = answer["usage"]
        with self._lock:
            before = self._usage
            self._usage = Usage(
                before.calls + 1,
                before.read + used["prompt_tokens"],
                before.reused + used["prompt_tokens_details"]["cached_tokens"],
                before.generated + used["completion_tokens"],
            )
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def _drawn(self, prompt: str) -> int:
        """The seed of a call without one: it depends on the prompt and on how often it was asked, so calls at once may
        come in any order."""
        if self._seed is None:
            return secrets.randbits(64)
        with self._lock:
            number = self._asked_before[prompt] = self._asked_before.get(prompt, -1) + 1
        text = f"{self._seed}/{number}/{prompt}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def _ids(self, prompt: str) -> list[int]:
        """A prompt's tokens. It is only text: what looks like a mark of the chat template is none."""
        told = self.engine.request("/tokenize", {"content": prompt, "parse_special": False, "add_special": self._form == "text"})
        ids: list[int] = told.result()["tokens"]
        return [*self._before, *ids, *self._after]

    def _around(self, system: str) -> tuple[list[int], list[int]]:
        """The tokens before and after a prompt in the model's chat template."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": _MARK}]
        rendered: str = self.engine.request("/apply-template", {"messages": messages}).result()["prompt"]
        before, _, after = rendered.partition(_MARK)

        def ids(text: str) -> list[int]:
            told: list[int] = self.engine.request("/tokenize", {"content": text, "parse_special": True}).result()["tokens"]
            return told

        return ids(before), ids(after)


def embedder(model: Engine | Model | str | os.PathLike[str] = "understudy") -> Callable[[str], NDArray[np.float32]]:
    """Makes vectors of texts, for Concordia's associative memory (`sentence_embedder`)."""
    engine = Engine.of(model)

    def embed(text: str) -> NDArray[np.float32]:
        return np.asarray(engine.embed([text])[0], dtype=np.float32)

    return embed
