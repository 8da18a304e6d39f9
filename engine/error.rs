//! The one error of the engine: a kind to decide by, a detail to read, a source to trace.
//!
//! A detail says what was found, what was expected, where, and what to do. Main type: [`Error`].

use std::fmt;

/// Category of an error, for callers to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such memory ([`Engine::resume`](crate::Engine::resume)).
    NotFound,
    /// The model file is missing, damaged, or of a kind that this engine does not serve.
    Model,
    /// A request can't be served as it is (empty prompt, context too long, bad parameter).
    Request,
    /// A chat template can't be rendered.
    Template,
    /// The cache folder or a file in it can't be read or written.
    Store,
    /// Another process uses the cache folder, or the memories of a run.
    InUse,
    /// A GPU is missing, lacks something, or has failed.
    Device,
    /// The engine has ended.
    Closed,
    /// A fault of the engine itself, not of what it was given.
    Internal,
}

/// Suggested fix; the caller phrases it, since it knows what people can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// A shorter prompt, a lower [`Request::max_tokens`](crate::Request::max_tokens), or a model with a
    /// longer context.
    ShorterReply,
    /// A shorter prompt, shorter options, or a model with a longer context.
    ShorterOptions,
    /// Cache formats that were measured for this model.
    FormatsOfThisModel,
}

/// An engine error: one word wide, so that `Result`s stay small.
///
/// # Examples
/// ```
/// use greenroom_engine::{Engine, EngineConfig, ErrorKind, ModelSource};
///
/// let found = Engine::open(EngineConfig::new(ModelSource::Path("nowhere.gguf".into())));
/// assert_eq!(found.err().map(|error| error.kind()), Some(ErrorKind::Model));
/// ```
pub struct Error(Box<ErrorInner>);

struct ErrorInner {
    kind: ErrorKind,
    detail: String,
    remedy: Option<Remedy>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The engine's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without an underlying cause.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self(Box::new(ErrorInner { kind, detail: detail.into(), remedy: None, source: None }))
    }

    /// The category, to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Adds the cause that [`std::error::Error::source`] gives.
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The remedy, if the caller can apply one.
    pub fn remedy(&self) -> Option<Remedy> {
        self.0.remedy
    }

    pub(crate) fn with_remedy(mut self, remedy: Remedy) -> Self {
        self.0.remedy = Some(remedy);
        self
    }

    pub(crate) fn model(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Model, detail)
    }

    pub(crate) fn request(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Request, detail)
    }

    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, detail)
    }

    #[cfg(feature = "gpu")]
    pub(crate) fn device(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Device, detail)
    }

    pub(crate) fn store(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Store, detail)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.detail)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.detail)?;
        match &self.0.source {
            Some(source) => write!(f, " (caused by: {source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|s| &**s as &(dyn std::error::Error + 'static))
    }
}
