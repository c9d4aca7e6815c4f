//! Stable ids of jobs, workers and nodes. Clones of an id share its text.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum length of an id in bytes.
const ID_BYTES_MAX: usize = 128;

/// An invalid id; the message contains the value and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} {value:?}: must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ -{extra}, beginning with a letter or digit"
)]
pub struct InvalidId {
    kind: &'static str,
    value: String,
    extra: &'static str,
}

fn check(kind: &'static str, value: &str, slash: bool) -> Result<(), InvalidId> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:@-".contains(c) || (slash && c == '/');
    let ok = value.len() <= ID_BYTES_MAX
        && value.starts_with(|c: char| c.is_ascii_alphanumeric())
        && value.chars().all(allowed);
    if ok {
        return Ok(());
    }
    let shown = value.chars().take(ID_BYTES_MAX).collect();
    Err(InvalidId { kind, value: shown, extra: if slash { " /" } else { "" } })
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, slash: $slash:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
        pub struct $name(Arc<str>);

        impl $name {
            /// Creates an id after checking the rule for ids.
            ///
            /// # Errors
            /// [`InvalidId`] if the value breaks the rule.
            pub fn new(value: impl Into<String>) -> Result<Self, InvalidId> {
                Self::checked(&value.into())
            }

            fn checked(value: &str) -> Result<Self, InvalidId> {
                check($kind, value, $slash)?;
                Ok(Self(value.into()))
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(value: &str) -> Result<Self, InvalidId> {
                Self::checked(value)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(value: String) -> Result<Self, InvalidId> {
                Self::new(value)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.as_str().to_owned()
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;

                impl Visitor<'_> for Text {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a string")
                    }

                    fn visit_str<E: de::Error>(self, value: &str) -> Result<$name, E> {
                        $name::checked(value).map_err(E::custom)
                    }
                }

                deserializer.deserialize_str(Text)
            }
        }
    };
}

id! {
    /// One training run. A new run needs a new id, or the old job must be deleted first: the allocation of an
    /// iteration never changes.
    JobId, "job id", slash: false
}
id! {
    /// A worker process. It keeps its id over restarts and changes of rank; by convention `node/slot`.
    WorkerId, "worker id", slash: true
}
id! {
    /// A machine.
    NodeId, "node id", slash: false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_survives_the_wire(text in "[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}") {
            let id = JobId::new(text).unwrap();
            let json = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(serde_json::from_str::<JobId>(&json).unwrap(), id);
        }
    }

    #[test]
    fn bad_ids_are_refused_by_name() {
        for bad in ["", " a", "a b", "-a", "/a", "ä", &"x".repeat(129)] {
            assert!(WorkerId::new(bad).is_err(), "{bad:?}");
        }
        assert!(WorkerId::new("node-a/0").is_ok());
        let error = JobId::new("node-a/0").unwrap_err().to_string();
        assert!(error.contains("job id \"node-a/0\""), "{error}");
    }
}
