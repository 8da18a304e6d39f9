//! Pages of a list of items: `limit`, `order` and `after`.

use super::input::Item;
use crate::server::error::Refusal;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

/// Default number of items on a page.
const DEFAULT_LIMIT: usize = 20;
/// Maximum number of items of a page.
const MAX_LIMIT: usize = 100;

/// The page of a list that a query asks for; the latest item comes first unless the query says otherwise.
///
/// # Errors
/// A parameter is wrong, or `after` names no item.
pub(super) fn page(items: &[Item], query: &str) -> Result<Value, Refusal> {
    let parameter = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(key, _)| *key == name)?;
        Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
    };
    let limit = match parameter("limit") {
        None => DEFAULT_LIMIT,
        Some(text) => {
            let wrong = || Refusal::field("limit", format!("`limit` is `{text}`; expected 1 to {MAX_LIMIT}"));
            text.parse::<usize>().ok().filter(|n| (1..=MAX_LIMIT).contains(n)).ok_or_else(wrong)?
        }
    };
    let mut all: Vec<&Item> = items.iter().collect();
    match parameter("order").as_deref() {
        None | Some("desc") => all.reverse(),
        Some("asc") => {}
        Some(other) => {
            return Err(Refusal::field("order", format!("`order` is `{other}`; expected `asc` or `desc`")));
        }
    }
    let begin = match parameter("after") {
        None => 0,
        Some(id) => {
            let at = all.iter().position(|item| item.id() == id);
            at.ok_or_else(|| Refusal::field("after", format!("`after`: there is no item `{id}`")))? + 1
        }
    };
    let rest = &all[begin..];
    let data = &rest[..rest.len().min(limit)];
    Ok(json!({
        "object": "list",
        "data": data,
        "first_id": data.first().map(|item| item.id()),
        "last_id": data.last().map(|item| item.id()),
        "has_more": rest.len() > data.len(),
    }))
}

#[cfg(test)]
mod tests {
    use super::super::input;
    use super::*;

    #[test]
    fn pages_follow_one_another() {
        let message = |id: &str| json!({ "id": id, "role": "user", "content": id });
        let items = input::items(&json!(["a", "b", "c"].map(message))).unwrap();
        let ids = |query: &str| {
            let page = page(&items, query).unwrap();
            let data = page["data"].as_array().unwrap();
            let ids: String = data.iter().map(|item| item["id"].as_str().unwrap()).collect();
            (ids, page["has_more"].as_bool().unwrap())
        };
        assert_eq!(ids(""), ("cba".to_string(), false));
        assert_eq!(ids("order=asc&limit=2"), ("ab".to_string(), true));
        assert_eq!(ids("limit=2&order=asc&after=b&include=x"), ("c".to_string(), false));
        assert_eq!(page(&items, "limit=2").unwrap()["last_id"], "b");
        assert_eq!(page(&[], "").unwrap()["first_id"], Value::Null);
        for wrong in ["limit=0", "limit=x", "order=up", "after=d"] {
            let refusal = page(&items, wrong).unwrap_err();
            assert_eq!(refusal.openai()["error"]["param"].as_str(), wrong.split('=').next());
        }
    }
}
