"""Two agents of OpenAI's Agents SDK talk with each other. Each has a memory of its own on Greenroom's server, named by
the agent.

    pip install openai-agents
    greenroom serve &
    python openai_agents_talk.py
"""

import asyncio
import os

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    TResponseInputItem,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

URL = os.environ.get("GREENROOM_URL", "http://127.0.0.1:8080/v1")
MODEL = os.environ.get("GREENROOM_MODEL", "understudy")
ROUNDS = 3
AGENTS = {
    "mira": "You are Mira. You want to sell the boat. Speak in one short sentence.",
    "tom": "You are Tom. You want to keep the boat. Speak in one short sentence.",
}


def agent(name: str) -> Agent:
    """An agent whose requests name its memory."""
    client = AsyncOpenAI(base_url=URL, api_key="none")
    settings = ModelSettings(
        temperature=0.7, max_tokens=40, extra_headers={"x-session-id": name}, extra_body={"seed": 7}
    )
    return Agent(
        name=name,
        instructions=AGENTS[name],
        model=OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
        model_settings=settings,
    )


async def main() -> None:
    """Plays the talk; each agent keeps its own list of what it heard and said."""
    set_tracing_disabled(True)
    agents = {name: agent(name) for name in AGENTS}
    heard: dict[str, list[TResponseInputItem]] = {name: [] for name in AGENTS}
    words = "They meet at the harbour."
    for name in [*AGENTS] * ROUNDS:
        heard[name].append({"role": "user", "content": words})
        result = await Runner.run(agents[name], heard[name])
        heard[name] = result.to_input_list()
        usage = result.context_wrapper.usage
        reused = usage.input_tokens_details.cached_tokens
        print(f"{name} (reused {reused} of {usage.input_tokens} tokens): {result.final_output}")
        words = f"{name}: {result.final_output}"


if __name__ == "__main__":
    asyncio.run(main())
