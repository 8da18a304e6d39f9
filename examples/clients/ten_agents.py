#!/usr/bin/env python3
"""Ten agents of OpenAI's Agents SDK talk, and remember: after a restart of the server, and of this script, nothing is read again.

    greenroom serve &
    python3 examples/clients/ten_agents.py --rounds 2
    # end the server, start it again, and continue:
    python3 examples/clients/ten_agents.py --rounds 2

Needs `pip install openai-agents`. The SDK keeps what was said in a SQLite file; greenroom keeps what was computed in its cache folder.
"""

import argparse
import asyncio
import os

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, SQLiteSession, set_tracing_disabled
from openai import AsyncOpenAI

NAMES = "Ada Bela Cleo Dora Emil Faye Gus Hana Ivo Jana".split()
WORK = "a miller,a smith,a fisher,a weaver,a baker,a carter,a mason,a healer,a hunter,a piper".split(",")

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=os.environ.get("GREENROOM_URL", "http://127.0.0.1:8080") + "/v1", api_key=os.environ.get("GREENROOM_KEY", "none"))
model = OpenAIChatCompletionsModel(model=os.environ.get("GREENROOM_MODEL", "understudy"), openai_client=client)


def member(name: str, work: str) -> Agent:
    """An agent. The key separates its memory from those of others with the same beginning."""
    return Agent(
        name=name,
        instructions=f"You are {name}, {work} of the village. You speak with {', '.join(NAMES)}. You say one short sentence.",
        model=model,
        model_settings=ModelSettings(temperature=0.8, max_tokens=32, include_usage=True, extra_body={"prompt_cache_key": name}),
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--file", default="ten_agents.sqlite", help="where the SDK keeps what was said")
    args = parser.parse_args()
    agents = [member(name, work) for name, work in zip(NAMES, WORK)]
    said = ["Elder: Where shall the new well be dug?"]
    for turn in range(args.rounds * len(agents)):
        agent = agents[turn % len(agents)]
        heard = "\n".join(said[-len(agents) :])
        session = SQLiteSession(agent.name, args.file)
        result = await Runner.run(agent, heard, session=session)
        usage = result.context_wrapper.usage
        cached = usage.input_tokens_details.cached_tokens
        said.append(f"{agent.name}: {result.final_output}")
        print(f"{usage.input_tokens:5} tokens, {cached:5} of them read before | {said[-1]}")
        session.close()


asyncio.run(main())
