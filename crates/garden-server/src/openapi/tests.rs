use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::wire::LiveKind;

fn document() -> Value {
    serde_json::from_str(text()).unwrap()
}

#[test]
fn each_reference_leads_somewhere_and_each_operation_has_a_name_of_its_own() {
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 50, "{found:?}");
    for path in found {
        assert!(document.pointer(path.trim_start_matches('#')).is_some(), "{path} is not there");
    }
    let paths = document["paths"].as_object().unwrap().values();
    let ids: Vec<&str> = paths
        .flat_map(|path| path.as_object().unwrap().values())
        .map(|one| one["operationId"].as_str().unwrap())
        .collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_string));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn requests_have_the_fields_of_their_types() {
    let job = Shape::of::<crate::wire::NewJob>();
    assert!(job.has("model") && job.has("seed") && !job.has("colour"));
    let method = job.inside("method");
    assert!(method.has("type") && !method.has("seed"));
    assert!(method.inside("supervised").inside("hyperparameters").has("n_epochs"));
    assert!(job.inside("model_garden").has("recipe") && !job.inside("model_garden").has("colour"));
    assert!(job.inside("model_garden").inside("recipe").has("anything") && job.inside("metadata").has("anything"));
    assert!(!Shape::of::<crate::wire::Nothing>().has("anything"));
}

#[test]
fn viewers_hear_what_is_described() {
    let kinds = [LiveKind::Sample, LiveKind::Event, LiveKind::Log, LiveKind::End, LiveKind::Error].map(LiveKind::name);
    assert_eq!(document()["components"]["schemas"]["Live"]["properties"]["event"]["enum"], serde_json::json!(kinds));
}

#[test]
fn parameters_are_known_by_their_paths() {
    let jobs = operation("/v1/fine_tuning/jobs", "get").unwrap();
    assert!(jobs.has_in_query("after") && jobs.has_in_query("metadata") && jobs.has_in_query("metadata[team]"));
    assert!(!jobs.has_in_query("order") && !jobs.has_in_query("metadatas") && !jobs.has_in_query("after[x]"));
    assert_eq!(jobs.whole("limit"), Some((1, 100, 20)));
    assert!(operation("/v1/fine_tuning/jobs", "delete").is_none());
}
