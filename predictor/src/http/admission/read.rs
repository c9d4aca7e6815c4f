//! Reads request bodies before they are handled. A body holds only the memory of the bytes that have arrived, so a client
//! that declares a long body and sends it slowly does not block others.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use http_body_util::BodyExt;

use super::super::problem::ErrorResponse;
use super::room::Room;
use crate::access::Full;

/// Size limit of a request body, in bytes. An allocation request with the reports of 10,000 workers fits.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest pause between two parts of a body.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Bytes of a rejected body that are read and discarded. A client that is still sending could not read the response
/// otherwise: closing a connection with unread bytes resets it.
const DISCARD_BYTES_MAX: usize = 64 << 20;
/// Buffer for a body whose length is unknown, and limit of what is allocated before bytes arrive.
const FIRST_BYTES: usize = 64 << 10;

/// The reason why a body could not be read.
#[derive(Debug)]
pub enum Unread {
    /// The limit of bytes in flight is reached.
    Full {
        /// The limit.
        full: Full,
        /// Whether the rest of the body was read and discarded.
        discarded: bool,
    },
    /// Any other reason.
    Rejected(ErrorResponse),
}

impl Unread {
    /// The response, where `busy` is that to a full limit.
    pub fn response(self, busy: impl FnOnce(Full) -> ErrorResponse) -> Response {
        let rejection = match self {
            Self::Full { full, discarded: true } => busy(full),
            Self::Full { full, discarded: false } => busy(full).body_unread(),
            Self::Rejected(rejection) => rejection,
        };
        rejection.into_response()
    }
}

/// Reads the body of a request. Waits at most `patience` for memory, each time bytes arrive.
pub async fn read(request: Request, room: &mut Room, patience: Duration) -> Result<Request, Unread> {
    let (parts, mut body) = request.into_parts();
    if body.is_end_stream() {
        return Ok(Request::from_parts(parts, body));
    }
    let waits = parts.headers.contains_key(header::EXPECT);
    if let Some(refusal) = encoding(&parts.headers) {
        // A client that waits for `100 Continue` sends no body after another response.
        if waits {
            return Err(Unread::Rejected(refusal.body_unread()));
        }
        discard(body).await;
        return Err(Unread::Rejected(refusal));
    }
    let declared = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if waits && declared.is_some_and(|bytes| bytes > BODY_BYTES_MAX) {
        // The client only sends the body after `100 Continue`.
        return Err(Unread::Rejected(too_large().body_unread()));
    }
    let mut read = BytesMut::with_capacity(declared.unwrap_or(FIRST_BYTES).min(FIRST_BYTES));
    // Before the first part, so that a client that waits for `100 Continue` is rejected before it sends its body.
    let mut admitted = room.grow(1, patience).await;
    loop {
        if let Err(full) = admitted {
            let discarded = !waits || !read.is_empty();
            if discarded {
                drop(read);
                room.release();
                discard(body).await;
            }
            return Err(Unread::Full { full, discarded });
        }
        let Some(part) = next(&mut body).await.map_err(Unread::Rejected)? else { break };
        let length = read.len() + part.len();
        if length > BODY_BYTES_MAX {
            drop(read);
            room.release();
            discard(body).await;
            return Err(Unread::Rejected(too_large()));
        }
        admitted = room.grow(length, patience).await;
        read.extend_from_slice(&part);
    }
    Ok(Request::from_parts(parts, Body::from(read.freeze())))
}

/// Reads the next part of a body; `None` at its end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, ErrorResponse> {
    loop {
        let frame =
            tokio::time::timeout(PAUSE_MAX, body.frame()).await.map_err(|_| too_slow().body_unread())?;
        let Some(frame) = frame else { return Ok(None) };
        let frame = frame.map_err(|error| {
            let detail = format!("the body: {error}");
            ErrorResponse::new(StatusCode::BAD_REQUEST, "malformed", "Unreadable body", detail).body_unread()
        })?;
        // Trailers are ignored.
        if let Ok(part) = frame.into_data() {
            return Ok(Some(part));
        }
    }
}

/// Reads and drops the rest of a body, so that the client receives the response. Gives up on a body that is very long,
/// slow or broken: the connection is then closed.
pub async fn discard(mut body: Body) {
    let mut discarded = 0;
    while discarded < DISCARD_BYTES_MAX
        && let Ok(Some(part)) = next(&mut body).await
    {
        discarded += part.len();
    }
}

/// The rejection of a body that is encoded: decoded, a short one could fill the memory.
fn encoding(headers: &HeaderMap) -> Option<ErrorResponse> {
    let encoded = headers.get_all(header::CONTENT_ENCODING).into_iter();
    let encoding = encoded
        .map(|value| value.as_bytes().trim_ascii())
        .find(|value| !value.eq_ignore_ascii_case(b"identity"))?;
    let detail = format!(
        "content-encoding {:?}: must be identity; send the body without an encoding",
        String::from_utf8_lossy(encoding)
    );
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Some(ErrorResponse::new(status, "encoded", "Encoded body", detail))
}

fn too_large() -> ErrorResponse {
    let detail = format!("the body exceeds {BODY_BYTES_MAX} bytes; send it in parts");
    ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "Body too large", detail)
}

fn too_slow() -> ErrorResponse {
    let detail = format!("no byte of the body arrived for {} s", PAUSE_MAX.as_secs());
    ErrorResponse::new(StatusCode::REQUEST_TIMEOUT, "body-timeout", "Body too slow", detail)
}
