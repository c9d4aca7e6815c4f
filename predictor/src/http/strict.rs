//! Reads JSON as the wire types describe it: an object is an object.
//!
//! The implementations of `Deserialize` that serde derives also accept an array of the fields in their order.
//! A client that sends one would depend on the order of fields, which is not part of the API. [`Strict`]
//! passes everything on to another deserializer, at every depth, and refuses an array for a struct.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Unexpected, Visitor,
};

/// Reads a whole JSON text.
///
/// # Errors
/// The text is not JSON, or has another shape.
pub fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> serde_json::Result<T> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = T::deserialize(Strict(&mut reader))?;
    reader.end()?;
    Ok(value)
}

/// A deserializer, a seed or an access whose structs are objects.
pub struct Strict<T>(pub T);

/// A visitor within [`Strict`]. `STRUCT` is true for the visitor of a struct.
struct Visit<V, const STRUCT: bool>(V);

macro_rules! deserialize {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($argument,)* Visit::<V, false>(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Visit::<V, true>(visitor))
    }

    deserialize! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_f32() deserialize_f64()
        deserialize_char() deserialize_str() deserialize_string() deserialize_bytes() deserialize_byte_buf()
        deserialize_option() deserialize_unit() deserialize_seq() deserialize_map() deserialize_identifier()
        deserialize_ignored_any() deserialize_unit_struct(name: &'static str)
        deserialize_newtype_struct(name: &'static str) deserialize_tuple(length: usize)
        deserialize_tuple_struct(name: &'static str, length: usize)
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident: $type:ty)*) => {
        $(fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>, const STRUCT: bool> Visitor<'de> for Visit<V, STRUCT> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool: bool visit_i8: i8 visit_i16: i16 visit_i32: i32 visit_i64: i64 visit_u8: u8 visit_u16: u16
        visit_u32: u32 visit_u64: u64 visit_f32: f32 visit_f64: f64 visit_char: char visit_str: &str
        visit_borrowed_str: &'de str visit_string: String visit_bytes: &[u8] visit_borrowed_bytes: &'de [u8]
        visit_byte_buf: Vec<u8>
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Strict(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Strict(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        if STRUCT {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        self.0.visit_seq(Strict(access))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Strict(access))
    }

    /// Enums on the wire have no fields.
    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(access)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use evenstep_burst::BurstRequest;
    use evenstep_protocol::{
        AllocateRequest, JobSpec, JoinRequest, OomReport, TelemetryBatch, WorkerOverride,
    };
    use serde::Serialize;
    use serde_json::{Value, json};

    use super::*;

    /// Replaces the object at each path in turn by the array of its values. Returns the results.
    fn with_arrays(value: &Value) -> Vec<Value> {
        let mut changed = Vec::new();
        if let Value::Object(fields) = value {
            changed.push(Value::Array(fields.values().cloned().collect()));
            for (name, field) in fields {
                changed.extend(with_arrays(field).into_iter().map(|field| {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), field);
                    Value::Object(fields)
                }));
            }
        }
        if let Value::Array(elements) = value {
            for at in 0..elements.len() {
                changed.extend(with_arrays(&elements[at]).into_iter().map(|element| {
                    let mut elements = elements.clone();
                    elements[at] = element;
                    Value::Array(elements)
                }));
            }
        }
        changed
    }

    fn check<T: for<'de> Deserialize<'de> + Serialize>(text: &Value) {
        let bytes = serde_json::to_vec(text).unwrap();
        let read: T = from_slice(&bytes).unwrap();
        let plain: T = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&plain).unwrap());
        let changed = with_arrays(text);
        assert!(!changed.is_empty());
        for changed in changed {
            let error = from_slice::<T>(&serde_json::to_vec(&changed).unwrap()).err();
            assert!(error.is_some_and(|error| error.is_data()), "{changed}");
        }
    }

    #[test]
    fn arrays_are_refused_for_every_object_of_a_request() {
        check::<JobSpec>(&json!({
            "global_batch": 64, "learning_rate": {"ramp_iterations": 3}, "background": {"slow_down_limit": 1.2}
        }));
        check::<JoinRequest>(&json!({"worker": "node/0", "max_local_batch": 8}));
        check::<OomReport>(&json!({"iteration": 1, "local_batch": 2}));
        check::<WorkerOverride>(&json!({"paused": true}));
        check::<AllocateRequest>(&json!({"job_id": "job", "generation": 1, "iteration": 2, "reports": [{
            "worker": "node/0", "iteration": 1, "local_batch": 8, "compute_time_s": 0.5, "drivers": {"load": 1},
            "tail": {"chunks": 1, "samples": 2, "compute_time_s": 0.1, "claim_time_s": 0.0}
        }]}));
        check::<TelemetryBatch>(&json!({"node": "node", "boot_id": "b", "sequence": 0, "samples": [{
            "at_unix_ms": 1, "readings": {"cpu_busy": 0.5}, "missing": {"x": "y"},
            "processes": [{"pid": 1, "readings": {"own_cpu": 1}}], "gpus": [{"index": 0, "processes": [{"pid": 2}]}]
        }]}));
        check::<BurstRequest>(
            &json!({"global_batch": 8, "gpus": 2, "network": {"latency_us": 1.0}, "profile": {
                "network": {"bandwidth_bytes_per_s": 1e9}, "layers": [{"name": "a", "compute_us": {"1": 2.0}}]
            }}),
        );
    }
}
