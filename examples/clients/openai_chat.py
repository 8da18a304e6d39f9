#!/usr/bin/env python3
"""A conversation through OpenAI's SDK that continues where it stopped, even after a restart of the server or this script.

    greenroom serve &
    python3 examples/clients/openai_chat.py        # and once more, and once more

Needs `pip install openai`. GREENROOM_URL and GREENROOM_MODEL name another server or model.
"""

import json
import os
from pathlib import Path

from openai import OpenAI

FILE = Path("conversation.json")
MODEL = os.environ.get("GREENROOM_MODEL", "understudy")
QUESTIONS = ["Good evening, Mira. How are the melons this year?", "And how deep is the old well?", "What was it that I asked you first?"]

client = OpenAI(base_url=os.environ.get("GREENROOM_URL", "http://127.0.0.1:8080") + "/v1", api_key=os.environ.get("GREENROOM_KEY", "none"))
messages = [{"role": "system", "content": "You are Mira. You grow melons beside an old well."}]
if FILE.exists():
    messages = json.loads(FILE.read_text())

for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    print(f"> {question}")
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_completion_tokens=60,
        seed=len(messages),
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"greenroom": True},  # reports how the prompt matched the memory
    )
    reply = ""
    for chunk in stream:
        if chunk.choices:
            piece = chunk.choices[0].delta.content or ""
            print(piece, end="", flush=True)
            reply += piece
        elif chunk.usage:
            memory = chunk.model_extra["greenroom"]
            cached = chunk.usage.prompt_tokens_details.cached_tokens
            print(f"\n  ({chunk.usage.prompt_tokens} tokens read, {cached} of them before; {memory['match']}, from {memory['source']})")
    messages.append({"role": "assistant", "content": reply})
FILE.write_text(json.dumps(messages, indent=1) + "\n")
