//! Attributes on the wire, which include `hole_bytes`; stored attributes do not. For `#[serde(with
//! = "...")]`.

use crate::{Attr, DirEntry, Mutated};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub mod attr {
    use super::*;

    pub fn serialize<S: Serializer>(attr: &Attr, serializer: S) -> Result<S::Ok, S::Error> {
        (attr, attr.hole_bytes).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Attr>, D::Error> {
        let (attr, hole_bytes) = <(Attr, u64)>::deserialize(deserializer)?;
        Ok(Box::new(Attr { hole_bytes, ..attr }))
    }
}

pub mod entries {
    use super::*;

    pub fn serialize<S: Serializer>(
        entries: &[(DirEntry, Attr)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(entries.iter().map(|(entry, attr)| (entry, attr, attr.hole_bytes)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(DirEntry, Attr)>, D::Error> {
        let entries = Vec::<(DirEntry, Attr, u64)>::deserialize(deserializer)?;
        Ok(entries
            .into_iter()
            .map(|(entry, attr, hole_bytes)| (entry, Attr { hole_bytes, ..attr }))
            .collect())
    }
}

pub mod mutated {
    use super::*;

    pub fn serialize<S: Serializer>(mutated: &Mutated, serializer: S) -> Result<S::Ok, S::Error> {
        (mutated, mutated.attr.as_ref().map(|attr| attr.hole_bytes)).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Box<Mutated>, D::Error> {
        let (mutated, hole_bytes) = <(Mutated, Option<u64>)>::deserialize(deserializer)?;
        let attr =
            mutated.attr.map(|attr| Attr { hole_bytes: hole_bytes.unwrap_or_default(), ..attr });
        Ok(Box::new(Mutated { attr, ..mutated }))
    }
}
