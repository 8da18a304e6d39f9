"""`greenroom serve` as a child process: started on a free port in a separate folder, ended, killed, restarted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections import deque
from pathlib import Path

import anthropic
import httpx
import openai

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("GREENROOM", ROOT / "target" / "debug" / "greenroom"))
MODEL_FILE = os.environ.get("GREENROOM_MODEL")
MODEL = "model" if MODEL_FILE else "understudy"
TIMEOUT = 120.0
N_LINES = 40  # of the server's own output, kept to be shown when something fails


class Server:
    """A running server. `folder` holds its home and its cache: another one started with the same folder continues with the same memories."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        model = ["--model", f"{MODEL}={MODEL_FILE}"] if MODEL_FILE else []
        command = [PROGRAM, "serve", "--listen", "127.0.0.1:0", "--cache-dir", folder / "cache", *model, *flags]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GREENROOM", "XDG_"))}
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=kept | {"HOME": str(home)},
        )
        self.log: deque[str] = deque(maxlen=N_LINES)
        self.origin = self._origin()
        threading.Thread(target=self._drain, daemon=True).start()

    def _origin(self) -> str:
        """`http://ADDRESS:PORT`, from the line that says where it listens."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.log.append(line)
            if "listening on http://" in line:
                return "http://" + line.split("http://")[1].split("/")[0]
        raise RuntimeError(f"the server ended with {self.process.wait()}:\n{''.join(self.log)}")

    def _drain(self) -> None:
        assert self.process.stdout
        self.log.extend(self.process.stdout)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def openai(self, key: str = "none") -> openai.OpenAI:
        """A client that does not retry, so that refusals are visible."""
        return openai.OpenAI(base_url=f"{self.origin}/v1", api_key=key, max_retries=0, timeout=TIMEOUT)

    def anthropic(self, key: str = "none") -> anthropic.Anthropic:
        """The same for Anthropic's API."""
        return anthropic.Anthropic(base_url=self.origin, api_key=key, max_retries=0, timeout=TIMEOUT)

    def tokens(self, kind: str) -> int:
        """Tokens of its metrics since it started: `reused`, `prefilled`, `recomputed` or `generated`."""
        metrics = httpx.get(f"{self.origin}/metrics", timeout=TIMEOUT).text
        (n,) = re.findall(rf'greenroom_tokens_total\{{kind="{kind}"\}} (\d+)', metrics) or ["0"]
        return int(n)

    def end(self) -> int:
        """Ends it as a service manager does; returns its exit code."""
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        """Ends it as a power failure does."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
