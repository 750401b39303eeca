//! Settings of adapters beside `full`, which trains none: refused, as somebody who gives them expects them to do something.

use serde_json::Value;

use super::{RecipeError, wrong_but};

/// Settings that mean nothing without an adapter, and what they are where nobody gives them. `adapter` and `modules-to-save` have their own words.
pub(super) const OF_ADAPTERS: [(&str, &[f64]); 6] = [
    ("lora-r", &[crate::job::RANK as f64]),
    ("lora-alpha", &[crate::job::ALPHA as f64]),
    ("lora-dropout", &[0.0]),
    ("lora-targets", &[]),
    ("use-rslora", &[]),
    ("finetune-vision", &[]),
];

/// The error where a setting is given that means nothing without an adapter. A recipe that was written by an earlier version has all settings: a
/// number or truth value in a file that changes nothing is not meant. Flags are texts.
pub(super) fn without_effect(given: &str, name: &str, value: &Value) -> Option<RecipeError> {
    let (_, usual) = OF_ADAPTERS.iter().find(|(setting, _)| *setting == name)?;
    let says_nothing = match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.eq_ignore_ascii_case("false"),
        value => value.as_f64().is_some_and(|number| usual.contains(&number)),
    };
    (!says_nothing).then(|| {
        let hint = format!("omit `{given}`, or omit `full` to train an adapter");
        wrong_but(given, "has no effect with `full`, which trains all weights and no adapter", hint)
    })
}
