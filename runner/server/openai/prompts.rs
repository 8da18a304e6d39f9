//! Prompts without a chat template, one or several: a text, a list of strings, a list of token ids, or a list
//! of such lists.

use super::super::error::Refusal;
use greenroom_engine::Prompt;
use serde_json::Value;

/// Reads the prompts of a field, `most` of them at most.
///
/// # Errors
/// The value has none of the four forms, one of the prompts is empty, or there are too many.
pub(super) fn prompts(value: &Value, field: &str, most: usize) -> Result<Vec<Prompt>, Refusal> {
    let all = match value {
        Value::Array(items) if items.iter().any(|item| !item.is_number()) => {
            let items = items.iter().enumerate();
            items.map(|(n, item)| prompt(item, &format!("{field}[{n}]"))).collect::<Result<_, _>>()?
        }
        one => vec![prompt(one, field)?],
    };
    if all.len() > most {
        return Err(Refusal::field(
            field,
            format!("`{field}` has {} entries; expected at most {most}", all.len()),
        ));
    }
    Ok(all)
}

fn prompt(value: &Value, place: &str) -> Result<Prompt, Refusal> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match value {
        Value::String(text) if !text.is_empty() => return Ok(Prompt::Text(text.clone())),
        Value::String(_) => return Err(Refusal::field(place, format!("`{place}` is empty"))),
        Value::Array(ids) if ids.is_empty() => {
            return Err(Refusal::field(place, format!("`{place}` is empty")));
        }
        Value::Array(ids) => ids.iter().map(id).collect::<Option<Vec<u32>>>(),
        _ => None,
    };
    match ids {
        Some(ids) => Ok(Prompt::Ids(ids.into())),
        None => Err(Refusal::field(place, format!("`{place}`: expected a string or a list of token ids"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_four_forms_are_read() {
        let text = |text: &str| Prompt::Text(text.to_string());
        let ids = |ids: &[u32]| Prompt::Ids(ids.into());
        for (given, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![ids(&[1, 2])]),
            (json!([[1, 2], [3]]), vec![ids(&[1, 2]), ids(&[3])]),
        ] {
            assert_eq!(prompts(&given, "input", 2).unwrap(), expected, "{given}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (given, expected) in [
            (json!(""), "`input` is empty"),
            (json!(["a", ""]), "`input[1]` is empty"),
            (json!([]), "`input` is empty"),
            (json!([[1], []]), "`input[1]` is empty"),
            (json!([1, -1]), "`input`: expected"),
            (json!([[1], [2.5]]), "`input[1]`: expected"),
            (json!([1, "a"]), "`input[0]`: expected"),
            (json!(null), "`input`: expected"),
            (json!(["a", "b", "c"]), "`input` has 3 entries; expected at most 2"),
        ] {
            let refusal = prompts(&given, "input", 2).unwrap_err();
            assert!(refusal.message().starts_with(expected), "{given}: {}", refusal.message());
        }
    }
}
