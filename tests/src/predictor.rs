//! The predictor as a process.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::Client;
use crate::process::Process;
use crate::store::sqlite_address;

/// `evenstep-predictor serve` on a free port, over a store that outlives it.
#[derive(Debug)]
pub struct Predictor {
    binary: PathBuf,
    store: String,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    /// The process.
    pub process: Process,
    /// URL at which it listens.
    pub url: String,
}

impl Predictor {
    /// Starts `binary` over the SQLite file in `folder`, and waits until it listens.
    pub fn start(binary: &Path, folder: &Path) -> Self {
        Self::start_over(binary, &sqlite_address(folder), &[])
    }

    /// Starts `binary` over the store at `address` with these flags, and waits until it listens.
    pub fn start_over(binary: &Path, address: &str, flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let (process, url) = serve(binary, address, &flags, &[]);
        let (binary, store) = (binary.to_owned(), address.to_owned());
        Self { binary, store, flags, environment: Vec::new(), process, url }
    }

    /// Sets an environment variable, from the next start on.
    pub fn set_environment(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Returns a client with separate connections, which repeats requests while the job is being loaded.
    pub fn client(&self) -> Client {
        Client::new(&self.url).while_loading()
    }

    /// Starts the predictor again, on another port, with the same store.
    pub fn restart(&mut self) {
        (self.process, self.url) = serve(&self.binary, &self.store, &self.flags, &self.environment);
    }

    /// Starts the predictor with the same store and kills it after `meanwhile`, most likely before it
    /// listens.
    pub fn start_and_kill(&mut self, meanwhile: impl FnOnce()) {
        self.process = launch(&self.binary, &self.store, &self.flags, &self.environment);
        meanwhile();
        self.process.kill();
    }

    /// Kills the predictor with `kill -9` and starts it again with the same store.
    pub fn kill_and_restart(&mut self) {
        self.process.kill();
        self.restart();
    }
}

fn serve(
    binary: &Path,
    store: &str,
    flags: &[String],
    environment: &[(String, String)],
) -> (Process, String) {
    let process = launch(binary, store, flags, environment);
    let url = process.line("its address", |line| Some(line.strip_prefix("listening on ")?.to_owned()));
    (process, url)
}

fn launch(binary: &Path, store: &str, flags: &[String], environment: &[(String, String)]) -> Process {
    let mut command = Command::new(binary);
    command.args(["serve", "--listen=127.0.0.1:0", "--log=warn"]);
    command.arg(format!("--store={store}")).args(flags);
    Process::start(without_settings(&mut command).envs(environment.iter().map(|(name, value)| (name, value))))
}

/// Removes environment variables that evenstep's programs would read.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENSTEP_") {
            command.env_remove(name);
        }
    }
    command
}
