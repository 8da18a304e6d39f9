"""What the adapters share: requests to a model, in the formats of `greenroom serve` (docs/server.md).

A model is served by a process of its own, which ends with this one. It finds the memory that each conversation
continues, so adapters send whole conversations."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any

from greenroom.engine import Engine, Model
from greenroom.errors import EngineError, ModelError

__all__ = ["Call", "Service", "ServiceError", "model_of"]

# The name under which the model is served.
NAME = "greenroom"
# What its process runs.
_CHILD = "greenroom.adapters._child"
# Seconds that a service may take to end its requests.
_PATIENCE = 10
_KINDS = {404: "notfound", 409: "inuse", 503: "closed"}


class ServiceError(EngineError):
    """A request was refused.

    Attributes:
        status: The HTTP status.
        code: The error's code, e.g. `context_length_exceeded`; may be `None`.
    """

    def __init__(self, message: str, status: int, code: str | None) -> None:
        super().__init__(message, _KINDS.get(status, "request" if status < 500 else "internal"))
        self.status, self.code = status, code


def model_of(model: Engine | Model | str | os.PathLike[str] | None, **settings: Any) -> Model:
    """A model and its settings.

    Raises:
        TypeError: A setting is none of `greenroom.Model`, or the model has settings already.
    """
    if isinstance(model, Engine):
        model = model.model
    if isinstance(model, Model):
        if settings:
            raise TypeError(f"found a Model and {', '.join(settings)}; give these settings to Model")
        return model
    known = [name for name in Model.__dataclass_fields__ if name != "name"]
    if unknown := [name for name in settings if name not in known]:
        raise TypeError(f"unknown settings: {', '.join(unknown)}; expected some of {', '.join(known)}")
    return Model(model or "understudy", **settings)


class Call:
    """A request that was sent. It can be closed from another thread, which cancels it."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection
        self._response: HTTPResponse | None = None
        self._closed = False

    def _answer(self) -> HTTPResponse:
        response = self._response = self._connection.getresponse()
        if response.status >= 400:
            raise _refusal(response.status, response.read())
        return response

    def read(self) -> Any:
        """The answer, waited for.

        Raises:
            ServiceError: The request was refused.
            TimeoutError: It took too long.
        """
        try:
            body = self._answer().read()
        except (OSError, HTTPException) as error:
            raise self._broken(error) from error
        finally:
            self.close()
        return json.loads(body)

    def events(self) -> Iterator[Any]:
        """The events of a stream, as they come.

        Raises:
            ServiceError: The request was refused, or failed on the way.
            TimeoutError: It took too long.
        """
        try:
            for line in self._answer():
                text = line.decode().strip()
                if not text.startswith("data:"):
                    continue
                data = text.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                event = json.loads(data)
                if isinstance(event, dict) and isinstance(event.get("error"), dict):
                    raise _refusal(int(event["error"].get("status") or 500), data.encode())
                yield event
        except (OSError, HTTPException) as error:
            raise self._broken(error) from error
        finally:
            self.close()

    def _broken(self, error: Exception) -> Exception:
        if isinstance(error, TimeoutError):
            return error
        if self._closed:
            return ServiceError("the request was cancelled", 503, None)
        return ServiceError(f"the model's process has ended or can't be reached: {error}", 503, None)

    def close(self) -> None:
        """Ends the request; if it has not been answered, nothing of it is remembered."""
        self._closed = True
        socket = self._connection.sock
        if socket is not None:
            try:
                socket.shutdown(2)
            except OSError:
                pass
        self._connection.close()


def _refusal(status: int, body: bytes) -> ServiceError:
    try:
        error = json.loads(body)["error"]
        return ServiceError(str(error["message"]), status, error.get("code"))
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"status {status}: {body[:200]!r}", status, None)


class Service:
    """A model that answers requests, in a process of its own.

    Raises:
        ModelError: The model can't be opened, or a setting is wrong.
    """

    _open: dict[tuple[int, Model], Service] = {}
    _opening = threading.Lock()

    def __init__(self, model: Model) -> None:
        self.model = model
        self._process, self.address = _begin(model)
        self._pid = os.getpid()

    @classmethod
    def of(cls, model: Engine | Model | str | os.PathLike[str] | None = None, **settings: Any) -> Service:
        """The service of a model: the one that this process has, or a new one."""
        spec = model_of(model, **settings)
        with cls._opening:
            found = cls._open.get((os.getpid(), spec))
            if found is None or not found.is_open:
                found = cls._open[os.getpid(), spec] = cls(spec)
            return found

    @property
    def is_open(self) -> bool:
        """True while it answers."""
        return self._pid == os.getpid() and self._process.poll() is None

    def begin(self, path: str, body: dict[str, Any] | None = None, *, timeout: float | None = None) -> Call:
        """Sends a request: POST with a body, else GET.

        Raises:
            ServiceError: The model's process has ended.
        """
        host, port = self.address
        connection = HTTPConnection(host, port, timeout=timeout)
        call = Call(connection)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                text = json.dumps({"model": NAME, **body}, ensure_ascii=False).encode()
                connection.request("POST", path, text, {"content-type": "application/json"})
        except OSError as error:
            raise call._broken(error) from error
        return call

    def ask(self, path: str, body: dict[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        """The answer to a request."""
        return self.begin(path, body, timeout=timeout).read()

    def close(self) -> None:
        """Ends the process; what it stored stays."""
        if self._pid != os.getpid():
            return
        with Service._opening:
            if Service._open.get((self._pid, self.model)) is self:
                del Service._open[self._pid, self.model]
        _end(self._process)


def _begin(model: Model) -> tuple[subprocess.Popen[str], tuple[str, int]]:
    """The process of a model, and where it listens."""
    process, said = _tried(model)
    if process is None and model.cache_dir is None and "another server keeps its records" in said:
        # Another process serves from the user's folder. Its memories are its own, and these last as long as this process.
        warnings.warn(
            f"{said.splitlines()[0]}. Until then the memories of this process are not kept (`cache_dir` says where they are)",
            stacklevel=4,
        )
        folder = tempfile.TemporaryDirectory(prefix="greenroom-", ignore_cleanup_errors=True)
        process, said = _tried(replace(model, cache_dir=folder.name))
        atexit.register(folder.cleanup)
    if process is None:
        raise ModelError(said)
    atexit.register(_end, process)
    host, port = said.split("http://")[1].split("/")[0].rsplit(":", 1)
    return process, (host, int(port))


def _tried(model: Model) -> tuple[subprocess.Popen[str] | None, str]:
    """A process and the line that says where it listens, or none and the reason."""
    flags = model.flags()
    flags[flags.index("--model") + 1] = f"{NAME}={os.fspath(model.name)}"
    # Only scenarios name engines elsewhere.
    flags = [flag for flag in flags if flag != "--allow-remote"]
    here = str(Path(__file__).parents[2])
    child = f"import runpy, sys; sys.path.append({here!r}); runpy.run_module({_CHILD!r}, run_name='__main__')"
    errors: IO[bytes]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", child, "serve", "--listen", "127.0.0.1:0", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" in line:
            return process, line
        _end(process)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().removeprefix("error: ")
    return None, said or f"the model's process has ended with exit code {process.returncode}"


def _end(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

