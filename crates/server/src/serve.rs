//! From a listening socket to responses, until a signal ends it.

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
use crate::app::App;
use crate::connections::{self, ConnectionLimits, Connections};
use crate::limits::MAX_BODY;
use crate::origins::{self, Origins};
use crate::timed_body::{self, Bodies};
use crate::tls::Tls;
use crate::{api, handlers, page};

/// Most bytes that are read of a connection before headers have ended; more are answered with 431. What headers may have at most is
/// checked where they are whole, since a full buffer may hold a part of the body too.
const MAX_BUFFER: usize = 128 << 10;

/// Most headers of a request; more are answered with 431.
const MAX_HEADERS: usize = 100;

/// From the first byte of a connection, or the end of a response, to the end of the next request's headers. So it also ends
/// connections that are kept alive and idle.
const HEADER_TIME: Duration = Duration::from_secs(15);

/// For writing cached prefixes at the end.
const SAVE_TIME: Duration = Duration::from_secs(10);

/// For telling clients that their answers have been cut.
const CUT_TIME: Duration = Duration::from_secs(1);

/// For a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Who may ask, from where, and how.
#[derive(Clone)]
pub struct Gate {
    /// Their keys.
    pub access: Access,
    /// Pages of which sites.
    pub origins: Origins,
    /// `None`: HTTP in the clear.
    pub tls: Option<Tls>,
    /// How many connections there may be.
    pub connections: ConnectionLimits,
}

/// Everything that the server answers.
pub fn router(app: App, access: Access, origins: Origins) -> Router {
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
        .layer(from_fn_with_state(app.clone(), handlers::layer))
        .layer(from_fn_with_state(Bodies::default(), timed_body::layer))
        .layer(from_fn_with_state(origins, origins::check))
        .layer(from_fn_with_state(access, access::check))
        .layer(from_fn(api::anthropic::errors))
        .layer(from_fn(api::ollama::errors))
        .with_state(app);
    let router = match cors {
        // Outermost: a preflight comes without a key.
        Some(cors) => router.layer(cors),
        None => router,
    };
    // Around all of it, for a router's layers come after its paths were looked up.
    Router::new()
        .fallback_service(NormalizePath::trim_trailing_slash(router))
        .layer(map_request(api::paths::with_version))
}

/// Answer until `shutdown`; then finish what has begun, until `at_once` and for `drain` at most. What is cut then ends with an error.
///
/// # Errors
/// The socket failed.
pub async fn serve(
    listener: TcpListener,
    app: App,
    gate: Gate,
    shutdown: impl Future<Output = ()> + Send + 'static,
    at_once: impl Future<Output = ()> + Send + 'static,
    drain: Duration,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let handle = Handle::new();
    let expirer = tokio::spawn(expire(app.clone()));
    let ending = app.clone();
    let is_hurried = Arc::new(AtomicBool::new(false));
    let hurry = is_hurried.clone();
    let at_once = async move {
        at_once.await;
        hurry.store(true, Ordering::Relaxed);
    };
    let stopper = tokio::spawn(stop(app.clone(), handle.clone(), shutdown, at_once, drain));
    let Gate { access, origins, tls, connections } = gate;
    let connections = Connections::new(connections);
    let router = router(app, access, origins)
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
        tracing::warn!("cached prefixes could not be kept within {} s", SAVE_TIME.as_secs());
    }
    served
}

/// What a client may hold open, and for how long.
fn limit<A>(server: Server<SocketAddr, A>, handle: Handle<SocketAddr>) -> Server<SocketAddr, A> {
    let mut server = server
        .handle(handle)
        .http1_only()
        .first_request_timeout(HEADER_TIME + HANDSHAKE_TIME)
        .accept_error_handler(|_, error| tracing::debug!("accepting a connection: {error}"));
    let mut http = server.http_builder().http1();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_BUFFER);
    server
}

/// After `shutdown`, let requests that have begun end, for `drain` or until `at_once`.
async fn stop(
    app: App,
    handle: Handle<SocketAddr>,
    shutdown: impl Future<Output = ()>,
    at_once: impl Future<Output = ()>,
    drain: Duration,
) {
    shutdown.await;
    app.drain();
    handle.graceful_shutdown(None);
    tokio::select! {
        () = tokio::time::sleep(drain) => {
            tracing::warn!("requests were still running after {} s; they end now", drain.as_secs());
        }
        () = at_once => {}
    }
    app.cut();
    let begun = Instant::now();
    while handle.connection_count() > 0 && begun.elapsed() < CUT_TIME {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    handle.shutdown();
}

/// Unload what nobody has used for long enough.
async fn expire(app: App) {
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    loop {
        ticks.tick().await;
        app.unload_expired();
    }
}
