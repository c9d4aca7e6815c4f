//! Job options of earlier versions. Their clients send the default of every option, and their predictors stored it: it reads as
//! absent. A request with another value is rejected; a stored job with one still loads. None has an effect.

use serde::de::{Deserialize, Deserializer};

use super::JobSpec;

macro_rules! retired {
    ($($option:ident: $former:literal)*) => {
        $(pub fn $option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
            Ok(Option::deserialize(deserializer)?.filter(|value| *value != $former))
        })*

        impl JobSpec {
            /// A removed option with a value other than its former default, and the value.
            pub fn retired(&self) -> Option<(&'static str, f64)> {
                [$((stringify!($option), self.$option)),*]
                    .into_iter()
                    .find_map(|(option, value)| Some((option, value?)))
            }
        }
    };
}

retired! { memory_headroom: 0.1 max_batch_growth: 2.0 flap_cooldown_s: 60.0 overlap_begins: 0.4 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_former_default_of_a_retired_option_reads_as_absent() {
        for (option, former, other) in [
            ("memory_headroom", 0.1, 0.2),
            ("max_batch_growth", 2.0, 3.5),
            ("flap_cooldown_s", 60.0, 30.0),
            ("overlap_begins", 0.4, 0.5),
        ] {
            let read = |value: Option<f64>| -> JobSpec {
                serde_json::from_value(serde_json::json!({"global_batch": 64, option: value})).unwrap()
            };
            assert_eq!((read(Some(former)), read(None)), (JobSpec::new(64), JobSpec::new(64)));
            assert_eq!(read(Some(other)).retired(), Some((option, other)));
            // A client with another value sends it, and the service rejects it.
            assert_eq!(serde_json::to_value(read(Some(other))).unwrap()[option], other);
            assert_eq!(serde_json::to_value(read(Some(former))).unwrap().get(option), None);
        }
        assert_eq!(JobSpec::new(64).retired(), None);
    }
}
