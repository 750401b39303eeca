//! `README.md` of the output folder: a model card as the hub shows it, with the numbers of the run.

use std::fmt::Write as _;
use std::path::Path;

use garden_data::BatchSize;
use garden_input::CardRules;
use garden_memory::{elapsed, grouped};
use garden_train::Recipe;

use crate::format::percent;
use crate::page::{field_rows, settings, title};
use crate::record::RunRecord;

/// The line by which a card is known to be ours. A card without it was edited and stays.
const OURS: &str = "<!-- Written by model-garden. Delete this line to keep your own text when the run is repeated. -->";
/// Whether the card of a folder may be written.
pub fn may_write(path: &Path) -> bool {
    std::fs::read_to_string(path).map_or(true, |text| text.contains(OURS))
}

/// The card of a run that came to its end.
pub fn card(record: &RunRecord) -> String {
    let recipe = &record.job.recipe;
    let (name, rules) = (title(&recipe.output_dir), &record.job.family.card);
    let parts = [
        front_matter(recipe, rules),
        OURS.to_string(),
        format!("# {}", line(&name)),
        about(record),
        numbers(record),
        memory(record),
        use_with_python(recipe, rules),
        use_with_ours(recipe),
        training(record),
        format!("Written by model-garden {}.", env!("CARGO_PKG_VERSION")),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n") + "\n"
}

/// Only what the hub reads, so that nothing is claimed that was not said: no license, no name of a dataset.
fn front_matter(recipe: &Recipe, rules: &CardRules) -> String {
    let (library, relation) = if recipe.full { ("transformers", "finetune") } else { ("peft", "adapter") };
    let kind = if recipe.full { None } else { Some("lora") };
    let tags = kind.into_iter().chain(["model-garden", rules.tag, "vision-language"]);
    let tags: String = tags.map(|tag| format!("\n- {tag}")).collect();
    // A folder of this machine means nothing to others, and may tell what is nobody's business.
    let base = hub_name(recipe)
        .map_or_else(String::new, |name| format!("base_model: {}\nbase_model_relation: {relation}\n", yaml(&name)));
    format!("---\n{base}library_name: {library}\npipeline_tag: image-text-to-text\ntags:{tags}\n---")
}

/// What the hub calls the base model, where that can be told.
fn hub_name(recipe: &Recipe) -> Option<String> {
    let given = recipe.base_model.as_str();
    // A folder of the local cache has the name in it: `models--owner--name/snapshots/..`.
    let cached = given.split('/').find_map(|part| part.strip_prefix("models--"));
    if let Some((owner, name)) = cached.and_then(|name| name.split_once("--")) {
        return Some(format!("{owner}/{name}"));
    }
    let is_name = |text: &str| {
        let parts: Vec<&str> = text.split('/').collect();
        let is_word = |part: &&str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        parts.len() == 2 && parts.iter().all(is_word)
    };
    if is_name(given) && !Path::new(given).exists() {
        return Some(given.to_string());
    }
    // What transformers wrote where it saved a model that came from the hub.
    let config = std::fs::read(Path::new(given).join("config.json")).ok()?;
    let config: serde_json::Value = serde_json::from_slice(&config).ok()?;
    let name = config.get("_name_or_path")?.as_str()?;
    (is_name(name) && !Path::new(name).exists()).then(|| name.to_string())
}

/// The same, or for a model that the hub may not know the name of its folder.
fn base_name(recipe: &Recipe) -> String {
    hub_name(recipe).unwrap_or_else(|| title(Path::new(&recipe.base_model)))
}

/// A text of YAML: plain where that is harmless, else with quotes, in which JSON's escapes hold.
fn yaml(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    // With a slash inside it can be neither a number nor a word that YAML knows.
    let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.contains('/');
    match is_name && text.chars().all(is_plain) {
        true => text.to_string(),
        false => serde_json::Value::from(text).to_string(),
    }
}

/// A text on one line that Markdown and HTML take for nothing else.
fn line(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '$' => escaped.extend(['\\', character]),
            control if control.is_control() => {}
            other => escaped.push(other),
        }
    }
    escaped
}

/// A text as code, in which nothing means anything but a backtick.
fn code(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    if text.contains(['`', '|']) { line(&text) } else { format!("`{text}`") }
}

fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let head = row(header.iter().map(ToString::to_string).collect());
    let rule = row(vec!["---".to_string(); header.len()]);
    let rows = rows.iter().map(|cells| row(cells.clone()));
    [head, rule].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

fn about(record: &RunRecord) -> String {
    let recipe = &record.job.recipe;
    let base = code(&base_name(recipe));
    let mut text = match (recipe.full, recipe.load_in_4bit) {
        (true, _) => format!("All weights of {base}, fine-tuned."),
        (false, true) => {
            format!("A LoRA adapter of rank {} for {base}, trained on 4-bit weights (NF4).", recipe.rank_words())
        }
        (false, false) => format!("A LoRA adapter of rank {} for {base}.", recipe.rank_words()),
    };
    let rows = rows_words(record);
    let (steps, tokens) = (record.last_step(), record.tokens().unwrap_or(0));
    let _ = write!(
        text,
        "\n\nTrained on {rows} for {} steps of {} ({} tokens) in {}.",
        grouped(steps),
        match recipe.batch() {
            BatchSize::Rows(rows) => format!("{} rows", rows * recipe.gradient_accumulation),
            BatchSize::Tokens(tokens) => match recipe.gradient_accumulation {
                1 => format!("a micro-batch of up to {} tokens", grouped(tokens)),
                count => format!("{count} micro-batches of up to {} tokens", grouped(tokens)),
            },
        },
        grouped(tokens as usize),
        elapsed(record.seconds())
    );
    if let Some(best) = record.best() {
        let _ = match best.step == steps {
            true => write!(text, " The result is from the last step."),
            false => {
                let words = recipe.best_by().words();
                write!(text, " The result is from step {}, which had {words} on held-out rows.", best.step)
            }
        };
    }
    text
}

/// How many rows, and how many of each dataset; the datasets have no names here, as those are places of a machine.
fn rows_words(record: &RunRecord) -> String {
    let rows = format!("{} rows", grouped(record.job.train.used()));
    let datasets = record.job.datasets();
    if datasets.len() < 2 {
        return rows;
    }
    let each: Vec<String> = datasets.iter().map(|dataset| grouped(dataset.per_epoch)).collect();
    format!("{rows} of {} datasets ({} in an epoch)", datasets.len(), each.join(" + "))
}

fn numbers(record: &RunRecord) -> String {
    let mut rows = Vec::new();
    let mut add = |name: &str, before: String, after: String| rows.push(vec![name.to_string(), before, after]);
    if let (Some(first), Some(last)) = (record.steps.first(), record.steps.last()) {
        add(
            "mean loss on training rows, first and last line of the log",
            format!("{:.4}", first.loss),
            format!("{:.4}", last.loss),
        );
    }
    let mut words = String::new();
    if let (Some(first), Some(own)) = (record.evaluations.first(), record.best()) {
        // Before the first step there is an evaluation, unless the log begins later.
        let at_first = |text: String| if first.step < own.step { text } else { String::new() };
        add("loss on held-out rows", at_first(format!("{:.4}", first.loss)), format!("{:.4}", own.loss));
        let shares = [
            ("token accuracy on held-out rows", first.mean_token_accuracy, own.mean_token_accuracy),
            ("fully correct answers", first.exact_match, own.exact_match),
            ("correct fields of JSON answers", first.field_accuracy, own.field_accuracy),
            ("box overlap (mean IoU)", first.mean_iou, own.mean_iou),
            ("boxes found (IoU ≥ 0.5)", first.iou_50, own.iou_50),
        ];
        for (name, before, after) in shares {
            if let Some(after) = after {
                add(name, at_first(before.map(percent).unwrap_or_default()), percent(after));
            }
        }
        let answers = if own.exact_match.is_some() {
            format!(", with answers to {} of them", own.answers)
        } else {
            String::new()
        };
        words =
            format!("\n\n{} rows were held out{answers}; the numbers are from step {}.", grouped(own.rows), own.step);
    }
    if rows.is_empty() {
        return String::new();
    }
    let fields = fields(record);
    format!("## Numbers\n\n{}{words}{fields}", table(&["", "before", "result"], &rows))
}

fn fields(record: &RunRecord) -> String {
    let rows: Vec<Vec<String>> = field_rows(record, record.best())
        .into_iter()
        .map(|row| {
            row.iter().enumerate().map(|(place, cell)| if place == 0 { code(cell) } else { cell.clone() }).collect()
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n\nShare of correct answers by field:\n\n{}", table(&["field", "before", "result"], &rows)),
    }
}

fn memory(record: &RunRecord) -> String {
    let verdict = record.judged.as_ref().map(|judged| {
        let found = &judged.diagnosis;
        format!("**{}**: {}", found.verdict.name(), line(&found.summary))
    });
    let words = record.memory_words().map(|words| format!("Training process: {words}."));
    let rows: Vec<Vec<String>> = record
        .planned
        .rows
        .iter()
        .map(|row| vec![line(&row.purpose), row.planned.to_string(), row.measured.to_string()])
        .collect();
    let rows = (!rows.is_empty()).then(|| table(&["purpose", "planned", "measured"], &rows));
    let parts: Vec<String> = words.into_iter().chain(verdict).chain(rows).collect();
    if parts.is_empty() { String::new() } else { format!("## Memory\n\n{}", parts.join("\n\n")) }
}

fn use_with_python(recipe: &Recipe, rules: &CardRules) -> String {
    let class = rules.class;
    // As Python reads it: JSON's escapes are its own.
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let folder = text(&title(&recipe.output_dir));
    let model = match recipe.full {
        true => format!("model = {class}.from_pretrained({folder}, torch_dtype=\"auto\")"),
        false => format!(
            "base = {class}.from_pretrained({}, torch_dtype=\"auto\")\n\
             model = PeftModel.from_pretrained(base, {folder})",
            text(&base_name(recipe))
        ),
    };
    let system = recipe
        .system_prompt
        .as_deref()
        .map_or_else(String::new, |words| format!("{{\"role\": \"system\", \"content\": {}}}, ", text(words)));
    let peft = if recipe.full { "" } else { "from peft import PeftModel\n" };
    format!(
        "## Use\n\n```python\n{peft}from PIL import Image\nfrom transformers import AutoProcessor, {class}\n\n\
         {model}\nprocessor = AutoProcessor.from_pretrained({folder})\n\n\
         messages = [{system}{{\"role\": \"user\", \"content\": [{{\"type\": \"image\"}}, {{\"type\": \"text\", \"text\": \"What is this?\"}}]}}]\n\
         text = processor.apply_chat_template(messages, add_generation_prompt=True)\n\
         inputs = processor(text=[text], images=[Image.open(\"picture.png\")], return_tensors=\"pt\").to(model.device)\n\
         answer = model.generate(**inputs, max_new_tokens={})\n\
         print(processor.batch_decode(answer[:, inputs.input_ids.shape[1]:], skip_special_tokens=True)[0])\n```",
        recipe.max_new_tokens
    )
}

fn use_with_ours(recipe: &Recipe) -> String {
    let shell =
        |text: &str| match text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)) && !text.is_empty() {
            true => text.to_string(),
            false => format!("'{}'", text.replace('\'', r"'\''")),
        };
    let folder = shell(&title(&recipe.output_dir));
    let model = match recipe.full {
        true => format!("--model {folder}"),
        false => format!("--model {} --adapter {folder}", shell(&base_name(recipe))),
    };
    let system =
        recipe.system_prompt.as_deref().map_or_else(String::new, |words| format!(" --system {}", shell(words)));
    format!(
        "Or without Python:\n\n```sh\nmodel-garden generate {model}{system} --image picture.png --prompt 'What is this?'\n```"
    )
}

fn training(record: &RunRecord) -> String {
    let has_steps = record.job.recipe.max_steps.is_some();
    let rows: Vec<Vec<String>> = settings(&record.job.recipe)
        .into_iter()
        // A number of steps takes the place of a number of epochs.
        .filter(|setting| !(has_steps && setting.field.name == "epochs"))
        .filter(|setting| !setting.value.is_empty() && !setting.field.is_local)
        .map(|setting| vec![code(setting.field.name), code(&setting.value)])
        .collect();
    format!(
        "## Training\n\n{}\n\n`recipe.toml` has every setting, for `model-garden train-vision --config`.",
        table(&["setting", "value"], &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_text() {
        assert_eq!(line("a | b\n<b>_x_</b>"), "a \\| b &lt;b>\\_x\\_&lt;/b>");
        assert_eq!((yaml("Qwen/Qwen2.5-VL-3B"), yaml("a: b")), ("Qwen/Qwen2.5-VL-3B".into(), "\"a: b\"".into()));
        assert_eq!(yaml("/models/a"), "\"/models/a\"");
    }

    #[test]
    fn a_folder_of_the_cache_has_the_hubs_name() {
        let recipe = |name: &str| Recipe { base_model: name.into(), ..Recipe::default() };
        let qwen = Some("Qwen/Qwen2.5-VL-3B-Instruct".to_string());
        assert_eq!(hub_name(&recipe("/c/hub/models--Qwen--Qwen2.5-VL-3B-Instruct/snapshots/1a")), qwen);
        assert_eq!(hub_name(&recipe("Qwen/Qwen2.5-VL-3B-Instruct")), qwen);
        // Folders of this machine are not published.
        for local in ["/home/someone/models/secret-project", "./base", "base", "../../testdata/tiny-model"] {
            assert_eq!(hub_name(&recipe(local)), None, "{local}");
            assert!(!front_matter(&recipe(local), &garden_input::FAMILIES[0].card).contains("base_model"), "{local}");
        }
        assert_eq!(base_name(&recipe("/home/someone/models/secret-project")), "secret-project");
    }
}
