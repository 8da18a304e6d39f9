//! Embeddings of texts.

use super::super::error::Refusal;
use super::super::live::RequestStage;
use super::super::{AuthTenant, Shared, body};
use super::prompts::prompts;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use greenroom_engine::{Engine, Prompt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum number of texts in one request.
const MAX_INPUTS: usize = 256;

#[derive(Deserialize)]
struct EmbeddingsBody {
    model: String,
    input: Value,
    encoding_format: Option<Encoding>,
    dimensions: Option<usize>,
}

/// The format of the vectors.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

#[derive(Serialize)]
struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: TokensRead,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct TokensRead {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// `POST /v1/embeddings`
pub(super) async fn embed(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let body: EmbeddingsBody = body::of_value(body::with_model(&bytes, &app.models)?)?;
    let inputs = prompts(&body.input, "input", MAX_INPUTS)?;
    tenant.ask()?;
    let entry = app.live.enter(&tenant.name, "/v1/embeddings", &body.model);
    let served = app.models.get(&body.model).await?;
    let width = served.engine().model().d_model;
    if let Some(n) = body.dimensions.filter(|n| *n != width) {
        let message = format!("`dimensions` is {n}, but this model's embeddings have {width}");
        return Err(Refusal::field("dimensions", message));
    }
    let counted = served.clone();
    // Long texts take a while to tokenize; other requests are answered meanwhile.
    let texts = tokio::task::spawn_blocking(move || texts(counted.engine(), inputs));
    let (texts, n_tokens) = texts.await.map_err(|error| Refusal::internal(error.to_string()))??;
    // No memory is needed, so none is loaded.
    let ticket = app.queue.enter(&tenant, true)?;
    let embedding = async {
        let _place = ticket.wait().await?;
        entry.at(RequestStage::Reading { done: 0, total: n_tokens });
        Ok::<_, Refusal>(served.engine().embed_metered(texts, tenant.meter()).await?)
    };
    let embedded = tokio::time::timeout(app.timeout, embedding).await;
    let embedded = embedded.unwrap_or_else(|_| Err(Refusal::timed_out(app.timeout)))?;
    let encoding = body.encoding_format.unwrap_or_default();
    let data = embedded.into_iter().enumerate().map(|(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: match encoding {
            Encoding::Float => Vector::Float(vector),
            Encoding::Base64 => {
                Vector::Base64(base64(&vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()))
            }
        },
    });
    let usage = TokensRead { prompt_tokens: n_tokens, total_tokens: n_tokens };
    Ok(Json(Embeddings { object: "list", data: data.collect(), model: body.model, usage }).into_response())
}

/// The inputs as texts, and their number of tokens.
///
/// # Errors
/// One is empty or longer than the context, or has an id that is not in the vocabulary.
fn texts(engine: &Engine, inputs: Vec<Prompt>) -> Result<(Vec<String>, usize), Refusal> {
    let context = engine.model().context_length;
    let (mut texts, mut n_tokens) = (Vec::new(), 0);
    for (n, input) in inputs.into_iter().enumerate() {
        let place = format!("input[{n}]");
        let refused = |error: greenroom_engine::Error| Refusal::field(&place, format!("`{place}`: {error}"));
        let text = match input {
            Prompt::Text(text) => text,
            ids => {
                let ids = engine.prompter().prompt_ids(&ids).map_err(refused)?;
                engine.decode(&ids)
            }
        };
        if text.is_empty() {
            return Err(Refusal::field(&place, format!("`{place}` is empty")));
        }
        let length = engine.begin(&engine.encode(&text, false).map_err(refused)?).len();
        if length > context {
            let message = format!("`{place}` has {length} tokens; the model's context is {context}");
            return Err(Refusal::field(&place, message));
        }
        n_tokens += length;
        texts.push(text);
    }
    Ok((texts, n_tokens))
}

/// Bytes in base64 (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for at in 0..4 {
            let letter = LETTERS[((bits >> (18 - 6 * at)) & 63) as usize];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let examples = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (bytes, expected) in examples {
            assert_eq!(base64(bytes.as_bytes()), expected);
        }
        assert_eq!(base64(&[0xFB, 0xFF, 0xFE]), "+//+");
    }
}
