"""Scenarios that are played on request: the run is returned event by event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server import ROOT

pytestmark = pytest.mark.needs("POST /v1/runs")

SCENARIO = """
id: two
agents:
  ada: {system_prompt: You are Ada.}
  bob: {system_prompt: You are Bob.}
phases:
  - { name: talk, agents: [ada, bob], order: round_robin, rounds: 2 }
"""
PROGRAM = """
tools:
  touch: {about: Touches., command: [touch, /tmp/escaped], arguments: {type: object, properties: {}}}
"""


def play(http: httpx.Client, **body: Any) -> list[tuple[str, Any]]:
    """The events of a run."""
    events, event, data = [], "", ""
    with http.stream("POST", "/v1/runs", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
            elif data:
                events.append((event, json.loads(data)))
                data = ""
    return events


def test_a_run_is_told_from_its_plan_to_its_results(http: httpx.Client) -> None:
    text = (ROOT / "scenarios" / "prisoners-dilemma.yaml").read_text()
    events = play(http, scenario=text, seed=7, max_tokens=12)
    names = [name for name, _ in events]
    plan, done = events[0][1], events[-1][1]
    assert names[0] == "plan" and names[-1] == "done" and "error" not in names
    planned = [turn["path"] for phase in plan["phases"] for turn in phase["turns"]]
    played = [data["path"] for name, data in events if name in ("turn", "skipped")]
    assert sorted(played) == sorted(planned) and len(planned) == 27
    for path in planned:
        pieces = "".join(data["text"] for name, data in events if name == "text" and data["path"] == path)
        (turn,) = (data for name, data in events if name == "turn" and data["path"] == path)
        # What others hear is one line.
        assert " ".join(turn["text"].split()) in " ".join(pieces.split()) or turn["choice"] or not pieces
    assert {data["kind"] for name, data in events if name == "result"} <= {"decision", "payoff", "outcome", "assertion"}
    assert done["transcript"][0]["type"] == "header" and len(done["transcript"]) > 27
    assert play(http, scenario=text, seed=7, max_tokens=12)[-1][1]["transcript"] == done["transcript"], "a seed decides the run"


def test_a_scenario_is_yaml_as_it_is(http: httpx.Client) -> None:
    answer = http.post("/v1/runs", content=SCENARIO, headers={"content-type": "application/yaml"})
    assert answer.status_code == 200 and "event: done" in answer.text, answer.text[:500]


@pytest.mark.parametrize(
    ("scenario", "word"),
    [
        ("", ""),
        ("[", ""),
        (SCENARIO.replace("round_robin", "round_robbin"), "round_robin"),
        (SCENARIO.replace("You are Bob.}", "You are Bob., tools: [touch]}") + PROGRAM, "program"),
        (SCENARIO.replace("You are Bob.}", "You are Bob., model: other}") + "models: {other: /etc/passwd}\n", "not served"),
        (SCENARIO.replace("rounds: 2", "rounds: 100000000"), ""),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n" + SCENARIO, ""),
    ],
)
def test_a_scenario_that_can_not_be_played_is_refused(http: httpx.Client, scenario: str, word: str) -> None:
    answer = http.post("/v1/runs", json={"scenario": scenario})
    assert answer.status_code in (400, 404) and word in answer.text, (answer.status_code, answer.text[:500])


def events_of(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    """The events of a run, as they come."""
    event = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            event = line[7:]
        elif line.startswith("data: "):
            yield event, json.loads(line[6:])


CHOICE = """
agents: {ada: {system_prompt: You are Ada.}, you: {strategy: human}}
phases:
  - {name: talk, agents: [ada, you], prompt: "You meet."}
  - { name: end, agents: [ada, you], answer: [left, right] }
"""


def test_a_human_plays_by_requests(http: httpx.Client) -> None:
    run, said, wrong = "", {}, []
    with http.stream("POST", "/v1/runs", json={"scenario": CHOICE, "max_tokens": 8}) as answer:
        for name, data in events_of(answer):
            if name == "plan":
                run = data["run"]
                assert [agent["is_human"] for agent in data["agents"]] == [False, True]
            if name == "asked":
                path, text = data["path"], "2" if data["options"] else "Good evening, Ada."
                for body, status in (({"path": "talk/9/you", "text": "x"}, 409), ({"path": path}, 400), ({"path": path, "text": text}, 200)):
                    wrong.append((http.post(f"/v1/runs/{run}/answer", json=body).status_code, status))
                if data["options"]:
                    assert data["options"] == ["left", "right"]
            if name == "turn":
                said[data["path"]] = data["text"]
    assert name == "done", data
    assert said["talk/1/you"] == "Good evening, Ada." and said["end/1/you"] == "right"
    assert all(found == expected for found, expected in wrong) and len(wrong) == 6, wrong
    assert http.post(f"/v1/runs/{run}/pause").status_code == 404, "it is over"


SECRET = """
agents: {you: {strategy: human}, sam: {strategy: human}}
phases:
  - { name: end, agents: [you, sam], order: broadcast, answer: [left, right] }
"""


def test_each_of_two_humans_is_asked_and_learns_no_choice_of_the_other(http: httpx.Client) -> None:
    asked, known = [], []
    with http.stream("POST", "/v1/runs", json={"scenario": SECRET}) as answer:
        for name, data in events_of(answer):
            if name == "plan":
                run = data["run"]
            if name == "asked":
                asked.append(data["path"])
                assert not known, "nobody's choice is shown before all have chosen"
                assert http.post(f"/v1/runs/{run}/answer", json={"path": data["path"], "text": "left"}).status_code == 200
            if name in ("text", "turn"):
                known.append(data["path"])
    assert name == "done" and sorted(asked) == ["end/1/sam", "end/1/you"], (name, data)


def test_a_run_is_paused_stepped_and_resumed_and_says_the_same(http: httpx.Client) -> None:
    text, names = SCENARIO.replace("rounds: 2", "rounds: 4"), []
    with http.stream("POST", "/v1/runs", json={"scenario": text, "max_tokens": 8, "paused": True}) as answer:
        for name, data in events_of(answer):
            names.append(name)
            if name == "plan":
                run = data["run"]
                assert http.post(f"/v1/runs/{run}/pause").json() == {"paused": True}
            if name == "paused" and data["paused"]:
                action = "step" if names.count("paused") < 3 else "resume"
                assert http.post(f"/v1/runs/{run}/{action}").status_code == 200
    assert name == "done" and names.count("paused") >= 4, names
    plain = play(http, scenario=text, max_tokens=8)
    assert plain[-1][1]["transcript"] == data["transcript"]


def test_a_run_that_is_stopped_says_so(http: httpx.Client) -> None:
    text = SCENARIO.replace("rounds: 2", "rounds: 400")
    with http.stream("POST", "/v1/runs", json={"scenario": text, "max_tokens": 8}) as answer:
        for name, data in events_of(answer):
            if name == "plan":
                run = data["run"]
            if name == "turn" and data["path"] == "talk/1/ada":
                assert http.post(f"/v1/runs/{run}/stop").status_code == 200
    assert name == "stopped" and data["turns"] >= 1, (name, data)
    assert http.post(f"/v1/runs/{run}/stop").status_code == 404


def test_a_client_that_goes_away_ends_its_run(http: httpx.Client) -> None:
    text = SCENARIO.replace("rounds: 2", "rounds: 400")
    with http.stream("POST", "/v1/runs", json={"scenario": text, "max_tokens": 8}) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: turn"):
                break
    answer = http.post("/v1/runs", json={"scenario": SCENARIO, "max_tokens": 8})
    assert answer.status_code == 200 and "event: done" in answer.text
