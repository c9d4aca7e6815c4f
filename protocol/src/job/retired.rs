//! Job options of earlier versions. Their clients send the default of every option, and their predictors stored it. So
//! the former default is read and has no effect, and another value is an error.

use serde::de::{Deserialize, Deserializer, Error};

macro_rules! retired {
    ($($option:ident: $former:literal)*) => {
        $(pub fn $option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
            only(stringify!($option), $former, deserializer)
        })*
    };
}

retired! { memory_headroom: 0.1 max_batch_growth: 2.0 flap_cooldown_s: 60.0 }

fn only<'de, D: Deserializer<'de>>(option: &str, former: f64, deserializer: D) -> Result<(), D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value == former {
        return Ok(());
    }
    Err(D::Error::custom(format_args!(
        "{option}: {value} must be {former}, the only value since the option was removed"
    )))
}

#[cfg(test)]
mod tests {
    use crate::JobSpec;

    #[test]
    fn only_the_former_default_of_a_retired_option_is_read() {
        for (option, former, other) in [
            ("memory_headroom", "0.1", "0.2"),
            ("max_batch_growth", "2.0", "3.5"),
            ("flap_cooldown_s", "60", "30"),
        ] {
            let read = |value: &str| {
                serde_json::from_str::<JobSpec>(&format!(r#"{{"global_batch": 64, "{option}": {value}}}"#))
            };
            assert_eq!(read(former).unwrap(), JobSpec::new(64));
            let error = read(other).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{option}: {other} must be")), "{error}");
        }
        let written = serde_json::to_value(JobSpec::new(64)).unwrap();
        assert!(written.get("max_batch_growth").is_none(), "{written}");
    }
}
