//! `GET /openapi.json`: all routes in OpenAPI's form, for generated clients.
//!
//! The document is written by hand. A test compares its paths with `ROUTES`, so that every route has a
//! description, and every described route exists.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};

const DOCUMENT: &str = include_str!("openapi.json");

/// `GET /openapi.json`
pub(super) async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests {
    use super::DOCUMENT;
    use crate::server::ROUTES;
    use serde_json::{Map, Value};
    use std::collections::BTreeSet;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    fn fields(value: &Value) -> &Map<String, Value> {
        value.as_object().unwrap()
    }

    /// All operations, by method and path.
    fn operations(document: &Value) -> Vec<(String, &str, &Value)> {
        let mut operations = Vec::new();
        for (path, item) in fields(&document["paths"]) {
            let of_path = fields(item).iter();
            operations.extend(of_path.map(|(method, one)| (method.to_uppercase(), path.as_str(), one)));
        }
        operations
    }

    /// Names of components that a value refers to.
    fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn it_describes_the_routes_that_there_are() {
        let document = document();
        let operations = operations(&document);
        let described: BTreeSet<(&str, &str)> =
            operations.iter().map(|(method, path, _)| (method.as_str(), *path)).collect();
        let routes: BTreeSet<(&str, &str)> = ROUTES.iter().copied().collect();
        assert_eq!(described, routes);
        assert_eq!(routes.len(), ROUTES.len(), "a route stands there twice");
    }

    #[test]
    fn it_is_of_this_version_and_whole() {
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let mut referred = BTreeSet::new();
        references(&document, &mut referred);
        for reference in &referred {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        for kind in ["schemas", "responses", "parameters"] {
            for name in fields(&document["components"][kind]).keys() {
                let reference = format!("#/components/{kind}/{name}");
                assert!(referred.contains(reference.as_str()), "{reference} is not used");
            }
        }
    }

    #[test]
    fn parameters_of_paths_are_described_and_names_are_unique() {
        let document = document();
        let mut names = BTreeSet::new();
        for (method, path, operation) in operations(&document) {
            assert!(names.insert(operation["operationId"].as_str().unwrap().to_string()), "{method} {path}");
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let described =
                parameters.iter().filter(|one| one["in"] == "path").filter_map(|one| one["name"].as_str());
            let described: BTreeSet<&str> = described.collect();
            let asked: BTreeSet<&str> =
                path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            assert_eq!(described, asked, "{method} {path}");
        }
    }
}
