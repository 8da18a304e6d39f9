"""Measures the time to first token of an agent with 8,000 tokens that is restored on another machine, from an object store (moto's S3)
with 20 ms added to each request, compared with reading its past again. Needs tests/clients/requirements.txt.

    GREENROOM=target/release/greenroom python bench/wake.py MODEL.gguf
"""

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3
import moto.server

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("GREENROOM", str(ROOT / "target/release/greenroom"))
LATENCY = 0.02
SCENARIO = "id: long\nagents: {{ ann: {{ system_prompt: You are Ann. }} }}\nphases:\n  - {{ name: read, agents: [ann], prompt: {} }}\n"


def serve() -> str:
    """Starts the store; its address."""
    application = moto.server.DomainDispatcherApplication
    answer = application.__call__

    def late(self, environ, start_response):
        time.sleep(LATENCY)
        return answer(self, environ, start_response)

    application.__call__ = late
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="bucket")
    return url


def play(work: Path, url: str, model: str, machine: str, out: str, *more: str) -> None:
    """Plays one turn on a machine with a separate home, and prints its cost."""
    home = work / machine
    home.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GREENROOM_CACHE_KEY": "k" * 40}
    env |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
    place = f"s3://bucket/memories?endpoint={url}&lease=1"
    command = [PROGRAM, "run", work / "long.yaml", "--model", model, "--max-tokens", "4", "--out", work / out, "--quiet"]
    subprocess.run([*command, "--cache-dir", place, *more], env=env, check=True, stdout=subprocess.DEVNULL)
    turn = json.loads((work / out / "trace.jsonl").read_text().splitlines()[1])
    tokens = turn["tokens"]
    print(f"{machine}: first token after {turn['ttft_ms']:.0f} ms, {tokens['reused']} tokens reused, {tokens['prefilled']} computed")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    model, url = str(Path(sys.argv[1]).resolve()), serve()
    text = re.sub(r"[^A-Za-z0-9 ,.;:\n]", "", (ROOT / "docs/reference.md").read_text())[:31_000]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "long.yaml").write_text(SCENARIO.format(json.dumps(text)))
        play(work, url, model, "first", "run")
        (work / "long.yaml").write_text(SCENARIO.format('"Go on."'))
        for n in range(5):
            play(work, url, model, f"another-{n}", f"next-{n}", "--continue", str(work / "run"))
        for n in range(2):
            play(work, url, model, "another-0", f"again-{n}", "--continue", str(work / "run"))


main()
