//! JSON texts with random changes of single values and fields. Unlike changes of bytes, most results are still JSON, so they
//! reach the checks behind the parser.

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Maximum number of changes to a text.
const CHANGES_MAX: usize = 5;
/// Lengths of long strings and depths of nested arrays.
const LONG: [usize; 4] = [40, 129, 300, 20_000];

/// Values at the borders of types and rules, and values that are not JSON.
const VALUES: [&str; 48] = [
    "0",
    "-0",
    "-1",
    "1",
    "2",
    "3",
    "0.5",
    "1.5",
    "-0.0",
    "1e-323",
    "1e-308",
    "1e-30",
    "1e-9",
    "1e9",
    "1e30",
    "1e154",
    "1e308",
    "1.7976931348623157e308",
    "1e309",
    "-1e308",
    "255",
    "65536",
    "65537",
    "1000001",
    "2147483648",
    "2147483649",
    "4294967296",
    "9007199254740991",
    "9007199254740992",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "null",
    "true",
    "false",
    "\"\"",
    "[]",
    "{}",
    "[1]",
    r#""\u0000""#,
    r#""\ud800""#,
    r#""ü""#,
    r#""1->2""#,
    "NaN",
    "Infinity",
    "",
];

/// A change of a text.
#[derive(Debug, Clone)]
enum Change {
    /// Replaces a value.
    Value(Index, String),
    /// Replaces a value by a copy of another one.
    Copy(Index, Index),
    /// Encloses a value in arrays.
    Nest(Index, usize),
    /// Removes a field or an element.
    Remove(Index),
    /// Repeats a field or an element.
    Repeat(Index),
    /// Renames a field.
    Rename(Index, String),
}

/// Selects a JSON text and makes up to 5 changes of values, fields and elements. New values are at the borders of types and
/// rules, long strings or deep arrays. Fields are missing, unknown or present twice.
pub fn damaged_json(texts: Vec<String>) -> impl Strategy<Value = String> {
    (select(texts), vec(change(), 0..=CHANGES_MAX)).prop_map(|(mut text, changes)| {
        for change in &changes {
            change.apply(&mut text);
        }
        text
    })
}

fn value() -> impl Strategy<Value = String> {
    let long = |(length, name): (usize, bool)| {
        let text = "x".repeat(length);
        if name { format!("{{\"{text}\":1}}") } else { format!("\"{text}\"") }
    };
    prop_oneof![
        8 => select(VALUES.to_vec()).prop_map(str::to_owned),
        2 => any::<u64>().prop_map(|number| number.to_string()),
        2 => any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(|number| format!("{number:e}")),
        1 => "\"[ -~]{0,12}\"".prop_filter("a string", |text| !text[1..text.len() - 1].contains(['"', '\\'])),
        1 => (select(LONG.to_vec()), any::<bool>()).prop_map(long),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (any::<Index>(), value()).prop_map(|(at, value)| Change::Value(at, value)),
        2 => any::<(Index, Index)>().prop_map(|(at, from)| Change::Copy(at, from)),
        1 => (any::<Index>(), select(LONG.to_vec())).prop_map(|(at, depth)| Change::Nest(at, depth)),
        1 => any::<Index>().prop_map(Change::Remove),
        1 => any::<Index>().prop_map(Change::Repeat),
        1 => (any::<Index>(), "[a-z_]{0,9}").prop_map(|(at, name)| Change::Rename(at, name)),
    ]
}

/// Positions in a JSON text.
#[derive(Debug, Default)]
struct Parts {
    values: Vec<Range<usize>>,
    /// Fields, with their names, and elements of arrays.
    members: Vec<Range<usize>>,
    names: Vec<Range<usize>>,
}

impl Change {
    /// Changes the text. Has no effect if the text has no such part.
    fn apply(&self, text: &mut String) {
        let parts = Parts::of(text);
        let pick = |among: &[Range<usize>], at: &Index| {
            (!among.is_empty()).then(|| among[at.index(among.len())].clone())
        };
        let (range, new) = match self {
            Self::Value(at, new) => (pick(&parts.values, at), new.clone()),
            Self::Copy(at, from) => {
                let from = pick(&parts.values, from).map_or("", |from| &text[from]);
                (pick(&parts.values, at), from.to_owned())
            }
            Self::Nest(at, depth) => {
                let range = pick(&parts.values, at);
                let inner = range.clone().map_or("", |range| &text[range]);
                (range, format!("{}{inner}{}", "[".repeat(*depth), "]".repeat(*depth)))
            }
            // Its comma goes with it; the first one of several keeps its comma, which is then not JSON.
            Self::Remove(at) => {
                let range = pick(&parts.members, at);
                let comma = |range: &Range<usize>| usize::from(text[..range.start].ends_with(','));
                (range.map(|range| range.start - comma(&range)..range.end), String::new())
            }
            Self::Repeat(at) => {
                let range = pick(&parts.members, at);
                let member = range.clone().map_or("", |range| &text[range]);
                (range, format!("{member},{member}"))
            }
            Self::Rename(at, name) => (pick(&parts.names, at), format!("\"{name}\"")),
        };
        if let Some(range) = range {
            text.replace_range(range, &new);
        }
    }
}

impl Parts {
    /// Finds the parts of a compact JSON text. Stops at the first byte that is not JSON.
    fn of(text: &str) -> Self {
        let (bytes, mut parts) = (text.as_bytes(), Self::default());
        // The start of each open object or array, and of the member that it is.
        let mut open: Vec<(usize, Option<usize>)> = Vec::new();
        let (mut at, mut member) = (0, None);
        while at < bytes.len() {
            let start = match bytes[at] {
                b'{' | b'[' => {
                    open.push((at, member));
                    at += 1;
                    member = (bytes[at - 1] == b'[').then_some(at);
                    continue;
                }
                b',' => {
                    at += 1;
                    member = open.last().filter(|(start, _)| bytes[*start] == b'[').map(|_| at);
                    continue;
                }
                b'}' | b']' => {
                    let Some((start, outer)) = open.pop() else { break };
                    member = outer;
                    at += 1;
                    start
                }
                _ => {
                    let start = at;
                    at = end_of_scalar(bytes, start);
                    if bytes.get(at) == Some(&b':') {
                        parts.names.push(start..at);
                        member = Some(start);
                        at += 1;
                        continue;
                    }
                    if at == start {
                        break;
                    }
                    start
                }
            };
            parts.values.push(start..at);
            parts.members.extend(member.take().map(|start| start..at));
        }
        parts
    }
}

/// The end of a string, a number or a literal.
fn end_of_scalar(bytes: &[u8], start: usize) -> usize {
    if bytes[start] != b'"' {
        let rest = bytes[start..].iter().take_while(|byte| !b",:{}[]\"".contains(byte));
        return start + rest.count();
    }
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use proptest::strategy::ValueTree;
    use serde_json::Value;

    use super::*;

    const TEXT: &str = r#"{"a":[1,{"b":"x\"y,","c":[]},null],"d":{"e":-1.5}}"#;

    fn texts(ranges: &[Range<usize>]) -> Vec<&str> {
        ranges.iter().map(|range| &TEXT[range.clone()]).collect()
    }

    #[test]
    fn every_value_is_found() {
        let parts = Parts::of(TEXT);
        for value in texts(&parts.values) {
            assert!(serde_json::from_str::<Value>(value).is_ok(), "{value}");
        }
        assert_eq!(parts.values.len(), 9);
        assert_eq!(texts(&parts.names), [r#""a""#, r#""b""#, r#""c""#, r#""d""#, r#""e""#]);
        let members = texts(&parts.members);
        assert_eq!(members[..3], ["1", r#""b":"x\"y,""#, r#""c":[]"#]);
        assert_eq!(members[4..6], ["null", r#""a":[1,{"b":"x\"y,","c":[]},null]"#]);
        assert_eq!(members[6..], [r#""e":-1.5"#, r#""d":{"e":-1.5}"#]);
    }

    #[test]
    fn most_damaged_texts_are_still_json() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = damaged_json(vec![TEXT.to_owned()]);
        let texts = (0..500).map(|_| strategy.new_tree(&mut runner).unwrap().current());
        let count = texts.filter(|text| serde_json::from_str::<Value>(text).is_ok()).count();
        assert!(count > 250, "{count} of 500");
    }
}
