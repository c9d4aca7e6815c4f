//! Spans and metrics to a collector, over OTLP (HTTP, protobuf).
//!
//! Spans go through the SDK. Its metrics cannot take over what was counted elsewhere, histograms least of all; so ours are
//! translated into the messages of the protocol themselves, from the families that `/metrics` shows.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use prost::Message;

use crate::Gather;
use crate::translate::{Origin, request};

/// The time from export to export of metrics.
const EVERY: Duration = Duration::from_secs(10);
/// What one export may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer of a collector that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint is none.
    #[error("otlp {0:?} must be http:// or https:// and a host, such as http://127.0.0.1:4318")]
    Endpoint(String),
    /// The exporter of spans cannot be made.
    #[error("otlp: {0}")]
    Spans(#[from] opentelemetry_otlp::ExporterBuildError),
    /// The thread that exports metrics cannot be started.
    #[error("otlp: {0}")]
    Thread(#[from] std::io::Error),
}

/// A collector, by its base address: spans go to `/v1/traces` under it, metrics to `/v1/metrics`.
#[derive(Debug)]
pub struct Otlp {
    endpoint: String,
    origin: Origin,
    spans: SdkTracerProvider,
    metrics: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Otlp {
    /// Prepares the export of spans. `service` is the program's name, `instance` tells this process from others of it.
    ///
    /// # Errors
    /// Where the endpoint is no address.
    pub fn new(
        endpoint: &str,
        service: &'static str,
        version: &'static str,
        instance: &str,
    ) -> Result<Self, OtlpError> {
        let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
        if host.is_none_or(|host| host.is_empty() || host.contains(char::is_whitespace)) {
            return Err(OtlpError::Endpoint(endpoint.to_owned()));
        }
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new())
            .with_endpoint(format!("{endpoint}/v1/traces"))
            .with_timeout(TIMEOUT)
            .build()?;
        let attributes = [("service.version", version), ("service.instance.id", instance)];
        let attributes = attributes.map(|(key, value)| KeyValue::new(key, value.to_owned()));
        let resource =
            Resource::builder_empty().with_service_name(service).with_attributes(attributes).build();
        let spans =
            SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build();
        let origin = Origin { service, version, instance: instance.to_owned() };
        Ok(Self { endpoint, origin, spans, metrics: None })
    }

    /// What spans are given to.
    pub fn spans(&self) -> &SdkTracerProvider {
        &self.spans
    }

    /// Exports metrics from now on, on a thread of its own: every ten seconds, and once more at the end. `now_unix_ms` is the clock, in
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// Where the thread cannot be started.
    pub fn export(
        &mut self,
        gather: Gather,
        now_unix_ms: impl Fn() -> i64 + Send + 'static,
    ) -> Result<(), OtlpError> {
        let (stop, stopped) = mpsc::channel();
        let (client, origin) = (Client::new(), self.origin.clone());
        let endpoint = format!("{}/v1/metrics", self.endpoint);
        let run = move || {
            let (mut failing, since_unix_ms) = (false, now_unix_ms());
            loop {
                let is_last = !matches!(stopped.recv_timeout(EVERY), Err(RecvTimeoutError::Timeout));
                let times = since_unix_ms..now_unix_ms();
                let body = request(&gather(), &origin, times).encode_to_vec();
                match client.post(&endpoint, &body) {
                    Ok(()) => failing = false,
                    // Said once: a collector that is away is away for long.
                    Err(error) if !failing => {
                        failing = true;
                        tracing::warn!(%endpoint, %error, "metrics were not exported");
                    }
                    Err(_) => {}
                }
                if is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("otlp-metrics".into()).spawn(run)?;
        self.metrics = Some((stop, thread));
        Ok(())
    }

    /// Exports what is left, and ends; takes no longer than the timeouts of two exports.
    pub fn end(self) {
        if let Some((stop, thread)) = self.metrics {
            drop(stop);
            if thread.join().is_err() {
                tracing::warn!("the export of metrics had ended by itself");
            }
        }
        if let Err(error) = self.spans.shutdown() {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

/// HTTP without a runtime: exports run on threads of their own.
#[derive(Debug, Clone)]
struct Client(ureq::Agent);

impl Client {
    fn new() -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT));
        Self(config.http_status_as_error(false).build().into())
    }

    fn post(&self, url: &str, body: &[u8]) -> Result<(), String> {
        let answer = self.0.post(url).content_type("application/x-protobuf").send(body);
        let status = answer.map_err(|error| error.to_string())?.status();
        if status.is_success() { Ok(()) } else { Err(format!("the collector said {status}")) }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(head, &body[..]))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address() {
        for wrong in ["", "127.0.0.1:4318", "ftp://host", "http://", "http://a b"] {
            let error = Otlp::new(wrong, "evenstep", "1", "i").unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("must be"), "{error}");
        }
    }
}
