//! The handshake of a new connection.

use std::io;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncWriteExt, copy, sink};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Tls;

/// Response to a request that is not encrypted. Clients may try another server after 421, and keep what they sent.
const NOT_ENCRYPTED: &[u8] = b"HTTP/1.1 421 Misdirected Request\r\n\
content-type: application/problem+json\r\nconnection: close\r\ncontent-length: 139\r\n\r\n\
{\"type\":\"urn:evenstep:problem:tls-required\",\"title\":\"TLS required\",\"status\":421,\
\"detail\":\"this port requires TLS; use https:// in the URL\"}";

impl Tls {
    /// Completes the handshake of a connection. A connection that fails is closed.
    ///
    /// # Errors
    /// The reason of the failure.
    pub(crate) async fn accept(&self, mut stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The first letter of an HTTP method; TLS starts with another byte.
        let handshake = if first[0].is_ascii_uppercase() {
            let written = stream.write_all(NOT_ENCRYPTED).await;
            Err((written.err().unwrap_or_else(|| io::Error::other("the client did not use TLS")), stream))
        } else {
            TlsAcceptor::from(self.config()).accept(stream).into_fallible().await
        };
        match handshake {
            Ok(stream) => Ok(stream),
            Err((error, stream)) => {
                self.0.failed_handshakes.fetch_add(1, Ordering::Relaxed);
                linger(stream).await;
                Err(error)
            }
        }
    }
}

/// Ends a connection so that the client receives the response or alert: closing with unread data would discard it. The
/// deadline of the handshake ends a client that continues to send.
async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_ok() {
        // The error does not matter any more.
        let _ = copy(&mut stream, &mut sink()).await;
    }
}
