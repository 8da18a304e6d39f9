"""Named agents over plain HTTP: the client sends only the new message, the server keeps the conversation and its memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from server import TIMEOUT, Server

pytestmark = pytest.mark.needs("GET /v1/agents")

SYSTEM = "You are Mira. You grow melons beside an old well."
WELL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up how deep a well is.",
        "parameters": {"type": "object", "properties": {"well": {"enum": ["old", "new"]}}, "required": ["well"], "additionalProperties": False},
    },
}
TALK = ("Good evening, Mira. How are the melons?", "And the old well?", "Good night.")


class Agents:
    """A client of the agents' API."""

    def __init__(self, origin: str, model: str, headers: dict[str, str] | None = None) -> None:
        self.http = httpx.Client(base_url=origin, timeout=TIMEOUT, headers=headers)
        self.model = model

    def ask(self, method: str, path: str, expected: int, **body: Any) -> Any:
        answer = self.http.request(method, f"/v1/agents{path}", json=body or None)
        assert answer.status_code == expected, (answer.status_code, answer.text[:500])
        return answer.json()

    def put(self, name: str, expected: int = 201, **definition: Any) -> Any:
        return self.ask("PUT", f"/{name}", expected, **({"model": self.model, "system": SYSTEM, "max_tokens": 16} | definition))

    def turn(self, name: str, message: str = TALK[0], expected: int = 200, **body: Any) -> Any:
        return self.ask("POST", f"/{name}/turns", expected, message=message, **({"seed": 1} | body))

    def one(self, name: str, expected: int = 200) -> Any:
        return self.ask("GET", f"/{name}?conversation=true", expected)

    def post(self, agent: str, what: str, expected: int = 200, **body: Any) -> Any:
        return self.ask("POST", f"/{agent}/{what}", expected, **body)

    def said(self, name: str) -> list[str]:
        """All replies, as they are kept."""
        return [turn["text"] for turn in self.one(name)["conversation"]]


@pytest.fixture
def agents(server: Server, model: str) -> Agents:
    return Agents(server.origin, model)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that is unique to the test."""
    return request.node.originalname[:100]


def remembered(turn: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """True if a turn read nothing before it again."""
    held = earlier["usage"]["prompt_tokens"] + earlier["usage"]["completion_tokens"]
    return turn["usage"]["cached_tokens"] >= held - 1 and turn["greenroom"]["recomputed"] == 0


def test_an_agent_is_made_listed_and_deleted(agents: Agents, name: str, model: str) -> None:
    made = agents.put(name, temperature=0.5)
    assert (made["name"], made["model"], made["system"], made["temperature"], made["turns"]) == (name, model, SYSTEM, 0.5, 0)
    assert agents.put(name, 200, temperature=0.5)["created"] == made["created"], "the same once more changes nothing"
    listed = agents.ask("GET", "", 200)
    assert listed["object"] == "list" and name in [agent["name"] for agent in listed["data"]]
    assert agents.ask("DELETE", f"/{name}", 200) == {"name": name, "deleted": True}
    assert name in agents.one(name, 404)["error"]["message"]
    for method, path in (("DELETE", f"/{name}"), ("POST", f"/{name}/prewarm"), ("GET", f"/{name}/export")):
        agents.ask(method, path, 404)
    agents.turn(name, expected=404)


def test_another_definition_needs_to_be_meant(agents: Agents, name: str) -> None:
    agents.put(name)
    agents.turn(name)
    refused = agents.put(name, 409, system="You are Rolf.")
    assert "system" in refused["error"]["message"] and agents.one(name)["turns"] == 1
    replaced = agents.put(name, 200, system="You are Rolf.", replace=True)
    assert (replaced["system"], replaced["turns"]) == ("You are Rolf.", 0)
    assert agents.turn(name)["usage"]["cached_tokens"] < 8, "it does not remember who it was"


def test_turns_go_on(agents: Agents, name: str) -> None:
    agents.put(name)
    turns = [agents.turn(name, message, seed=seed) for seed, message in enumerate(TALK)]
    assert [turn["turn"] for turn in turns] == [1, 2, 3] and all(turn["text"] for turn in turns)
    assert {turn["stop"] for turn in turns} <= {"end_of_turn", "length"}
    for earlier, turn in zip(turns, turns[1:]):
        assert remembered(turn, earlier) and turn["greenroom"]["match"] == "extend"
    one = agents.one(name)
    assert [turn["message"] for turn in one["conversation"]] == list(TALK)
    assert agents.said(name) == [turn["text"] for turn in turns]
    assert one["memory"]["is_hot"] and one["tokens"] == turns[-1]["usage"]["prompt_tokens"] + turns[-1]["usage"]["completion_tokens"]


def test_an_agent_says_what_the_same_conversation_says(agents: Agents, http: httpx.Client, name: str, model: str) -> None:
    agents.put(name)
    messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    for seed, message in enumerate(TALK):
        messages.append({"role": "user", "content": message})
        body = {"model": model, "messages": messages, "seed": seed, "max_tokens": 16}
        said = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        assert agents.turn(name, message, seed=seed)["text"] == said
        messages.append({"role": "assistant", "content": said})


def test_a_stream_is_the_turn(agents: Agents, name: str) -> None:
    agents.put(name)
    agents.put(f"{name}-2")
    whole = agents.turn(name)
    events: list[tuple[str, Any]] = []
    body = {"message": TALK[0], "seed": 1, "stream": True}
    with agents.http.stream("POST", f"/v1/agents/{name}-2/turns", json=body) as answer:
        assert answer.status_code == 200
        event, data = "", ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
            elif data:
                events.append((event, json.loads(data)))
                data = ""
    names = [event for event, _ in events]
    assert names == ["text"] * (len(events) - 1) + ["done"] and len(events) > 2
    assert "".join(data["text"] for event, data in events if event == "text") == events[-1][1]["text"] == whole["text"]
    assert events[-1][1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert agents.said(f"{name}-2") == agents.said(name)


def test_a_turn_that_is_called_off_leaves_no_trace(agents: Agents, name: str) -> None:
    agents.put(name)
    first = agents.turn(name)
    with agents.http.stream("POST", f"/v1/agents/{name}/turns", json={"message": TALK[1], "seed": 1, "stream": True, "max_tokens": 900}) as answer:
        next(answer.iter_lines())
    after = agents.turn(name, TALK[1], seed=2)
    one = agents.one(name)
    assert (one["turns"], after["turn"]) in ((2, 2), (3, 3)), "the first may have been faster than we"
    # Where the engine had ended it when we left, the memory goes back over the reply: the prompt's last token is fed again.
    over = after["greenroom"]["match"] == "diverge" and after["greenroom"]["recomputed"] <= 1
    assert one["turns"] == 3 or over or remembered(after, first), (first, after)


def test_replies_have_the_form_that_is_asked_for(agents: Agents, name: str) -> None:
    agents.put(name)
    schema = {"type": "object", "properties": {"price": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["price"], "additionalProperties": False}
    assert 1 <= json.loads(agents.turn(name, reply={"schema": schema}, max_tokens=60)["text"])["price"] <= 9
    assert agents.turn(name, grammar={"regex": "(melon|plum)s?"})["text"].rstrip("s") in ("melon", "plum")
    assert agents.turn(name, grammar={"lark": 'start: "ripe" | "sour"'})["text"] in ("ripe", "sour")
    chosen = agents.turn(name, choices=["yes", "no", "perhaps"])
    assert chosen["text"] == chosen["choice"]["option"] in ("yes", "no", "perhaps")
    assert [one["option"] for one in chosen["choice"]["logprobs"]] == ["yes", "no", "perhaps"]
    assert all(one["logprob"] < 0 for one in chosen["choice"]["logprobs"])
    further = agents.turn(name, TALK[2])
    assert remembered(further, chosen)


def test_tools_are_called_and_answered(agents: Agents, name: str) -> None:
    agents.put(name, tools=[WELL], max_tokens=80)
    assert not agents.one(name)["awaits_result"]
    agents.post(name, "turns", 400, tool_results="Nine feet.")
    for seed in range(12):  # a call is the model's own choice
        turn = agents.turn(name, "How deep is the old well?", seed=seed)
        if "call" in turn:
            assert turn["stop"] == "call" and turn["text"] is None and turn["call"]["tool"] == "look_up"
            assert agents.one(name)["awaits_result"]
            answered = agents.post(name, "turns", tool_results="Nine feet.", seed=1)
            assert remembered(answered, turn)
            return
        assert turn["text"]


def test_a_memory_outlives_the_server(start: Callable[..., Server], model: str, tmp_path: Path) -> None:
    server = start(folder=tmp_path / "lasting")
    agents = Agents(server.origin, model)
    agents.put("mira")
    agents.put("rolf", system="You are Rolf.")
    first = [agents.turn("mira", message, seed=seed) for seed, message in enumerate(TALK[:2])]
    agents.turn("rolf")
    assert server.end() == 0
    server = start(folder=tmp_path / "lasting")
    agents = Agents(server.origin, model)
    assert agents.said("mira") == [turn["text"] for turn in first]
    third = agents.turn("mira", TALK[2], seed=2)
    assert third["turn"] == 3 and third["greenroom"]["source"] == "disk" and remembered(third, first[-1])
    server.kill()
    server = start(folder=tmp_path / "lasting")
    agents = Agents(server.origin, model)
    assert agents.one("mira")["turns"] == 3
    assert remembered(agents.turn("mira", "Once more.", seed=3), third)
    # The same in a server of its own, without restarts.
    alone = Agents(start().origin, model)
    alone.put("mira")
    assert [alone.turn("mira", message, seed=seed)["text"] for seed, message in enumerate((*TALK, "Once more."))] == agents.said("mira")


def test_a_fork_goes_its_own_way(agents: Agents, name: str) -> None:
    agents.put(name)
    first, second = agents.turn(name, TALK[0]), agents.turn(name, TALK[1])
    twin, earlier = f"{name}-twin", f"{name}-earlier"
    assert agents.post(name, "fork", 201, name=twin)["turns"] == 2
    assert agents.post(name, "fork", 201, name=earlier, at=1)["turns"] == 1
    agents.post(name, "fork", 409, name=twin)
    agents.post(name, "fork", 400, name=f"{name}-later", at=3)
    agents.post(name, "fork", 400, name="../x")
    there, here = agents.turn(twin, TALK[2]), agents.turn(name, TALK[2])
    assert there["text"] == here["text"] and remembered(there, second) and remembered(here, second)
    other = agents.turn(earlier, "Let us speak of plums.")
    assert remembered(other, first)
    assert len(agents.said(name)) == 3 and agents.said(earlier)[0] == agents.said(name)[0]
    agents.ask("DELETE", f"/{name}", 200)
    assert remembered(agents.turn(twin, "Go on."), there), "a fork outlives whom it was made of"


def test_options_are_weighed_without_a_turn(agents: Agents, name: str) -> None:
    agents.put(name)
    turn = agents.turn(name)
    options = ["yes", "no", "a long answer about the melons"]
    ranked = agents.post(name, "rank", message="Are they ripe?", options=options)
    assert [one["option"] for one in ranked["options"]] == options
    assert abs(sum(one["share"] for one in ranked["options"]) - 1) < 1e-6
    assert all(one["logprob"] < 0 for one in ranked["options"])
    assert ranked["usage"]["cached_tokens"] >= agents.one(name)["tokens"] - 1
    assert agents.post(name, "rank", message="Are they ripe?", options=options)["options"] == ranked["options"]
    by_length = agents.post(name, "rank", message="Are they ripe?", options=options, by_length=True)
    assert by_length["options"][2]["share"] > ranked["options"][2]["share"]
    assert agents.one(name)["turns"] == 1 and remembered(agents.turn(name, TALK[1]), turn)
    agents.post(name, "rank", 400, message="Are they ripe?", options=["yes"])


def test_an_agent_is_pinned_and_made_warm(agents: Agents, name: str) -> None:
    agents.put(name)
    turn = agents.turn(name)
    assert agents.post(name, "pin", pinned=True)["pinned"] and agents.one(name)["pinned"]
    assert not agents.post(name, "pin", pinned=False)["pinned"]
    warm = agents.post(name, "prewarm")["memory"]
    assert warm["is_hot"] and warm["tokens_in_memory"] >= turn["usage"]["prompt_tokens"]
    assert remembered(agents.turn(name, TALK[1]), turn)


def test_a_restarted_agent_is_made_warm(start: Callable[..., Server], model: str, tmp_path: Path) -> None:
    server = start(folder=tmp_path / "lasting")
    agents = Agents(server.origin, model)
    agents.put("mira")
    turn = agents.turn("mira")
    server.end()
    agents = Agents(start(folder=tmp_path / "lasting").origin, model)
    assert not agents.one("mira")["memory"]["is_hot"]
    assert agents.post("mira", "prewarm")["memory"]["is_hot"]
    after = agents.turn("mira", TALK[1])
    assert after["greenroom"]["source"] == "memory" and remembered(after, turn)


def test_an_agent_moves_to_another_server(agents: Agents, start: Callable[..., Server], name: str, model: str) -> None:
    agents.put(name)
    turns = [agents.turn(name, message, seed=seed) for seed, message in enumerate(TALK[:2])]
    answer = agents.http.get(f"/v1/agents/{name}/export")
    assert answer.status_code == 200, answer.text
    file = answer.content
    elsewhere = Agents(start().origin, model)
    put = lambda file, name=name: elsewhere.http.put(f"/v1/agents/{name}/import", content=file)
    assert put(file).status_code == 201
    assert elsewhere.said(name) == agents.said(name)
    there, here = elsewhere.turn(name, TALK[2]), agents.turn(name, TALK[2])
    assert there["text"] == here["text"] and remembered(there, turns[-1])
    assert put(file).status_code == 409, "there is one of that name"
    # What is damaged is refused, or read again, and never believed.
    assert put(b"", "empty").status_code == put(b"{}\n", "nothing").status_code == put(b"\x00" * 5000, "zeros").status_code == 400
    head, _, memory = file.partition(b"\n")
    lied = head.replace(json.dumps(turns[0]["text"], ensure_ascii=False)[1:-1].encode(), b"I never said this", 1)
    if lied != head:
        assert put(lied + b"\n" + memory, "liar").status_code == 400
    for at in (len(head) + 1, len(file) // 2, len(file) - 1):
        cut = f"cut-{at}"
        if put(file[:at], cut).status_code == 201:
            assert elsewhere.turn(cut, TALK[2])["text"] == here["text"]
        flipped = bytearray(file)
        flipped[min(at + 40, len(file) - 1)] ^= 0x40
        if put(bytes(flipped), f"flipped-{at}").status_code == 201:
            assert elsewhere.turn(f"flipped-{at}", TALK[2])["text"] == here["text"]


@pytest.mark.parametrize("wrong", ["..", ".hidden", "a b", "ä", "x" * 129, "a\nb", "%2e%2e%2fx"])
def test_a_name_is_plain(agents: Agents, wrong: str) -> None:
    answer = agents.http.put("/v1/agents/" + wrong.replace(" ", "%20").replace("\n", "%0A"), json={"model": agents.model})
    assert answer.status_code in (400, 404), answer.text


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"message": "a", "choices": ["b"], "grammar": {"regex": "c"}}, "one of"),
        ({"message": "a", "tool_results": "b"}, "not both"),
        ({}, "message"),
        ({"message": "a", "wave": 1}, "wave"),
        ({"message": "a", "max_tokens": 0}, "max_tokens"),
        ({"message": "a", "choices": []}, "choices"),
        ({"message": "a", "grammar": {"lark": "start: ("}}, "lark"),
        ({"message": "a", "grammar": {"regex": "("}}, "regex"),
        ({"message": "a", "temperature": -1}, "temperature"),
        ({"message": "word " * 20_000}, "context"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_named(agents: Agents, body: dict[str, Any], word: str) -> None:
    if agents.http.get("/v1/agents/wrong").status_code == 404:
        agents.put("wrong")
    answer = agents.http.post("/v1/agents/wrong/turns", json=body)
    assert answer.status_code == 400 and word in answer.text, answer.text
    assert agents.one("wrong")["turns"] == 0


def test_agents_of_one_tenant_are_not_anothers(start: Callable[..., Server], model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n- {key: a-secret-of-alice, tenant: alice}\n- {key: a-secret-of-robert, tenant: bob}\n")
    keys.chmod(0o600)
    origin = start("--keys", str(keys)).origin
    alice, bob = (Agents(origin, model, {"x-api-key": f"a-secret-of-{name}"}) for name in ("alice", "robert"))
    alice.put("mira")
    alice.turn("mira", "A secret of Alice's. " * 30)
    assert bob.ask("GET", "", 200)["data"] == []
    for method, path in (("GET", "/mira"), ("DELETE", "/mira"), ("GET", "/mira/export"), ("POST", "/mira/prewarm")):
        bob.ask(method, path, 404)
    bob.turn("mira", expected=404)
    bob.post("mira", "fork", 404, name="mine")
    bob.put("mira")
    own = bob.turn("mira", "A secret of Alice's. " * 30)
    assert own["usage"]["cached_tokens"] == 0 and len(alice.said("mira")) == len(bob.said("mira")) == 1
    bob.ask("DELETE", "/mira", 200)
    assert alice.one("mira")["turns"] == 1


def test_models_remember_side_by_side(start: Callable[..., Server], tmp_path: Path) -> None:
    """Two models, each with an agent of the same name, in one cache folder; again after a restart."""
    flags = ("--model", "left=understudy", "--model", "right=understudy")
    last: dict[str, dict[str, Any]] = {}
    for round_, message in enumerate(TALK):
        server = start(*flags, folder=tmp_path / "both")
        for side in ("left", "right"):
            agents = Agents(server.origin, side)
            if round_ == 0:
                agents.put(f"mira-{side}")
            turn = agents.turn(f"mira-{side}", message)
            assert round_ == 0 or remembered(turn, last[side]), f"{side}: {turn['greenroom']}"
            last[side] = turn
        server.end()
    assert last["left"]["text"] == last["right"]["text"]
