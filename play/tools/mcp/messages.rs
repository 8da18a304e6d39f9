//! Messages of JSON-RPC, in which servers are spoken to, and why a request has no result.

use serde_json::{Value, json};

/// Maximum bytes of a message of a server.
pub(super) const MAX_MESSAGE: usize = 8 << 20;
/// Characters of a server's reason for an error that are kept.
const MAX_REASON: usize = 2_000;

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server says so, with this reason.
    Refused(String),
    /// There was no response in time.
    Late,
    /// The server has ended, in this way.
    Ended(String),
    /// The server does not know the session, or no longer.
    Expired,
    /// It could not be sent, or what came back could not be read.
    Broken(String),
}

/// A message from a server.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    /// The response to one of our requests: a result, or the reason why there is none.
    Response {
        /// The request's number; `None`: the server could not read it.
        id: Option<u64>,
        /// Its result.
        outcome: Result<Value, String>,
    },
    /// A request, with the answer that it gets.
    Request(Value),
    /// Anything else, such as a notification.
    Other,
}

/// A request.
pub(super) fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// A message that has no response.
pub(super) fn notification(method: &str) -> Value {
    json!({ "jsonrpc": "2.0", "method": method })
}

/// The messages of a value: one, or a batch of earlier versions of the protocol.
pub(super) fn read(value: Value) -> Vec<Incoming> {
    match value {
        Value::Array(batch) => batch.iter().map(read_one).collect(),
        one => vec![read_one(&one)],
    }
}

fn read_one(message: &Value) -> Incoming {
    match (message.get("method").and_then(Value::as_str), message.get("id")) {
        (Some(method), Some(id)) if !id.is_null() => Incoming::Request(answer(id, method)),
        (Some(_), _) => Incoming::Other,
        (None, id) => {
            let outcome = match (message.get("result"), message.get("error")) {
                (Some(result), _) => Ok(result.clone()),
                (None, Some(error)) => Err(reason(error)),
                (None, None) => return Incoming::Other,
            };
            Incoming::Response { id: id.and_then(Value::as_u64), outcome }
        }
    }
}

/// The answer to a request of a server: we offer it nothing, but are there.
fn answer(id: &Value, method: &str) -> Value {
    match method {
        "ping" => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
        _ => {
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "method not found" } })
        }
    }
}

fn reason(error: &Value) -> String {
    let message: String = error["message"].as_str().unwrap_or_default().chars().take(MAX_REASON).collect();
    match error["code"].as_i64() {
        Some(code) => format!("{message} (error {code})"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let one = |message: Value| read(message).pop();
        let response = |id, outcome| Some(Incoming::Response { id, outcome });
        assert_eq!(one(json!({ "id": 3, "result": [1] })), response(Some(3), Ok(json!([1]))));
        let error = json!({ "code": -32602, "message": "no such tool" });
        let refused = Err("no such tool (error -32602)".to_string());
        assert_eq!(one(json!({ "id": null, "error": error })), response(None, refused));
        assert_eq!(one(json!({ "method": "notifications/progress", "params": {} })), Some(Incoming::Other));
        assert_eq!(one(json!({ "id": 3 })), Some(Incoming::Other));
        let Some(Incoming::Request(pong)) = one(json!({ "id": "a", "method": "ping" })) else {
            panic!("it is a request")
        };
        assert_eq!(pong, json!({ "jsonrpc": "2.0", "id": "a", "result": {} }));
        assert_eq!(read(json!([{ "id": 1, "result": {} }, { "method": "x" }])).len(), 2);
    }
}
