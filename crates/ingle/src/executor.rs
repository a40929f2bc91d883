//! Waiting for the runner's futures on threads of any kind: a plain thread, or a task of any async
//! runtime.

use std::future::{Future, poll_fn};

use tokio::runtime::{Builder, Handle, Runtime};

/// A tokio runtime of one thread, for the timers and the blocking work of requests.
pub(crate) struct Executor {
    handle: Handle,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Executor {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no further thread.
    pub(crate) fn start() -> std::io::Result<Executor> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("ingle").enable_time().build()?;
        Ok(Executor { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Waits for a future on this thread. It may be a thread of another runtime, which then waits,
    /// too.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        let _inside = self.handle.enter();
        pollster::block_on(future)
    }

    /// The future for tasks of any runtime.
    pub(crate) fn within<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let (handle, mut future) = (self.handle.clone(), Box::pin(future));
        poll_fn(move |context| {
            let _inside = handle.enter();
            future.as_mut().poll(context)
        })
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // A thread of another runtime must not wait for this one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn futures_of_tokio_run_on_any_thread() {
        let executor = Executor::start().unwrap();
        let sleep = || async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::task::spawn_blocking(|| 7).await.unwrap()
        };
        assert_eq!(executor.wait(sleep()), 7);
        // A task of an executor without timers.
        assert_eq!(pollster::block_on(executor.within(async move { sleep().await })), 7);
        // A thread of another runtime may wait, and may drop the executor.
        let other = Builder::new_current_thread().build().unwrap();
        other.block_on(async move {
            assert_eq!(executor.wait(sleep()), 7);
            drop(executor);
        });
    }
}
