//! A future without a name.

use std::future::Future;
use std::pin::Pin;

/// A future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
