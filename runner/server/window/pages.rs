//! The page and its files. They are compiled in, contain no data, and request nothing from other machines.

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

/// A browser may load, run and reach only what comes from here.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src \
                      'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The routes of the page, for any server that answers its requests.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", include_str!("page.html"))))
        .route("/window/app.js", get(async || file(SCRIPT, include_str!("app.js"))))
        .route("/window/run.js", get(async || file(SCRIPT, include_str!("run.js"))))
        .route("/window/tools.js", get(async || file(SCRIPT, include_str!("tools.js"))))
        .route("/window/style.css", get(async || file("text/css; charset=utf-8", include_str!("style.css"))))
}

/// True for the paths of the page: it asks for a key itself.
pub(in crate::server) fn needs_no_key(path: &str) -> bool {
    ["/", "/window/app.js", "/window/run.js", "/window/tools.js", "/window/style.css"].contains(&path)
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_with_a_policy_that_they_keep() {
        let response = file("text/html; charset=utf-8", include_str!("page.html"));
        assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"));
        // What the policy would block, and what could turn text into markup.
        let scripts = [include_str!("app.js"), include_str!("run.js"), include_str!("tools.js")].concat();
        for (text, forbidden) in [
            (include_str!("page.html"), ["style=", "onclick=", "http:", "https:"]),
            (scripts.as_str(), ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"]),
            (include_str!("style.css"), ["@import", "url(", "http:", "https:"]),
        ] {
            for word in forbidden {
                assert!(!text.contains(word), "{word}");
            }
        }
    }
}
