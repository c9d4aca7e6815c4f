//! A server of unary calls of gRPC over HTTP/2 (RFC 9113), for a service with one method.
//!
//! It does not read the headers of a call: they would only name the method. The crate h2 cannot be used, because
//! gRPC's own client sends the path of the socket as `:authority`, which h2 rejects.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, ErrorKind};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The first bytes of a client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum size of a frame, in bytes: the initial value of the protocol, which this server does not raise.
const FRAME_BYTES_MAX: usize = 16_384;
/// Maximum size of a call, in bytes, and maximum number of calls that arrive at the same time.
const CALL_BYTES_MAX: usize = 4_096;
const CALLS_MAX: usize = 16;
/// Size of the head of a message in gRPC: a flag for compression, and the length.
const HEAD_BYTES: usize = 5;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const ENHANCE_YOUR_CALM: u32 = 11;

/// `:status: 200` and `content-type: application/grpc`, as HPACK (RFC 7541): an entry of the static table, and a literal
/// with the name of entry 31.
const RESPONSE_HEADERS: &[u8] = b"\x88\x0f\x10\x10application/grpc";
/// `grpc-status: 0` and `grpc-status: 3` (invalid argument) as literals.
const OK: &[u8] = b"\x00\x0bgrpc-status\x010";
const INVALID_ARGUMENT: &[u8] = b"\x00\x0bgrpc-status\x013";

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// A service of one method.
pub trait Answer {
    /// Returns the message for a call, in at most 16,000 bytes; `None` if the message of the call is invalid.
    fn answer(&self, call: &[u8]) -> impl Future<Output = Option<Vec<u8>>> + Send;
}

/// Serves the calls of a connection until the client closes it.
///
/// # Errors
/// If the client breaks a rule of the protocol, or the connection fails.
pub async fn serve(mut stream: UnixStream, service: &(impl Answer + Sync)) -> io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    if preface != PREFACE {
        return Err(io::Error::new(ErrorKind::InvalidData, "not HTTP/2"));
    }
    write(&mut stream, SETTINGS, 0, 0, &[]).await?;
    let mut calls: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    while let Some(frame) = read(&mut stream).await? {
        let has_ended = frame.flags & END_STREAM != 0;
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => write(&mut stream, SETTINGS, ACK, 0, &[]).await?,
            PING if frame.flags & ACK == 0 => write(&mut stream, PING, ACK, 0, &frame.payload).await?,
            HEADERS if calls.len() >= CALLS_MAX && !calls.contains_key(&frame.stream) => {
                write(&mut stream, RST_STREAM, 0, frame.stream, &ENHANCE_YOUR_CALM.to_be_bytes()).await?;
            }
            HEADERS => {
                calls.entry(frame.stream).or_default();
                if has_ended {
                    let call = calls.remove(&frame.stream).unwrap_or_default();
                    finish(&mut stream, frame.stream, &call, service).await?;
                }
            }
            DATA => {
                // The whole connection has one window, which a long-lived client would use up.
                if let Ok(length @ 1..) = u32::try_from(frame.payload.len()) {
                    write(&mut stream, WINDOW_UPDATE, 0, 0, &length.to_be_bytes()).await?;
                }
                // Frames of a call that was rejected may follow.
                let Some(call) = calls.get_mut(&frame.stream) else { continue };
                call.extend(data(&frame)?);
                if call.len() > CALL_BYTES_MAX {
                    calls.remove(&frame.stream);
                    write(&mut stream, RST_STREAM, 0, frame.stream, &ENHANCE_YOUR_CALM.to_be_bytes()).await?;
                } else if has_ended {
                    let call = calls.remove(&frame.stream).unwrap_or_default();
                    finish(&mut stream, frame.stream, &call, service).await?;
                }
            }
            RST_STREAM => drop(calls.remove(&frame.stream)),
            GOAWAY => return Ok(()),
            // Windows: responses are smaller than the initial ones. Further parts of headers are not read either.
            _ => {}
        }
    }
    Ok(())
}

/// Sends the response to a call that has arrived.
async fn finish(
    stream: &mut UnixStream,
    id: u32,
    call: &[u8],
    service: &(impl Answer + Sync),
) -> io::Result<()> {
    let message = match framed(call) {
        Some(message) => service.answer(message).await,
        None => None,
    };
    write(stream, HEADERS, END_HEADERS, id, RESPONSE_HEADERS).await?;
    let Some(message) = message.filter(|message| message.len() + HEAD_BYTES <= FRAME_BYTES_MAX) else {
        return write(stream, HEADERS, END_HEADERS | END_STREAM, id, INVALID_ARGUMENT).await;
    };
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    framed.extend(message);
    write(stream, DATA, 0, id, &framed).await?;
    write(stream, HEADERS, END_HEADERS | END_STREAM, id, OK).await
}

/// Returns the message of a call: one, not compressed, and whole.
fn framed(body: &[u8]) -> Option<&[u8]> {
    let (&[compressed, length @ ..], message) = body.split_first_chunk::<HEAD_BYTES>()?;
    let is_whole = u32::from_be_bytes(length) as usize == message.len();
    (compressed == 0 && is_whole).then_some(message)
}

/// Returns the data in a frame, without padding.
fn data(frame: &Frame) -> io::Result<&[u8]> {
    if frame.flags & PADDED == 0 {
        return Ok(&frame.payload);
    }
    let padded = frame.payload.split_first().and_then(|(padding, data)| {
        let length = data.len().checked_sub(usize::from(*padding))?;
        data.get(..length)
    });
    padded.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a frame with more padding than data"))
}

/// Reads a frame; `None` at the end of the connection.
async fn read(stream: &mut UnixStream) -> io::Result<Option<Frame>> {
    let mut head = [0; 9];
    if stream.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut head[1..]).await?;
    let [high, middle, low, kind, flags, id @ ..] = head;
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, "a frame above 16 KiB"));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await?;
    Ok(Some(Frame { kind, flags, stream: u32::from_be_bytes(id) & (u32::MAX >> 1), payload }))
}

/// Writes a frame of at most [`FRAME_BYTES_MAX`].
async fn write(stream: &mut UnixStream, kind: u8, flags: u8, id: u32, payload: &[u8]) -> io::Result<()> {
    let [_, high, middle, low] = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = vec![high, middle, low, kind, flags];
    frame.extend(id.to_be_bytes());
    frame.extend(payload);
    stream.write_all(&frame).await
}

#[cfg(test)]
mod tests {
    use evenstep_fuzz::damaged;
    use proptest::prelude::*;

    use super::*;

    struct Fine;

    impl Answer for Fine {
        async fn answer(&self, call: &[u8]) -> Option<Vec<u8>> {
            (call == [7, 8]).then(|| b"fine".to_vec())
        }
    }

    /// A connection with one call, as a client sends it.
    fn conversation() -> Vec<u8> {
        let frame = |kind: u8, flags: u8, id: u8, payload: &[u8]| {
            [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, id][..], payload].concat()
        };
        [
            PREFACE,
            &frame(SETTINGS, 0, 0, &[]),
            &frame(HEADERS, END_HEADERS, 1, b"\x82"),
            &frame(DATA, END_STREAM, 1, &[0, 0, 0, 0, 2, 7, 8]),
            &frame(PING, 0, 0, &[1; 8]),
        ]
        .concat()
    }

    /// Sends bytes, and returns all bytes of the server and how the connection ended.
    fn talk(sent: &[u8]) -> (Vec<u8>, io::Result<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut client, server) = UnixStream::pair().unwrap();
            let serving = serve(server, &Fine);
            let talking = async {
                // The server may have closed the connection.
                let _ = client.write_all(sent).await;
                let _ = client.shutdown().await;
                let mut told = Vec::new();
                let _ = client.read_to_end(&mut told).await;
                told
            };
            let (served, told) = tokio::join!(serving, talking);
            (told, served)
        })
    }

    #[test]
    fn a_call_is_answered() {
        let (told, served) = talk(&conversation());
        served.unwrap();
        let has = |part: &[u8]| told.windows(part.len()).any(|window| window == part);
        assert!(has(b"\0\0\0\0\x04fine") && has(OK) && has(RESPONSE_HEADERS) && has(&[1; 8]), "{told:?}");
        let (told, _) =
            talk(&conversation().iter().map(|byte| if *byte == 7 { 9 } else { *byte }).collect::<Vec<_>>());
        assert!(told.windows(INVALID_ARGUMENT.len()).any(|window| window == INVALID_ARGUMENT), "{told:?}");
    }

    proptest! {
        #![proptest_config(evenstep_fuzz::config(256))]

        /// Damaged conversations end, with an error or without.
        #[test]
        fn any_bytes_end_the_connection(sent in damaged(vec![conversation()])) {
            let (told, _) = talk(&sent);
            prop_assert!(told.len() < 1 << 20);
        }
    }
}
