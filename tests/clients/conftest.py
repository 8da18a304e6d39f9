"""A real server for all tests, clients for it, and further servers for tests that restart or configure one.

    python3 -m venv venv && venv/bin/pip install -r tests/clients/requirements.txt
    cargo build && venv/bin/pytest tests/clients

GREENROOM names the program (default target/debug/greenroom), GREENROOM_MODEL a GGUF file to test with instead of the bundled understudy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from server import MODEL, TIMEOUT, Server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(route, …): routes, as in `POST /v1/responses`, without which the test fails at once")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that most tests share."""
    with Server(tmp_path_factory.mktemp("server"), "--threads", "2") as running:
        yield running
        assert running.is_running, "the server ended while it was tested:\n" + "".join(running.log)


@pytest.fixture(autouse=True)
def _serves(request: pytest.FixtureRequest) -> None:
    """Fails a test by naming its missing routes, instead of failing somewhere inside it."""
    for mark in request.node.iter_markers("needs"):
        server = request.getfixturevalue("server")
        for route in mark.args:
            if is_missing(server, route):
                pytest.fail(f"{route} is not served", pytrace=False)


def is_missing(server: Server, route: str) -> bool:
    """True if the server knows no such route."""
    method, path = route.split()
    answer = httpx.request(method, server.origin + path, json={} if method == "POST" else None, timeout=TIMEOUT)
    return answer.status_code == 404 and f"{method} {path} does not exist" in answer.text


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts further servers: `start(*flags, folder=…)`. They end with the test."""
    running: list[Server] = []

    def one(*flags: str, folder: Path | None = None) -> Server:
        running.append(Server(folder or tmp_path / f"server{len(running)}", "--threads", "2", *flags))
        return running[-1]

    yield one
    for server in running:
        server.kill()


@pytest.fixture(scope="session")
def model() -> str:
    return MODEL


@pytest.fixture(scope="session")
def client(server: Server) -> openai.OpenAI:
    return server.openai()


@pytest.fixture(scope="session")
def claude(server: Server) -> anthropic.Anthropic:
    return server.anthropic()


@pytest.fixture(scope="session")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.origin, timeout=TIMEOUT) as client:
        yield client
