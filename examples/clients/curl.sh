#!/bin/sh
# Calls each API once, with curl. Start `greenroom serve` first; GREENROOM_URL names another address.
set -eu
url=${GREENROOM_URL:-http://127.0.0.1:8080}
model=${GREENROOM_MODEL:-understudy}
key=${GREENROOM_KEY:-none}

# METHOD PATH [BODY]
ask() {
    echo "== $1 $2"
    if [ $# -gt 2 ]; then
        curl -sS --fail-with-body -X "$1" "$url$2" -H "authorization: Bearer $key" -H 'content-type: application/json' -d "$3"
    else
        curl -sS --fail-with-body -X "$1" "$url$2" -H "authorization: Bearer $key"
    fi
    echo
}

ask GET /health
ask GET /v1/models
ask POST /v1/chat/completions '{"model": "'"$model"'", "max_tokens": 30, "seed": 1, "greenroom": true,
    "messages": [{"role": "user", "content": "Good evening, Mira."}]}'
ask POST /v1/chat/completions '{"model": "'"$model"'", "max_tokens": 8, "seed": 1, "stream": true,
    "messages": [{"role": "user", "content": "Good evening, Mira."}]}'
ask POST /v1/responses '{"model": "'"$model"'", "max_output_tokens": 30, "input": "Good evening, Mira."}'
ask POST /v1/messages '{"model": "'"$model"'", "max_tokens": 30,
    "messages": [{"role": "user", "content": "Good evening, Mira."}]}'
ask POST /v1/completions '{"model": "'"$model"'", "max_tokens": 20, "seed": 1, "prompt": "Once upon a time"}'
ask POST /v1/embeddings '{"model": "'"$model"'", "input": "The melons are ripe.", "encoding_format": "base64"}'

# An agent: the server keeps the conversation.
ask PUT /v1/agents/mira '{"model": "'"$model"'", "system": "You are Mira. You grow melons.", "max_tokens": 30}'
ask POST /v1/agents/mira/turns '{"message": "Good evening, Mira.", "seed": 1}'
ask POST /v1/agents/mira/turns '{"message": "Are the melons ripe?", "choices": ["yes", "no"]}'
ask POST /v1/agents/mira/fork '{"name": "mira-2"}'
ask GET '/v1/agents/mira-2?conversation=true'
ask DELETE /v1/agents/mira-2
ask DELETE /v1/agents/mira
