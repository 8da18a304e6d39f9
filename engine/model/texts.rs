//! Many short texts in one piece of memory: a vocabulary's tokens and merges.

/// Texts, one after another.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Texts {
    all: String,
    /// Where each of them ends.
    ends: Vec<usize>,
}

impl Texts {
    pub(crate) fn push(&mut self, text: &str) {
        self.all.push_str(text);
        self.ends.push(self.all.len());
    }

    /// Number of texts.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.all[start..*end])
    }
}
