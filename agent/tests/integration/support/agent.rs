use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use evenstep_tests::wait::until_or;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Timeout, longer than any healthy test waits.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The real agent as a process, sampling and sending at the highest rate.
pub struct Agent {
    child: Child,
    pub listening: SocketAddr,
    /// Address of the metrics listener, if configured.
    pub metrics: Option<SocketAddr>,
    pub boot_id: String,
}

impl Agent {
    pub fn start(server: &str, spool: &Path, more: &[&str]) -> Self {
        Self::run(Self::command(server, spool).args(more))
    }

    /// Returns the command of an agent, for further arguments and variables.
    pub fn command(server: &str, spool: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenstep-agent"));
        command
            .args(["--server", server, "--listen", "127.0.0.1:0", "--node", "node-a"])
            .args(["--interval", "20ms", "--spool-dir"])
            .arg(spool);
        command
    }

    /// Starts a command and waits until the agent is ready.
    pub fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let text = |name: &str| ready[name].as_str().unwrap().to_owned();
        let metrics = ready["metrics"].as_str().map(|address| address.parse().unwrap());
        Self { child, listening: text("listening").parse().unwrap(), metrics, boot_id: text("boot_id") }
    }

    /// Returns the status and JSON of a path of the local HTTP API.
    pub fn get(&self, path: &str) -> (u16, Value) {
        self.get_from(self.listening, path)
    }

    /// Returns the status and JSON of a path at one of the agent's addresses.
    pub fn get_from(&self, address: SocketAddr, path: &str) -> (u16, Value) {
        let client: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .build()
            .into();
        let mut answer = client.get(format!("http://{address}{path}")).call().unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Returns the metrics by series.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        let lines = text.as_str().unwrap().lines().filter(|line| !line.starts_with('#'));
        let series = lines.map(|line| line.rsplit_once(' ').unwrap());
        series.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    }

    pub fn status(&self) -> Value {
        self.get("/status").1
    }

    /// Polls the status until `done` accepts it.
    pub fn wait_until(&self, what: &str, done: impl Fn(&Value) -> bool) -> Value {
        let state = || format!("status: {:#}", self.status());
        until_or(what, state, || Some(self.status()).filter(&done))
    }

    pub fn terminate(mut self) -> ExitStatus {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap()
    }

    /// Ends the agent with SIGTERM, and returns its status and what it wrote to standard error, which must be
    /// piped.
    pub fn terminate_and_read(mut self) -> (ExitStatus, String) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    /// Ends the agent with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
