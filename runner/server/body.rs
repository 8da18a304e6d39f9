//! Bodies of requests, read with errors that name the field.

use super::error::Refusal;
use super::models::Models;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a body.
///
/// # Errors
/// It is not JSON, or not what is expected: the field is named.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    of_value(value(body)?)
}

/// Reads a body as a value.
///
/// # Errors
/// It is not JSON.
pub(super) fn value(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::request(format!("the body is not JSON: {error}")))
}

/// Reads a body that names a model, and gives the model the name under which it is served.
///
/// # Errors
/// It is not JSON, or there is no such model.
pub(super) fn with_model(body: &[u8], models: &Models) -> Result<Value, Refusal> {
    let mut value = value(body)?;
    if value.is_object() {
        let asked = match &value["model"] {
            Value::Null => None,
            Value::String(name) => Some(name.as_str()),
            other => return Err(Refusal::field("model", format!("`model` is {other}; expected a name"))),
        };
        value["model"] = models.name(asked)?.into();
    }
    Ok(value)
}

/// Reads a value.
///
/// # Errors
/// It is not what is expected: the field is named.
pub(super) fn of_value<T: DeserializeOwned>(value: Value) -> Result<T, Refusal> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.inner().to_string());
        if path == "." { Refusal::request(inner) } else { Refusal::field(&path, format!("{path}: {inner}")) }
    })
}

/// Refuses unsupported fields that would change the reply; unset fields, and those without effect, are
/// accepted.
///
/// # Errors
/// The first of them.
pub(super) fn refuse(value: &Value, unsupported: &[&str]) -> Result<(), Refusal> {
    let is_set = |field: &&&str| match &value[**field] {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        Value::String(_) | Value::Bool(true) => true,
    };
    match unsupported.iter().find(is_set) {
        Some(field) => Err(Refusal::field(field, format!("`{field}` is not supported"))),
        None => Ok(()),
    }
}
