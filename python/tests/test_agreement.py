"""The module, the program and the server give the same; warnings reach `logging`; the stubs are those of the module."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import SCENARIOS, TALK

import greenroom as gr


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", ["prisoners-dilemma", "gossip"])
def test_program_module_and_server_play_alike(name: str, seed: int, tmp_path: Path) -> None:
    # The server's name for a scenario without a file.
    file = Path("scenario.yaml")
    file.write_text(gr.Scenario.load(SCENARIOS / f"{name}.yaml").to_yaml())
    flags = ["--seed", str(seed), "--max-tokens", "16", "--quiet", "--out", "program"]
    done = subprocess.run([sys.executable, "-m", "greenroom", "run", file, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    program = (tmp_path / "program" / "transcript.jsonl").read_text()
    assert gr.run(file, seed=seed, max_tokens=16, out="module").transcript.read_text() == program
    with gr.Engine("understudy", cache_dir=tmp_path / "memories") as engine:
        events = list(engine.request("/v1/runs", {"scenario": file.read_text(), "seed": seed, "max_tokens": 16}))
    # Each line has the hash of its bytes and of those before it.
    assert events[-1]["transcript"] == [json.loads(line) for line in program.splitlines()]


def test_turning_memory_off_changes_nothing(tmp_path: Path) -> None:
    warm = gr.run(TALK, seed=3, max_tokens=12)
    cold = gr.run(TALK, seed=3, max_tokens=12, cold=True)
    assert warm.transcript.read_text() == cold.transcript.read_text()
    again = gr.run(TALK, seed=3, max_tokens=12, continues=warm)
    assert again.header["continues"] and not again.holds or again.complete


def test_warnings_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "greenroom"), gr.Engine("understudy", threads=1) as engine:
        assert engine.agent("ada").say("Hello.", max_tokens=4).result().text
        with pytest.raises(gr.EngineError, match="stores no memories"):
            engine.resume("ada")
    assert "memories stay in RAM" in caplog.text


def test_a_run_is_controlled_step_by_step() -> None:
    playing = gr.start(TALK, max_tokens=6)
    playing.pause()
    playing.step()
    playing.resume()
    seen = [event.name for event in playing]
    assert playing.result(30).complete and seen.count("turn") <= 6
    with pytest.raises(gr.GreenroomError, match="no human is asked"):
        playing.answer("hall/1/ann", "Hello.")
    stopped = gr.start(SCENARIOS / "prisoners-dilemma.yaml")
    with pytest.raises(TimeoutError):
        stopped.result(0.01)
    assert "being played" in repr(stopped)
    stopped.stop()
    stopped.result(30)


class Elsewhere(BaseHTTPRequestHandler):
    """An engine that lists its one model."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"object": "list", "data": [{"id": "far", "object": "model"}]}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_what_an_engine_elsewhere_lacks_is_said() -> None:
    server = HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    engine = gr.Engine(f"openai+http://127.0.0.1:{server.server_port}/v1?model=far")
    for ask in (lambda: engine.agent("ada"), lambda: engine.request("/v1/models", method="GET"), engine.stored):
        with pytest.raises(gr.ModelError, match="engine elsewhere"):
            ask()
    server.shutdown()
    with pytest.raises(gr.ModelError, match="connection refused"):
        gr.Engine("openai+http://127.0.0.1:9/v1?model=far")
