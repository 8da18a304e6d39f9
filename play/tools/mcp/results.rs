//! Results of calls, as agents read them: text.

use crate::tools::CallOutcome;
use serde_json::Value;

/// What a call gave. A result that agents can't read is a call that failed.
pub(super) fn outcome(result: &Value) -> CallOutcome {
    let parts = result["content"].as_array().map_or(&[][..], Vec::as_slice);
    let text = match result.get("structuredContent") {
        Some(value) if parts.is_empty() && !value.is_null() => value.to_string(),
        _ => parts.iter().map(read).collect::<Result<Vec<_>, _>>()?.join("\n"),
    };
    if result["isError"] == true { Err(text) } else { Ok(text) }
}

/// The text of a part of a result, or of a file that is a part of it.
fn read(part: &Value) -> CallOutcome {
    let text = part["text"].as_str().or(part["resource"]["text"].as_str());
    let kind = part["type"].as_str().unwrap_or("something");
    match (text, kind) {
        (Some(text), _) => Ok(text.to_string()),
        (None, "image") => Err(unreadable("an image")),
        (None, "audio") => Err(unreadable("audio")),
        (None, "resource") => Err(unreadable(&resource(&part["resource"]))),
        (None, other) => Ok(format!("[{other}]")),
    }
}

fn resource(resource: &Value) -> String {
    match resource["mimeType"].as_str() {
        Some(kind) => format!("an embedded resource of type `{kind}`"),
        None => "an embedded resource".to_string(),
    }
}

fn unreadable(what: &str) -> String {
    format!("the result contains {what}, which agents can't read")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_agents_cannot_read_is_a_failed_call() {
        let text = json!({ "type": "text", "text": "A cat." });
        let read = |part: Value| outcome(&json!({ "content": [text, part] }));
        let image = read(json!({ "type": "image", "data": "", "mimeType": "image/png" }));
        assert_eq!(image, Err("the result contains an image, which agents can't read".into()));
        let audio = read(json!({ "type": "audio", "data": "", "mimeType": "audio/wav" }));
        assert_eq!(audio, Err("the result contains audio, which agents can't read".into()));
        let resource = json!({ "uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": "" });
        let resource = read(json!({ "type": "resource", "resource": resource }));
        let why =
            "the result contains an embedded resource of type `application/pdf`, which agents can't read";
        assert_eq!(resource, Err(why.into()));
        let file = json!({ "type": "resource", "resource": { "uri": "file:///a.txt", "text": "Meow." } });
        assert_eq!(read(file).as_deref(), Ok("A cat.\nMeow."), "a file that is text");
    }

    #[test]
    fn structure_is_read_where_there_is_no_text() {
        let structure = json!({ "content": [], "structuredContent": { "n": 1 } });
        assert_eq!(outcome(&structure).as_deref(), Ok(r#"{"n":1}"#));
        assert_eq!(outcome(&json!({ "content": [] })).as_deref(), Ok(""));
    }
}
