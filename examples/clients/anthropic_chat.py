#!/usr/bin/env python3
"""A tool, used through Anthropic's SDK: the call, its result and the reply are read once.

    greenroom serve &
    python3 examples/clients/anthropic_chat.py

Needs `pip install anthropic`. GREENROOM_URL and GREENROOM_MODEL name another server or model.
"""

import os

from anthropic import Anthropic

MODEL = os.environ.get("GREENROOM_MODEL", "understudy")
SYSTEM = "You are Mira. You grow melons beside an old well."
WELL = {
    "name": "look_up",
    "description": "Looks up how deep a well is.",
    "input_schema": {
        "type": "object",
        "properties": {"well": {"type": "string", "enum": ["old", "new"]}},
        "required": ["well"],
        "additionalProperties": False,
    },
}

client = Anthropic(base_url=os.environ.get("GREENROOM_URL", "http://127.0.0.1:8080"), api_key=os.environ.get("GREENROOM_KEY", "none"))
messages = [{"role": "user", "content": "How deep is the old well?"}]


def ask(choice: str):
    """Prints a reply as it arrives, and how much of its prompt was read before."""
    with client.messages.stream(
        model=MODEL, max_tokens=100, system=SYSTEM, messages=messages, tools=[WELL], tool_choice={"type": choice}
    ) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
        reply = stream.get_final_message()
    usage = reply.usage
    n = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    print(f"\n  ({n} tokens read, {usage.cache_read_input_tokens} of them before; {reply.stop_reason})")
    messages.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
    return reply


for block in ask("any").content:
    if block.type == "tool_use":
        depth = {"old": "nine feet", "new": "twelve feet"}[block.input["well"]]
        print(f"  {block.name}({block.input}) → {depth}")
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": depth}]})
ask("none")
