//! Options of a program, each written once, as an argument of its [`Parser`].
//!
//! A value comes from the first of these that has one: the flag, the variable of the argument, the TOML file that `--config`
//! names, the default. The keys of the file are the ids of all arguments that have a variable, except `config`. Numbers and
//! flags are numbers and `true` or `false` in the file; everything else is text, and several values are a list.
//!
//! An error names the place, the value and the rule. It never shows a [`Secret`].

mod amount;
#[cfg(test)]
mod tests;

use std::any::TypeId;
use std::error::Error as _;
use std::ffi::OsString;
use std::path::PathBuf;
use std::{fmt, fs};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Error, Parser};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

pub use amount::{at_least_1, duration};

/// Text that no log, error or help shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret of this text.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Parses the command line of a program, or of its subcommand with this name. Other subcommands have no file. The argument
/// `config` must be a [`PathBuf`].
///
/// # Errors
/// Help, or an error that names the flag, the variable, or the file and its key.
pub fn parse<T: Parser>(
    subcommand: Option<&str>,
    arguments: impl IntoIterator<Item = impl Into<OsString>>,
) -> Result<T, Error> {
    let arguments = arguments.into_iter().map(Into::into).collect::<Vec<_>>();
    let mut command = without_values_of_variables(T::command());
    command.build();
    let options = subcommand.map_or(Some(&command), |name| command.find_subcommand(name)).cloned();
    let options =
        options.filter(|_| subcommand.is_none_or(|name| arguments.get(1).is_some_and(|word| word == name)));
    let Some(options) = options else {
        return T::from_arg_matches(&command.try_get_matches_from(arguments)?);
    };
    let matches = command.try_get_matches_from_mut(&arguments);
    let matches = matches.map_err(|error| in_words(error, &options, |arg| place(arg, &arguments)))?;
    let given = subcommand.and_then(|name| matches.subcommand_matches(name)).unwrap_or(&matches);
    let Some(path) = given.get_one::<PathBuf>("config") else { return T::from_arg_matches(&matches) };
    let file = path.display();
    let text = fs::read_to_string(path).map_err(|error| {
        let named = options.get_arguments().find(|arg| *arg.get_id() == "config");
        let named = named.map_or_else(String::new, |arg| place(arg, &arguments));
        invalid(&format!("{named} {file}: cannot be read: {error}"))
    })?;
    let flags = flags_of_file(&text, &options, given).map_err(|rule| invalid(&format!("{file}: {rule}")))?;
    // Before the flags of the command line, which may end with `--`.
    let mut arguments = arguments;
    let first = if subcommand.is_some() { 2 } else { 1 };
    arguments.splice(first..first, flags);
    let matches = command.try_get_matches_from(arguments);
    let in_words = |error| in_words(error, &options, |arg| format!("{file}: {}", arg.get_id()));
    T::from_arg_matches(&matches.map_err(in_words)?)
}

/// The default of each option, without flags, variables and file.
///
/// # Errors
/// If an option has no default.
pub fn defaults<T: Parser>() -> Result<T, Error> {
    let command = T::command().mut_args(|arg| arg.env(None::<&'static str>));
    T::from_arg_matches(&command.try_get_matches_from([""])?)
}

/// Parses TOML.
///
/// # Errors
/// The line and the rule. The error of the parser itself would show the whole line, which may have a secret.
pub fn parse_toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        format!("line {line}: {}", error.message().trim().replace('\n', ", "))
    })
}

/// The command, with help that does not show the values of this environment.
fn without_values_of_variables(command: Command) -> Command {
    command.mut_args(|arg| arg.hide_env_values(true)).mut_subcommands(without_values_of_variables)
}

/// The values of a file, as flags: of all options that have neither a flag nor a variable.
fn flags_of_file(text: &str, options: &Command, given: &ArgMatches) -> Result<Vec<OsString>, String> {
    let mut flags = Vec::new();
    for (key, value) in parse_toml::<Table>(text)? {
        let arg = options.get_arguments().find(|arg| is_key(arg) && *arg.get_id() == *key);
        let arg = arg.ok_or_else(|| format!("{key}: unknown key; keys are {}", keys(options).join(", ")))?;
        let values = match value {
            Value::Array(values) if matches!(arg.get_action(), ArgAction::Append) => values,
            value => vec![value],
        };
        for value in values {
            // A table may have a secret.
            let is_shown = !(is_secret(arg) || value.is_table() || value.is_array() || value.is_datetime());
            let flag = flag_of_value(arg, &value).map_err(|rule| match is_shown {
                true => format!("{key} {value}: {rule}"),
                false => format!("{key} {rule}"),
            })?;
            let is_set =
                matches!(given.value_source(&key), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
            flags.extend(flag.filter(|_| !is_set).map(OsString::from));
        }
    }
    Ok(flags)
}

/// Whether a file may set this option.
fn is_key(arg: &Arg) -> bool {
    arg.get_env().is_some() && arg.get_id() != "config"
}

fn keys(options: &Command) -> Vec<&str> {
    options.get_arguments().filter(|arg| is_key(arg)).map(|arg| arg.get_id().as_str()).collect()
}

/// The flag that sets a value; `None` for `false`.
fn flag_of_value(arg: &Arg, value: &Value) -> Result<Option<String>, &'static str> {
    let flag = format!("--{}", arg.get_long().unwrap_or_default());
    if !arg.get_action().takes_values() {
        return value.as_bool().map(|is_set| is_set.then_some(flag)).ok_or("must be true or false");
    }
    let numbers = [TypeId::of::<u32>(), TypeId::of::<u64>(), TypeId::of::<usize>(), TypeId::of::<f64>()];
    let is_number = numbers.iter().any(|number| arg.get_value_parser().type_id() == *number);
    match value {
        Value::Integer(_) | Value::Float(_) if is_number => Ok(Some(format!("{flag}={value}"))),
        _ if is_number => Err("must be a number"),
        Value::String(text) => Ok(Some(format!("{flag}={text}"))),
        _ => Err("must be text, in quotation marks"),
    }
}

/// The flag of an argument if it is among `arguments`, else its variable.
fn place(arg: &Arg, arguments: &[OsString]) -> String {
    let flag = format!("--{}", arg.get_long().unwrap_or_default());
    let is_flag = |argument: &OsString| {
        let argument = argument.to_string_lossy();
        argument.strip_prefix(&flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    match arg.get_env() {
        Some(variable) if !arguments.iter().any(is_flag) => variable.to_string_lossy().into_owned(),
        _ => flag,
    }
}

/// An error of a value with its place. Other errors are clap's.
fn in_words(error: Error, options: &Command, place: impl Fn(&Arg) -> String) -> Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let is_value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    let shown = text(ContextKind::InvalidArg).filter(|_| is_value);
    let long = shown.and_then(|shown| shown.strip_prefix("--")?.split([' ', '=']).next());
    let arg = options.get_arguments().find(|arg| long.is_some() && arg.get_long() == long);
    let (Some(arg), Some(value)) = (arg, text(ContextKind::InvalidValue)) else { return error };
    let rule = match (error.source(), error.get(ContextKind::ValidValue)) {
        (Some(rule), _) => rule.to_string(),
        (None, Some(ContextValue::Strings(values))) if !values.is_empty() => {
            format!("must be {}", values.join(" or "))
        }
        _ => "must not be empty".to_owned(),
    };
    let (place, value) = (place(arg), format!("{value:?}"));
    match is_secret(arg) || rule.starts_with('"') || rule.contains(&value) {
        true => invalid(&format!("{place} {rule}")),
        false => invalid(&format!("{place} {value}: {rule}")),
    }
}

fn is_secret(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<Secret>()
}

fn invalid(message: &str) -> Error {
    Error::raw(ErrorKind::ValueValidation, format!("configuration: {message}\n"))
}
