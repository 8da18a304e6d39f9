"""Two machines take turns with runs through an object store (moto's S3) and are killed at random times: every transcript must be
identical to that of an undisturbed run. It takes minutes, so pytest does not collect it.

    GREENROOM=target/release/greenroom python tests/clients/random_kills.py 200 [SEED]
"""

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("GREENROOM", str(ROOT / "target/release/greenroom"))
SCENARIO = ROOT / "scenarios/gossip.yaml"


class Machines:
    """Two machines without a common folder: each has its own home and copies."""

    def __init__(self, work: Path, url: str) -> None:
        self.work = work
        self.address = f"s3://bucket/memories?endpoint={url}&lease=1"

    def begin(self, machine: int, seed: int, out: Path, resume: bool) -> subprocess.Popen:
        home = self.work / f"machine-{machine}"
        home.mkdir(exist_ok=True)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_REGION": "us-east-1",
            "GREENROOM_CACHE_KEY": "k" * 40,
        }
        command = [PROGRAM, "run", SCENARIO, "--seed", str(seed), "--out", out, "--quiet", "--cache-dir", self.address]
        return subprocess.Popen(
            command + ["--resume"] * resume, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def left_alone(self, seed: int) -> bytes:
        """The transcript of a run that nobody kills, with memories in a folder."""
        out = self.work / f"alone-{seed}"
        env = {"PATH": os.environ["PATH"], "HOME": str(self.work / "home")}
        command = [PROGRAM, "run", SCENARIO, "--seed", str(seed), "--out", out, "--quiet", "--cache-dir", self.work / "cache"]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        return (out / "transcript.jsonl").read_bytes()


def play(machines: Machines, seed: int) -> tuple[Path, int]:
    """Plays a run to its end; returns its folder, and how often its machine was killed."""
    kills, machine, resume = 0, 0, False
    out = machines.work / f"run-{seed}-0"
    while True:
        running = machines.begin(machine, seed, out, resume)
        try:
            _, told = running.communicate(timeout=random.uniform(0.1, 2.0))
            # One that was killed behind its last line has nothing left to play.
            if running.returncode == 0 or "this run is complete" in told:
                return out, kills
            if "another process" not in told:
                sys.exit(f"seed {seed}, exit {running.returncode}: {told}")
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()
            kills += 1
        # The other machine gets the run's folder, before or after the lease of the first one has ended.
        time.sleep(random.choice([0, 0.3, 1.2]))
        machine = 1 - machine
        there = machines.work / f"run-{seed}-{machine}"
        if out.is_dir():
            shutil.move(out, there)
        out = there
        resume = (out / "transcript.jsonl").exists()
        if out.is_dir() and not resume:
            shutil.rmtree(out)


def main() -> None:
    wanted = int(sys.argv[1])
    random.seed(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="bucket")
    kills = seed = reused = recomputed = 0
    with tempfile.TemporaryDirectory() as work:
        machines = Machines(Path(work), url)
        while kills < wanted:
            seed += 1
            out, killed = play(machines, seed)
            kills += killed
            if (out / "transcript.jsonl").read_bytes() != machines.left_alone(seed):
                sys.exit(f"seed {seed}: the transcript differs from that of an undisturbed run")
            lines = (json.loads(line) for line in (out / "trace.jsonl").open())
            turns = [line["tokens"] for line in lines if line["type"] == "turn"]
            reused += sum(tokens["reused"] for tokens in turns)
            recomputed += sum(tokens["recomputed"] for tokens in turns)
    print(f"{seed} runs, {kills} kills, all transcripts equal; {reused} tokens reused, {recomputed} recomputed")
    server.stop()


main()
