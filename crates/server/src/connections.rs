//! Limits of open connections, in all and for each address.
//!
//! At a limit, a new connection closes the idle one that has waited longest for a request, so idle
//! connections block nobody. If all have running requests, the new one is refused.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// The most connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of connections in all.
    pub all: usize,
    /// Maximum number of connections of one address; of a /64 network for IPv6.
    pub by_address: usize,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits { all: 10_000, by_address: 2_000 }
    }
}

/// The connections of a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connections(Arc<ConnectionCounts>);

struct ConnectionCounts {
    limits: ConnectionLimits,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    /// Connections by the client's address and port.
    connections: HashMap<SocketAddr, Connection>,
    by_address: HashMap<IpAddr, usize>,
    /// Counter of events, used as a clock.
    now: u64,
}

struct Connection {
    /// Distinguishes this connection from a later one of the same address and port.
    id: u64,
    /// Requests whose answers have not ended.
    n_running: usize,
    /// Value of `now` since which the connection is idle.
    idle_since: u64,
    /// Dropping it closes the connection.
    _alive: oneshot::Sender<()>,
}

fn network(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => std::net::Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

impl OpenConnections {
    fn remove(&mut self, address: SocketAddr) {
        if self.connections.remove(&address).is_some() {
            let network = network(address);
            let left = self.by_address.get_mut(&network).map_or(0, |n| {
                *n -= 1;
                *n
            });
            if left == 0 {
                self.by_address.remove(&network);
            }
        }
    }

    /// Closes the connection that has been idle longest, of a network or of all. Returns true if
    /// there was one.
    fn evict(&mut self, of: Option<IpAddr>) -> bool {
        let is_idle = |(address, connection): &(&SocketAddr, &Connection)| {
            connection.n_running == 0 && of.is_none_or(|of| network(**address) == of)
        };
        let idle = self.connections.iter().filter(is_idle).min_by_key(|(_, c)| c.idle_since);
        let Some(address) = idle.map(|(address, _)| *address) else { return false };
        self.remove(address);
        true
    }
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Connections {
        Connections(Arc::new(ConnectionCounts { limits, open: Mutex::default() }))
    }

    /// Reserves a place for a connection; `None` if there is none.
    fn place(&self, address: SocketAddr) -> Option<ConnectionPlace> {
        let ConnectionLimits { all, by_address } = self.0.limits;
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        let network = network(address);
        if open.by_address.get(&network).is_some_and(|n| *n >= by_address) && !open.evict(Some(network)) {
            return None;
        }
        if open.connections.len() >= all && !open.evict(None) {
            return None;
        }
        open.now += 1;
        let (alive, ended) = oneshot::channel();
        let id = open.now;
        let connection = Connection { id, n_running: 0, idle_since: id, _alive: alive };
        open.connections.insert(address, connection);
        *open.by_address.entry(network).or_default() += 1;
        Some(ConnectionPlace { connections: self.clone(), address, id, ended: Some(ended) })
    }

    /// Counts a request as running until the result is dropped.
    fn begin(&self, address: SocketAddr) -> RunningRequest {
        self.count(address, |connection, _| connection.n_running += 1);
        RunningRequest { connections: self.clone(), address }
    }

    fn count(&self, address: SocketAddr, change: impl FnOnce(&mut Connection, u64)) {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.now += 1;
        let now = open.now;
        if let Some(connection) = open.connections.get_mut(&address) {
            change(connection, now);
        }
    }
}

/// A counted connection.
struct ConnectionPlace {
    connections: Connections,
    address: SocketAddr,
    id: u64,
    /// Completes when another connection gets its place; `None` once it has completed.
    ended: Option<oneshot::Receiver<()>>,
}

impl ConnectionPlace {
    fn is_taken(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(ended) = &mut self.ended
            && Pin::new(ended).poll(cx).is_ready()
        {
            self.ended = None;
        }
        self.ended.is_none()
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut open = self.connections.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.connections.get(&self.address).is_some_and(|connection| connection.id == self.id) {
            open.remove(self.address);
        }
    }
}

/// A running request.
struct RunningRequest {
    connections: Connections,
    address: SocketAddr,
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.connections.count(self.address, |connection, now| {
            connection.n_running = connection.n_running.saturating_sub(1);
            connection.idle_since = now;
        });
    }
}

impl<S> Accept<TcpStream, S> for Connections {
    type Stream = Held;
    type Service = S;
    type Future = std::future::Ready<io::Result<(Held, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let accept = || {
            stream.set_nodelay(true)?;
            let full =
                || io::Error::new(io::ErrorKind::QuotaExceeded, "the limit of open connections is reached");
            let place = self.place(stream.peer_addr()?).ok_or_else(full)?;
            Ok(Held { stream, place })
        };
        std::future::ready(accept().map(|held| (held, service)))
    }
}

/// A connection's stream, which ends when its place is given to another.
pub(crate) struct Held {
    stream: TcpStream,
    place: ConnectionPlace,
}

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.place.is_taken(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Held {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Layer that counts the running requests of each connection.
pub(crate) async fn layer(State(connections): State<Connections>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    let Some(address) = peer else { return next.run(request).await };
    let running = connections.begin(address);
    next.run(request).await.map(|body| Body::new(Answered { body, _running: running }))
}

/// A response's body. The request counts as running until the body has been sent.
struct Answered {
    body: Body,
    _running: RunningRequest,
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open(place: &mut ConnectionPlace) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        !place.is_taken(&mut cx)
    }

    #[test]
    fn idle_connections_make_room() {
        let connections = Connections::new(ConnectionLimits { all: 3, by_address: 2 });
        let from = |ip: [u8; 4], port: u16| SocketAddr::from((ip, port));
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let mut first = connections.place(from(a, 1)).unwrap();
        let mut second = connections.place(from(a, 2)).unwrap();
        // A third connection of this address replaces the one that has been idle longest.
        let running = connections.begin(from(a, 1));
        let mut third = connections.place(from(a, 3)).unwrap();
        assert!(is_open(&mut first) && !is_open(&mut second) && is_open(&mut third));
        drop(second);
        let _of_third = connections.begin(from(a, 3));
        assert!(connections.place(from(a, 4)).is_none());
        // Other addresses have room, and later replace only idle connections.
        let mut other = connections.place(from(b, 1)).unwrap();
        let _another = connections.place(from(b, 2)).unwrap();
        assert!(!is_open(&mut other));
        drop(running);
        let _last = connections.place(from(b, 3));
        assert!(!is_open(&mut first) || !is_open(&mut other));
        drop((first, third, other, _another, _last));
        let open = connections.0.open.lock().unwrap();
        assert!(open.connections.is_empty() && open.by_address.is_empty());
    }
}
