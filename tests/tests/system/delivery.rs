//! Delivery of an agent's samples: none is lost and none is stored twice, despite any failure.

use std::path::Path;

use evenstep_protocol::NodesView;
use evenstep_tests::agent::Agent;
use evenstep_tests::wait::until;
use evenstep_tests::{Gate, Predictor, binaries};
use sqlx::{ConnectOptions, Connection, Row};

/// Returns for each life of the agent the first and the last sequence number, the number of samples, and the
/// number of distinct samples.
async fn sequences(store: &Path) -> Vec<(String, [i64; 4])> {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(store).read_only(true);
    let mut connection = options.connect().await.unwrap();
    let query =
        "SELECT boot_id, MIN(sequence), MAX(sequence), COUNT(*), COUNT(DISTINCT sample) FROM node_sample
                 WHERE node = 'node-a' GROUP BY boot_id ORDER BY MIN(at_unix_ms)";
    let rows = sqlx::query(query).fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    rows.iter().map(|row| (row.get(0), [row.get(1), row.get(2), row.get(3), row.get(4)])).collect()
}

#[test]
fn a_disconnected_and_killed_agent_loses_and_duplicates_no_sample() {
    let name = "delivery::a_disconnected_and_killed_agent_loses_and_duplicates_no_sample";
    let Some(agent) = binaries::find("evenstep-agent", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    let mut predictor = Predictor::start(&predictor, folder.path());
    let gate = Gate::to(&predictor.url);
    let taken = |agent: &Agent| agent.status()["samples_taken"].as_u64().unwrap();
    let takes_on = |agent: &Agent, count: u64| {
        let begun = taken(agent);
        until("the agent samples on", || (taken(agent) >= begun + count).then_some(()));
    };
    let arrive = |predictor: &Predictor, count: u64| {
        until("the samples arrive", || {
            let nodes: NodesView = predictor.client().get("/v1/nodes").json();
            nodes.nodes.iter().any(|node| node.samples >= count).then_some(())
        });
    };

    let mut first = Agent::start(&agent, "node-a", &gate.url(), &spool);
    for round in 1..=3 {
        takes_on(&first, 10);
        gate.cut();
        takes_on(&first, 20);
        if round == 2 {
            predictor.kill_and_restart();
        }
        gate.open(&predictor.url);
        arrive(&predictor, taken(&first));
    }
    gate.cut();
    takes_on(&first, 20);
    let of_first = taken(&first);
    first.process.kill();
    gate.open(&predictor.url);
    let mut second = Agent::start(&agent, "node-a", &gate.url(), &spool);
    takes_on(&second, 10);
    arrive(&predictor, of_first + taken(&second));
    let of_second = taken(&second);
    second.process.terminate();
    assert!(second.process.wait().success(), "{}", second.process.output());
    predictor.process.terminate();
    assert!(predictor.process.wait().success());

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lives = runtime.block_on(sequences(&folder.path().join("evenstep.db")));
    assert_eq!(lives.len(), 2, "{lives:?}");
    for ((boot_id, [first_number, last, count, different]), (agent, taken)) in
        lives.iter().zip([(&first, of_first), (&second, of_second)])
    {
        assert_eq!(*boot_id, agent.boot_id);
        assert_eq!((*first_number, *last), (0, count - 1), "a gap: {lives:?}");
        assert!(*count >= i64::try_from(taken).unwrap(), "{taken} were taken: {lives:?}");
        assert_eq!(different, count, "one sample under two numbers: {lives:?}");
    }
}
