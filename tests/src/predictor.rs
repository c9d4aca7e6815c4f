//! The predictor as a process.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::Client;
use crate::process::Process;

/// `evenstep-predictor serve` on a free port, over a store that outlives it.
#[derive(Debug)]
pub struct Predictor {
    binary: PathBuf,
    store: PathBuf,
    flags: Vec<String>,
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub url: String,
}

impl Predictor {
    /// Starts `binary` over the store in `folder`, and waits until it listens.
    pub fn start(binary: &Path, folder: &Path) -> Self {
        Self::start_with(binary, folder, &[])
    }

    /// The same, with more flags.
    pub fn start_with(binary: &Path, folder: &Path, flags: &[&str]) -> Self {
        let store = folder.join("evenstep.db");
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let (process, url) = serve(binary, &store, &flags);
        Self { binary: binary.to_owned(), store, flags, process, url }
    }

    /// A client with connections of its own.
    pub fn client(&self) -> Client {
        Client::new(&self.url)
    }

    /// Starts it again, on another port, over the same store.
    pub fn restart(&mut self) {
        (self.process, self.url) = serve(&self.binary, &self.store, &self.flags);
    }

    /// `kill -9`, then a start over what it left behind.
    pub fn kill_and_restart(&mut self) {
        self.process.kill();
        self.restart();
    }
}

fn serve(binary: &Path, store: &Path, flags: &[String]) -> (Process, String) {
    let mut command = Command::new(binary);
    command.args(["serve", "--listen=127.0.0.1:0", "--log=warn"]);
    command.arg(format!("--store=sqlite://{}", store.display())).args(flags);
    let process = Process::start(without_settings(&mut command));
    let url = process.line("where it listens", |line| Some(line.strip_prefix("listening on ")?.to_owned()));
    (process, url)
}

/// Takes away what the surroundings of the test may say to our programs.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENSTEP_") {
            command.env_remove(name);
        }
    }
    command
}
