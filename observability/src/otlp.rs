//! Export of spans and metrics to a collector, over OTLP (HTTP, protobuf).
//!
//! Spans are exported through the OpenTelemetry SDK. Metrics are not, because the SDK cannot import existing
//! counts and histograms. The families of `/metrics` are translated directly into OTLP messages.

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

/// Interval between exports of metrics.
const EXPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of one export.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a collector's response in bytes; the rest is not read.
const RESPONSE_BYTES_MAX: u64 = 64 * 1024;

/// The reason why nothing can be exported.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint is not a valid URL.
    #[error("otlp {0:?} must be http:// or https:// and a host, such as http://127.0.0.1:4318")]
    Endpoint(String),
    /// The span exporter cannot be created.
    #[error("otlp: {0}")]
    Spans(#[from] opentelemetry_otlp::ExporterBuildError),
    /// The thread that exports metrics cannot be started.
    #[error("otlp: {0}")]
    Thread(#[from] std::io::Error),
}

/// A collector, given by its base URL: spans go to `/v1/traces`, metrics to `/v1/metrics`.
#[derive(Debug)]
pub struct Otlp {
    endpoint: String,
    origin: Origin,
    spans: SdkTracerProvider,
    metrics: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Otlp {
    /// Prepares the export of spans. `service` is the name of the program. `instance` distinguishes this
    /// process from other processes of the same program.
    ///
    /// # Errors
    /// [`OtlpError::Endpoint`] if the endpoint is not a valid URL, [`OtlpError::Spans`] if the exporter
    /// cannot be created.
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

    /// Returns the provider that receives spans.
    pub fn spans(&self) -> &SdkTracerProvider {
        &self.spans
    }

    /// Starts exporting metrics on a separate thread: every 10 seconds, and a last time on [`Self::end`].
    /// `now_unix_ms` is the clock, in milliseconds since 1970.
    ///
    /// # Errors
    /// [`OtlpError::Thread`] if the thread cannot be started.
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
                let is_last =
                    !matches!(stopped.recv_timeout(EXPORT_INTERVAL), Err(RecvTimeoutError::Timeout));
                let times = since_unix_ms..now_unix_ms();
                let body = request(&gather(), &origin, times).encode_to_vec();
                match client.post(&endpoint, &body) {
                    Ok(()) => failing = false,
                    // Logged once per outage: an unreachable collector often stays unreachable for a long
                    // time.
                    Err(error) if !failing => {
                        failing = true;
                        tracing::warn!(%endpoint, %error, "cannot export metrics");
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

    /// Exports the remaining spans and metrics and stops. Takes at most the timeouts of two exports.
    pub fn end(self) {
        if let Some((stop, thread)) = self.metrics {
            drop(stop);
            if thread.join().is_err() {
                tracing::warn!("the thread that exports metrics panicked");
            }
        }
        if let Err(error) = self.spans.shutdown() {
            tracing::warn!(%error, "cannot export the last spans");
        }
    }
}

/// A blocking HTTP client: exports run on separate threads without an async runtime.
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
        if status.is_success() { Ok(()) } else { Err(format!("the collector responded with {status}")) }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(head, &body[..]))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(RESPONSE_BYTES_MAX).read_to_vec()?;
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
