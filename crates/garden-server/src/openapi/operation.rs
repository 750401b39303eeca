//! What is said about a method of a path.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::Refusal;

/// Asks a type for its schema.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Where a parameter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Query,
    Header,
}

/// What a parameter may be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Values {
    /// Those of a type.
    Type(SchemaOf),
    /// Pairs, each a parameter of its own: `name[key]=value`.
    Pairs(SchemaOf),
    /// Whole numbers, and the one that it is unless given.
    Whole { least: i64, most: i64, usual: i64 },
}

/// A parameter in a query or a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) description: &'static str,
    pub(super) values: Values,
}

impl Parameter {
    pub fn query<T: JsonSchema>(name: &'static str, description: &'static str) -> Parameter {
        Parameter { name, place: Place::Query, description, values: Values::Type(schema_of::<T>) }
    }

    pub fn pairs<T: JsonSchema>(name: &'static str, description: &'static str) -> Parameter {
        Parameter { values: Values::Pairs(schema_of::<T>), ..Parameter::query::<T>(name, description) }
    }

    pub fn header<T: JsonSchema>(name: &'static str, description: &'static str) -> Parameter {
        Parameter { place: Place::Header, ..Parameter::query::<T>(name, description) }
    }

    /// Rows of a page, and how many there are where nobody says.
    pub fn limit(most: i64, usual: i64) -> Parameter {
        let values = Values::Whole { least: 1, most, usual };
        Parameter { name: "limit", place: Place::Query, description: "Rows of a page.", values }
    }
}

/// A body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    pub kind: &'static str,
    pub schema: SchemaOf,
    pub is_required: bool,
    pub example: Option<&'static str>,
}

/// The answer to a request that can be met.
#[derive(Clone, Debug)]
pub(super) struct Success {
    pub description: &'static str,
    /// Kinds of content, and what is in it where that can be said.
    pub kinds: Vec<(&'static str, Option<SchemaOf>)>,
}

/// What is said about a method of a path.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) success: Success,
    /// Other answers, by status.
    pub(super) others: Vec<(u16, Success)>,
    pub(super) is_open: bool,
    refusals: Vec<Refusal>,
}

/// The beginning of an operation, which lacks its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    id: &'static str,
    summary: &'static str,
}

impl Operation {
    pub fn of(id: &'static str, summary: &'static str) -> Named {
        Named { id, summary }
    }

    pub fn with(mut self, parameters: impl IntoIterator<Item = Parameter>) -> Operation {
        self.parameters.extend(parameters);
        self
    }

    /// Takes a JSON object.
    pub fn takes<T: JsonSchema>(self) -> Operation {
        self.takes_a("application/json", schema_of::<T>)
    }

    /// Takes a JSON object, or nothing.
    pub fn may_take<T: JsonSchema>(self) -> Operation {
        let mut operation = self.takes::<T>();
        operation.body = operation.body.map(|body| Body { is_required: false, ..body });
        operation
    }

    /// Takes a form with a file.
    pub fn takes_form<T: JsonSchema>(self) -> Operation {
        self.takes_a("multipart/form-data", schema_of::<T>)
    }

    /// Takes any text.
    pub fn takes_text(self, example: &'static str) -> Operation {
        let mut operation = self.takes_a("text/plain", schema_of::<String>);
        operation.body = operation.body.map(|body| Body { example: Some(example), ..body });
        operation
    }

    fn takes_a(mut self, kind: &'static str, schema: SchemaOf) -> Operation {
        self.body = Some(Body { kind, schema, is_required: true, example: None });
        self
    }

    /// Also refuses in these ways. Others follow from what it takes.
    pub fn may(mut self, refusals: &[Refusal]) -> Operation {
        self.refusals.extend(refusals);
        self
    }

    /// Gives the same with another status.
    pub fn or(mut self, status: u16, description: &'static str) -> Operation {
        self.others.push((status, Success { description, kinds: self.success.kinds.clone() }));
        self
    }

    /// Gives ranges of bytes, and says what has not changed.
    fn in_ranges(mut self) -> Operation {
        let part = Success { description: "The range of bytes that was asked for.", kinds: self.success.kinds.clone() };
        let empty = |description| Success { description, kinds: Vec::new() };
        let known = empty("It has not changed: `If-None-Match` has its `ETag`.");
        let beyond = empty("The file does not have that range.");
        self.others.extend([(206, part), (304, known), (416, beyond)]);
        self
    }

    /// Answers without a key.
    pub fn open(mut self) -> Operation {
        self.is_open = true;
        self
    }

    /// All ways in which it refuses.
    pub(super) fn refusals(&self, has_names_in_path: bool) -> Vec<Refusal> {
        let does = |refusal: Refusal| match refusal {
            Refusal::Forbidden | Refusal::TooOften | Refusal::Internal => true,
            Refusal::NoKey => !self.is_open,
            Refusal::Invalid => has_names_in_path || !self.parameters.is_empty() || self.body.is_some(),
            Refusal::Missing => has_names_in_path,
            Refusal::TooSlow | Refusal::TooLarge => self.body.is_some(),
            Refusal::OtherBody | Refusal::Busy | Refusal::NoSpace => false,
        };
        Refusal::ALL.into_iter().filter(|refusal| does(*refusal) || self.refusals.contains(refusal)).collect()
    }

    /// Whether a name may stand in its query.
    pub fn has_in_query(&self, name: &str) -> bool {
        // Azure's clients send it with every request.
        if name == "api-version" {
            return true;
        }
        let mut query = self.parameters.iter().filter(|parameter| parameter.place == Place::Query);
        query.any(|parameter| match parameter.values {
            Values::Pairs(_) => parameter.name == name || key_of(parameter.name, name).is_some(),
            _ => parameter.name == name,
        })
    }

    /// The least, the most and the usual value of a whole number.
    pub fn whole(&self, name: &str) -> Option<(i64, i64, i64)> {
        self.parameters.iter().find(|parameter| parameter.name == name).and_then(|parameter| match parameter.values {
            Values::Whole { least, most, usual } => Some((least, most, usual)),
            _ => None,
        })
    }
}

/// The k of `name[k]`.
pub(crate) fn key_of<'a>(name: &str, text: &'a str) -> Option<&'a str> {
    text.strip_prefix(name)?.strip_prefix('[')?.strip_suffix(']')
}

impl Named {
    /// Gives JSON.
    pub fn gives<T: JsonSchema>(self, description: &'static str) -> Operation {
        self.gives_a(description, vec![("application/json", Some(schema_of::<T>))])
    }

    /// Gives text.
    pub fn gives_text(self, kind: &'static str, description: &'static str) -> Operation {
        self.gives_a(description, vec![(kind, Some(schema_of::<String>))])
    }

    /// Gives server-sent events.
    pub fn gives_events<T: JsonSchema>(self, description: &'static str) -> Operation {
        self.gives_a(description, vec![("text/event-stream", Some(schema_of::<T>))])
    }

    /// Gives a file of one of these kinds.
    pub fn gives_file(self, kinds: &[&'static str], description: &'static str) -> Operation {
        self.gives_a(description, kinds.iter().map(|kind| (*kind, None)).collect()).in_ranges()
    }

    /// Gives a file that is made for the answer.
    pub fn gives_archive(self, kind: &'static str, description: &'static str) -> Operation {
        self.gives_a(description, vec![(kind, None)])
    }

    fn gives_a(self, description: &'static str, kinds: Vec<(&'static str, Option<SchemaOf>)>) -> Operation {
        Operation {
            id: self.id,
            summary: self.summary,
            parameters: Vec::new(),
            body: None,
            success: Success { description, kinds },
            others: Vec::new(),
            is_open: false,
            refusals: Vec::new(),
        }
    }
}
