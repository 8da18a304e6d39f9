"""The study of docs/coming-from.md, in each program: it runs on the bundled model, and has as many lines as the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import greenroom as gr

FOLDER = ROOT / "examples" / "coming-from"
PEOPLE = 2


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The study's folder, with few people."""
    folder = tmp_path / "study"
    shutil.copytree(FOLDER, folder)
    table = folder / "people.csv"
    table.write_text("".join(table.read_text(encoding="utf-8").splitlines(keepends=True)[: PEOPLE + 1]), encoding="utf-8")
    return folder


def printed(study: Path, *words: str, url: str = "") -> str:
    """What a program of this environment prints."""
    server = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"} if url else {}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=study, env=os.environ | server)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ours(study: Path) -> None:
    program = printed(study, sys.executable, "-m", "greenroom", "run", "framing.yaml", "--sweep", "frame=saved,die", "--out", "program")
    assert re.search(rf"outcome  agrees +frame=saved +{PEOPLE} +{PEOPLE} ", program), program
    module = printed(study, sys.executable, "framing.py")
    shown = [line.split(":")[0].split(" ")[0] for line in module.splitlines()]
    assert shown == ["saved", "die", "difference"], module
    one, other = gr.Experiment(study / "program"), gr.Experiment(study / "runs" / "framing-1")
    assert len(one.runs) == 2 * PEOPLE and one.replay()
    assert [run.lines for run in one.runs] == [run.lines for run in other.runs]


@pytest.mark.parametrize(("package", "program"), [("concordia", "concordia_framing.py"), ("autogen_agentchat", "autogen_framing.py")])
def test_a_program_of_its_own(study: Path, url: str, package: str, program: str) -> None:
    pytest.importorskip(package, reason=f"{program} needs a package that is not installed")
    out = printed(study, sys.executable, program, "understudy", url=url)
    found = re.findall(r"^(saved|die): (\d+) of (\d+) agree, from \d+% to \d+%(?:; (\d+) invalid)?$", out, re.MULTILINE)
    assert [frame for frame, *_ in found] == ["saved", "die"], out
    for _, agree, valid, invalid in found:
        assert int(agree) <= int(valid) and int(valid) + int(invalid or 0) == PEOPLE, out


def test_inspect(study: Path, url: str) -> None:
    pytest.importorskip("inspect_ai", reason="inspect-ai is not installed")
    from inspect_ai.log import list_eval_logs, read_eval_log

    words = ("eval", "inspect_framing.py", "--model", "openai/understudy", "--display", "plain")
    printed(study, sys.executable, "-m", "inspect_ai", *words, url=url)
    [info] = list_eval_logs(str(study / "logs"))
    log = read_eval_log(info)
    assert log.status == "success" and log.results is not None and log.results.completed_samples == 2 * PEOPLE
    [score] = log.results.scores
    assert set(score.metrics) == {"saved", "die", "saved_stderr", "die_stderr"} and score.scored_samples == 2 * PEOPLE


def lines(path: Path) -> int:
    """Lines that are neither empty nor comments."""
    kept = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return sum(bool(line) and not line.startswith(("#", '"""')) for line in kept)


def test_the_page_counts_the_lines() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    counted = re.findall(r"\[`([\w.]+)`\]\(\.\./examples/coming-from/[\w.]+\): (\d+)", page)
    assert {name: int(n) for name, n in counted} == {
        path.name: lines(path) for path in FOLDER.iterdir() if path.suffix in (".py", ".yaml")
    }
