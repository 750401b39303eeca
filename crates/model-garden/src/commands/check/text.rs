//! What `check` found, for the terminal: the answer in the first line, then the errors, then the sizes.

use garden_data::{Distribution, Largest, Survey};
use garden_memory::{Bytes, counted, grouped};

use super::{Checked, Memory};

/// Problems that are shown.
const SHOWN: usize = 20;
/// Duplicates and empty answers that are shown.
const SHOWN_WARNINGS: usize = 5;
/// Pictures of the largest row whose sizes are shown.
const SHOWN_PICTURES: usize = 4;
/// Bars of a chart.
const BARS: usize = 8;
/// Columns of the longest bar: with its labels a line fits 80 columns.
const BAR_WIDTH: usize = 40;
/// Pixels below which images are small.
const SMALL_IMAGES: u64 = 100_000;
/// An eighth to seven eighths of a column.
const PARTS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

pub(super) fn write(checked: &Checked) -> String {
    let survey = &checked.survey;
    let mut text = headline(checked) + "\n";
    if let Some(time) = &checked.step_time {
        text += &format!("{}\n", time.sentence());
    }
    text += &crate::commands::datasets_words(&checked.datasets);
    text += &problems(survey);
    text += &ignored(survey);
    text += &boxes(survey);
    text += &pictures(checked);
    text += &warnings(checked);
    if let Some(largest) = &survey.largest {
        let tokens = |count: u64| grouped(count as usize);
        text += &chart("Tokens per row", &survey.tokens, tokens);
        text += &chart("Image tokens per row", &survey.image_tokens, tokens);
        text += &chart("Trained tokens per row", &survey.trained_tokens, tokens);
        // As many digits as it takes to tell the bars of small images apart.
        let digits = if survey.pixels.most() < SMALL_IMAGES { 4 } else { 2 };
        text += &chart("Megapixels per image", &survey.pixels, |pixels| format!("{:.digits$}", pixels as f64 / 1e6));
        text += &sizes(survey, largest);
        text += &memory(survey, &checked.memory);
    }
    text
}

/// The answer.
fn headline(checked: &Checked) -> String {
    let Checked { recipe, survey, steps, .. } = checked;
    let tally = &survey.tally;
    let mut notes = Vec::new();
    if tally.dropped > 0 {
        notes.push(format!("{} dropped as too long", grouped(tally.dropped)));
    }
    if tally.shrunk > 0 {
        notes.push(format!("{} with shrunk images", grouped(tally.shrunk)));
    }
    let notes: String = notes.iter().map(|note| format!(", {note}")).collect();
    let all = counted(survey.rows, "row");
    let pace =
        format!("{} per epoch at {} x {}", counted(*steps, "step"), recipe.batch_size, recipe.gradient_accumulation);
    match survey.problem_count {
        0 if tally.dropped == 0 => format!("{all}, all usable{notes}: {pace}"),
        0 => format!("{all}, {} usable{notes}: {pace}", grouped(tally.kept)),
        bad => {
            let are = if bad == 1 { "is" } else { "are" };
            let bad = format!("{} of {all} {are} bad{notes}", grouped(bad));
            let rest = grouped(tally.kept);
            if tally.kept == 0 { bad } else { format!("{bad}; the other {rest} make {pace}") }
        }
    }
}

fn problems(survey: &Survey) -> String {
    let mut text = String::new();
    let mut said: Vec<&str> = Vec::new();
    for problem in survey.problems.iter().take(SHOWN) {
        text += &format!("  {problem}\n");
        // The same advice once is enough.
        if let Some(hint) = problem.hint.as_deref().filter(|hint| !said.contains(hint)) {
            text += &format!("    hint: {hint}\n");
            said.push(hint);
        }
    }
    if survey.problem_count > SHOWN {
        let more = grouped(survey.problem_count - SHOWN);
        text += &format!("  ... and {more} more (--format json lists up to {})\n", garden_data::KEPT_PROBLEMS);
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Fields that nothing reads.
fn ignored(survey: &Survey) -> String {
    if survey.ignored.is_empty() {
        return String::new();
    }
    let mut text = "\nUnused fields: neither the program nor the chat template reads them\n".to_string();
    for one in survey.ignored.iter().take(SHOWN) {
        text += &format!("  `{}` in {}, first {}\n", one.field, counted(one.rows, "row"), one.first);
    }
    if survey.ignored.len() > SHOWN || survey.more_ignored > 0 {
        let least = if survey.more_ignored > 0 { "at least " } else { "" };
        let more = grouped(survey.ignored.len().saturating_sub(SHOWN));
        text += &format!("  ... and {least}{more} more (--format json lists up to 200)\n");
    }
    text
}

/// What is done with boxes.
fn boxes(survey: &Survey) -> String {
    let lines: String = survey.tally.box_words().iter().map(|line| format!("  {line}\n")).collect();
    if lines.is_empty() { lines } else { format!("\nBoxes\n{lines}") }
}

/// What was decoded, and what of pictures is not used.
fn pictures(checked: &Checked) -> String {
    let survey = &checked.survey;
    let decoded = (checked.arguments.decode && survey.pictures.count > 0)
        .then(|| format!("every picture of the {} was decoded", counted(survey.tally.kept, "usable row")));
    let lines = decoded.into_iter().chain(survey.picture_words());
    let lines: String = lines.map(|line| format!("  {line}\n")).collect();
    if lines.is_empty() { lines } else { format!("\nPictures\n{lines}") }
}

fn warnings(checked: &Checked) -> String {
    let Checked { survey, dataset, .. } = checked;
    let place = |row: u32| dataset.place(row as usize);
    let mut text = String::new();
    let mut warn = |count: usize, what: [&str; 2], shown: Vec<String>| {
        if count == 0 {
            return;
        }
        let what = what[usize::from(count > 1)];
        text += &format!("\nwarning: {} {what}\n", counted(count, "row"));
        text.extend(shown.iter().map(|line| format!("  {line}\n")));
        if count > shown.len() {
            text += &format!("  ... and {} more\n", grouped(count - shown.len()));
        }
    };
    let pairs = survey.duplicates.iter().take(SHOWN_WARNINGS);
    let pairs = pairs.map(|one| format!("{} is the same as {}", place(one.row), place(one.first)));
    let same = ["duplicates an earlier one", "duplicate earlier ones"];
    warn(survey.duplicate_count, same, pairs.collect());
    let empty = survey.empty_answers.iter().take(SHOWN_WARNINGS).map(|row| place(*row));
    let nothing = [
        "has an empty answer, which teaches the model to say nothing",
        "have empty answers, which teach the model to say nothing",
    ];
    warn(survey.empty_answer_count, nothing, empty.collect());
    text
}

/// A distribution in bars.
fn chart(title: &str, of: &Distribution, number: impl Fn(u64) -> String) -> String {
    if of.count() == 0 {
        return String::new();
    }
    if of.least() == of.most() {
        return format!("\n{title}: {}\n", number(of.most()));
    }
    let (median, p99, most) = (number(of.quantile(0.5)), number(of.quantile(0.99)), number(of.most()));
    let mut text = format!("\n{title}: median {median}, 99 % up to {p99}, largest {most}\n");
    let bars = of.bars(BARS);
    let highest = bars.iter().map(|bar| bar.count).max().unwrap_or(1);
    let ends: Vec<(String, String)> = bars.iter().map(|bar| (number(bar.from), number(bar.to))).collect();
    let width = ends.iter().map(|(_, to)| to.len()).max().unwrap_or(0);
    for (bar, (from, to)) in bars.iter().zip(&ends) {
        let range =
            if from == to { format!("{to:>0$}", 2 * width + 3) } else { format!("{from:>width$} - {to:>width$}") };
        text += format!("  {range}  {} {}", blocks(bar.count, highest), grouped(bar.count as usize)).trim_end();
        text.push('\n');
    }
    text
}

/// A bar; whatever is there at all is seen.
fn blocks(count: u64, highest: u64) -> String {
    let eighths = (count as f64 / highest.max(1) as f64 * (8 * BAR_WIDTH) as f64).round() as usize;
    let eighths = eighths.max(usize::from(count > 0));
    let rest = (eighths % 8).checked_sub(1).map(|index| PARTS[index]);
    "█".repeat(eighths / 8).chars().chain(rest).collect()
}

fn sizes(survey: &Survey, largest: &Largest) -> String {
    let mut pictures: Vec<String> =
        largest.pictures.iter().take(SHOWN_PICTURES).map(|[width, height]| format!("{width} x {height}")).collect();
    if largest.pictures.len() > SHOWN_PICTURES {
        pictures.push(format!("{} more", largest.pictures.len() - SHOWN_PICTURES));
    }
    let images = match largest.pictures.len() {
        0 => "no images".to_string(),
        count => format!(
            "{} of them from {} ({})",
            grouped(largest.image_tokens),
            counted(count, "image"),
            pictures.join(", ")
        ),
    };
    let limits = survey.limits;
    format!(
        "\nLargest row: {}\n  {} tokens, {images}\n\
         Largest micro-batch in any order\n  {} tokens, {} trained, {} patches, {}\n",
        largest.place,
        grouped(largest.tokens),
        grouped(limits.tokens),
        grouped(limits.targets),
        grouped(limits.patches),
        counted(limits.images, "image"),
    )
}

fn memory(survey: &Survey, memory: &Memory) -> String {
    if survey.pictures.count == 0 {
        return format!("\nHost memory for the data: {} (row index)\n", Bytes(memory.index));
    }
    let lines = [
        (
            memory.decoded_list,
            format!("in Python with {} decoded in a list", counted(survey.pictures.count as usize, "image")),
        ),
        (memory.total(), "here, regardless of the number of images:".to_string()),
        (memory.index, "  row index".to_string()),
        (memory.patches, "  patches of the largest micro-batch".to_string()),
        (memory.pictures, format!("  largest image decoded, on {}", counted(memory.threads, "thread"))),
        (memory.rows, format!("  largest row compressed, on {}", counted(memory.threads, "thread"))),
    ];
    let lines = lines.map(|(bytes, what)| format!("  {:>11}  {what}\n", Bytes(bytes).to_string()));
    format!("\nHost memory for the data\n{}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        assert_eq!((blocks(0, 5), blocks(1, 1_000_000)), (String::new(), "▏".to_string()));
        assert_eq!(blocks(5, 5).chars().count(), BAR_WIDTH);
    }
}
