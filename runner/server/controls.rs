//! How a reply is drawn, limited and shaped, in the words of OpenAI's APIs and of the extensions that clients of
//! llama.cpp's, vLLM's and Ollama's servers send. A field is honoured or refused by its name; none is ignored that
//! would change a reply.

use super::ask::{AnswerSettings, MAX_OPTIONS, random_seed};
use super::body;
use super::error::Refusal;
use crate::sampling::resolved;
use crate::scenario::Hints;
use greenroom_engine::{Constraint, Grammar};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Settings of samplers that are not built in, and the values that switch them off.
const OTHER_SAMPLERS: [(&str, &[f64]); 14] = [
    ("typical_p", &[1.0]),
    ("typ_p", &[1.0]),
    ("tfs_z", &[1.0]),
    ("top_n_sigma", &[-1.0, 0.0]),
    ("xtc_probability", &[0.0]),
    ("mirostat", &[0.0]),
    ("dynatemp_range", &[0.0]),
    ("adaptive_target", &[-1.0]),
    ("length_penalty", &[1.0]),
    ("n_indent", &[0.0]),
    ("use_beam_search", &[0.0]),
    ("prompt_logprobs", &[0.0]),
    ("truncate_prompt_tokens", &[]),
    ("best_of", &[1.0]),
];
/// Other fields that would change a reply.
const UNSUPPORTED: [&str; 7] =
    ["samplers", "samplers_seq", "bad_words", "allowed_token_ids", "lora", "logits_processors", "suffix"];
/// Other names of settings.
const OTHER_NAMES: [(&str, &str); 2] =
    [("repetition_penalty", "repeat_penalty"), ("repetition_window", "repeat_last_n")];
/// Names of the maximum number of tokens, the first given counts.
const LIMITS: [&str; 5] =
    ["max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict", "num_predict"];
/// Fields that give a reply its form.
const FORMS: [&str; 11] = [
    "response_format",
    "text.format",
    "output_config.format",
    "json_schema",
    "grammar",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "format",
];
/// What is added to the logit of a token that must not come.
const NEVER: f32 = -1e30;

/// Reads all of them.
///
/// # Errors
/// A field is wrong, or asks for what is not supported: it is named.
pub(super) fn controls(request: &Value) -> Result<AnswerSettings, Refusal> {
    body::refuse(request, &UNSUPPORTED)?;
    for (name, off) in OTHER_SAMPLERS {
        let value = &request[name];
        let number = value.as_f64().or(value.as_bool().map(|on| f64::from(u8::from(on))));
        if !value.is_null() && !number.is_some_and(|number| off.contains(&number)) {
            return Err(Refusal::field(name, format!("`{name}` is not supported")));
        }
    }
    let mut settings = AnswerSettings::new(seed(request)?);
    settings.sampling = resolved(&given(request)?, &settings.sampling);
    let number = |name: &str| match &request[name] {
        Value::Null => Ok(0.0),
        value => value.as_f64().map(|number| number as f32).ok_or_else(|| unfit(name, value, "a number")),
    };
    settings.sampling.frequency_penalty = number("frequency_penalty")?;
    settings.sampling.presence_penalty = number("presence_penalty")?;
    let biases = bias(&request["logit_bias"]).ok_or_else(|| {
        unfit("logit_bias", &request["logit_bias"], "numbers by token id, such as {\"15043\": -100}")
    });
    (settings.sampling.bias, settings.biased_texts) = biases?;
    settings.max_tokens = limit(request)?;
    settings.min_tokens = match &request["min_tokens"] {
        Value::Null => 0,
        value => count(value).ok_or_else(|| unfit("min_tokens", value, "a number of tokens"))?,
    };
    if request["ignore_eos"].as_bool() == Some(true) {
        settings.min_tokens = usize::MAX;
    }
    settings.end_ids = ids(&request["stop_token_ids"])?;
    settings.stop = stop(request)?;
    (settings.constraint, settings.grammar) = form(request)?;
    if settings.min_tokens > 0 && settings.grammar.is_some() {
        let found = "a reply with a form ends where its form does: leave out `min_tokens` and `ignore_eos`";
        return Err(Refusal::field("min_tokens", found));
    }
    Ok(settings)
}

/// The value of a setting, by one of its names.
fn value<'r>(request: &'r Value, name: &'static str) -> (&'static str, &'r Value) {
    let others = OTHER_NAMES.into_iter().filter(|(known, _)| *known == name).map(|(_, other)| other);
    [name]
        .into_iter()
        .chain(others)
        .map(|name| (name, &request[name]))
        .find(|(_, value)| !value.is_null())
        .unwrap_or((name, &Value::Null))
}

/// The samplers' settings that are built in.
fn given(request: &Value) -> Result<Hints, Refusal> {
    let names = Hints::overridable().filter(|name| *name != "max_tokens");
    let window = ["repetition_window", "dry_multiplier", "dry_base", "dry_allowed_length"];
    let mut fields = Map::new();
    for name in names.chain(window) {
        let (field, value) = value(request, name);
        // Less than nothing switches a filter off, or counts all.
        let is_negative = value.as_f64().is_some_and(|number| number < 0.0);
        let value = match name {
            "top_k" if is_negative => json!(0),
            "repetition_window" if is_negative => json!(usize::MAX),
            _ if value.is_null() => continue,
            _ => value.clone(),
        };
        let single = Value::Object(Map::from_iter([(name.to_string(), value.clone())]));
        if body::of_value::<Hints>(single).is_err() {
            return Err(unfit(field, &value, "a number"));
        }
        fields.insert(name.to_string(), value);
    }
    body::of_value(Value::Object(fields))
}

/// The seed; a random one if none is given, or a negative one.
fn seed(request: &Value) -> Result<u64, Refusal> {
    match &request["seed"] {
        Value::Null => Ok(random_seed()),
        value => match (value.as_u64(), value.as_i64()) {
            (_, Some(-1)) => Ok(random_seed()),
            (Some(seed), _) => Ok(seed),
            (None, Some(seed)) => Ok(seed.cast_unsigned()),
            (None, None) => Err(unfit("seed", value, "a whole number")),
        },
    }
}

/// Maximum number of tokens; a negative number is no limit.
fn limit(request: &Value) -> Result<Option<usize>, Refusal> {
    let given = LIMITS.map(|name| (name, &request[name])).into_iter().find(|(_, value)| !value.is_null());
    match given {
        None => Ok(None),
        Some((_, value)) if value.as_i64().is_some_and(|n| n < 0) => Ok(None),
        Some((name, value)) => {
            let limit =
                count(value).ok_or_else(|| unfit(name, value, "a number of tokens, or -1 for no limit"));
            limit.map(Some)
        }
    }
}

/// Strings that end the reply, and that are removed from it.
fn stop(request: &Value) -> Result<Vec<String>, Refusal> {
    let texts = |value: &Value| match value {
        Value::Null => Some(Vec::new()),
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(all) => all.iter().map(|one| one.as_str().map(str::to_string)).collect(),
        _ => None,
    };
    let mut all = Vec::new();
    for name in ["stop", "stop_sequences"] {
        let value = &request[name];
        all.extend(texts(value).ok_or_else(|| unfit(name, value, "a string or a list of strings"))?);
    }
    Ok(all)
}

fn ids(value: &Value) -> Result<Vec<u32>, Refusal> {
    let all = match value {
        Value::Null => Some(Vec::new()),
        value => value.as_array().and_then(|all| all.iter().map(id).collect()),
    };
    all.ok_or_else(|| unfit("stop_token_ids", value, "a list of token ids"))
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// What is added to the logits of the tokens of texts.
type BiasedTexts = Vec<(String, f32)>;

/// Biases by token, which may be given by its text: OpenAI's object, or llama.cpp's list of pairs.
fn bias(value: &Value) -> Option<(BTreeMap<u32, f32>, BiasedTexts)> {
    let pairs: Option<Vec<(Value, &Value)>> = match value {
        Value::Null => Some(Vec::new()),
        Value::Object(all) => {
            let token = |name: &str| name.parse::<u32>().map_or_else(|_| json!(name), |id| json!(id));
            Some(all.iter().map(|(name, bias)| (token(name), bias)).collect())
        }
        Value::Array(all) => all
            .iter()
            .map(|pair| match pair.as_array().map(Vec::as_slice) {
                Some([token, bias]) => Some((token.clone(), bias)),
                _ => None,
            })
            .collect(),
        _ => None,
    };
    let (mut by_id, mut by_text) = (BTreeMap::new(), Vec::new());
    for (token, bias) in pairs? {
        let bias = if *bias == json!(false) { NEVER } else { bias.as_f64()? as f32 };
        match token {
            Value::String(text) => by_text.push((text, bias)),
            token => _ = by_id.insert(id(&token)?, bias),
        }
    }
    Some((by_id, by_text))
}

/// What the reply must be, by the one field that says so.
fn form(request: &Value) -> Result<(Option<Constraint>, Option<Grammar>), Refusal> {
    let given = |name: &str| name.split('.').fold(request, |value, name| &value[name]);
    let is_set = |name: &&str| match given(name) {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(all) => !all.is_empty() && all.get("type").is_none_or(|of| of != "text"),
        _ => true,
    };
    let set: Vec<&str> = FORMS.into_iter().filter(is_set).collect();
    let name = match set[..] {
        [] => return Ok((None, None)),
        [name] => name,
        [first, second, ..] => {
            let found =
                format!("both `{first}` and `{second}` say what the reply must be; expected one of them");
            return Err(Refusal::field(second, found));
        }
    };
    let value = given(name);
    let read = match name {
        "response_format" | "text.format" | "output_config.format" => {
            (None, Some(response_format(value, name)?))
        }
        "guided_json" | "json_schema" => (None, Some(schema_of(value, name)?)),
        "format" if value == "json" => (None, Some(any_object())),
        "format" => (None, Some(schema_of(value, name)?)),
        "grammar" | "guided_grammar" => (None, Some(gbnf(value, name)?)),
        "guided_regex" => (None, Some(checked(Grammar::Regex(text_of(value, name)?), name)?)),
        "guided_choice" => (Some(one_of(value, name)?), None),
        "structured_outputs" => structured(value)?,
        _ => return Err(Refusal::field(name, format!("`{name}` is not supported"))),
    };
    Ok(read)
}

/// OpenAI's, and with llama.cpp's `schema` beside the type; `place` is the field.
fn response_format(format: &Value, place: &str) -> Result<Grammar, Refusal> {
    let inner = |name: &str| format!("{place}.{name}");
    match format["type"].as_str() {
        Some("json_object") if format["schema"].is_null() => Ok(any_object()),
        Some("json_object") => schema_of(&format["schema"], &inner("schema")),
        Some("json_schema") => match (&format["json_schema"]["schema"], &format["schema"]) {
            (Value::Null, Value::Null) => Err(Refusal::field(
                place,
                format!("`{place}` has no schema, which says what the reply must be"),
            )),
            (Value::Null, schema) => schema_of(schema, &inner("schema")),
            (schema, _) => schema_of(schema, &inner("json_schema.schema")),
        },
        Some("grammar") => gbnf(&format["grammar"], &inner("grammar")),
        _ => {
            let found =
                format!("`{place}.type` is {}; expected text, json_object or json_schema", format["type"]);
            Err(Refusal::field(place, found))
        }
    }
}

/// vLLM's: one of these.
fn structured(value: &Value) -> Result<(Option<Constraint>, Option<Grammar>), Refusal> {
    let field = "structured_outputs";
    let set: Vec<(&String, &Value)> =
        value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()).collect();
    let [(name, value)] = set[..] else {
        let found = "expected one of `choice`, `json`, `json_object`, `regex` and `grammar`";
        return Err(Refusal::field(field, found));
    };
    let place = format!("{field}.{name}");
    Ok(match name.as_str() {
        "choice" => (Some(one_of(value, &place)?), None),
        "json" => (None, Some(schema_of(value, &place)?)),
        "json_object" => (None, Some(any_object())),
        "regex" => (None, Some(checked(Grammar::Regex(text_of(value, &place)?), &place)?)),
        "grammar" => (None, Some(gbnf(value, &place)?)),
        _ => return Err(Refusal::field(&place, format!("`{place}` is not supported"))),
    })
}

fn any_object() -> Grammar {
    Grammar::json_schema(&json!({ "type": "object" }))
}

/// The grammar of a schema, which may come as its text.
fn schema_of(value: &Value, place: &str) -> Result<Grammar, Refusal> {
    let grammar = match value {
        Value::String(text) => Grammar::JsonSchema(text.clone()),
        schema => Grammar::json_schema(schema),
    };
    checked(grammar, place)
}

fn gbnf(value: &Value, place: &str) -> Result<Grammar, Refusal> {
    let text = text_of(value, place)?;
    // vLLM's clients send Lark, too.
    let is_lark = !text.contains("::=") && text.contains("start:");
    let grammar = if is_lark { Ok(Grammar::Lark(text)) } else { Grammar::gbnf(&text) };
    checked(grammar.map_err(|error| Refusal::field(place, format!("`{place}`: {error}")))?, place)
}

fn one_of(value: &Value, place: &str) -> Result<Constraint, Refusal> {
    let options = value.as_array().and_then(|all| {
        all.iter().map(|option| option.as_str().map(str::to_string)).collect::<Option<Vec<_>>>()
    });
    let options = options.ok_or_else(|| unfit(place, value, "a list of texts"))?;
    if !(1..=MAX_OPTIONS).contains(&options.len()) {
        let found = format!("{} options: expected 1 to {MAX_OPTIONS}", options.len());
        return Err(Refusal::field(place, found));
    }
    Ok(Constraint::OneOf(options))
}

fn text_of(value: &Value, place: &str) -> Result<String, Refusal> {
    value.as_str().map(str::to_string).ok_or_else(|| unfit(place, value, "a text"))
}

/// A grammar that can be followed.
///
/// # Errors
/// It can't.
fn checked(grammar: Grammar, place: &str) -> Result<Grammar, Refusal> {
    grammar.check().map_err(|error| Refusal::field(place, format!("`{place}`: {error}")))?;
    Ok(grammar)
}

/// A number of things, which clients may write with a decimal point.
fn count(value: &Value) -> Option<usize> {
    let whole = || value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..9e15).contains(n)).map(|n| n as usize);
    value.as_u64().and_then(|n| usize::try_from(n).ok()).or_else(whole)
}

fn unfit(field: &str, found: &Value, expected: &str) -> Refusal {
    let mut found = found.to_string();
    if found.len() > 80 {
        found = found.chars().take(79).chain(['…']).collect();
    }
    Refusal::field(field, format!("`{field}` is {found}; expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: Value) -> AnswerSettings {
        controls(&request).unwrap_or_else(|refusal| panic!("{request}: {}", refusal.message()))
    }

    #[test]
    fn settings_are_read_by_all_their_names() {
        let settings = read(json!({
            "repeat_penalty": 1.2, "repeat_last_n": -1, "top_k": -1, "seed": 7, "n_predict": -1, "temperature": 0,
            "frequency_penalty": 0.5, "presence_penalty": -1, "logit_bias": { "5": -100 }, "stop": "\n",
            "stop_sequences": ["a", "b"], "stop_token_ids": [3], "typical_p": 1.0, "mirostat": 0, "suffix": null,
            "min_tokens": 4, "max_tokens": null
        }));
        let sampling = &settings.sampling;
        assert_eq!((sampling.repetition_penalty, sampling.repetition_window), (1.2, usize::MAX));
        assert_eq!((sampling.top_k, sampling.seed, sampling.temperature), (0, 7, 0.0));
        assert_eq!((sampling.frequency_penalty, sampling.presence_penalty), (0.5, -1.0));
        assert_eq!(sampling.bias, BTreeMap::from([(5, -100.0)]));
        assert_eq!((settings.max_tokens, settings.min_tokens), (None, 4));
        assert_eq!((settings.stop, settings.end_ids), (vec!["\n".into(), "a".into(), "b".into()], vec![3]));
        let settings = read(json!({ "logit_bias": [[5, false], [6, 1.5]], "ignore_eos": true, "seed": -1 }));
        assert_eq!(settings.sampling.bias, BTreeMap::from([(5, NEVER), (6, 1.5)]));
        assert_eq!(settings.min_tokens, usize::MAX);
        let settings = read(json!({ "logit_bias": { " word": -3 } }));
        assert_eq!(settings.biased_texts, [(" word".to_string(), -3.0)]);
        assert_eq!(read(json!({ "max_completion_tokens": 5, "max_tokens": 9.0 })).max_tokens, Some(5));
        assert_eq!(read(json!({ "max_tokens": 9.0 })).max_tokens, Some(9));
    }

    #[test]
    fn a_form_is_read_in_the_words_of_each_server() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
        let grammar = Some(Grammar::json_schema(&schema));
        for request in [
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } }),
            json!({ "response_format": { "type": "json_object", "schema": schema } }),
            json!({ "json_schema": schema }),
            json!({ "guided_json": schema.to_string(), "response_format": { "type": "text" }, "grammar": "" }),
            json!({ "structured_outputs": { "json": schema, "regex": null } }),
            json!({ "format": schema }),
        ] {
            assert_eq!(read(request.clone()).grammar, grammar, "{request}");
        }
        for request in [
            json!({ "grammar": "root ::= \"a\"+" }),
            json!({ "guided_grammar": "root ::= \"a\"+" }),
            json!({ "structured_outputs": { "grammar": "root ::= \"a\"+" } }),
        ] {
            let grammar = read(request.clone()).grammar.unwrap();
            assert!(grammar.accepts("aa").is_ok() && grammar.accepts("b").is_err(), "{request}");
        }
        let choice = Some(Constraint::OneOf(vec!["x".into(), "y".into()]));
        assert_eq!(read(json!({ "guided_choice": ["x", "y"] })).constraint, choice);
        assert_eq!(read(json!({ "format": "json" })).grammar, Some(any_object()));
    }

    #[test]
    fn what_would_change_a_reply_is_refused_by_its_name() {
        for (request, field) in [
            (json!({ "typical_p": 0.5 }), "typical_p"),
            (json!({ "mirostat": 2 }), "mirostat"),
            (json!({ "use_beam_search": true }), "use_beam_search"),
            (json!({ "samplers": ["top_k"] }), "samplers"),
            (json!({ "suffix": "x" }), "suffix"),
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "repeat_penalty": [] }), "repeat_penalty"),
            (json!({ "seed": "lucky" }), "seed"),
            (json!({ "max_tokens": 1.5 }), "max_tokens"),
            (json!({ "logit_bias": { "5": "much" } }), "logit_bias"),
            (json!({ "logit_bias": [[-1, 1]] }), "logit_bias"),
            (json!({ "stop": 3 }), "stop"),
            (json!({ "stop": [3] }), "stop"),
            (json!({ "stop_token_ids": [-1] }), "stop_token_ids"),
            (json!({ "grammar": "root ::= thing" }), "grammar"),
            (json!({ "grammar": "root ::= \"a\"", "guided_regex": "b" }), "guided_regex"),
            (json!({ "guided_choice": [] }), "guided_choice"),
            (json!({ "structured_outputs": { "structural_tag": {} } }), "structured_outputs.structural_tag"),
            (json!({ "response_format": { "type": "xml" } }), "response_format"),
            (json!({ "min_tokens": 3, "guided_regex": "a" }), "min_tokens"),
            (json!({ "frequency_penalty": "x" }), "frequency_penalty"),
        ] {
            let refusal = controls(&request).err().unwrap_or_else(|| panic!("{request} is read"));
            assert_eq!(refusal.openai()["error"]["param"], field, "{request}: {}", refusal.message());
        }
    }
}
