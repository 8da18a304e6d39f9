//! Who speaks when, and who hears it: orders that were words, and edges between agents.

use super::Renewal;
use greenroom_yaml::diagnostic::Span;
use greenroom_yaml::{Path, Piece, Taken};
use serde_json::{Value, json};

/// An edge between agents of a phase.
struct Edge {
    from: String,
    to: Vec<String>,
    kind: String,
}

impl Renewal<'_> {
    /// Words for the order; true if pairs whisper.
    pub(super) fn order(&mut self, path: &Path) -> bool {
        let order = self.tree.json_at(&path.key("order"));
        match order.as_str().map(str::trim) {
            Some("turn_by_turn") => {
                self.note(path, "order: turn_by_turn", "order: round_robin");
                self.tree.put(path, "order", &"round_robin".into());
            }
            Some("moderated") => {
                let by = self.with_role(path, "moderator");
                if self.has(path, "moderator") || by.is_some() {
                    self.note(path, "order: moderated", "moderator");
                    let taken = self.tree.take(path, "order");
                    if let (Some(taken), Some(by), false) = (taken, by, self.has(path, "moderator")) {
                        let by = Piece::Value(by.into(), Some(taken.span));
                        self.tree.insert(path, taken.at, "moderator", by);
                    }
                }
            }
            Some("whisper") => return self.pairs(path),
            _ => {}
        }
        false
    }

    /// Pairs that whisper to each other.
    fn pairs(&mut self, path: &Path) -> bool {
        let Some(edges) = self.edges(path) else { return false };
        let pairs: Vec<Value> = edges
            .iter()
            .filter(|edge| edge.kind == "whisper")
            .flat_map(|edge| edge.to.iter().map(|to| json!([edge.from, to])))
            .collect();
        if pairs.is_empty() {
            return false;
        }
        self.note(path, "order: whisper", "pairs");
        let order = self.tree.take(path, "order");
        let taken = self.take(path, "interactions", "pairs").or(order);
        let (at, span) = taken.map_or((0, None), |taken| (taken.at, Some(taken.span)));
        self.tree.insert(path, at, "pairs", Piece::Value(pairs.into(), span));
        self.overhears(path, &edges, at + 1, span);
        true
    }

    /// Edges between agents, if all of them are sound.
    fn edges(&self, path: &Path) -> Option<Vec<Edge>> {
        let list = path.key("interactions");
        let Value::Array(edges) = self.tree.json_at(&list) else { return None };
        let edge = |edge: &Value| {
            let to = match &edge["to"] {
                Value::String(key) => vec![key.clone()],
                Value::Array(keys) => {
                    keys.iter().map(|key| key.as_str().map(str::to_string)).collect::<Option<_>>()?
                }
                Value::Null if edge["kind"] == "public" => Vec::new(),
                _ => return None,
            };
            let kind =
                edge["kind"].as_str().filter(|kind| ["public", "whisper", "observe"].contains(kind))?;
            let known = edge.as_object()?.keys().all(|key| ["from", "to", "kind"].contains(&key.as_str()));
            known.then_some(Edge { from: edge["from"].as_str()?.into(), to, kind: kind.into() })
        };
        edges.iter().map(edge).collect()
    }

    fn overhears(&mut self, path: &Path, edges: &[Edge], at: usize, span: Option<Span>) {
        let observing = edges.iter().filter(|edge| edge.kind == "observe");
        self.tree_of(path, "overhears", observing, at, span);
    }

    /// A mapping from agents to agents.
    fn tree_of<'e>(
        &mut self,
        path: &Path,
        field: &str,
        edges: impl Iterator<Item = &'e Edge>,
        at: usize,
        span: Option<Span>,
    ) {
        let mut of: Vec<(String, Vec<String>)> = Vec::new();
        for edge in edges {
            if !of.iter().any(|(from, _)| *from == edge.from) {
                of.push((edge.from.clone(), Vec::new()));
            }
            if let Some((_, to)) = of.iter_mut().find(|(from, _)| *from == edge.from) {
                to.extend(edge.to.iter().filter(|key| !to.contains(key)).cloned().collect::<Vec<_>>());
            }
        }
        let fields: Vec<(String, Piece)> = of
            .into_iter()
            .map(|(from, to)| {
                let to: Value = if let [only] = &to[..] { only.clone().into() } else { to.into() };
                (from, Piece::Value(to, span))
            })
            .collect();
        if !fields.is_empty() {
            self.tree.insert(path, at, field, Piece::Map(fields));
        }
    }

    /// Who hears what is said in a phase.
    pub(super) fn audience(&mut self, path: &Path, secret: Option<Taken>) {
        if self.has(path, "to") {
            return;
        }
        let hears = self.tree.json_at(&path.key("hears"));
        let taken = if hears == "none" || hears == "all" { self.take(path, "hears", "to") } else { None };
        if let Some(taken) = secret.or(taken.filter(|_| hears == "none")) {
            let nobody = Piece::Value("nobody".into(), Some(taken.span));
            self.tree.insert(path, taken.at, "to", nobody);
        }
        if self.tree.json_at(&path.key("interactions")) == json!([]) {
            self.drop(path, "interactions");
        }
        let Some(edges) = self.edges(path) else { return };
        let public: Vec<&str> =
            edges.iter().filter(|edge| edge.kind == "public").map(|edge| edge.from.as_str()).collect();
        if edges.iter().any(|edge| edge.kind == "whisper" && public.contains(&edge.from.as_str())) {
            return;
        }
        let Some(taken) = self.take(path, "interactions", "to") else { return };
        if !self.has(path, "to") {
            let whispered = edges.iter().filter(|edge| edge.kind == "whisper");
            self.tree_of(path, "to", whispered, taken.at, Some(taken.span));
        }
        self.overhears(path, &edges, taken.at + 1, Some(taken.span));
    }
}
