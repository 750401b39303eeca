//! Lists, whole and in pages.

use schemars::JsonSchema;
use serde::Serialize;

use super::constant;
use crate::store::Listed;

constant!(ListObject = "list");

/// Something that a page can go on after.
pub(crate) trait Identified {
    fn id(&self) -> &str;
}

/// A page of a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "{T}List")]
pub(crate) struct Page<T> {
    object: ListObject,
    data: Vec<T>,
    first_id: Option<String>,
    /// The `after` of the next page.
    last_id: Option<String>,
    has_more: bool,
}

impl<T: Identified> Page<T> {
    pub fn of<'a, R>(listed: &'a Listed<R>, shown: impl Fn(&'a R) -> T) -> Page<T> {
        let data: Vec<T> = listed.rows.iter().map(shown).collect();
        let id = |one: Option<&T>| one.map(|one| one.id().to_string());
        Page {
            object: ListObject,
            first_id: id(data.first()),
            last_id: id(data.last()),
            data,
            has_more: listed.has_more,
        }
    }
}

/// All of a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "{T}List")]
pub(crate) struct All<T> {
    object: ListObject,
    data: Vec<T>,
}

impl<T> From<Vec<T>> for All<T> {
    fn from(data: Vec<T>) -> All<T> {
        All { object: ListObject, data }
    }
}

impl Identified for super::File {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Identified for super::Job {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Identified for super::Event {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Identified for super::Checkpoint {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Identified for super::Model {
    fn id(&self) -> &str {
        &self.id
    }
}
