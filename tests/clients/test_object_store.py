"""Memories in an object store (moto's S3, a real process's requests over HTTP): machines without a common folder exchange agents, are
killed, suspended, throttled and disconnected.

GREENROOM_TEST_KILLS sets the number of kills (default 6), at each write in turn.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from between import Between
from moto.server import ThreadedMotoServer
from server import PROGRAM, ROOT

DILEMMA = ROOT / "scenarios" / "prisoners-dilemma.yaml"
SECRET = "an object store keeps what it can not read"
KILLS = int(os.environ.get("GREENROOM_TEST_KILLS", "6"))
AWS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
buckets = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Iterator[int]:
    """The port of an S3 server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


class Bucket:
    """An empty bucket, and the way to it."""

    def __init__(self, port: int) -> None:
        self.name, self.port = f"memories-{next(buckets)}", port
        self.client = boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id="id", aws_secret_access_key="secret"
        )
        self.client.create_bucket(Bucket=self.name)

    def address(self, port: int | None = None) -> str:
        return f"s3://{self.name}/lab?endpoint=http://127.0.0.1:{port or self.port}&lease=1"

    def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def read(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()


@pytest.fixture
def bucket(s3: int) -> Bucket:
    return Bucket(s3)


class Machine:
    """A separate home; nothing else is kept between runs."""

    def __init__(self, home: Path, place: str, secret: str | None = SECRET) -> None:
        home.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GREENROOM", "XDG_", "AWS_"))}
        self.place = place
        self.environment = kept | AWS | {"HOME": str(home)} | ({"GREENROOM_CACHE_KEY": secret} if secret else {})

    def command(self, *words: object) -> list[str]:
        return [str(word) for word in (PROGRAM, *words, "--cache-dir", self.place)]

    def start(self, *words: object, fault: str | None = None) -> subprocess.Popen[str]:
        environment = self.environment | ({"GREENROOM_FAULT": fault} if fault else {})
        return subprocess.Popen(
            self.command(*words), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def do(self, *words: object, fault: str | None = None) -> tuple[int, str, str]:
        process = self.start(*words, fault=fault)
        out, told = process.communicate(timeout=300)
        assert "panicked" not in told, told
        return process.returncode, out, told

    def play(self, out: Path, *more: object, fault: str | None = None) -> "Run":
        code, _, told = self.do(*dilemma(out), *more, fault=fault)
        assert code == 0 or fault, told
        return Run(out)


def dilemma(out: Path) -> list[object]:
    return ["run", DILEMMA, "--out", out, "--quiet", "--threads", "1", "--max-tokens", "12"]


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def transcript(self) -> bytes:
        return (self.folder / "transcript.jsonl").read_bytes()

    @property
    def is_begun(self) -> bool:
        return (self.folder / "transcript.jsonl").exists()

    @property
    def said(self) -> list[str]:
        turns = [json.loads(line) for line in self.transcript.splitlines()]
        return [turn["raw"] for turn in turns if turn["type"] == "turn"]

    @property
    def trace(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.folder / "trace.jsonl").read_text().splitlines()]
        return [line for line in lines if "tokens" in line]

    @property
    def cache(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())["cache"]

    def lost(self) -> list[dict[str, Any]]:
        """Turns that recomputed more than the end of a memory without giving a reason."""
        return [turn for turn in self.trace if turn["tokens"]["recomputed"] > 256 and not turn.get("reason")]


def check(machine: Machine) -> None:
    """Everything in the store is whole, and nothing is missing."""
    code, out, told = machine.do("cache", "verify")
    assert code == 0 and out.endswith("0 problems\n"), out + told


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The dilemma, undisturbed, with memories in a folder."""
    folder = tmp_path_factory.mktemp("whole")
    return Machine(folder / "home", str(folder / "cache")).play(folder / "run")


def test_agents_go_to_and_fro_between_machines(bucket: Bucket, whole: Run, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()  # the root of paths in transcripts
    alone = Machine(tmp_path / "home", str(tmp_path / "cache"))
    a, b = (Machine(tmp_path / name, bucket.address()) for name in "ab")
    assert a.play(tmp_path / "1").transcript == whole.transcript
    alone.play(tmp_path / "alone1")
    for number, machine in [(2, b), (3, a), (4, b)]:
        here = machine.play(tmp_path / str(number), "--continue", tmp_path / str(number - 1))
        there = alone.play(tmp_path / f"alone{number}", "--continue", tmp_path / f"alone{number - 1}")
        figures = [[(turn["tokens"]["reused"], turn["tokens"]["prefilled"]) for turn in run.trace] for run in (here, there)]
        assert figures[0] == figures[1] and here.said == there.said
        costs = here.cache["objects"]
        assert costs["requests"] > 0 and costs["sent"] > 0 and costs["received"] > 0, costs
    check(a)
    assert "objects" not in whole.cache


def test_what_lies_there_says_nothing(bucket: Bucket, tmp_path: Path) -> None:
    a = Machine(tmp_path / "a", bucket.address())
    run = a.play(tmp_path / "run")
    stored = b"".join(bucket.read(key) for key in bucket.keys())
    for word in ["danny", "Constable", "prisoners-dilemma", *run.said]:
        assert word.encode() not in stored and word not in "".join(bucket.keys()), word
    # With another secret there is nothing; without one it is refused, unless the address says so.
    other = Machine(tmp_path / "other", bucket.address(), secret="another secret, as long as it is needed")
    assert other.do("cache", "ls")[1].splitlines()[-1].startswith("0 memories")
    naked = Machine(tmp_path / "naked", bucket.address(), secret=None)
    code, _, told = naked.do(*dilemma(tmp_path / "naked-run"))
    assert code == 4 and "would not be encrypted" in told and "GREENROOM_CACHE_KEY" in told, told
    open_ = Machine(tmp_path / "open", bucket.address() + "&plaintext=true", secret=None)
    assert open_.play(tmp_path / "open-run").transcript == run.transcript


def test_whatever_a_kill_leaves_another_machine_goes_on_with(bucket: Bucket, whole: Run, tmp_path: Path) -> None:
    stride = 17 if KILLS < 60 else 1
    for number in range(1, KILLS + 1):
        a, b = (Machine(tmp_path / f"{name}{number}", bucket.address()) for name in "ab")
        out = tmp_path / f"run{number}"
        run = a.play(out, fault=f"kill:{(number * stride) % 190 + 1}")
        run = b.play(out, *(["--resume"] if run.is_begun else []))
        assert run.transcript == whole.transcript and not run.lost(), number
        shutil.rmtree(tmp_path / f"a{number}")
        shutil.rmtree(tmp_path / f"b{number}")
    check(Machine(tmp_path / "c", bucket.address()))


def test_a_store_that_throttles_and_cuts_off_costs_time_alone(bucket: Bucket, whole: Run, tmp_path: Path) -> None:
    troubles = {3: "throttle", 5: "lose", 8: "cut", 13: "throttle"}
    between = Between(bucket.port, lambda n, _method, _path: troubles.get(n % 17))
    a, b = (Machine(tmp_path / name, bucket.address(between.port)) for name in "ab")
    run = a.play(tmp_path / "1")
    assert run.transcript == whole.transcript and not run.lost()
    again = b.play(tmp_path / "2", "--continue", tmp_path / "1")
    assert sum(turn["tokens"]["recomputed"] for turn in again.trace) == 0 and not again.lost()
    assert run.cache["objects"]["requests"] > 40
    check(Machine(tmp_path / "c", bucket.address()))
    between.close()


def test_a_store_that_is_out_of_date_costs_tokens_alone(bucket: Bucket, whole: Run, tmp_path: Path) -> None:
    between = Between(bucket.port, lambda _n, method, path: "stale" if method == "GET" and "/manifests/" in path else None)
    a, b = (Machine(tmp_path / name, bucket.address(between.port)) for name in "ab")
    run = a.start(*dilemma(tmp_path / "run"))
    wait_for(lambda: (tmp_path / "run" / "transcript.jsonl").exists() and Run(tmp_path / "run").transcript.count(b"\n") > 8)
    run.kill()
    run.communicate()
    resumed = b.play(tmp_path / "run", "--resume")
    assert resumed.transcript == whole.transcript
    check(Machine(tmp_path / "c", bucket.address()))
    between.close()


def test_a_machine_that_was_suspended_takes_nothing_from_the_one_that_went_on(bucket: Bucket, whole: Run, tmp_path: Path) -> None:
    between = Between(bucket.port, delay=0.02)
    a, b = Machine(tmp_path / "a", bucket.address(between.port)), Machine(tmp_path / "b", bucket.address())
    first, second = tmp_path / "first", tmp_path / "second"
    sleeper = a.start(*dilemma(first))
    wait_for(lambda: (first / "transcript.jsonl").exists() and Run(first).transcript.count(b"\n") > 6)
    # While it is awake, its memories are its own.
    shutil.copytree(first, second)
    code, _, told = b.do(*dilemma(second), "--resume")
    assert code != 0 and "in use by another process" in told, told
    sleeper.send_signal(signal.SIGSTOP)
    shutil.rmtree(second)
    shutil.copytree(first, second)
    run = b.play(second, "--resume")
    assert run.transcript == whole.transcript and not run.lost()
    manifests = {key: bucket.read(key) for key in bucket.keys() if "/manifests/" in key}
    sleeper.send_signal(signal.SIGCONT)
    _, told = sleeper.communicate(timeout=300)
    assert "panicked" not in told and "another process has continued with the memories of run" in told
    # Whatever came of it, it said nothing wrong, and the other's memories are whole.
    assert whole.transcript.startswith(Run(first).transcript) or Run(first).transcript == whole.transcript
    assert len(manifests) == 3 and all(bucket.read(key) == manifest for key, manifest in manifests.items())
    check(b)
    third = b.play(tmp_path / "third", "--continue", second)
    assert sum(turn["tokens"]["recomputed"] for turn in third.trace) == 0, third.trace
    between.close()


def test_memories_are_looked_after_from_anywhere(bucket: Bucket, tmp_path: Path) -> None:
    a, b = (Machine(tmp_path / name, bucket.address()) for name in "ab")
    run = a.play(tmp_path / "run")
    code, listed, told = b.do("cache", "ls")
    assert code == 0 and "danny" in listed and "3 memories in s3://" in listed, listed + told
    one = next(line.split()[0] for line in listed.splitlines() if " danny " in line)
    assert "tokens" in b.do("cache", "show", one)[1]
    before = len(bucket.keys())
    assert b.do("cache", "rm", "--agent", "danny")[0] == 0
    assert len(bucket.keys()) < before and "danny" not in b.do("cache", "ls")[1]
    check(b)
    # Agents whose memories went compute them again, and say so; copies that are left in front do no harm.
    again = a.play(tmp_path / "again", "--continue", tmp_path / "run")
    assert sum(turn["tokens"]["recomputed"] for turn in again.trace) > 0
    check(b)
    assert b.do("cache", "gc", "--max-bytes", "0")[0] == 0
    assert "0 memories" in b.do("cache", "ls")[1]
    left = [key for key in bucket.keys() if "/checks/" not in key]
    assert left == [], left
    # Nobody cleans where somebody is at work.
    between = Between(bucket.port, delay=0.05)
    slow = Machine(tmp_path / "slow", bucket.address(between.port)).start(*dilemma(tmp_path / "slow-run"))
    wait_for(lambda: (tmp_path / "slow-run" / "transcript.jsonl").exists())
    code, _, told = b.do("cache", "rm", "--all")
    assert code != 0 and "in use" in told, told
    slow.communicate(timeout=300)
    assert slow.returncode == 0 and Run(tmp_path / "slow-run").transcript == run.transcript
    between.close()


def test_a_place_that_can_not_be_had_is_said(bucket: Bucket, tmp_path: Path) -> None:
    for place, words in [
        (f"s3://nowhere-at-all/x?endpoint=http://127.0.0.1:{bucket.port}", ["nowhere-at-all"]),
        ("s3://memories/x?endpoint=http://127.0.0.1:9&lease=1", ["can't", "s3://memories/x"]),
        ("s3://memories/x?colour=red", ["unknown setting `colour`"]),
        ("s3://id:secret@memories/x", ["belong in the environment"]),
        ("http://127.0.0.1:80/x", ["s3://BUCKET/FOLDER"]),
        ("s3://memories/x?endpoint=http://192.0.2.1:80&lease=1", ["would not be encrypted"]),
    ]:
        code, _, told = Machine(tmp_path / "a", place).do(*dilemma(tmp_path / "run"))
        assert code in (2, 4) and all(word in told for word in words), f"{place}: {code} {told}"
        assert "SECRET" not in told and len(told.splitlines()) < 12, told


def wait_for(happened: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.01)
