//! What `check` found, as JSON. Rows are counted from 1.

use garden_data::{Distribution, PartlyUsed};
use garden_train::DatasetRows;
use serde_json::{Value, json};

use super::Checked;

/// Bars of a distribution at most.
const BARS: usize = 24;

pub(super) fn value(checked: &Checked) -> Value {
    let Checked { arguments, recipe, dataset, datasets, survey, memory, steps, step_time } = checked;
    let place = |row: u32| dataset.place(row as usize);
    let problem = |problem: &garden_data::Problem| {
        let mut value = json!(problem);
        value["row"] = json!(problem.row + 1);
        value
    };
    let largest = survey.largest.as_ref().map(|largest| {
        let mut value = json!(largest);
        value["row"] = json!(largest.row + 1);
        value
    });
    let duplicate = |one: &garden_data::Duplicate| json!({"row": one.row + 1, "place": place(one.row), "first_row": one.first + 1, "first_place": place(one.first)});
    let limits = survey.limits;
    let mut value = json!({
        "dataset": arguments.datasets.first(),
        "rows": survey.rows,
        "usable": survey.tally.kept,
        "bad": survey.problem_count,
        "too_long": survey.too_long,
        "left_out": survey.left_out.iter().map(|row| row + 1).collect::<Vec<u32>>(),
        "batch_size": recipe.batch_size,
        "gradient_accumulation": recipe.gradient_accumulation,
        "steps_per_epoch": steps,
        "tally": survey.tally,
        "problems": survey.problems.iter().map(problem).collect::<Vec<Value>>(),
        "ignored": survey.ignored,
        "more_ignored": survey.more_ignored,
        "duplicate_count": survey.duplicate_count,
        "duplicates": survey.duplicates.iter().map(duplicate).collect::<Vec<Value>>(),
        "empty_answer_count": survey.empty_answer_count,
        "empty_answers": survey.empty_answers.iter().map(|row| json!({"row": row + 1, "place": place(*row)})).collect::<Vec<Value>>(),
        "largest": largest,
        "limits": {
            "tokens": limits.tokens, "rows": limits.rows, "targets": limits.targets, "patches": limits.patches,
            "images": limits.images, "longest": limits.longest,
        },
        "pictures": survey.pictures,
        "decoded": arguments.decode,
        "several_frames": partly(&survey.several_frames),
        "clipped_gray": partly(&survey.clipped_gray),
        "distributions": {
            "tokens": distribution(&survey.tokens),
            "image_tokens": distribution(&survey.image_tokens),
            "trained_tokens": distribution(&survey.trained_tokens),
            "pixels": distribution(&survey.pixels),
        },
        "memory": {
            "decoded_list_bytes": memory.decoded_list,
            "ours_bytes": memory.total(),
            "index_bytes": memory.index,
            "patches_bytes": memory.patches,
            "decoded_pictures_bytes": memory.pictures,
            "compressed_rows_bytes": memory.rows,
            "threads": memory.threads,
        },
    });
    if DatasetRows::are_mixed(datasets) {
        value["dataset"] = json!(arguments.datasets);
        value["datasets"] = json!(datasets);
    }
    // Only where somebody asked, which nobody does of the server.
    if let Some(time) = step_time {
        value["step_time"] = json!(time);
    }
    value
}

/// Pictures of which not everything is used; the place is null where there is none.
fn partly(used: &PartlyUsed) -> Value {
    json!({"pictures": used.pictures, "first": (used.pictures > 0).then_some(&used.first)})
}

fn distribution(of: &Distribution) -> Value {
    let bars: Vec<Value> =
        of.bars(BARS).iter().map(|bar| json!({"from": bar.from, "to": bar.to, "count": bar.count})).collect();
    let quantile = |share| (of.count() > 0).then(|| of.quantile(share));
    json!({
        "count": of.count(), "least": quantile(0.0).map(|_| of.least()), "median": quantile(0.5), "p90": quantile(0.9),
        "p99": quantile(0.99), "most": quantile(1.0).map(|_| of.most()), "mean": quantile(1.0).map(|_| of.mean()),
        "bars": bars,
    })
}
