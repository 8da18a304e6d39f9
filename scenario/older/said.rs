//! What is read besides the prompt: private texts, announcements, and a prompt for those without a private text.

use super::Renewal;
use greenroom_yaml::diagnostic::Span;
use greenroom_yaml::{Path, Piece, Taken};
use serde_json::Value;

impl Renewal<'_> {
    /// What is read besides the prompt.
    pub(super) fn say(&mut self, path: &Path) {
        if self.has(path, "say") {
            return;
        }
        let private = path.key("private_prompts");
        let has_private = !self.tree.keys_at(&private).is_empty();
        let readers = self.tree.keys_at(&private);
        if let Some(template) = self.take(path, "initial_prompt_template", "prompt") {
            if has_private {
                let present: Vec<String> = match self.tree.json_at(&path.key("agents")) {
                    Value::Array(keys) => keys.iter().filter_map(Value::as_str).map(str::to_string).collect(),
                    _ => self.tree.keys_at(&Path::default().key("agents")),
                };
                let others: Vec<String> =
                    present.iter().filter(|key| !readers.contains(key)).cloned().collect();
                let those: Vec<String> = present.into_iter().filter(|key| readers.contains(key)).collect();
                let mut said = Vec::new();
                // Only those with a private text read the prompt for all.
                if let Some(prompt) = self.tree.take(path, "prompt") {
                    said.push(item(None, Some((those.into(), prompt.span)), prompt));
                }
                said.push(item(None, Some((others.into(), template.span)), template));
                let mut all = said;
                all.extend(self.private(path));
                self.put_said(path, template.at, all);
                return;
            }
            self.tree.take(path, "prompt");
            self.tree.insert(path, template.at, "prompt", Piece::Taken(template));
        }
        if !self.has(path, "announce") {
            self.rename(path, "private_prompts", "say");
            return;
        }
        let at = self.tree.keys_at(path).iter().position(|key| key == "private_prompts" || key == "announce");
        let all = self.private(path);
        let Some(at) = at else { return };
        self.put_said(path, at, all);
    }

    /// Private openings as things that are said.
    fn private(&mut self, path: &Path) -> Vec<Piece> {
        let private = path.key("private_prompts");
        let keys = self.tree.keys_at(&private);
        let mut said = Vec::new();
        for key in keys {
            let is_null = self.tree.find(&private.key(&*key)).is_none();
            let Some(text) = self.tree.take(&private, &key).filter(|_| !is_null) else { continue };
            said.push(item(None, Some((key.into(), text.span)), text));
        }
        if self.tree.find(&private).is_none() || self.tree.json_at(&private).is_object() {
            self.take(path, "private_prompts", "say");
        }
        said
    }

    /// What is said at the start, and around rounds.
    fn put_said(&mut self, path: &Path, at: usize, mut said: Vec<Piece>) {
        let announced = path.key("announce");
        for n in 0..self.tree.n_items(&announced) {
            let item = announced.index(n);
            for (name, moment) in [("before", "round_start"), ("after", "round_end")] {
                let both = self.has(&item, "before") && self.has(&item, "after");
                let Some(text) = (!both).then(|| self.tree.take(&item, name)).flatten() else { continue };
                self.tree.insert(&item, text.at, "text", Piece::Taken(text));
                self.tree.insert(&item, text.at, "at", Piece::Value(moment.into(), Some(text.span)));
            }
        }
        if said.is_empty() {
            self.rename(path, "announce", "say");
            return;
        }
        said.extend(
            (0..self.tree.n_items(&announced))
                .filter_map(|n| self.tree.item(&announced, n).map(Piece::Taken)),
        );
        self.take(path, "announce", "say");
        self.tree.insert(path, at, "say", Piece::List(said));
    }
}

/// An item of `say`.
fn item(at: Option<&str>, to: Option<(Value, Span)>, text: Taken) -> Piece {
    let at = at.map(|at| ("at".to_string(), Piece::Value(at.into(), Some(text.span))));
    let to = to.map(|(to, span)| ("to".to_string(), Piece::Value(to, Some(span))));
    Piece::Map(at.into_iter().chain(to).chain([("text".to_string(), Piece::Taken(text))]).collect())
}
