//! The command line: sources of the configuration, and error messages.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use evenstep_tests::predictor::without_settings;
use evenstep_tests::process::Process;
use tempfile::TempDir;

use crate::support::BINARY;

/// A `serve` command with these arguments, in a folder, without settings from the test's environment.
fn serve(folder: &TempDir, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(BINARY);
    without_settings(&mut command).arg("serve").args(arguments);
    command.current_dir(folder.path()).envs(settings.iter().copied());
    command
}

/// Checks that the command fails and names `named`.
pub fn refused(folder: &TempDir, arguments: &[&str], settings: &[(&str, &str)], named: &str) {
    let mut process = Process::start(&mut serve(folder, arguments, settings));
    let status = process.wait();
    let said = process.output();
    assert!(!status.success(), "{arguments:?} {settings:?}: {said}");
    assert!(said.contains(named), "{arguments:?} {settings:?} must name {named}: {said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// Checks that the service listens, and returns its process.
fn accepted(folder: &TempDir, arguments: &[&str], settings: &[(&str, &str)]) -> Process {
    let process = Process::start(&mut serve(folder, arguments, settings));
    process.line("its address", |line| line.starts_with("listening on http://127.0.0.1:").then_some(()));
    process
}

fn exists(folder: &TempDir, file: &str) -> bool {
    folder.path().join(file).exists()
}

#[test]
fn flags_go_over_the_environment_over_the_file_over_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let any_port = "listen = \"127.0.0.1:0\"\nlog = \"error\"\n";
    fs::write(folder.path().join("own.toml"), format!("{any_port}store = \"sqlite://file.db\"\n")).unwrap();
    fs::write(folder.path().join("bare.toml"), any_port).unwrap();
    let file = ("EVENSTEP_CONFIG", "own.toml");
    let environment = ("EVENSTEP_STORE", "sqlite://environment.db");

    drop(accepted(&folder, &["--config=own.toml", "--store=sqlite://flag.db"], &[environment]));
    assert!(exists(&folder, "flag.db") && !exists(&folder, "environment.db") && !exists(&folder, "file.db"));
    drop(accepted(&folder, &[], &[file, environment]));
    assert!(exists(&folder, "environment.db") && !exists(&folder, "file.db"));
    drop(accepted(&folder, &[], &[file]));
    assert!(exists(&folder, "file.db") && !exists(&folder, "evenstep.db"));
    drop(accepted(&folder, &["--config=bare.toml"], &[]));
    assert!(exists(&folder, "evenstep.db"));
    // A variable of another program of evenstep is ignored.
    drop(accepted(&folder, &["--config=bare.toml"], &[("EVENSTEP_SERVER", "http://127.0.0.1:1")]));
}

#[test]
fn invalid_options_are_named_and_end_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("unknown.toml", "lisen = \"127.0.0.1:0\"\n");
    write("type.toml", "listen = 7\n");
    write("broken.toml", "listen = \n");
    write("twice.toml", "operator_token = \"12345678\"\noperator_token = \"12345678\"\n");
    write("text.db", &"this is no database ".repeat(100));
    fs::create_dir(folder.path().join("a-folder")).unwrap();
    refused(&folder, &["--config=unknown.toml"], &[], "lisen");
    refused(&folder, &["--config=type.toml"], &[], "type.toml: listen 7: must be text");
    refused(&folder, &["--config=broken.toml"], &[], "broken.toml");
    refused(&folder, &["--config=twice.toml"], &[], "twice.toml: line 2: duplicate key `operator_token`");
    refused(&folder, &["--config=nowhere.toml"], &[], "nowhere.toml");
    refused(
        &folder,
        &["--listen=here"],
        &[("EVENSTEP_LISTEN", "there")],
        "--listen \"here\" must be an address",
    );
    refused(&folder, &[], &[("EVENSTEP_LISTEN", "there")], "EVENSTEP_LISTEN \"there\" must be an address");
    refused(
        &folder,
        &["--config=type.toml"],
        &[("EVENSTEP_REPORTS", "")],
        "EVENSTEP_REPORTS \"\": must not be",
    );
    refused(&folder, &["--listen=192.0.2.1:0"], &[], "192.0.2.1");
    let store = |address: &str, named: &str| {
        refused(&folder, &["--listen=127.0.0.1:0", &format!("--store={address}")], &[], named);
    };
    store("redis://host", "sqlite://FILE");
    store("evenstep.db", "sqlite://FILE");
    store("sqlite://", "sqlite://FILE");
    store("sqlite://text.db", "text.db");
    store("sqlite://a-folder", "a-folder");
    store("sqlite://no/such/folder.db", "no/such/folder.db");
    refused(&folder, &["--listen=127.0.0.1:0", "--log=loud=1=2"], &[], "loud");
    refused(&folder, &["--listen=127.0.0.1:0", "--log-format=xml"], &[], "xml");
    refused(&folder, &["--port=1"], &[], "--port");
}

#[test]
fn a_wrong_token_is_refused_and_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    for token in ["tiny-7", "with a space", "\u{fc}mlauts-are-none"] {
        let mut process = Process::start(&mut serve(
            &folder,
            &["--listen=127.0.0.1:0"],
            &[("EVENSTEP_OPERATOR_TOKEN", token)],
        ));
        assert!(!process.wait().success());
        let said = process.output();
        assert!(
            said.to_lowercase().contains("operator_token")
                && said.contains("8 to 256")
                && !said.contains(token),
            "{said}"
        );
    }
}

#[test]
fn logs_are_text_json_or_logfmt() {
    let folder = tempfile::tempdir().unwrap();
    for (format, begins, says) in [
        ("text", "20", "INFO evenstep_predictor::app: listening address=127.0.0.1:"),
        ("json", "{\"timestamp\":\"20", "\"message\":\"listening\",\"address\":\"127.0.0.1:"),
        ("logfmt", "ts=20", "level=info target=evenstep_predictor::app message=listening address=127.0.0.1:"),
    ] {
        let mut process =
            accepted(&folder, &["--listen=127.0.0.1:0", &format!("--log-format={format}")], &[]);
        process.terminate();
        assert!(process.wait().success());
        let said = process.output();
        let line =
            said.lines().find(|line| line.contains(says)).unwrap_or_else(|| panic!("{format}: {said}"));
        assert!(line.starts_with(begins), "{format}: {line}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&folder, &[&format!("--listen={address}")], &[], &address);
}

#[test]
fn a_store_of_a_later_schema_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    drop(accepted(&folder, &["--listen=127.0.0.1:0"], &[]));
    let store = folder.path().join("evenstep.db");
    let mark = "INSERT INTO _sqlx_migrations VALUES (9999, 'later', '2030-01-01', 1, x'00', 0)";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use sqlx::{ConnectOptions, Connection};
        let mut connection =
            sqlx::sqlite::SqliteConnectOptions::new().filename(&store).connect().await.unwrap();
        sqlx::query(mark).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
    refused(&folder, &["--listen=127.0.0.1:0"], &[], "9999");
}

#[test]
fn help_and_version_are_printed() {
    let run = |arguments: &[&str]| -> Output {
        let output = Command::new(Path::new(BINARY)).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    };
    let help = String::from_utf8(run(&["serve", "--help"]).stdout).unwrap();
    for flag in
        ["--config", "--listen", "--store", "--log", "--log-format", "EVENSTEP_STORE", "127.0.0.1:7117"]
    {
        assert!(help.contains(flag), "{flag}: {help}");
    }
    let version = String::from_utf8(run(&["--version"]).stdout).unwrap();
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}
