//! `/openapi.json`: the server's endpoints, for programs (<https://spec.openapis.org/oas/v3.1.0>).

use std::sync::LazyLock;

use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use runner::Runner;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    // The file is compiled in, and a test parses it.
    let mut document: Value = serde_json::from_str(include_str!("openapi.json")).unwrap_or_default();
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    document
});

/// The path of the document.
pub fn router() -> Router<Runner> {
    Router::new().route("/openapi.json", get(|| async { Json(&*DOCUMENT) }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// `METHOD path` of every route in the sources below `folder`.
    fn routes_in(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                routes_in(&path, found);
                continue;
            }
            if path.extension().is_none_or(|end| end != "rs") {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let routes =
                source.lines().filter_map(|line| line.trim().split_once(".route(\"")?.1.split_once("\", "));
            for (path, handlers) in routes {
                for method in ["get", "post", "delete"] {
                    if handlers.starts_with(&format!("{method}("))
                        || handlers.contains(&format!(").{method}("))
                    {
                        found.insert(format!("{method} {}", path.replace("{*", "{")));
                    }
                }
            }
        }
    }

    #[test]
    fn the_document_names_every_path_and_no_other() {
        let mut routes = BTreeSet::new();
        routes_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api"), &mut routes);
        let documented: BTreeSet<String> = DOCUMENT["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().keys().map(move |method| format!("{method} {path}"))
            })
            .collect();
        assert!(routes.len() > 30, "{routes:?}");
        assert_eq!(documented, routes);
    }

    #[test]
    fn every_referenced_schema_exists() {
        let text = DOCUMENT.to_string();
        let names = text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap());
        for name in names {
            assert!(DOCUMENT["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
