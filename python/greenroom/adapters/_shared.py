"""What the adapters share."""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import warnings
from dataclasses import replace
from typing import Any

from greenroom.engine import Engine, Model
from greenroom.errors import GreenroomError

__all__ = ["model_of", "opened"]

_opening = threading.Lock()
# Engines in the place of those whose folder another process uses.
_instead: dict[tuple[int, Model], Engine] = {}


def model_of(model: Model | str | os.PathLike[str], **settings: Any) -> Model:
    """A model and its settings.

    Raises:
        TypeError: A setting is none of `greenroom.Model`.
    """
    if isinstance(model, Model):
        return replace(model, **settings)
    known = [name for name in Model.__dataclass_fields__ if name != "name"]
    if unknown := [name for name in settings if name not in known]:
        raise TypeError(f"unknown settings: {', '.join(unknown)}; expected some of {', '.join(known)}")
    return Model(model, **settings)


def opened(model: Engine | Model | str | os.PathLike[str] | None) -> Engine:
    """The engine of a model. If another process serves conversations from the user's folder of memories, this one's
    memories are in a folder that is removed when it ends; a warning says so.

    Raises:
        GreenroomError: The model can't be opened, or the folder that was named is in use.
    """
    if isinstance(model, Engine):
        return model
    spec = model if isinstance(model, Model) else Model(model or "understudy")
    with _opening:
        if (here := (os.getpid(), spec)) in _instead:
            return _instead[here]
        engine = Engine.of(spec)
        try:
            engine.request("/v1/models", method="GET").result()
        except GreenroomError as error:
            if spec.cache_dir is not None or "another server keeps its records" not in str(error):
                raise
            warnings.warn(
                f"{error}. The memories of this process are kept until it ends; with a `cache_dir` of its own they stay",
                stacklevel=3,
            )
            folder = tempfile.TemporaryDirectory(prefix="greenroom-", ignore_cleanup_errors=True)
            engine.close()
            engine = _instead[here] = Engine(replace(spec, cache_dir=folder.name))
            atexit.register(folder.cleanup)
            atexit.register(engine.close)  # before the folder is removed
        return engine
