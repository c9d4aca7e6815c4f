//! Classification of responses to batches, separate from sending.

use std::fmt;
use std::time::Duration;

use evenstep_client::failover::Outcome;
use evenstep_client::http::Response;
use evenstep_protocol::{Problem, TelemetryResponse};

use crate::spool::Batch;

/// Maximum number of characters of a response that are shown.
const SHOWN_MAX: usize = 300;

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// All samples of the batch below this number are durable.
    Acknowledged { next_sequence: u64, duplicates: u64 },
    /// The batch is too large; a smaller one may be accepted.
    TooLarge,
    /// The predictor will never accept this content. Sending it again would block all later samples.
    Poison { reason: String },
    /// The batch may be accepted later.
    Retry(RetryReason),
}

/// Reason why a batch was not accepted, and the requested pause.
#[derive(Debug, PartialEq)]
pub(super) struct RetryReason {
    pub(super) reason: String,
    /// Minimum pause.
    pub(super) after: Option<Duration>,
}

impl From<String> for RetryReason {
    fn from(reason: String) -> Self {
        Self { reason, after: None }
    }
}

impl fmt::Display for RetryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Classifies a response. `Unreachable` means that another server may accept the batch.
pub(super) fn classify(response: &Response, batch: &Batch) -> Outcome<Verdict, RetryReason> {
    let Response { status, ref body, .. } = *response;
    let unheard = |reason: String| RetryReason { reason, after: response.retry_after() };
    let silent = |reason: String| Outcome::Unreachable(unheard(reason));
    match status {
        200..=299 => match serde_json::from_slice::<TelemetryResponse>(body) {
            Ok(answer) if acknowledges(&answer, batch) => Outcome::Responded(Verdict::Acknowledged {
                next_sequence: answer.next_sequence,
                duplicates: answer.duplicates,
            }),
            Ok(answer) => silent(format!("the response is for another batch: {answer:?}")),
            Err(error) => silent(format!("the response is not from a predictor: {error}")),
        },
        413 => Outcome::Responded(Verdict::TooLarge),
        // The store shared by all servers is overloaded, so trying another server would not help.
        429 => Outcome::Responded(Verdict::Retry(unheard(shown(status, body)))),
        // These concern the request's path, its sender or its timing rather than the samples. Causes are a
        // wrong --server or a proxy that requires a login. No sample may be discarded because of them.
        401 | 403 | 404 | 405 | 407 | 408 | 421 | 425 => silent(shown(status, body)),
        400..=499 => Outcome::Responded(Verdict::Poison { reason: shown(status, body) }),
        _ => silent(shown(status, body)),
    }
}

/// Whether the response is for this batch and acknowledges samples of it. Any other response must not remove
/// samples from the spool.
fn acknowledges(answer: &TelemetryResponse, batch: &Batch) -> bool {
    let end = batch.sequence + batch.samples.len() as u64;
    answer.node == batch.identity.node
        && answer.boot_id == batch.identity.boot_id
        && answer.next_sequence > batch.sequence
        && answer.next_sequence <= end
}

fn shown(status: u16, body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => format!("{}: {}", problem.slug(), problem.detail),
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    };
    let text: String = text.chars().take(SHOWN_MAX).collect();
    format!("{status} {text}")
}

#[cfg(test)]
mod tests {
    use evenstep_client::http::HeaderMap;
    use evenstep_protocol::NodeId;

    use super::*;
    use crate::spool::SampleIdentity;

    fn batch() -> Batch {
        let identity = SampleIdentity { node: NodeId::new("node-a").unwrap(), boot_id: "b".to_owned() };
        Batch::for_test(identity, 10, 3)
    }

    fn answer(boot_id: &str, next_sequence: u64) -> Vec<u8> {
        let node = NodeId::new("node-a").unwrap();
        let answer =
            TelemetryResponse { node, boot_id: boot_id.to_owned(), next_sequence, stored: 2, duplicates: 1 };
        serde_json::to_vec(&answer).unwrap()
    }

    fn judged(status: u16, retry_after: Option<&str>, body: &[u8]) -> Outcome<Verdict, RetryReason> {
        let mut headers = HeaderMap::new();
        if let Some(pause) = retry_after {
            headers.insert("retry-after", pause.parse().unwrap());
        }
        classify(&Response { status, headers, body: body.to_vec() }, &batch())
    }

    #[test]
    fn only_a_response_to_this_batch_acknowledges_it() {
        let acknowledged = Verdict::Acknowledged { next_sequence: 13, duplicates: 1 };
        let outcome = judged(200, None, &answer("b", 13));
        assert!(matches!(&outcome, Outcome::Responded(verdict) if *verdict == acknowledged), "{outcome:?}");
        for (boot_id, next_sequence) in [("c", 13), ("b", 14), ("b", 10), ("b", 0)] {
            let outcome = judged(200, None, &answer(boot_id, next_sequence));
            assert!(matches!(outcome, Outcome::Unreachable(_)), "{boot_id} {next_sequence}: {outcome:?}");
        }
        assert!(matches!(judged(200, None, b"<html>"), Outcome::Unreachable(_)));
    }

    #[test]
    fn only_rejections_of_the_content_mark_a_batch_as_poison() {
        for status in [400, 409, 415, 422] {
            let outcome = judged(status, None, b"");
            assert!(matches!(outcome, Outcome::Responded(Verdict::Poison { .. })), "{status}");
        }
        for status in [301, 401, 403, 404, 408, 500, 502, 503] {
            assert!(matches!(judged(status, None, b""), Outcome::Unreachable(_)), "{status}");
        }
        assert!(matches!(judged(413, None, b""), Outcome::Responded(Verdict::TooLarge)));
    }

    #[test]
    fn retry_after_is_honoured() {
        let Outcome::Unreachable(unheard) = judged(503, Some("7"), b"draining") else { panic!() };
        assert_eq!((unheard.after, unheard.reason.as_str()), (Some(Duration::from_secs(7)), "503 draining"));
        let Outcome::Responded(Verdict::Retry(unheard)) = judged(429, Some("9"), b"busy") else { panic!() };
        assert_eq!((unheard.after, unheard.reason.as_str()), (Some(Duration::from_secs(9)), "429 busy"));
        let Outcome::Unreachable(unheard) = judged(503, Some("Fri, 20 Nov 2026 18:00:00 GMT"), b"") else {
            panic!()
        };
        assert_eq!(unheard.after, None);
    }
}
