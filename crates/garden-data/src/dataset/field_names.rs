//! What the user says about fields of a dataset: what they mean, and which of them to leave out.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::conversation::{PICTURES, is_meaning, unnumbered};
use super::value::{Object, Value};
use crate::error::Error;

/// Fields with the meaning that the user gives them: `question=query,image=photo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FieldMeanings(Vec<Meant>);

/// A field with a meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Meant {
    /// A name that the program reads, such as `question`.
    meaning: String,
    /// The field's own name.
    name: String,
}

/// Fields to leave out: `id,messages[].label`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct IgnoredFields(Vec<String>);

/// Everything that the user says about fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldNames {
    /// What fields mean.
    pub meanings: FieldMeanings,
    /// Fields to leave out.
    pub ignored: IgnoredFields,
}

impl FromStr for FieldMeanings {
    type Err = String;

    fn from_str(given: &str) -> Result<FieldMeanings, String> {
        given
            .split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
            .map(Meant::read)
            .collect::<Result<_, _>>()
            .map(FieldMeanings)
    }
}

impl Meant {
    fn read(pair: &str) -> Result<Meant, String> {
        let (meaning, name) = pair
            .split_once('=')
            .map(|(meaning, name)| (meaning.trim(), name.trim()))
            .filter(|(_, name)| !name.is_empty())
            .ok_or_else(|| format!("`{pair}` is not `MEANING=NAME`, such as `question=query`"))?;
        if !is_meaning(meaning) {
            return Err(format!(
                "`{meaning}` is not a meaning: use question, answer, image, system, messages, history or tools, as in `question={name}`"
            ));
        }
        Ok(Meant { meaning: meaning.to_string(), name: name.to_string() })
    }
}

impl FromStr for IgnoredFields {
    type Err = std::convert::Infallible;

    fn from_str(given: &str) -> Result<IgnoredFields, Self::Err> {
        Ok(IgnoredFields(
            given.split(',').map(|name| unnumbered(name.trim())).filter(|name| !name.is_empty()).collect(),
        ))
    }
}

impl TryFrom<String> for FieldMeanings {
    type Error = String;

    fn try_from(given: String) -> Result<FieldMeanings, String> {
        given.parse()
    }
}

impl From<String> for IgnoredFields {
    fn from(given: String) -> IgnoredFields {
        let Ok(fields) = given.parse();
        fields
    }
}

impl fmt::Display for FieldMeanings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|Meant { meaning, name }| format!("{meaning}={name}")).collect();
        f.write_str(&pairs.join(","))
    }
}

impl fmt::Display for IgnoredFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl From<FieldMeanings> for String {
    fn from(fields: FieldMeanings) -> String {
        fields.to_string()
    }
}

impl From<IgnoredFields> for String {
    fn from(fields: IgnoredFields) -> String {
        fields.to_string()
    }
}

impl FieldNames {
    /// Both, from flags that may be repeated.
    pub fn of(meanings: &[FieldMeanings], ignored: &[IgnoredFields]) -> FieldNames {
        FieldNames {
            meanings: FieldMeanings(meanings.iter().flat_map(|some| some.0.clone()).collect()),
            ignored: IgnoredFields(ignored.iter().flat_map(|some| some.0.clone()).collect()),
        }
    }

    /// Whether a table's column is read because of its new meaning.
    pub(crate) fn gives_meaning_to(&self, column: &str) -> bool {
        self.meanings.0.iter().any(|meant| meant.name == column)
    }

    /// Whether the user says which field has a meaning.
    pub(crate) fn gives_meaning(&self, meaning: &str) -> bool {
        self.meanings.0.iter().any(|meant| meant.meaning == meaning)
    }

    /// Whether a field is left out, by its path without list indices.
    pub(crate) fn ignores(&self, path: &str) -> bool {
        let path = unnumbered(path);
        self.ignored.0.contains(&path)
    }

    /// Removes the fields of an object that are left out; returns their paths.
    pub(crate) fn leave_out(&self, inside: &str, object: &mut Object) -> Vec<String> {
        if self.ignored.0.is_empty() {
            return Vec::new();
        }
        let mut left = Vec::new();
        object.0.retain(|(name, value)| {
            let path = unnumbered(&format!("{inside}{name}"));
            let leaves = self.ignores(&path);
            if leaves && *value != Value::Null {
                left.push(path);
            }
            !leaves
        });
        left
    }

    /// Gives the fields of a row the names of their meanings. Several pictures become a list, in the order given.
    pub(crate) fn rename<'a>(&self, place: &str, object: &mut Object<'a>) -> Result<(), Error> {
        let mut renamed: Vec<(&str, Value<'a>)> = Vec::new();
        for Meant { meaning, name } in &self.meanings.0 {
            let Some(value) = object.take(name) else { continue };
            match renamed.iter_mut().find(|(known, _)| known == meaning) {
                None => renamed.push((meaning, value)),
                Some((_, known)) if PICTURES.contains(&meaning.as_str()) => {
                    let mut list = listed(std::mem::replace(known, Value::Null));
                    list.extend(listed(value));
                    *known = Value::List(list);
                }
                Some(_) => {
                    let problem = format!("is the second field with the meaning `{meaning}`");
                    return Err(
                        Error::row_field(place, name, problem).with_hint("only pictures may be in several fields")
                    );
                }
            }
        }
        for (meaning, value) in renamed {
            if object.0.iter().any(|(name, value)| name == meaning && *value != Value::Null) {
                let problem = format!("is there beside a field that `--field` calls `{meaning}`");
                return Err(Error::row_field(place, meaning, problem)
                    .with_hint(format!("`--ignore-field {meaning}` leaves it out")));
            }
            object.0.push((meaning.to_string().into(), value));
        }
        Ok(())
    }
}

fn listed(value: Value<'_>) -> Vec<Value<'_>> {
    match value {
        Value::List(list) => list,
        value => vec![value],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_what_is_kept() {
        let fields: FieldMeanings = "question=query, image=photo".parse().unwrap();
        assert_eq!(fields.to_string(), "question=query,image=photo");
        assert_eq!("wall=x".parse::<FieldMeanings>().unwrap_err().split(':').next(), Some("`wall` is not a meaning"));
        assert!("question".parse::<FieldMeanings>().unwrap_err().contains("MEANING=NAME"));
        assert!("question=".parse::<FieldMeanings>().is_err());
        let ignored: IgnoredFields = "id,messages[3].label".parse().unwrap();
        assert_eq!(ignored.to_string(), "id,messages[].label");
        let names = FieldNames::of(&[fields], &[ignored]);
        assert!(names.ignores("messages[7].label") && !names.ignores("label"));
    }
}
