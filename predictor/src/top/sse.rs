//! A parser of server-sent events.

use std::io::{self, BufRead, BufReader, Read};

/// Size limit of an event, in bytes. The predictor never sends a longer one.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// An element of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// An event: its name and its data.
    Event(String, String),
    /// A comment, or an event without data. It shows that the server is alive.
    Alive,
}

/// A stream of events.
pub struct Stream<R> {
    lines: BufReader<R>,
}

impl<R: Read> Stream<R> {
    /// Reads the stream from a response body.
    pub fn new(body: R) -> Self {
        Self { lines: BufReader::new(body) }
    }

    /// Returns the next element; `None` at the end of the stream.
    ///
    /// # Errors
    /// An error if the connection fails or an event is too long.
    pub fn next(&mut self) -> io::Result<Option<Element>> {
        let (mut name, mut data) = (String::new(), String::new());
        loop {
            let Some(line) = self.line(EVENT_BYTES_MAX - data.len())? else { return Ok(None) };
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" if !line.is_empty() => return Ok(Some(Element::Alive)),
                // An empty line ends an event. An event without data only changed a setting, such as the
                // pause before reconnecting.
                "" if data.is_empty() => return Ok(Some(Element::Alive)),
                "" => return Ok(Some(Element::Event(name, data))),
                "event" => value.clone_into(&mut name),
                "data" => data.push_str(value),
                _ => {}
            }
        }
    }

    fn line(&mut self, bytes_max: usize) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        self.lines.by_ref().take(limit).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            if line.len() < bytes_max {
                return Ok(None);
            }
            return Err(io::Error::other(format!("an event exceeds {EVENT_BYTES_MAX} bytes")));
        }
        let end = line.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |at| at + 1);
        line.truncate(end);
        String::from_utf8(line).map(Some).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Element> {
        let mut stream = Stream::new(text.as_bytes());
        std::iter::from_fn(|| stream.next().unwrap()).collect()
    }

    #[test]
    fn events_and_heartbeats_are_distinguished() {
        let event = |name: &str, data: &str| Element::Event(name.into(), data.into());
        let text = "retry: 2000\n\nevent: step\ndata: {\"a\":\ndata: 1}\n\n:\n\nevent: gone\r\ndata: {}\r\n\r\nevent: cut\nda";
        let said: Vec<_> = all(text).into_iter().filter(|said| *said != Element::Alive).collect();
        assert_eq!(said, [event("step", "{\"a\":1}"), event("gone", "{}")]);
        assert_eq!(all(": still here\n\n").first(), Some(&Element::Alive));
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut stream = Stream::new(io::Read::chain(&b"data: "[..], io::repeat(b'x')));
        assert!(stream.next().is_err_and(|error| error.to_string().contains("bytes")));
    }
}
