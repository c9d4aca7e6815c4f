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
    "{kind} {value:?}: must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ -{}, beginning with a letter or digit{}", .slash.character(), .slash.rule()
)]
pub struct InvalidId {
    kind: &'static str,
    value: String,
    slash: Slash,
}

/// Use of the slash in a kind of id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slash {
    /// No slash.
    Never,
    /// At most one, between a team and a name.
    AfterTeam,
    /// Anywhere after the first character.
    Anywhere,
}

impl Slash {
    fn character(self) -> &'static str {
        if self == Self::Anywhere { " /" } else { "" }
    }

    fn rule(self) -> &'static str {
        if self == Self::AfterTeam { ", optionally after a team and a slash (team-a/job)" } else { "" }
    }

    /// Whether the slashes of an id are allowed; the id begins with a letter or digit.
    fn allows(self, value: &str) -> bool {
        match (self, value.split_once('/')) {
            (Self::Anywhere, _) | (_, None) => true,
            (Self::AfterTeam, Some((_, name))) => begins_well(name) && !name.contains('/'),
            (Self::Never, Some(_)) => false,
        }
    }
}

fn begins_well(value: &str) -> bool {
    value.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn check(kind: &'static str, value: &str, slash: Slash) -> Result<(), InvalidId> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:@-/".contains(c);
    if value.len() <= ID_BYTES_MAX && begins_well(value) && value.chars().all(allowed) && slash.allows(value)
    {
        return Ok(());
    }
    let shown = value.chars().take(ID_BYTES_MAX).collect();
    Err(InvalidId { kind, value: shown, slash })
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, slash: $slash:expr) => {
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

            /// Returns the id as a segment of a URL's path: the slash is its only character with a meaning there.
            pub fn in_path(&self) -> String {
                self.0.replace('/', "%2F")
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
    /// iteration never changes within an attempt. It may begin with a team: `team-a/job`. In the path of a URL, the slash is written as
    /// `%2F`.
    ///
    /// # Examples
    /// ```
    /// use evenstep_protocol::JobId;
    ///
    /// let job = JobId::new("team-a/resnet")?;
    /// assert_eq!(job.in_path(), "team-a%2Fresnet");
    /// assert!(JobId::new("team-a/resnet/7").is_err());
    /// # Ok::<(), evenstep_protocol::InvalidId>(())
    /// ```
    JobId, "job id", slash: Slash::AfterTeam
}
id! {
    /// A worker process. It keeps its id over restarts and changes of rank; by convention `node/slot`.
    ///
    /// # Examples
    /// ```
    /// use evenstep_protocol::WorkerId;
    ///
    /// let worker: WorkerId = "node-a/0".parse()?;
    /// assert_eq!(worker.as_str(), "node-a/0");
    /// assert!(WorkerId::new("").is_err());
    /// # Ok::<(), evenstep_protocol::InvalidId>(())
    /// ```
    WorkerId, "worker id", slash: Slash::Anywhere
}
id! {
    /// A machine.
    NodeId, "node id", slash: Slash::Never
}

impl WorkerId {
    /// Returns the part before the first slash, which is the name of the node; the whole id without a slash.
    pub fn node(&self) -> &str {
        let id = self.as_str();
        id.split_once('/').map_or(id, |(node, _)| node)
    }
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
        let error = NodeId::new("node-a/0").unwrap_err().to_string();
        assert!(error.contains("node id \"node-a/0\""), "{error}");
        assert!(JobId::new("team-a/job").is_ok());
        for bad in ["a/", "/a", "a//b", "a/b/c", "a/-b"] {
            let error = JobId::new(bad).unwrap_err().to_string();
            assert!(error.contains("team-a/job"), "{error}");
        }
    }
}
