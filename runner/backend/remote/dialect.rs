//! The APIs of engines: how a turn is asked in each, and how its events are read.
//!
//! Written from the documentation of llama.cpp's server, vLLM's completions, SGLang's `/generate`, OpenAI's
//! chat completions and Anthropic's messages. All answers but llama.cpp's are streamed. Of the settings of
//! sampling an API gets those that it has (docs/engines.md); anything else that it lacks is rejected by name.
//! No API gets stop strings: it would not report what it cut ([`crate::prompt::StopStrings`]).

use super::ask::{Finish, Message, PartialReply, Prompt, RemoteRequest, ReplyBounds};
use crate::scenario::Api;
use anyhow::{bail, ensure};
use greenroom_engine::Grammar;
use serde_json::{Value, json};

/// Path of the route that turns are asked by.
pub(super) fn path(api: Api) -> &'static str {
    match api {
        Api::LlamaCpp => "/completion",
        Api::Vllm => "/v1/completions",
        Api::SgLang => "/generate",
        Api::OpenAi => "/chat/completions",
        Api::Anthropic => "/v1/messages",
        Api::Greenroom => "/v1/turns",
    }
}

/// Tokens of an engine's blocks: what it has cached of a prompt, it reuses in whole ones.
pub(super) fn block(api: Api) -> usize {
    match api {
        Api::Vllm => 16,
        _ => 1,
    }
}

/// The body of a request.
///
/// # Errors
/// The API has no word for something that the turn needs.
pub(super) fn body(api: Api, ask: &RemoteRequest<'_>) -> anyhow::Result<Value> {
    match api {
        Api::LlamaCpp => llamacpp(ask),
        Api::Vllm => vllm(ask),
        Api::SgLang => sglang(ask),
        Api::OpenAi => openai(ask),
        Api::Anthropic => anthropic(ask),
        Api::Greenroom => bail!("turns of `greenroom serve` have their own form"),
    }
}

/// Takes an event in.
///
/// # Errors
/// The engine reports an error in it.
pub(super) fn take(api: Api, event: &Value, said: &mut PartialReply) -> anyhow::Result<()> {
    if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
        let message =
            error.get("message").and_then(Value::as_str).map_or_else(|| error.to_string(), str::to_string);
        bail!("{}", crate::diagnostic::printable(&message));
    }
    match api {
        Api::LlamaCpp => parse_llamacpp_event(event, said),
        Api::Vllm => parse_vllm_event(event, said),
        Api::SgLang => parse_sglang_event(event, said),
        Api::OpenAi => parse_openai_event(event, said),
        Api::Anthropic => parse_anthropic_event(event, said),
        Api::Greenroom => {}
    }
    Ok(())
}

fn ids<'a>(ask: &'a RemoteRequest<'_>) -> anyhow::Result<&'a [u32]> {
    match ask.prompt {
        Prompt::Ids(ids) => Ok(ids),
        Prompt::Messages(_) => bail!("this API takes token ids, but a `tokenizer` is missing"),
    }
}

fn messages<'a>(ask: &'a RemoteRequest<'_>) -> anyhow::Result<&'a [Message]> {
    match ask.prompt {
        Prompt::Messages(messages) => Ok(messages),
        Prompt::Ids(_) => bail!("this API takes messages, not token ids; remove `tokenizer`"),
    }
}

fn number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}

fn id_list(value: &Value) -> Vec<u32> {
    let ids = value.as_array().into_iter().flatten();
    ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

/// A schema of which every value is one of these texts.
fn schema_of(options: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": { "choice": { "type": "string", "enum": options } },
        "required": ["choice"],
        "additionalProperties": false,
    })
}

fn as_schema(text: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(text)?)
}

fn llamacpp(ask: &RemoteRequest<'_>) -> anyhow::Result<Value> {
    let sampling = ask.sampling;
    let mut body = json!({
        "prompt": ids(ask)?,
        "n_predict": ask.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": sampling.repetition_window,
        "seed": ask.sampling.seed as u32,
        "cache_prompt": !ask.cold,
        "return_tokens": true,
        // A stream leaves out the ids of tokens that end in the middle of a character.
        "stream": false,
    });
    if let Some(dry) = sampling.dry {
        body["dry_multiplier"] = json!(dry.multiplier);
        body["dry_base"] = json!(dry.base);
        body["dry_allowed_length"] = json!(dry.allowed_length);
    }
    match &ask.bounds {
        ReplyBounds::Free => {}
        ReplyBounds::OneOf(options) => body["grammar"] = json!(gbnf(options)),
        ReplyBounds::Grammar(Grammar::JsonSchema(schema)) => body["json_schema"] = as_schema(schema)?,
        ReplyBounds::Grammar(grammar) => {
            bail!("llama.cpp's server supports JSON Schemas, but not `{}`", grammar.kind())
        }
    }
    Ok(body)
}

/// The grammar of some texts, in llama.cpp's form.
fn gbnf(options: &[&str]) -> String {
    let quoted: Vec<String> = options.iter().map(|option| Value::from(*option).to_string()).collect();
    format!("root ::= {}", quoted.join(" | "))
}

fn parse_llamacpp_event(event: &Value, said: &mut PartialReply) {
    said.text.push_str(event["content"].as_str().unwrap_or_default());
    said.ids.extend(id_list(&event["tokens"]));
    if event["stop"] == json!(true) {
        said.finish = Some(if event["stop_type"] == "limit" { Finish::Full } else { Finish::Ended });
        let timings = &event["timings"];
        said.cached = number(&timings["cache_n"]);
        let read = number(&timings["prompt_n"]);
        said.prompt_tokens = said.cached.zip(read).map(|(cached, read)| cached + read);
        said.reply_tokens = number(&event["tokens_predicted"]);
        said.token_ms = timings["prompt_per_token_ms"].as_f64();
    }
}

fn vllm(ask: &RemoteRequest<'_>) -> anyhow::Result<Value> {
    let sampling = ask.sampling;
    let mut body = json!({
        "model": ask.model,
        "prompt": ids(ask)?,
        "max_tokens": ask.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": ask.sampling.seed >> 1,
        "return_token_ids": true,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if ask.cold {
        body["cache_salt"] = json!(format!("{:x}", ask.sampling.seed));
    }
    match &ask.bounds {
        ReplyBounds::Free => {}
        ReplyBounds::OneOf(options) => body["structured_outputs"] = json!({ "choice": options }),
        ReplyBounds::Grammar(Grammar::JsonSchema(schema)) => {
            body["structured_outputs"] = json!({ "json": as_schema(schema)? });
        }
        ReplyBounds::Grammar(Grammar::Regex(regex)) => body["structured_outputs"] = json!({ "regex": regex }),
        ReplyBounds::Grammar(Grammar::Lark(lark)) => body["structured_outputs"] = json!({ "grammar": lark }),
    }
    Ok(body)
}

fn parse_vllm_event(event: &Value, said: &mut PartialReply) {
    let choice = &event["choices"][0];
    said.text.push_str(choice["text"].as_str().unwrap_or_default());
    said.ids.extend(id_list(&choice["token_ids"]));
    parse_finish_event(choice, said);
    parse_usage_event(&event["usage"], said);
}

fn parse_finish_event(choice: &Value, said: &mut PartialReply) {
    if let Some(reason) = choice["finish_reason"].as_str() {
        said.finish = Some(if reason == "length" { Finish::Full } else { Finish::Ended });
    }
}

/// Usage, in OpenAI's form.
fn parse_usage_event(usage: &Value, said: &mut PartialReply) {
    said.prompt_tokens = number(&usage["prompt_tokens"]).or(said.prompt_tokens);
    said.reply_tokens = number(&usage["completion_tokens"]).or(said.reply_tokens);
    said.cached = number(&usage["prompt_tokens_details"]["cached_tokens"]).or(said.cached);
}

fn sglang(ask: &RemoteRequest<'_>) -> anyhow::Result<Value> {
    let sampling = ask.sampling;
    let mut settings = json!({
        "max_new_tokens": ask.max_tokens,
        "temperature": sampling.temperature,
        "top_k": if sampling.top_k == 0 { -1 } else { sampling.top_k as i64 },
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "sampling_seed": (ask.sampling.seed >> 33) as u32,
    });
    match &ask.bounds {
        ReplyBounds::Free => {}
        ReplyBounds::OneOf(options) => {
            let quoted: Vec<String> = options.iter().map(|option| escaped(option)).collect();
            settings["regex"] = json!(format!("({})", quoted.join("|")));
        }
        ReplyBounds::Grammar(Grammar::JsonSchema(schema)) => settings["json_schema"] = json!(schema),
        ReplyBounds::Grammar(Grammar::Regex(regex)) => settings["regex"] = json!(regex),
        ReplyBounds::Grammar(Grammar::Lark(_)) => {
            bail!("SGLang supports JSON Schemas and regular expressions, but not `lark`")
        }
    }
    ensure!(!ask.cold, "SGLang can't bypass its cache for one request (--cold)");
    Ok(json!({ "input_ids": ids(ask)?, "sampling_params": settings, "stream": true }))
}

/// A text as a regular expression that matches nothing else.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        if c.is_ascii_punctuation() {
            out.push('\\');
        }
        out.push(c);
        out
    })
}

/// Each event holds the reply from its beginning.
fn parse_sglang_event(event: &Value, said: &mut PartialReply) {
    if let Some(text) = event["text"].as_str() {
        said.text = text.to_string();
    }
    if event["output_ids"].is_array() {
        said.ids = id_list(&event["output_ids"]);
    }
    let meta = &event["meta_info"];
    if let Some(reason) = meta["finish_reason"]["type"].as_str() {
        said.finish = Some(if reason == "length" { Finish::Full } else { Finish::Ended });
    }
    said.prompt_tokens = number(&meta["prompt_tokens"]).or(said.prompt_tokens);
    said.reply_tokens = number(&meta["completion_tokens"]).or(said.reply_tokens);
    said.cached = number(&meta["cached_tokens"]).or(said.cached);
}

fn openai(ask: &RemoteRequest<'_>) -> anyhow::Result<Value> {
    let mut calls = 0;
    let messages: Vec<Value> = messages(ask)?
        .iter()
        .map(|message| match message {
            Message::System(text) => json!({ "role": "system", "content": text }),
            Message::User(text) => json!({ "role": "user", "content": text }),
            Message::Assistant(text) => json!({ "role": "assistant", "content": text }),
            Message::Call(call) => {
                calls += 1;
                let function = json!({ "name": call.tool, "arguments": call.arguments.to_string() });
                let call = json!({ "id": format!("call_{calls}"), "type": "function", "function": function });
                json!({ "role": "assistant", "content": null, "tool_calls": [call] })
            }
            Message::Result(text) => {
                json!({ "role": "tool", "tool_call_id": format!("call_{calls}"), "content": text })
            }
        })
        .collect();
    let mut body = json!({
        "model": ask.model,
        "messages": messages,
        "max_tokens": ask.max_tokens,
        "temperature": ask.sampling.temperature,
        "top_p": ask.sampling.top_p,
        "seed": ask.sampling.seed >> 11, // any client can read 53 bits
        "prompt_cache_key": ask.key,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if !ask.effort.is_empty() {
        body["reasoning_effort"] = json!(ask.effort);
    }
    if let Some(offer) = ask.tools {
        let tools = offer.tools.iter().map(|tool| {
            let function =
                json!({ "name": tool.name, "description": tool.about, "parameters": tool.arguments });
            json!({ "type": "function", "function": function })
        });
        body["tools"] = tools.collect();
        if let Some(name) = ask.must_call {
            body["tool_choice"] = json!({ "type": "function", "function": { "name": name } });
        }
    }
    let format = |schema: Value| {
        json!({
            "type": "json_schema", "json_schema": { "name": "reply", "strict": true, "schema": schema }
        })
    };
    match &ask.bounds {
        ReplyBounds::Free => {}
        ReplyBounds::OneOf(options) => body["response_format"] = format(schema_of(options)),
        ReplyBounds::Grammar(Grammar::JsonSchema(schema)) => {
            body["response_format"] = format(as_schema(schema)?)
        }
        ReplyBounds::Grammar(grammar) => {
            bail!("OpenAI's API supports JSON Schemas, but not `{}`", grammar.kind())
        }
    }
    ensure!(!ask.cold, "OpenAI's API can't bypass its cache for a request (--cold)");
    Ok(body)
}

fn parse_openai_event(event: &Value, said: &mut PartialReply) {
    let choice = &event["choices"][0];
    let delta = &choice["delta"];
    said.text.push_str(delta["content"].as_str().unwrap_or_default());
    let first = delta["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|call| number(&call["index"]).unwrap_or(0) == 0);
    if let Some(call) = first {
        let (name, arguments) = said.call.get_or_insert_default();
        name.push_str(call["function"]["name"].as_str().unwrap_or_default());
        arguments.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
    }
    parse_finish_event(choice, said);
    parse_usage_event(&event["usage"], said);
}

fn anthropic(ask: &RemoteRequest<'_>) -> anyhow::Result<Value> {
    let (mut calls, mut system, mut list) = (0, None, Vec::new());
    for message in messages(ask)? {
        list.push(match message {
            Message::System(text) => {
                system = Some(text);
                continue;
            }
            Message::User(text) => json!({ "role": "user", "content": text }),
            Message::Assistant(text) => json!({ "role": "assistant", "content": text }),
            Message::Call(call) => {
                calls += 1;
                let id = format!("call_{calls}");
                let used =
                    json!({ "type": "tool_use", "id": id, "name": call.tool, "input": call.arguments });
                json!({ "role": "assistant", "content": [used] })
            }
            Message::Result(text) => {
                let id = format!("call_{calls}");
                let result = json!({ "type": "tool_result", "tool_use_id": id, "content": text });
                json!({ "role": "user", "content": [result] })
            }
        });
    }
    let mut body = json!({
        "model": ask.model,
        "messages": list,
        "max_tokens": ask.max_tokens,
        "temperature": ask.sampling.temperature.min(1.0),
        "cache_control": { "type": "ephemeral" },
        "stream": true,
    });
    if let Some(system) = system {
        body["system"] = json!(system);
    }
    if let Some(offer) = ask.tools {
        let tools = offer.tools.iter();
        body["tools"] = tools
            .map(|tool| {
                json!({
                    "name": tool.name, "description": tool.about, "input_schema": tool.arguments
                })
            })
            .collect();
        if let Some(name) = ask.must_call {
            body["tool_choice"] = json!({ "type": "tool", "name": name });
        }
    }
    let format = |schema: Value| json!({ "format": { "type": "json_schema", "schema": schema } });
    match &ask.bounds {
        ReplyBounds::Free => {}
        ReplyBounds::OneOf(options) => body["output_config"] = format(schema_of(options)),
        ReplyBounds::Grammar(Grammar::JsonSchema(schema)) => {
            body["output_config"] = format(as_schema(schema)?)
        }
        ReplyBounds::Grammar(grammar) => {
            bail!("Anthropic's API supports JSON Schemas, but not `{}`", grammar.kind())
        }
    }
    ensure!(!ask.cold, "Anthropic's API can't bypass its cache for a request (--cold)");
    Ok(body)
}

fn parse_anthropic_event(event: &Value, said: &mut PartialReply) {
    let usage = match event["type"].as_str().unwrap_or_default() {
        "message_start" => &event["message"]["usage"],
        "content_block_start" => {
            let block = &event["content_block"];
            if block["type"] == "tool_use" && said.call.is_none() {
                said.call = Some((block["name"].as_str().unwrap_or_default().to_string(), String::new()));
            }
            return;
        }
        "content_block_delta" => {
            let delta = &event["delta"];
            said.text.push_str(delta["text"].as_str().unwrap_or_default());
            if let Some((_, arguments)) = &mut said.call {
                arguments.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            return;
        }
        "message_delta" => {
            if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                said.finish = Some(if reason == "max_tokens" { Finish::Full } else { Finish::Ended });
            }
            &event["usage"]
        }
        _ => return,
    };
    // A prompt's tokens are reported in three parts, and again at the end.
    let [fresh, cached, written] = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
        .map(|name| number(&usage[name]));
    if fresh.or(cached).or(written).is_some() {
        said.cached = cached.or(said.cached);
        said.prompt_tokens = Some(fresh.unwrap_or(0) + cached.unwrap_or(0) + written.unwrap_or(0));
    }
    said.reply_tokens = number(&usage["output_tokens"]).or(said.reply_tokens);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Call;
    use crate::backend::Sampling;
    use crate::sampling::DEFAULT;
    use crate::scenario::ToolSpec;
    use crate::tools::ToolOffer;

    fn offer() -> ToolOffer {
        let (name, about) = ("dice".to_string(), "Rolls dice.".to_string());
        let arguments = json!({ "type": "object", "properties": { "sides": { "type": "integer" } } });
        ToolOffer { tools: vec![ToolSpec { name, about, arguments }], instructions: String::new() }
    }

    fn talk() -> Prompt {
        Prompt::Messages(vec![
            Message::System("You are Ann.".into()),
            Message::User("Roll.".into()),
            Message::Call(Call { tool: "dice".into(), arguments: json!({ "sides": 6 }) }),
            Message::Result("4".into()),
            Message::Assistant("A four.".into()),
            Message::User("Again.".into()),
        ])
    }

    fn asked(
        api: Api,
        prompt: &Prompt,
        bounds: ReplyBounds<'_>,
        tools: Option<&ToolOffer>,
    ) -> anyhow::Result<Value> {
        let sampling = &Sampling { top_k: 40, seed: u64::MAX, ..DEFAULT };
        let ask = RemoteRequest {
            model: "m",
            prompt,
            sampling,
            max_tokens: 9,
            bounds,
            tools,
            must_call: None,
            effort: "",
            key: "greenroom-1",
            cold: false,
        };
        body(api, &ask)
    }

    #[test]
    fn prompts_by_ids_are_asked_in_the_words_of_each_engine() {
        let prompt = Prompt::Ids(vec![5, 6, 7]);
        let of = |api, bounds: ReplyBounds<'_>| asked(api, &prompt, bounds, None).unwrap();
        let llamacpp = of(Api::LlamaCpp, ReplyBounds::OneOf(vec!["yes", "a \"no\""]));
        assert_eq!(llamacpp["prompt"], json!([5, 6, 7]));
        assert_eq!(llamacpp["grammar"], r#"root ::= "yes" | "a \"no\"""#);
        assert_eq!((&llamacpp["n_predict"], &llamacpp["top_k"]), (&json!(9), &json!(40)));
        assert_eq!(llamacpp["stream"], false, "a stream leaves ids out");
        let regex = Grammar::Regex("a+".into());
        let vllm = of(Api::Vllm, ReplyBounds::Grammar(&regex));
        assert_eq!(vllm["structured_outputs"], json!({ "regex": "a+" }));
        assert!(vllm["seed"].as_i64().is_some(), "a seed is a signed number there");
        let sglang = of(Api::SgLang, ReplyBounds::OneOf(vec!["a.b", "c"]));
        assert_eq!(sglang["input_ids"], json!([5, 6, 7]));
        assert_eq!(sglang["sampling_params"]["regex"], r"(a\.b|c)");
        for body in [&llamacpp, &vllm, &sglang] {
            assert!(
                !body.to_string().contains("\"stop\""),
                "what an engine cuts, it does not return: {body}"
            );
        }
        for api in [Api::OpenAi, Api::Anthropic] {
            assert!(asked(api, &prompt, ReplyBounds::Free, None).is_err());
        }
        for api in [Api::LlamaCpp, Api::SgLang, Api::OpenAi, Api::Anthropic] {
            let lark = Grammar::Lark("start: \"a\"".into());
            let (ids, talk) = (prompt.clone(), talk());
            let prompt = if api.takes_ids() { &ids } else { &talk };
            let error = asked(api, prompt, ReplyBounds::Grammar(&lark), None).unwrap_err().to_string();
            assert!(error.contains("lark"), "{error}");
        }
    }

    #[test]
    fn messages_keep_calls_and_their_results_together() {
        let offer = offer();
        let openai = asked(Api::OpenAi, &talk(), ReplyBounds::Free, Some(&offer)).unwrap();
        let messages = openai["messages"].as_array().unwrap();
        let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant", "user"]);
        assert_eq!(messages[2]["tool_calls"][0]["id"], messages[3]["tool_call_id"]);
        assert_eq!(messages[2]["tool_calls"][0]["function"]["arguments"], r#"{"sides":6}"#);
        assert_eq!(openai["tools"][0]["function"]["name"], "dice");
        assert_eq!(openai["prompt_cache_key"], "greenroom-1");
        let anthropic =
            asked(Api::Anthropic, &talk(), ReplyBounds::OneOf(vec!["x", "y"]), Some(&offer)).unwrap();
        assert_eq!(anthropic["system"], "You are Ann.");
        let messages = anthropic["messages"].as_array().unwrap();
        assert_eq!(messages[1]["content"][0]["id"], messages[2]["content"][0]["tool_use_id"]);
        assert_eq!(anthropic["tools"][0]["input_schema"]["type"], "object");
        let schema = &anthropic["output_config"]["format"]["schema"];
        assert_eq!(schema["properties"]["choice"]["enum"], json!(["x", "y"]));
    }

    fn heard(api: Api, events: &[Value]) -> PartialReply {
        let mut said = PartialReply::default();
        events.iter().for_each(|event| take(api, event, &mut said).unwrap());
        said
    }

    #[test]
    fn answers_are_read_in_the_words_of_each_engine() {
        let said = heard(
            Api::LlamaCpp,
            &[json!({
                "content": "Hi.", "tokens": [1, 2], "stop": true, "stop_type": "limit", "tokens_predicted": 2,
                "timings": { "cache_n": 30, "prompt_n": 4, "prompt_per_token_ms": 1.5 },
            })],
        );
        assert_eq!(
            (said.text.as_str(), &said.ids[..], said.finish),
            ("Hi.", &[1, 2][..], Some(Finish::Full))
        );
        assert_eq!((said.prompt_tokens, said.cached, said.token_ms), (Some(34), Some(30), Some(1.5)));
        let usage = json!({
            "prompt_tokens": 34, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 16 },
        });
        let said = heard(
            Api::Vllm,
            &[
                json!({ "choices": [{ "text": "H", "token_ids": [1] }] }),
                json!({ "choices": [{ "text": "i", "token_ids": [2], "finish_reason": "stop" }] }),
                json!({ "choices": [], "usage": usage }),
            ],
        );
        assert_eq!(
            (said.text.as_str(), &said.ids[..], said.finish),
            ("Hi", &[1, 2][..], Some(Finish::Ended))
        );
        assert_eq!((said.prompt_tokens, said.cached, said.reply_tokens), (Some(34), Some(16), Some(2)));
        let call = |name: Value, arguments: &str| {
            let function = json!({ "name": name, "arguments": arguments });
            json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "function": function }] } }] })
        };
        let said = heard(
            Api::OpenAi,
            &[
                call(json!("dice"), ""),
                call(Value::Null, r#"{"sides""#),
                call(Value::Null, ":6}"),
                json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }),
            ],
        );
        assert_eq!(said.call, Some(("dice".into(), r#"{"sides":6}"#.into())));
        let said = heard(
            Api::Anthropic,
            &[
                json!({
                    "type": "message_start",
                    "message": { "usage": { "input_tokens": 3, "cache_read_input_tokens": 20 } }
                }),
                json!({
                    "type": "content_block_start", "content_block": { "type": "tool_use", "name": "dice" }
                }),
                json!({ "type": "content_block_delta", "delta": { "partial_json": "{}" } }),
                json!({
                    "type": "message_delta", "delta": { "stop_reason": "max_tokens" },
                    "usage": { "output_tokens": 7 }
                }),
            ],
        );
        assert_eq!(said.call, Some(("dice".into(), "{}".into())));
        assert_eq!((said.prompt_tokens, said.cached, said.reply_tokens), (Some(23), Some(20), Some(7)));
        assert_eq!(said.finish, Some(Finish::Full));
        let error = json!({ "error": { "message": "no\u{1b}[31m room" } });
        let error = take(Api::OpenAi, &error, &mut PartialReply::default()).unwrap_err().to_string();
        assert!(error.contains("no") && !error.contains('\u{1b}'), "{error:?}");
    }
}
