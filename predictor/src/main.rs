//! `evenstep-predictor`: the command line.

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use evenstep_burst::command as plan;
use evenstep_core::job::{FORMAT, check_part, read_device_model, read_learning_rate};
use evenstep_lab::command::{backtest, simulate};
use evenstep_observability::logs;
use evenstep_predictor::access::{command as token, secrets};
use evenstep_predictor::app::App;
use evenstep_predictor::clock::Clock;
use evenstep_predictor::config::Config;
use evenstep_predictor::{report, top};
use evenstep_server::config;
use evenstep_store::command as store;
use tokio::signal::unix::{SignalKind, signal};

/// Forecasts worker speeds from telemetry and allocates batches over HTTP
#[derive(Debug, Parser)]
#[command(name = "evenstep-predictor", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the HTTP API until SIGTERM or Ctrl-C
    Serve(Box<Config>),
    Backtest(Box<backtest::Args>),
    Simulate(Box<simulate::Args>),
    Plan(Box<plan::Args>),
    Store(store::Args),
    Token(token::Args),
    Top(top::Args),
    Report(report::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    let parsed = config::parse::<Cli>(Some("serve"), std::env::args_os());
    match parsed.unwrap_or_else(|wrong| wrong.exit()).command {
        Command::Serve(config) => finish(Ok(()), || start(&config)),
        Command::Backtest(args) => finish(args.check(), || backtest::run(&args)),
        Command::Simulate(args) => finish(args.check(), || simulate::run(&args)),
        Command::Plan(args) => finish(args.check(), || plan::run(&args)),
        Command::Store(args) => finish(args.check(), || store::run(&args, &model_readers())),
        Command::Token(args) => {
            finish(Ok(()), || token::run(&args, Clock::system().now_unix_ms(), &mut secrets()))
        }
        Command::Top(args) => finish(Ok(()), || top::run(&args)),
        Command::Report(args) => finish(Ok(()), || report::run(&args)),
    }
}

/// Readers of stored models. The store itself only keeps their bytes.
fn model_readers() -> store::ModelReaders {
    store::ModelReaders {
        format: FORMAT,
        job: |part, state| check_part(part, state).map_err(|error| error.to_string()),
        device: |state| read_device_model(state).map(drop).map_err(|error| error.to_string()),
        learning_rate: |state| read_learning_rate(state).map(drop).map_err(|error| error.to_string()),
    }
}

/// Runs a command. Reports wrong flags in clap's format, and other errors in one line.
fn finish(checked: Result<(), String>, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    if let Err(wrong) = checked {
        Cli::command().error(ErrorKind::ValueValidation, wrong).exit();
    }
    let Err(error) = run() else { return Ok(ExitCode::SUCCESS) };
    // Only the message and its causes are printed: the location in the source does not help the user.
    writeln!(std::io::stderr(), "error: {}", join_causes(&error))?;
    Ok(ExitCode::FAILURE)
}

/// Joins an error and its causes. A cause that is already part of the text is not repeated.
fn join_causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        _ if said.contains(&cause) => said,
        _ => format!("{said}: {cause}"),
    })
}

fn start(config: &Config) -> anyhow::Result<()> {
    config.check().map_err(anyhow::Error::msg)?;
    logs::start(&config.log, config.log_format)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(config));
    // A fit of a network in progress is not needed any more.
    runtime.shutdown_background();
    served
}

async fn serve(config: &Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let app = App::open(config, Clock::system()).await?;
    // The only line on standard output, for scripts that start the service with port 0.
    writeln!(std::io::stdout(), "listening on {}", app.url())?;
    app.serve(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
    .await
}
