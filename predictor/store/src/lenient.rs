//! Reads stored JSON: fields that this version does not know are ignored and named.
//!
//! The types of requests refuse unknown fields, because a client must learn that it misspelled an option. A row may have
//! fields of a newer version, which another predictor wrote during a rolling upgrade.

use std::cell::RefCell;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// Reads a JSON text. Also returns the names of the fields that were ignored, at any depth.
///
/// # Errors
/// The text is not JSON, or a known field has an invalid value.
pub(crate) fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<(T, Vec<String>), Error> {
    // Most texts have no unknown field.
    let strict = match serde_json::from_slice(text) {
        Ok(value) => return Ok((value, Vec::new())),
        Err(error) => error,
    };
    let value: Value = serde_json::from_slice(text)?;
    let ignored = RefCell::default();
    let read = T::deserialize(Lenient { value: &value, ignored: &ignored });
    let ignored = ignored.into_inner();
    match read {
        Ok(read) => Ok((read, ignored)),
        // The first error names its line and column.
        Err(_) if ignored.is_empty() => Err(strict),
        Err(error) => Err(error),
    }
}

#[derive(Clone, Copy)]
struct Lenient<'de> {
    value: &'de Value,
    ignored: &'de RefCell<Vec<String>>,
}

impl<'de> Lenient<'de> {
    fn of(self, value: &'de Value) -> Self {
        Self { value, ..self }
    }

    fn map<V: Visitor<'de>>(self, visitor: V, is_known: impl Fn(&str) -> bool) -> Result<V::Value, Error> {
        let Value::Object(fields) = self.value else { return self.deserialize_any(visitor) };
        let (known, unknown) = fields.iter().partition::<Vec<_>, _>(|(name, _)| is_known(name));
        self.ignored.borrow_mut().extend(unknown.into_iter().map(|(name, _)| name.clone()));
        visitor.visit_map(MapDeserializer::new(
            known.into_iter().map(|(name, value)| (name.as_str(), self.of(value))),
        ))
    }
}

impl<'de> Deserializer<'de> for Lenient<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Array(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.iter().map(|item| self.of(item))))
            }
            Value::Object(_) => self.map(visitor, |_| true),
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.map(visitor, |name| fields.contains(&name))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.value.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for Lenient<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::{JobSpec, JoinRequest, NodeSample, WorkerOverride, WorkerReport};
    use serde::Serialize;
    use serde_json::json;

    use super::*;

    /// Adds a field to the object at each path, one after the other.
    fn with_field(value: &Value) -> Vec<Value> {
        let mut changed = Vec::new();
        if let Value::Object(fields) = value {
            let mut more = fields.clone();
            more.insert("option_of_the_future".to_owned(), json!({"a": [1]}));
            changed.push(Value::Object(more));
        }
        let children: Vec<(String, &Value)> = match value {
            Value::Object(fields) => fields.iter().map(|(name, field)| (format!("/{name}"), field)).collect(),
            Value::Array(items) => {
                items.iter().enumerate().map(|(at, item)| (format!("/{at}"), item)).collect()
            }
            _ => Vec::new(),
        };
        for (path, child) in children {
            changed.extend(with_field(child).into_iter().map(|child| {
                let mut value = value.clone();
                *value.pointer_mut(&path).unwrap() = child;
                value
            }));
        }
        changed
    }

    fn check<T: DeserializeOwned + Serialize>(value: &Value, objects: usize) {
        let known: T = serde_json::from_value(value.clone()).unwrap();
        let changed = with_field(value);
        assert_eq!(changed.len(), objects);
        for changed in changed {
            assert!(serde_json::from_value::<T>(changed.clone()).is_err(), "strict: {changed}");
            let (read, ignored) = from_slice::<T>(changed.to_string().as_bytes()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&known).unwrap());
            assert_eq!(ignored, ["option_of_the_future"]);
        }
    }

    #[test]
    fn unknown_fields_are_ignored_at_every_depth_and_named() {
        check::<JobSpec>(
            &json!({
                "global_batch": 64, "hedge": "off", "rule": "linear", "learning_rate": {"ramp_iterations": 3},
                "background": {"slow_down_limit": 1.2}, "allowed_sizes": [1, 2]
            }),
            3,
        );
        check::<JoinRequest>(&json!({"worker": "node/0", "max_local_batch": 8, "device": null}), 1);
        check::<WorkerOverride>(&json!({"paused": true}), 1);
        check::<WorkerReport>(
            &json!({"worker": "node/0", "iteration": 1, "local_batch": 8, "compute_time_s": 0.5,
                "tail": {"chunks": 1, "samples": 2, "compute_time_s": 0.1, "claim_time_s": 0.0}}),
            2,
        );
        check::<NodeSample>(
            &json!({"at_unix_ms": 1, "processes": [{"pid": 1}], "gpus": [{"index": 0, "processes": [{"pid": 2}]}]}),
            4,
        );
    }

    #[test]
    fn invalid_values_of_known_fields_are_errors() {
        for text in
            ["", "{", "[]", "null", "7", r#"{"global_batch": -1}"#, r#"{"global_batch": 1, "hedge": "x"}"#]
        {
            assert!(from_slice::<JobSpec>(text.as_bytes()).is_err(), "{text}");
        }
        let error = from_slice::<JobSpec>(br#"{"global_batch": "many", "new": 1}"#).unwrap_err();
        assert!(error.to_string().contains("many"), "{error}");
    }
}
