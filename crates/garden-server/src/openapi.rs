//! The description of the API, as it is served.

/// The text of `/openapi.json`.
pub const TEXT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    #[test]
    fn it_describes_the_paths_that_there_are() {
        let described: Value = serde_json::from_str(super::TEXT).unwrap();
        let paths = described["paths"].as_object().unwrap();
        let told: BTreeSet<(String, Vec<String>)> = paths
            .iter()
            .map(|(path, methods)| {
                let methods =
                    methods.as_object().unwrap().keys().filter(|name| *name != "parameters").cloned().collect();
                (path.clone(), methods)
            })
            .collect();
        let there: BTreeSet<(String, Vec<String>)> = crate::routes::table()
            .into_iter()
            .map(|(path, methods, _)| (path.to_string(), methods.iter().map(ToString::to_string).collect()))
            .collect();
        assert_eq!(told, there);
    }
}
