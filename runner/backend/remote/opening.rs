//! What is found out about an engine before its first turn: the model's name, its context, and whether the
//! tokenizer here is the model's.

use super::http::{Http, HttpFailure};
use crate::scenario::{Api, EngineAddress};
use anyhow::{Context as _, bail, ensure};
use greenroom_engine::{PromptEncoder, common_prefix};
use serde_json::{Value, json};

/// The model's name there, and how many tokens its context holds, as far as the engine says.
pub(super) fn describe(address: &EngineAddress, http: &Http) -> anyhow::Result<(String, Option<usize>)> {
    let context = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
    match address.api {
        Api::LlamaCpp => {
            let props = http.get("/props")?;
            let name =
                props["model_alias"].as_str().or_else(|| props["model_path"].as_str()).unwrap_or("llama.cpp");
            let name = name.rsplit('/').next().unwrap_or(name).to_string();
            Ok((
                address.model.clone().unwrap_or(name),
                context(&props["default_generation_settings"]["n_ctx"]),
            ))
        }
        Api::SgLang => {
            let info = http.get("/get_model_info")?;
            let name = info["model_path"].as_str().unwrap_or("sglang").to_string();
            Ok((address.model.clone().unwrap_or(name), None))
        }
        Api::Vllm | Api::OpenAi => {
            let path = if address.api == Api::Vllm { "/v1/models" } else { "/models" };
            let listed = http.get(path);
            let listed = match (&address.model, listed) {
                // Some gateways list nothing; the name is enough.
                (Some(name), Err(HttpFailure::Permanent(_))) => return Ok((name.clone(), None)),
                (_, listed) => listed?,
            };
            let name = choose(address.model.as_deref(), &listed)?;
            let all = listed["data"].as_array().into_iter().flatten();
            let own = all.into_iter().find(|model| model["id"] == name.as_str());
            Ok((name, own.and_then(|model| context(&model["max_model_len"]))))
        }
        Api::Anthropic | Api::Greenroom => {
            let name =
                address.model.clone().context("`model` is missing; give the model's name on that server")?;
            Ok((name, None))
        }
    }
}

/// The requested model in a list in OpenAI's form; the only one, where none is.
pub(super) fn choose(asked: Option<&str>, listed: &Value) -> anyhow::Result<String> {
    let all = listed["data"].as_array().into_iter().flatten();
    let names: Vec<&str> = all.filter_map(|model| model["id"].as_str()).collect();
    match (asked, &names[..]) {
        (Some(name), names) if names.is_empty() || names.contains(&name) => Ok(name.to_string()),
        (None, [only]) => Ok((*only).to_string()),
        (Some(name), names) => {
            bail!("the server has no model `{name}`; available models: {}", names.join(", "))
        }
        (None, names) => bail!("`model` is missing; expected one of {}", names.join(", ")),
    }
}

/// A text that tokenizers cut in different ways.
const PROBE: &str =
    "Naïve Zoë’s 3 cats — 12,345 of them! — ran: “¿Qué?”\n\n\tif (x != y) { don't(); } 漢字 🐈";

/// Compares the tokenizer here with the engine's, where it has a route for that.
pub(super) fn probe(
    address: &EngineAddress,
    http: &Http,
    model: &str,
    prompter: &PromptEncoder,
) -> anyhow::Result<()> {
    let body = match address.api {
        Api::Vllm => json!({ "model": model, "prompt": PROBE, "add_special_tokens": true }),
        _ => {
            json!({
                "content": PROBE, "add_special": true, "parse_special": true, "prompt": PROBE, "model": model
            })
        }
    };
    let answer = match http.post("/tokenize", &body) {
        Ok(answer) => answer,
        Err(HttpFailure::Permanent(_)) if address.api != Api::LlamaCpp => {
            tracing::debug!("{} has no route to tokenize, so the tokenizer is not checked", address.host());
            return Ok(());
        }
        Err(failure) => return Err(failure.into()),
    };
    let theirs: Vec<u32> = answer["tokens"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|id| u32::try_from(id.as_u64()?).ok())
        .collect();
    let ours = prompter.prompt_ids(&greenroom_engine::Prompt::Text(PROBE.to_string()))?;
    let at = common_prefix(&ours, &theirs);
    ensure!(
        ours == theirs,
        "the tokenizer {} is not that of `{model}`: a text of {} tokens there has {} here, and the first \
         difference is token {at} ({} there, {} here)",
        address.tokenizer.as_deref().unwrap_or_default(),
        theirs.len(),
        ours.len(),
        theirs.get(at).map_or("none".to_string(), u32::to_string),
        ours.get(at).map_or("none".to_string(), u32::to_string),
    );
    Ok(())
}
