//! Lists in the configuration.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a list, or a text with commas")]
enum List {
    Text(String),
    Items(Vec<String>),
}

/// Reads a list, or a text with commas as in flags and variables.
pub fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let items = match List::deserialize(deserializer)? {
        List::Text(text) => text.split(',').map(|item| item.trim().to_owned()).collect(),
        List::Items(items) => items,
    };
    items.iter().map(|item| item.parse().map_err(D::Error::custom)).collect()
}
