//! Agents and predictors with tokens.

use std::fs;
use std::process::Command;

use evenstep_protocol::NodesView;
use evenstep_tests::agent::Agent;
use evenstep_tests::predictor::without_settings;
use evenstep_tests::wait::until;
use evenstep_tests::{Predictor, binaries, store};

/// Samples wait for a valid token: none is lost or rejected for good.
#[test]
fn an_agent_delivers_when_its_token_file_has_a_valid_token() {
    let name = "tokens::an_agent_delivers_when_its_token_file_has_a_valid_token";
    let Some(agent) = binaries::find("evenstep-agent", name) else { return };
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let address = store::sqlite_address(folder.path());
    let predictor = Predictor::start_over(&binary, &address, &["--auth=required"]);
    let create = |scope: &str| {
        let mut command = Command::new(&binary);
        let options = [format!("--scope={scope}"), format!("--store={address}")];
        let created =
            without_settings(&mut command).args(["token", "create"]).args(options).output().unwrap();
        String::from_utf8(created.stdout).unwrap().trim_end().to_owned()
    };
    let file = folder.path().join("token");
    fs::write(&file, create("viewer")).unwrap();
    let spool = folder.path().join("spool");
    let settings = [("EVENSTEP_TOKEN_FILE", file.as_path())];
    let agent = Agent::start_in(&agent, "node-a", &predictor.url, &spool, &[], &settings);
    until("the predictor rejects the scope", || {
        let failure = agent.status()["uplink"]["last_failure"].as_str()?.to_owned();
        failure.contains("the token has the scope viewer").then_some(())
    });
    fs::write(&file, "revoked").unwrap();
    let viewer = predictor.client().with_token(&create("viewer"));
    assert_eq!(viewer.get("/v1/nodes").json::<NodesView>().nodes.len(), 0);
    fs::write(&file, create("agent")).unwrap();
    until("the samples arrive", || {
        let nodes: NodesView = viewer.get("/v1/nodes").json();
        let uplink = &agent.status()["uplink"];
        (nodes.nodes.first()?.samples > 10 && uplink["last_failure"].is_null()).then_some(())
    });
    assert_eq!(agent.status()["spool"]["rejected_samples"].as_u64().unwrap_or(0), 0);
}
