//! From a listening socket to responses, until a signal ends it.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use tokio::net::TcpListener;

use crate::access::{Access, check};
use crate::api;
use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::page;

/// Largest body, in bytes.
const MAX_BODY: usize = 32 << 20;

/// Everything that the server answers.
pub fn router(app: App, access: Access) -> Router {
    Router::new()
        .merge(api::anthropic::router())
        .merge(api::ollama::router())
        .merge(api::openai::router())
        .merge(api::operations::router())
        .merge(page::router())
        .fallback(|| async {
            ApiError::new(
                ErrorKind::NotFound,
                "there is nothing at this path; see the server's documentation",
            )
        })
        .method_not_allowed_fallback(|| async {
            ApiError::new(ErrorKind::MethodNotAllowed, "this path answers other methods")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(access, check))
        .layer(from_fn(api::ollama::errors))
        .with_state(app)
}

/// Answer until `shutdown`; then finish what has begun, for `drain` at most.
///
/// # Errors
/// The socket failed.
pub async fn serve(
    listener: TcpListener,
    app: App,
    access: Access,
    shutdown: impl Future<Output = ()> + Send + 'static,
    drain: Duration,
) -> std::io::Result<()> {
    let expirer = tokio::spawn(expire(app.clone()));
    let (tell, told) = tokio::sync::oneshot::channel();
    let draining = app.clone();
    let graceful = async move {
        shutdown.await;
        draining.drain();
        // The other end is gone if serving has failed.
        let _ = tell.send(());
    };
    let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY: {error}");
        }
    });
    let server = axum::serve(listener, router(app, access)).with_graceful_shutdown(graceful);
    let too_late = async move {
        // If serving fails, it ends before this.
        if told.await.is_ok() {
            tokio::time::sleep(drain).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    let served = tokio::select! {
        served = async { server.await } => served,
        () = too_late => {
            tracing::warn!("requests were still running after {} s; they end now", drain.as_secs());
            Ok(())
        }
    };
    expirer.abort();
    served
}

/// Unload what nobody has used for long enough.
async fn expire(app: App) {
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    loop {
        ticks.tick().await;
        app.unload_expired();
    }
}
