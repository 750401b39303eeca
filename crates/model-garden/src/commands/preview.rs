//! `model-garden preview`: rows of a dataset as the model sees them.

use std::path::Path;
use std::sync::Arc;

use garden_data::{
    COMMON_SHARE, Dataset, Error, Example, ExampleSettings, KeyCounter, Level, Outcome as Kept, Paint, Preview,
    Processor, Record, SelectiveLoss, WrittenBox, drawn_png,
};
use serde_json::{Value, json};

use super::Outcome;
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;

/// Runs the command.
pub fn run(arguments: &cli::Preview, printer: &Printer) -> Result<Outcome, Failure> {
    let recipe = super::recipe_of_rows(&arguments.model, &arguments.datasets, &arguments.settings);
    let recipe = recipe.map_err(super::wrong_setting)?;
    let template = super::chat_template(recipe.chat_template.as_deref(), None)?;
    let model = super::folder_of(&arguments.model)?;
    let mut processor = Processor::open_with(&model, template.as_ref())
        .map_err(|error| failure(format!("cannot use `{}`", model.display()), &error))?;
    recipe.bound_pixels(&mut processor.images);
    let dataset = recipe.rows(&arguments.split).dataset();
    let dataset = dataset
        .map_err(|error| failure(format!("cannot use {}", super::datasets_named(&arguments.datasets)), &error))?;
    let rows = dataset.len() as u64;
    if arguments.row > rows {
        return Err(Failure {
            what: format!("there is no row {}", arguments.row),
            causes: dataset
                .portions()
                .iter()
                .map(|of| format!("`{}` has {} rows", of.path.display(), of.rows))
                .collect(),
            hint: None,
        });
    }
    let selective = selective(&dataset, recipe.selective_loss)?;
    let settings = ExampleSettings { selective, ..recipe.example(&[]) };
    let paint = if printer.has_colour() { Paint::Ansi } else { Paint::Marks };
    let mut told: Vec<Value> = Vec::new();
    for row in arguments.row..=rows.min(arguments.row.saturating_add(arguments.rows - 1)) {
        let index = (row - 1) as usize;
        let bad = |error: &Error| failure(format!("row {row} cannot be used"), error);
        let record = dataset.read(index).map_err(|error| bad(&error))?;
        let kept = Example::of(&processor, &record, &settings).map_err(|error| bad(&error))?;
        if let (Some(folder), Kept::Kept(example)) = (&arguments.pictures, &kept) {
            draw(folder, row, &processor, &record, example, printer)?;
        }
        match (kept, arguments.printed.is_json()) {
            (Kept::Kept(example), false) => printer.out(&(Preview::of(&processor, &example).text(paint) + "\n"))?,
            (Kept::Kept(example), true) => told.push(json!({"row": row, "preview": Preview::of(&processor, &example)})),
            (Kept::Dropped(tokens), true) => told.push(json!({"row": row, "dropped_with_tokens": tokens})),
            (Kept::Dropped(tokens), false) => {
                printer.out(&format!("{}: dropped, as it has {tokens} tokens\n\n", dataset.place(index)))?;
            }
        }
    }
    if arguments.printed.is_json() {
        printer.out(&format!("{:#}\n", json!({"rows_in_dataset": rows, "rows": told})))?;
    }
    Ok(Outcome::Fine)
}

/// Writes the pictures of a row with their boxes.
fn draw(
    folder: &Path,
    row: u64,
    processor: &Processor,
    record: &Record,
    example: &Example,
    printer: &Printer,
) -> Result<(), Failure> {
    for (number, (picture, grid)) in record.pictures.iter().zip(&example.grids).enumerate() {
        let boxes: Vec<&WrittenBox> = example.boxes.iter().filter(|one| one.picture == Some(number)).collect();
        let png = drawn_png(processor, picture, *grid, &boxes)
            .map_err(|error| failure(format!("row {row} cannot be drawn"), &error))?;
        let path = folder.join(format!("row-{row}-picture-{}.png", number + 1));
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, png));
        written.map_err(|error| Failure {
            what: format!("cannot write `{}`", path.display()),
            causes: vec![error.to_string()],
            hint: None,
        })?;
        printer.say(&format!("written: {}", path.display()));
    }
    Ok(())
}

/// What is masked. The strictest level needs to know which keys are common, so it reads all answers first.
fn selective(dataset: &Dataset, level: Level) -> Result<SelectiveLoss, Failure> {
    let mut keys = KeyCounter::default();
    if level == Level::Aggressive {
        for index in 0..dataset.len() {
            let record =
                dataset.read(index).map_err(|error| failure(format!("row {} cannot be used", index + 1), &error))?;
            keys.add_answers(&record.messages);
        }
    }
    Ok(SelectiveLoss { level, keys: Arc::new(keys.common(COMMON_SHARE)), ..SelectiveLoss::default() })
}

fn failure(what: String, error: &Error) -> Failure {
    Failure::of(what, error)
}
