//! `evenstep-predictor`: the command line.

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use evenstep_burst::command as plan;
use evenstep_core::job::{FORMAT, read_device_model, read_models};
use evenstep_core::learning_rate::Controller;
use evenstep_lab::command::{backtest, simulate};
use evenstep_observability::logs;
use evenstep_observability::otlp::Otlp;
use evenstep_predictor::app::App;
use evenstep_predictor::clock::Clock;
use evenstep_predictor::config::{Config, Flags};
use evenstep_predictor::top;
use evenstep_store::command as store;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

/// Telemetry in, forecasts and batch allocations out.
#[derive(Debug, Parser)]
#[command(name = "evenstep-predictor", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer over HTTP until told to stop (SIGTERM, Ctrl-C)
    Serve(Box<Flags>),
    Backtest(Box<backtest::Args>),
    Simulate(Box<simulate::Args>),
    Plan(Box<plan::Args>),
    Store(store::Args),
    Top(top::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Serve(flags) => start(&flags).map(|()| ExitCode::SUCCESS),
        Command::Backtest(args) => offline(args.check(), || backtest::run(&args)),
        Command::Simulate(args) => offline(args.check(), || simulate::run(&args)),
        Command::Plan(args) => offline(args.check(), || plan::run(&args)),
        Command::Store(args) => offline(args.check(), || store::run(&args, &model_readers())),
        Command::Top(args) => offline(Ok(()), || top::run(&args)),
    }
}

/// How stored models are read: the store itself keeps bytes.
fn model_readers() -> store::ModelReaders {
    store::ModelReaders {
        format: FORMAT,
        job: |state| read_models(state).map(drop).map_err(|error| error.to_string()),
        device: |state| read_device_model(state).map(drop).map_err(|error| error.to_string()),
        learning_rate: |state| {
            serde_json::from_str::<Controller>(state).map(drop).map_err(|error| error.to_string())
        },
    }
}

/// A command that needs no service: what is wrong with its flags is said as clap says it, what is wrong with its data in
/// a line.
fn offline(
    checked: Result<(), String>,
    run: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    if let Err(wrong) = checked {
        Cli::command().error(ErrorKind::ValueValidation, wrong).exit();
    }
    let Err(error) = run() else { return Ok(ExitCode::SUCCESS) };
    // Where in our code it was noticed says nothing.
    writeln!(std::io::stderr(), "error: {}", in_words(&error))?;
    Ok(ExitCode::FAILURE)
}

/// An error with its causes, each said once: some name theirs themselves.
fn in_words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        _ if said.contains(&cause) => said,
        _ => format!("{said}: {cause}"),
    })
}

fn start(flags: &Flags) -> anyhow::Result<()> {
    let config = Config::load(flags)?;
    let instance = Uuid::new_v4().to_string();
    let collector =
        |endpoint| Otlp::new(endpoint, env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), &instance);
    let otlp = config.otlp.as_deref().map(collector).transpose()?;
    logs::start(&config.log, config.log_format, otlp.as_ref().map(Otlp::spans))?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(&config, otlp))
}

async fn serve(config: &Config, otlp: Option<Otlp>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let app = App::open(config, Clock::system()).await?.with_otlp(otlp);
    // For scripts that let the system choose the port: the one line on standard output.
    writeln!(std::io::stdout(), "listening on http://{}", app.address())?;
    app.serve(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
    .await
}
