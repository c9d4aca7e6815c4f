//! The agent as a process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::client::Client;
use crate::predictor::without_settings;
use crate::process::Process;

/// `evenstep-agent` with the shortest intervals for sampling and sending.
#[derive(Debug)]
pub struct Agent {
    /// The process.
    pub process: Process,
    /// Boot id, which identifies this life of the agent.
    pub boot_id: String,
    /// Client of the agent's own pages.
    pub client: Client,
    /// Address for scrapers on other machines, if it has one.
    pub metrics: Option<SocketAddr>,
}

impl Agent {
    /// Starts `binary` as the agent of `node`, and waits until it listens.
    pub fn start(binary: &Path, node: &str, server: &str, spool: &Path) -> Self {
        Self::start_with(binary, node, server, spool, &[])
    }

    /// Starts `binary` with these flags as the agent of `node`, and waits until it listens.
    pub fn start_with(binary: &Path, node: &str, server: &str, spool: &Path, flags: &[String]) -> Self {
        Self::start_in(binary, node, server, spool, flags, &[])
    }

    /// Starts `binary` with these flags and environment variables as the agent of `node`, and waits until it listens.
    pub fn start_in(
        binary: &Path,
        node: &str,
        server: &str,
        spool: &Path,
        flags: &[String],
        environment: &[(&str, &Path)],
    ) -> Self {
        let mut command = Command::new(binary);
        command.args(["--listen=127.0.0.1:0", "--interval=20ms", "--log=warn"]);
        command.args([format!("--server={server}"), format!("--node={node}")]);
        command.arg("--spool-dir").arg(spool).args(flags);
        let process = Process::start(without_settings(&mut command).envs(environment.iter().copied()));
        let ready = |line: &str| {
            serde_json::from_str::<Value>(line).ok().filter(|line| line["listening"].is_string())
        };
        let line = process.line("its address", ready);
        let said = |name: &str| line[name].as_str()?.parse().ok();
        let address: SocketAddr = said("listening").expect("an address");
        let boot_id = line["boot_id"].as_str().expect("a boot id").to_owned();
        let client = Client::new(&format!("http://{address}"));
        Self { process, boot_id, client, metrics: said("metrics") }
    }

    /// Returns the agent's counters.
    pub fn status(&self) -> Value {
        self.client.get("/status").json()
    }
}
