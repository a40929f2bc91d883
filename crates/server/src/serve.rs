//! The HTTP server, from a listening socket until a signal ends it.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state, map_request};
use axum_server::tls_rustls::RustlsAcceptor;
use axum_server::{Handle, Server};
use hyper_util::rt::TokioTimer;
use tower_http::normalize_path::NormalizePath;

use crate::access::{self, Access};
use crate::connections::{self, ConnectionLimits, Connections};
use crate::handlers::{self, Handlers};
use crate::limits::MAX_BODY;
use crate::origins::{self, Origins};
use crate::timed_body::{self, Bodies};
use crate::tls::Tls;
use crate::{api, page};
use runner::Runner;

/// Maximum number of bytes buffered for a connection's headers; more get a 431. The limit on
/// headers is checked after they have been parsed, since the buffer may also contain a part of the
/// body.
const MAX_BUFFER: usize = 128 << 10;

/// Maximum number of headers of a request; more get a 431.
const MAX_HEADERS: usize = 100;

/// Longest time from a connection's first byte, or the end of a response, to the end of the next
/// request's headers. So it also closes idle keep-alive connections.
const HEADER_TIME: Duration = Duration::from_secs(15);

/// Longest time for saving cached prefixes at shutdown.
const SAVE_TIME: Duration = Duration::from_secs(10);

/// Longest time for sending errors to clients whose answers were cut off.
const CUT_TIME: Duration = Duration::from_secs(1);

/// Longest time of a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Rules for access to the server.
#[derive(Clone)]
pub struct Gate {
    /// API keys.
    pub access: Access,
    /// Allowed origins of web pages.
    pub origins: Origins,
    /// The certificate; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// Limits of open connections.
    pub connections: ConnectionLimits,
}

/// All routes of the server.
pub fn router(runner: Runner, access: Access, origins: Origins) -> Router {
    let cors = origins.cors();
    let router = Router::new()
        .merge(api::anthropic::router())
        .merge(api::llama::router())
        .merge(api::ollama::router())
        .merge(api::openai::router())
        .merge(api::operations::router())
        .merge(api::rerank::router())
        .merge(api::routers::router())
        .merge(api::openapi::router())
        .merge(page::router())
        .fallback(api::paths::nothing_there)
        .method_not_allowed_fallback(api::paths::other_methods)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(Arc::new(Handlers::new()), handlers::layer))
        .layer(from_fn_with_state(Bodies::default(), timed_body::layer))
        .layer(from_fn_with_state(origins, origins::check))
        .layer(from_fn_with_state(access, access::check))
        .layer(from_fn(api::anthropic::errors))
        .layer(from_fn(api::ollama::errors))
        .with_state(runner);
    let router = match cors {
        // The outermost layer, since a preflight has no key.
        Some(cors) => router.layer(cors),
        None => router,
    };
    // A wrapper around the router, since a router's layers run after its paths are matched.
    Router::new()
        .fallback_service(NormalizePath::trim_trailing_slash(router))
        .layer(map_request(api::paths::with_version))
}

/// Serves until `shutdown`. Then running requests may end, until `at_once` and for at most `drain`;
/// what is still running gets an error.
///
/// # Errors
/// The socket failed.
pub async fn serve(
    listener: TcpListener,
    runner: Runner,
    gate: Gate,
    shutdown: impl Future<Output = ()> + Send + 'static,
    at_once: impl Future<Output = ()> + Send + 'static,
    drain: Duration,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let handle = Handle::new();
    let expirer = tokio::spawn(expire(runner.clone()));
    let ending = runner.clone();
    let is_hurried = Arc::new(AtomicBool::new(false));
    let hurry = is_hurried.clone();
    let at_once = async move {
        at_once.await;
        hurry.store(true, Ordering::Relaxed);
    };
    let stopper = tokio::spawn(stop(runner.clone(), handle.clone(), shutdown, at_once, drain));
    let Gate { access, origins, tls, connections } = gate;
    let connections = Connections::new(connections);
    let router = router(runner, access, origins)
        .layer(from_fn_with_state(connections.clone(), connections::layer))
        .into_make_service_with_connect_info::<SocketAddr>();
    let server = axum_server::from_tcp(listener)?.acceptor(connections.clone());
    let served = match tls {
        None => limit(server, handle).serve(router).await,
        Some(tls) => {
            let acceptor = RustlsAcceptor::new(tls.config).handshake_timeout(HANDSHAKE_TIME);
            let server = server.acceptor(acceptor.acceptor(connections));
            limit(server, handle).serve(router).await
        }
    };
    expirer.abort();
    stopper.abort();
    if is_hurried.load(Ordering::Relaxed) {
        return served;
    }
    if tokio::time::timeout(SAVE_TIME, ending.save_prefixes()).await.is_err() {
        tracing::warn!("cached prefixes could not be saved within {} s", SAVE_TIME.as_secs());
    }
    served
}

/// Sets limits and timeouts of a client's connection.
fn limit<A>(server: Server<SocketAddr, A>, handle: Handle<SocketAddr>) -> Server<SocketAddr, A> {
    let mut server = server
        .handle(handle)
        .http1_only()
        .first_request_timeout(HEADER_TIME + HANDSHAKE_TIME)
        .accept_error_handler(|_, error| tracing::debug!("cannot accept a connection: {error}"));
    let mut http = server.http_builder().http1();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_BUFFER);
    server
}

/// After `shutdown`, waits for running requests, for `drain` or until `at_once`.
async fn stop(
    runner: Runner,
    handle: Handle<SocketAddr>,
    shutdown: impl Future<Output = ()>,
    at_once: impl Future<Output = ()>,
    drain: Duration,
) {
    shutdown.await;
    runner.drain();
    handle.graceful_shutdown(None);
    tokio::select! {
        () = tokio::time::sleep(drain) => {
            tracing::warn!("requests were still running after {} s; they end now", drain.as_secs());
        }
        () = at_once => {}
    }
    runner.cut();
    let begun = Instant::now();
    while handle.connection_count() > 0 && begun.elapsed() < CUT_TIME {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    handle.shutdown();
}

/// Unloads idle models from time to time.
async fn expire(runner: Runner) {
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    loop {
        ticks.tick().await;
        runner.unload_expired();
    }
}
