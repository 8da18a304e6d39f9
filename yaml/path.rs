//! Paths into a scenario's data.

/// One step of a path into the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// A mapping's key.
    Key(String),
    /// A sequence's index.
    Index(usize),
}

/// A path into the data, e.g. `phases[2].agents`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<PathStep>);

impl PathStep {
    /// The key, if it is one.
    pub fn as_key(&self) -> Option<&str> {
        match self {
            Self::Key(key) => Some(key),
            Self::Index(_) => None,
        }
    }
}

impl Path {
    /// This path and one more key.
    pub fn key(&self, key: impl Into<String>) -> Self {
        let mut path = self.clone();
        path.0.push(PathStep::Key(key.into()));
        path
    }

    /// This path and one more index.
    pub fn index(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.0.push(PathStep::Index(index));
        path
    }

    /// A path as [`std::fmt::Display`] writes it; keys with dots or brackets in them don't come back.
    pub fn parse(text: &str) -> Self {
        let mut steps = Vec::new();
        for part in text.split('.') {
            let (key, indices) = part.split_once('[').unwrap_or((part, ""));
            if !key.is_empty() {
                steps.push(PathStep::Key(key.to_string()));
            }
            let indices = indices.split(['[', ']']).filter_map(|index| index.parse().ok());
            steps.extend(indices.map(PathStep::Index));
        }
        Self(steps)
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Key(key) if at > 0 => write!(f, ".{key}")?,
                PathStep::Key(key) => f.write_str(key)?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}
