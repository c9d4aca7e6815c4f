use clap::FromArgMatches;
use evenstep_protocol::DEFAULT_SERVER;

use super::*;

/// Parses the arguments of `launch` with two workers and `extra`.
pub(in crate::launch) fn parse_launch(extra: &[&str]) -> clap::error::Result<LaunchArgs> {
    let arguments = ["launch", "--workers=2"].iter().chain(extra);
    let matches = LaunchArgs::augment_args(clap::Command::new("launch")).try_get_matches_from(arguments)?;
    LaunchArgs::from_arg_matches(&matches)
}

fn train(extra: &[&str]) -> TrainArgs {
    parse_launch(extra).unwrap().train
}

#[test]
fn a_list_of_servers_is_checked() {
    assert_eq!(train(&[]).options.server.to_string(), DEFAULT_SERVER);
    assert_eq!(
        train(&["--server", "http://a:1/,http://b:1"]).options.server.to_string(),
        "http://a:1,http://b:1"
    );
    let told = parse_launch(&["--server=http://a:1,b:1"]).unwrap_err().to_string();
    assert!(told.contains("--server") && told.contains("\"b:1\": must be like http://host:port"), "{told}");
}

#[test]
fn rules_between_values_are_checked() {
    assert_eq!(train(&[]).check(2), Ok(()));
    for (extra, word) in [
        (&["--policy", "even,even"] as &[&str], "--policy"),
        (&["--quantum", "7"], "--quantum"),
        (&["--global-batch", "1"], "--global-batch"),
        (&["--per-worker-batch", "300", "--quantum", "7"], "--global-batch"),
        (&["--per-worker-batch", "300", "--global-batch", "14", "--quantum", "7"], "--per-worker-batch"),
        (&["--per-worker-batch", "9000000"], "--per-worker-batch"),
        (&["--per-worker-batch", "64", "--global-batch", "1", "--rule", "sqrt"], ""),
        (&["--tail", "0"], "--tail"),
        (&["--tail", "0.5"], "--policy even"),
        (&["--tail", "1.01", "--policy", "even"], "--tail"),
        (&["--tail", "1", "--policy", "evenstep,even"], ""),
        (&["--pace", "1,2,3"], "--pace"),
        (&["--pace", "1,0"], "--pace"),
        (&["--pace", "1,2", "--vary-pace"], ""),
        (&["--policy", "even,base,evenstep"], ""),
        (&["--lr", "NaN"], "--lr"),
        (&["--min-workers", "2"], "--elastic"),
        (&["--elastic", "--min-workers", "2"], ""),
        (&["--elastic", "--min-workers", "3"], "--min-workers"),
        (&["--elastic", "--policy", "even,evenstep"], "--policy"),
        (&["--elastic", "--record", "run.csv"], ".csv"),
    ] {
        let checked = train(extra).check(2);
        if word.is_empty() {
            assert_eq!(checked, Ok(()), "{extra:?}");
        } else {
            assert!(checked.unwrap_err().to_string().contains(word), "{extra:?}");
        }
    }
}
