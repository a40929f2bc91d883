//! Blocking work: files and the network.

use crate::error::{RequestError, Result};
use crate::warnings::Warnings;

/// Runs work that waits for files or for the network on a thread that may block. Work that grows
/// with a request belongs to [`Preparing`](crate::preparing::Preparing), which limits it.
pub(crate) async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let warnings = Warnings::current();
    let joined = tokio::task::spawn_blocking(move || warnings.within(run)).await;
    joined.map_err(|error| RequestError::internal(format!("a task failed: {error}")))?
}
