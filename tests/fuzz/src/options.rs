//! TOML files of options.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::{arbitrary, damaged};

/// The value of the secret option in [`files_of_options`].
pub const SECRET: &str = "secret-secret";
const QUOTED_SECRET: &str = "\"secret-secret\"";
const VALUES: [&str; 33] = [
    "0",
    "-1",
    "1",
    "1.5",
    "inf",
    "nan",
    "65536",
    "9223372036854775807",
    "18446744073709551616",
    "true",
    "[]",
    "[1]",
    "[-1, 4294967296]",
    "{}",
    "1979-05-27",
    "\"\"",
    "\"1s\"",
    "\"60s\"",
    "\"1000y\"",
    "\"99999999999999999999y\"",
    "\"1ms 1ms\"",
    "\"1MiB\"",
    "\"1e9GiB\"",
    "\"127.0.0.1:0\"",
    "\"[::]:99999\"",
    "\"http://a\"",
    "\"http://a:1,\"",
    "\"off\"",
    "\"json\"",
    "\"--\"",
    "\"\\u0000\"",
    "\"/\"",
    QUOTED_SECRET,
];

/// Files with any of these options and any values, with damage, and arbitrary bytes. Only the option `secret` has the value
/// [`SECRET`], also in a table of another key.
pub fn files_of_options(mut keys: Vec<String>, secret: &'static str) -> impl Strategy<Value = Vec<u8>> {
    keys.push("x".to_owned());
    let whole = keys.iter().map(|key| format!("{key} = \"1s\"\n")).collect::<String>().into_bytes();
    let line = (select(keys), select(VALUES.to_vec())).prop_map(move |(key, value)| match value {
        QUOTED_SECRET => format!("{secret} = {value}\n"),
        "{}" => format!("{key} = {{ {secret} = {QUOTED_SECRET} }}\n"),
        value => format!("{key} = {value}\n"),
    });
    let text = vec(line, 0..8).prop_map(|lines| lines.concat().into_bytes());
    prop_oneof![1 => arbitrary(), 2 => damaged(vec![whole]), 6 => text]
}
