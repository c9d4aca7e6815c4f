//! `report`: the summary of a job, and a page with its charts.

mod page;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use evenstep_client::failover::Outcome;
use evenstep_client::http::{Method, Request, Response, TimeLimit, Transport, TransportConfig};
use evenstep_client::{Servers, SystemClock};
use evenstep_protocol::{DEFAULT_SERVER, HistoryView, JobId, JobsView, Problem, SummaryView};
use evenstep_report::output;
use serde::de::DeserializeOwned;

use crate::client_tls::ClientTlsArgs;

/// Time limit of a request over all servers.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Size limit of a response, in bytes.
const RESPONSE_BYTES_MAX: u64 = 64 << 20;
/// The whole history that the predictor still has, as far as a chart can show it.
const HISTORY_QUERY: &str = "?since_s=31622400&points=2000";

/// Summarize a job: what it gained, who was slow and why; with --html, also write a page with its charts
#[derive(Debug, clap::Args)]
pub struct Args {
    /// ID of the job; without it, the jobs are listed
    job: Option<JobId>,
    /// Predictor URLs, comma-separated; the first that responds is used
    #[arg(long, value_name = "URL,..", default_value = DEFAULT_SERVER, env = "EVENSTEP_SERVER")]
    server: Servers,
    #[command(flatten)]
    tls: ClientTlsArgs,
    /// Write a self-contained page to this file, or - for standard output
    #[arg(long, value_name = "FILE", requires = "job")]
    html: Option<PathBuf>,
    /// Write the summary as JSON to this file, or - for standard output
    #[arg(long, value_name = "FILE", requires = "job")]
    json: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// No predictor responds, the job does not exist, or an output cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = TransportConfig {
        user_agent: concat!("evenstep-predictor/", env!("CARGO_PKG_VERSION")),
        response_bytes_max: RESPONSE_BYTES_MAX,
        limit: TimeLimit::Attempt,
        clock: Arc::new(SystemClock),
        tls: args.tls.load()?,
    };
    let transport = Transport::new(&args.server, config);
    let Some(job) = &args.job else { return list(&transport) };
    output::check(&[&args.html, &args.json])?;
    let summary: SummaryView = get(&transport, &format!("/v1/jobs/{}/summary", job.in_path()), Some(job))?;
    if args.html.is_some() {
        let history: HistoryView =
            get(&transport, &format!("/v1/jobs/{}/history{HISTORY_QUERY}", job.in_path()), Some(job))?;
        output::write_page(&args.html, |command| page::page(&summary, &history, command))?;
    }
    let lines = std::iter::once(&summary.verdict).chain(&summary.lines);
    let text = lines.map(|line| format!("{line}\n")).collect::<String>();
    output::write_results(&text, &summary, &args.json, &[&args.html])
}

fn list(transport: &Transport) -> anyhow::Result<()> {
    let jobs: JobsView = get(transport, "/v1/jobs", None)?;
    if jobs.jobs.is_empty() {
        return output::write_text("no jobs\n");
    }
    output::write_text(&jobs.jobs.iter().map(|job| format!("{}\n", job.job_id)).collect::<String>())
}

fn get<T: DeserializeOwned>(transport: &Transport, path: &str, job: Option<&JobId>) -> anyhow::Result<T> {
    let request = Request { method: &Method::GET, path, body: None };
    let response = transport.send(request, TIMEOUT, Outcome::<Response, String>::Responded);
    let response = response.map_err(|unreachable| {
        anyhow::anyhow!(
            "no predictor responds: {unreachable}; set --server or EVENSTEP_SERVER to its address"
        )
    })?;
    if response.status != 200 {
        let Ok(problem) = serde_json::from_slice::<Problem>(&response.body) else {
            bail!("{path}: status {}", response.status);
        };
        match job {
            Some(job) if problem.slug() == "unknown-job" => {
                bail!("unknown job {job}; run report without a job to list all jobs")
            }
            _ => bail!(problem.detail),
        }
    }
    serde_json::from_slice(&response.body).with_context(|| format!("{path}: the response cannot be read"))
}
