"""Render first prompts by Jinja2 as transformers does, for a comparison with greenroom's:

    pip install jinja2
    python3 tests/goldens/by_jinja2.py FOLDER > prompts.json
    GREENROOM_TEMPLATES=FOLDER GREENROOM_PROMPTS=$PWD/prompts.json \\
        cargo test -p greenroom-engine --lib -- --ignored --nocapture replies_to_templates

FOLDER holds chat templates (`*.jinja`), such as llama.cpp's models/templates.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jinja2 import ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOOL = {
    "name": "dice",
    "description": "Rolls a die",
    "parameters": {"type": "object", "properties": {"sides": {"type": "integer"}}},
}
SYSTEM = {"role": "system", "content": "SYSTEM"}
USER = {"role": "user", "content": "USER"}
FIRST = {"plain": ([USER], None), "system": ([SYSTEM, USER], None), "tools": ([SYSTEM, USER], [TOOL])}


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def refuse(message: str) -> None:
    raise ValueError(message)


def main() -> None:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols])
    environment.filters["tojson"] = to_json
    # Of greenroom's pinned clock.
    known = {"%B": "July", "%b": "Jul", "%d": "26", "%Y": "2024", "%m": "07", "%H": "12", "%M": "00", "%S": "00"}

    def clock(form: str) -> str:
        for code, value in known.items():
            form = form.replace(code, value)
        return form

    environment.globals |= {"raise_exception": refuse, "strftime_now": clock}
    prompts: dict[str, dict[str, str | None]] = {}
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")):
        prompts[path.stem] = {}
        for name, (messages, tools) in FIRST.items():
            listed = tools and [{"type": "function", "function": tool} for tool in tools]
            try:
                template = environment.from_string(path.read_text())
                text = template.render(
                    messages=messages,
                    tools=listed,
                    add_generation_prompt=True,
                    bos_token="<|endoftext|>",
                    eos_token="<|im_end|>",
                    enable_thinking=False,
                    thinking=False,
                    reasoning_effort="low",
                    functions=to_json(listed) if listed else "",
                    datetime="Jul 26 2024 12:00:00 GMT",
                )
            except Exception:  # noqa: BLE001 (the template refuses such a conversation)
                text = None
            prompts[path.stem][name] = text
    json.dump(prompts, sys.stdout, ensure_ascii=False)


main()
