"""Two agents of LangGraph talk with each other. Each has a memory of its own on Greenroom's server, named by the agent.

    pip install langgraph langchain-openai
    greenroom serve &
    python langgraph_talk.py
"""

import os
from operator import add
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import SecretStr

URL = os.environ.get("GREENROOM_URL", "http://127.0.0.1:8080/v1")
MODEL = os.environ.get("GREENROOM_MODEL", "understudy")
ROUNDS = 3
AGENTS = {
    "mira": "You are Mira. You want to sell the boat. Speak in one short sentence.",
    "tom": "You are Tom. You want to keep the boat. Speak in one short sentence.",
}


class Talk(TypedDict):
    """What was said so far: pairs of an agent's name and its words."""

    said: Annotated[list[tuple[str, str]], add]


def speaker(name: str) -> Any:
    """A node: the agent hears what was said, from its own point of view, and speaks."""
    model = ChatOpenAI(
        base_url=URL,
        api_key=SecretStr("none"),
        model=MODEL,
        temperature=0.7,
        max_completion_tokens=40,
        seed=7,
        # Names the agent's memory: two agents whose conversations begin alike have two.
        default_headers={"x-session-id": name},
    )

    def speak(state: Talk) -> Talk:
        heard: list[AnyMessage] = [SystemMessage(AGENTS[name]), HumanMessage("They meet at the harbour.")]
        heard += [AIMessage(text) if who == name else HumanMessage(f"{who}: {text}") for who, text in state["said"]]
        if isinstance(heard[-1], AIMessage):
            heard.append(HumanMessage("Go on."))
        reply = model.invoke(heard)
        usage = reply.usage_metadata
        assert usage is not None
        reused = usage.get("input_token_details", {}).get("cache_read")
        print(f"{name} (reused {reused} of {usage['input_tokens']} tokens): {reply.text}")
        return {"said": [(name, reply.text)]}

    return speak


def main() -> None:
    """Plays the talk."""
    graph = StateGraph(Talk)
    for name in AGENTS:
        graph.add_node(name, speaker(name))
    graph.add_edge(START, "mira")
    graph.add_edge("mira", "tom")
    graph.add_conditional_edges("tom", lambda state: END if len(state["said"]) >= 2 * ROUNDS else "mira")
    graph.compile().invoke({"said": []})


if __name__ == "__main__":
    main()
