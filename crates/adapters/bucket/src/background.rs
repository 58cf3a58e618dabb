//! Threads of the adapter's own. The caller's single-threaded executor only awaits a
//! handle; TLS, HTTP, hashing and blocking file calls happen here, and the adapter
//! works under any executor.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

pub(crate) struct Background {
    /// None only while dropping.
    runtime: Option<Runtime>,
}

impl Background {
    pub fn start(name: &str, workers: usize, max_blocking: usize) -> std::io::Result<Background> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(workers)
            .max_blocking_threads(max_blocking)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(Background { runtime: Some(runtime) })
    }

    pub fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Running<T> {
        Running(self.runtime().spawn(work))
    }

    /// Runs detached; only dropping the adapter ends it early.
    pub fn start_aside(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime().spawn(work);
    }

    pub fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Running<T> {
        Running(self.runtime().spawn_blocking(work))
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("taken only by drop")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // An ordinary drop of a runtime waits for its threads, which panics inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The work's result. Dropping it cancels the work if possible, so that an abandoned download
/// stops.
pub(crate) struct Running<T>(JoinHandle<T>);

impl<T> Future for Running<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match Pin::new(&mut self.0).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(value)) => Poll::Ready(value),
            Poll::Ready(Err(stopped)) => match stopped.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Tasks are cancelled only by dropping this, or the adapter whose `&self` this
                // borrows.
                Err(_) => Poll::Pending,
            },
        }
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
