//! `model-garden demo`: the whole job on drawn pictures, for somebody who wants to see it work.

use std::path::Path;

use garden_train::Recipe;
use serde_json::Value;

use super::Outcome;
use super::train::run_recipe;
use crate::cli;
use crate::demo::{base, dataset, recipe::RECIPE};
use crate::failure::Failure;
use crate::judging::quoted;
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
    printer.say(&introduction(arguments));
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
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let places = [
        ("model", text(&model)),
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
    let outcome = run_recipe(recipe, false, arguments.printed.is_json(), printer)?;
    if outcome == Outcome::Fine {
        let picture = data.join(dataset::first_held_out());
        printer.say(&format!(
            "\nNext, ask the model about a picture that it has not seen:\n  {}",
            question(&model, &output, &picture)
        ));
    }
    Ok(outcome)
}

/// What will happen, how long it takes and where files go.
fn introduction(arguments: &cli::Demo) -> String {
    let length = match arguments.max_steps {
        None => "This takes about a minute".to_string(),
        Some(steps) => format!("This takes {steps} steps"),
    };
    format!(
        "The demo draws {} pictures of shapes, teaches a tiny vision-language model to describe them in JSON, and shows that its memory stays flat. {length}; \
         all files go to `{}`.",
        dataset::TRAINED + dataset::HELD_OUT,
        arguments.output_dir.display()
    )
}

/// A command that asks the trained model about a picture, for the shell that started us.
fn question(model: &Path, adapter: &Path, picture: &Path) -> String {
    // A program that was started by its path is not found by its name.
    let called = std::env::args().next().filter(|name| name.contains('/'));
    let called = called.unwrap_or_else(|| "model-garden".into());
    let words = [
        called.as_str(),
        "generate",
        "--model",
        &model.to_string_lossy(),
        "--adapter",
        &adapter.to_string_lossy(),
        "--image",
        &picture.to_string_lossy(),
        "--prompt",
        dataset::PROMPT,
    ];
    words.map(quoted).join(" ")
}
