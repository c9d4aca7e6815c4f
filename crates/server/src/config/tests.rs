use clap::CommandFactory;

use super::*;

#[derive(Debug, PartialEq, Parser)]
struct Options {
    #[arg(long, env = "EVENSTEP_SERVER_TESTS_CONFIG")]
    config: Option<PathBuf>,
    #[arg(long, env = "EVENSTEP_SERVER_TESTS_PORT", default_value = "7")]
    port: u32,
    #[arg(long, env = "EVENSTEP_SERVER_TESTS_TIME", default_value = "1s", value_parser = time)]
    time: std::time::Duration,
    #[arg(long, env = "EVENSTEP_SERVER_TESTS_IS_OPEN")]
    is_open: bool,
    #[arg(long = "name", env = "EVENSTEP_SERVER_TESTS_NAMES", value_delimiter = ',')]
    names: Vec<String>,
    #[arg(long, env = "EVENSTEP_SERVER_TESTS_TOKEN", value_parser = token)]
    token: Option<Secret>,
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Parser)]
enum Program {
    Serve(Options),
    Other {
        #[arg(long)]
        config: String,
    },
}

fn time(text: &str) -> Result<std::time::Duration, String> {
    duration(text).ok_or_else(|| format!("{text:?} must be a duration"))
}

fn token(text: &str) -> Result<Secret, String> {
    if text.len() < 8 { Err("must be longer".to_owned()) } else { Ok(Secret::new(text)) }
}

/// Parses flags, with a file of this text.
fn parsed(toml: &str, flags: &[&str]) -> Result<Options, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), toml).unwrap();
    let config = format!("--config={}", file.path().display());
    let parsed = parse(None, ["program", &config].iter().chain(flags));
    parsed.map_err(|error| error.to_string().replace(&file.path().display().to_string(), "FILE"))
}

#[test]
fn a_file_has_the_values_that_flags_do_not_have() {
    let options =
        parsed("port = 8\ntime = \"2m\"\nis_open = true\nnames = [\"a\", \"b\"]", &["--time=3s"]).unwrap();
    assert_eq!((options.port, options.time.as_secs(), options.is_open), (8, 3, true));
    assert_eq!(options.names, ["a", "b"]);
    let options = parsed("is_open = false\nnames = \"a,b\"", &["--name=c"]).unwrap();
    assert_eq!((options.port, options.is_open, options.names), (7, false, vec!["c".to_owned()]));
    assert_eq!(parsed("names = \"a,b\"", &[]).unwrap().names, ["a", "b"]);
    let options = parsed("", &[]).unwrap();
    assert_eq!(Options { config: None, ..options }, defaults().unwrap());
}

#[test]
fn a_wrong_value_of_a_file_is_named() {
    for (toml, said) in [
        ("port = -1", "FILE: port \"-1\": "),
        ("port = \"8\"", "FILE: port \"8\": must be a number"),
        ("time = \"soon\"", "FILE: time \"soon\" must be a duration\n"),
        ("time = 7", "FILE: time 7: must be text, in quotation marks"),
        ("is_open = 1", "FILE: is_open 1: must be true or false"),
        ("names = [7]", "FILE: names 7: must be text"),
        ("token = \"secret\"", "FILE: token must be longer\n"),
        ("token = 123456", "FILE: token must be text, in quotation marks\n"),
        ("port = 8\ntoken = \"secret", "FILE: line 2: invalid basic string"),
        ("[port]\ntoken = \"secret\"", "FILE: port must be a number\n"),
        ("time = { token = \"secret\" }", "FILE: time must be text, in quotation marks\n"),
        ("names = [[\"secret\"]]", "FILE: names must be text, in quotation marks\n"),
        ("time = 1979-05-27", "FILE: time must be text, in quotation marks\n"),
        ("ports = 8", "FILE: ports: unknown key; keys are port, time, is_open, names, token\n"),
        ("config = \"other.toml\"", "FILE: config: unknown key"),
        ("once = true", "FILE: once: unknown key"),
    ] {
        let error = parsed(toml, &[]).unwrap_err();
        assert!(error.starts_with(&format!("error: configuration: {said}")), "{toml}: {error}");
        assert!(!error.contains("secret") && !error.contains("123456"), "{error}");
    }
    let error = parse::<Options>(None, ["program", "--config=no/such.toml"]).unwrap_err().to_string();
    assert!(error.contains("--config no/such.toml: cannot be read: "), "{error}");
}

/// Values of the file are not among the arguments after `--`, which errors repeat.
#[test]
fn arguments_may_end_with_two_dashes() {
    let options = parsed("port = 8\ntoken = \"secret-secret\"", &["--time=3s", "--"]).unwrap();
    assert_eq!((options.port, options.token), (8, Some(Secret::new("secret-secret"))));
    let error = parsed("token = \"secret-secret\"", &["--", "more"]).unwrap_err();
    assert!(error.contains("more") && !error.contains("secret"), "{error}");
}

#[test]
fn help_shows_no_values_of_variables() {
    fn shown(command: &Command) -> bool {
        command.get_arguments().any(|arg| arg.get_env().is_some() && !arg.is_hide_env_values_set())
            || command.get_subcommands().any(shown)
    }
    let program = Command::new("program").subcommand(Command::new("store").subcommand(Options::command()));
    assert!(shown(&program) && !shown(&without_values_of_variables(program)));
}

#[test]
fn a_wrong_flag_is_named() {
    for (flag, said) in [
        ("--port=x", "configuration: --port \"x\": invalid digit"),
        ("--time=soon", "configuration: --time \"soon\" must be a duration\n"),
        ("--token=secret", "configuration: --token must be longer\n"),
        ("--config=", "configuration: --config \"\": must not be empty\n"),
        ("--ports=1", "unexpected argument '--ports'"),
    ] {
        let error = parse::<Options>(None, ["program", flag]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("error: {said}")), "{flag}: {error}");
    }
}

#[test]
fn a_value_without_a_flag_is_in_the_variable() {
    let options = Options::command();
    let arg = options.get_arguments().find(|arg| arg.get_id() == "names").unwrap();
    let place = |arguments: &[&str]| place(arg, &arguments.iter().map(OsString::from).collect::<Vec<_>>());
    assert_eq!(place(&["--name", "a"]), "--name");
    assert_eq!(place(&["--name=a"]), "--name");
    assert_eq!(place(&["--names=a", "name"]), "EVENSTEP_SERVER_TESTS_NAMES");
}

#[test]
fn only_the_named_subcommand_has_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "port = 8").unwrap();
    let config = format!("--config={}", file.path().display());
    let of = |name: &str| parse::<Program>(Some("serve"), ["program", name, &config]).unwrap();
    assert!(matches!(of("serve"), Program::Serve(Options { port: 8, .. })));
    assert!(matches!(of("other"), Program::Other { config } if config == file.path().display().to_string()));
    assert!(parse::<Program>(Some("serve"), ["program"]).is_err());
}

#[test]
fn nothing_shows_a_secret() {
    assert_eq!(format!("{:?}", Secret::new("hidden")), "Secret(..)");
}
