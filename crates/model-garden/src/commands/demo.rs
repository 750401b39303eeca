//! `model-garden demo`: the whole job on drawn pictures, for somebody who wants to see it work.

use garden_train::Recipe;
use serde_json::Value;

use super::Outcome;
use super::train::run_recipe;
use crate::cli;
use crate::demo::{base, dataset, recipe::RECIPE};
use crate::failure::Failure;
use crate::printer::Printer;

/// Runs the command.
pub fn run(arguments: &cli::Demo, printer: &Printer) -> Result<Outcome, Failure> {
    let folder = &arguments.output_dir;
    if folder.exists() {
        return Err(Failure {
            what: format!("`{}` already exists", folder.display()),
            causes: Vec::new(),
            hint: Some("remove it, or choose another folder with --output-dir".into()),
        });
    }
    let failed =
        |error: &std::io::Error| Failure::new(format!("cannot write into `{}`", folder.display()), error, None);
    let (model, data, output) = (folder.join("base"), folder.join("data"), folder.join("out"));
    base::write(&model).map_err(|error| failed(&error))?;
    dataset::write(&data, arguments.seed, dataset::TRAINED, dataset::HELD_OUT).map_err(|error| failed(&error))?;
    let chance: f64 = dataset::FIELDS.iter().map(|(_, values)| 1.0 / *values as f64).sum::<f64>();
    printer.say(&format!(
        "drew {} pictures to learn from and {} held-out ones in {}; guessing would get {:.0} % of fields right",
        dataset::TRAINED,
        dataset::HELD_OUT,
        data.display(),
        100.0 * chance / dataset::FIELDS.len() as f64
    ));
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let places = [
        ("base-model", text(&model)),
        ("dataset", text(&data.join(dataset::TRAIN))),
        ("eval-dataset", text(&data.join(dataset::EVALUATION))),
        ("output-dir", text(&output)),
        ("seed", arguments.seed.to_string()),
        ("device", arguments.device.clone()),
        ("threads", arguments.threads.to_string()),
    ];
    let fewer = arguments.max_steps.map(|steps| ("max-steps", steps.to_string()));
    let fixed = RECIPE.iter().map(|(name, value)| (*name, (*value).to_string()));
    let values = fixed.chain(places).chain(fewer).map(|(name, value)| (name.to_string(), Value::String(value)));
    let recipe = Recipe::from_values(values).map_err(|error| Failure {
        what: "the demo's recipe cannot be used".into(),
        causes: vec![error.to_string()],
        hint: error.hint,
    })?;
    run_recipe(recipe, false, arguments.json, printer)
}
