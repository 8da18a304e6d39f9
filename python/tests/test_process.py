"""The module within a process: threads, forks, Ctrl-C, the end of the interpreter; the program; its imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from conftest import SCENARIOS

import greenroom as gr

DILEMMA = SCENARIOS / "prisoners-dilemma.yaml"


def python(code: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    code = textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_threads_share_an_engine(engine: gr.Engine) -> None:
    said: dict[int, str] = {}

    def speak(number: int) -> None:
        agent = engine.agent(f"a{number}", system="You are Ada.", seed=1, temperature=1, max_tokens=10)
        said[number] = agent.say("Who are you?").result().text

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 8 and len(set(said.values())) == 1


def test_runs_in_threads_do_not_mix(tmp_path: Path) -> None:
    engine, runs = gr.Engine(cache_dir=tmp_path / "memories"), {}

    def play(seed: int) -> None:
        runs[seed] = gr.run(DILEMMA, engine, seed=seed, out=tmp_path / f"run-{seed}", max_tokens=6)

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(run.seed for run in runs.values()) == [0, 1, 2]
    assert not runs[1].diff(gr.run(DILEMMA, seed=1, out=tmp_path / "alone", max_tokens=6))


def test_the_interpreter_is_free_while_the_engine_computes(engine: gr.Engine) -> None:
    counted = 0
    pending = engine.agent("ada").say("Go.", max_tokens=200, regex="[a-z ]{300}")
    waiting = threading.Thread(target=pending.result)
    waiting.start()
    while waiting.is_alive():
        counted += 1
        time.sleep(0)
    assert counted > 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_told_and_can_open_its_own() -> None:
    done = python(
        """
        import os, sys, greenroom as gr
        engine = gr.Engine("understudy", cache_dir="parent")
        ada = engine.agent("ada", system="You are Ada.")
        ada.say("Hello.", max_tokens=4).result()
        child = os.fork()
        if child == 0:
            try:
                ada.say("Hello.", max_tokens=4).result()
            except gr.EngineError as error:
                assert error.kind == "forked", error
                own = gr.Engine("understudy", cache_dir="child")
                assert own.agent("bo").say("Hello.", max_tokens=4).result().text
                del ada, engine
                sys.exit(7)
            sys.exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        ada.say("Still there?", max_tokens=4).result()
        print("both")
        """
    )
    assert done.stdout == "both\n", done.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_ends_a_run_and_keeps_it() -> None:
    code = f"""
    import greenroom as gr, sys, os, signal, threading
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        gr.experiment({str(DILEMMA)!r}, seeds=500, out="study")
    except KeyboardInterrupt:
        print("stopped")
    ada = gr.Engine("understudy", cache_dir="other").agent("ada")
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        ada.say("Go.", max_tokens=1900, regex="[a-z ]{{3000}}").result()
    except KeyboardInterrupt:
        print(ada.turns)
    print(gr.experiment({str(DILEMMA)!r}, seeds=1, out="short").runs[0].complete)
    """
    done = python(code)
    assert done.stdout == "stopped\n[]\nTrue\n", done.stderr


def test_the_interpreter_may_end_in_mid_run() -> None:
    done = python(
        f"""
        import greenroom as gr
        playing = gr.start({str(DILEMMA)!r}, out="run")
        pending = gr.Engine("understudy", cache_dir="other").agent("ada").say("Go.", max_tokens=500)
        next(iter(playing))
        """
    )
    assert done.returncode == 0, done.stderr
    assert gr.run(DILEMMA, out="run", resume=True).complete


def test_the_program_is_in_the_package() -> None:
    done = subprocess.run([sys.executable, "-m", "greenroom", "--version"], capture_output=True, text=True)
    assert done.stdout == f"greenroom {gr.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "greenroom", "run", "nowhere.yaml"], capture_output=True, text=True)
    assert done.returncode == 4 and "nowhere.yaml" in done.stderr
    assert subprocess.run([sys.executable, "-m", "greenroom", "chekc"], capture_output=True).returncode == 2


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_ends_the_program() -> None:
    command = [sys.executable, "-m", "greenroom", "run", str(DILEMMA), "--repeat", "500", "--quiet", "--out", "study"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130 and "stopped" in error


def test_the_package_imports_little() -> None:
    done = python(
        """
        import sys, greenroom
        heavy = {"asyncio", "json", "dataclasses", "tempfile", "greenroom._greenroom"} & set(sys.modules)
        assert not heavy, heavy
        assert set(dir(greenroom)) == set(greenroom.__all__)
        for name in greenroom.__all__:
            getattr(greenroom, name)
        try:
            greenroom.nothing
        except AttributeError as error:
            print(error)
        """
    )
    assert done.stdout == "module 'greenroom' has no attribute 'nothing'\n", done.stderr
