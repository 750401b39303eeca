//! What a training run leaves for people: `report.html`, made at its end and again later, and the model card.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set itself up must fail")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common::browser::Browser;
use crate::common::{model_garden, picture_rows, run, scratch, told};
use serde_json::{Value, json};

/// Widths and colours in which every page must hold.
const LOOKS: [(u32, &str); 4] = [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")];
/// How long anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// A text that would do harm anywhere it is taken for more than text.
const HOSTILE: &str = "</script><img src=x onerror=\"window.harm=1\">|`' & <!--";

fn dataset(folder: &Path, rows: usize) -> PathBuf {
    picture_rows(folder, rows, |row| format!("Picture {row}? {HOSTILE}"))
}

fn words(dataset: &Path, output: &Path, more: &[&str]) -> Vec<String> {
    let fixed = [
        "train-vision",
        "--base-model",
        "testdata/tiny-model",
        "--dataset",
        dataset.to_str().unwrap(),
        "--output-dir",
        output.to_str().unwrap(),
        "--max-pixels",
        "12544",
        "--threads",
        "1",
        "--logging-steps",
        "1",
        "--max-new-tokens",
        "8",
        "--learning-rate",
        "5e-3",
    ];
    fixed.iter().chain(more).map(ToString::to_string).collect()
}

fn train(dataset: &Path, output: &Path, more: &[&str]) -> Output {
    let words = words(dataset, output, more);
    run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A run that is done, for all tests that only look.
fn trained() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = scratch("training-page");
        let dataset = dataset(&folder, 40);
        let output = folder.join("my-adapter");
        let flags = ["--max-steps", "12", "--eval-split", "0.4", "--eval-steps", "4", "--eval-answers", "14"];
        let ended = train(&dataset, &output, &flags);
        assert!(ended.status.success(), "{}", told(&ended));
        assert!(told(&ended).contains("report: "), "{}", told(&ended));
        output
    })
}

/// A text between two others.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let rest = text.split_once(from).unwrap_or_else(|| panic!("there is no {from}")).1;
    rest.split_once(to).unwrap_or_else(|| panic!("there is no {to}")).0
}

#[test]
fn the_page_has_what_people_look_for() {
    let folder = trained();
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    let answer = between(&page, "<h1>", "</h1>");
    assert!(answer.starts_with("Trained 12 steps in ") && answer.contains("on held-out rows"), "{answer}");
    for title in ["Loss", "Token accuracy", "Accuracy", "Learning rate", "Gradients", "Step time", "Memory"] {
        assert!(page.contains(&format!("<figcaption><h2>{title}</h2>")), "{title}");
    }
    for title in ["Answers", "Evaluations", "Memory", "Recipe"] {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    // With one start there is nothing to say about the guard.
    assert!(!page.contains("What the guard did"));
    assert_eq!(page.matches("<article class=\"exhibit").count(), 12);
    assert_eq!(page.matches("<img src=\"data:image/").count(), 12);
    assert!(page.contains("≠ <mark>") && page.contains("fully correct"), "no answers");
    assert!(!page.contains("<img src=x") && !page.contains("src=\"http") && !page.contains("href=\"http"));
    let told: Value = serde_json::from_str(between(&page, "id=\"result\">", "</script>")).unwrap();
    assert_eq!((&told["done"], &told["steps"]), (&json!(true), &json!(12)));
    // Settings that differ come first, and all of them are there.
    let own = between(&page, "<h2>Recipe</h2>", "<details>");
    assert!(own.contains("learning-rate") && own.contains("0.005") && !own.contains("adam-beta1"), "{own}");
    assert!(page.contains("adam-beta1"));
    // The most that was resident is one number, in the tile as in the last line of the table.
    let table = between(&page, "<th scope=\"col\">purpose</th>", "</table>");
    let measured = table.rsplit("</td>").nth(1).unwrap().rsplit('>').next().unwrap();
    assert!(page.contains(&format!("at most {measured} resident")), "{measured}: {table}");
}

#[test]
fn the_page_can_be_made_again_anywhere() {
    let folder = trained();
    let moved = scratch("training-page-moved").join("elsewhere");
    assert!(Command::new("cp").arg("-r").arg(folder).arg(&moved).status().unwrap().success());
    std::fs::remove_file(moved.join("report.html")).unwrap();
    // What the plan said is kept for it.
    let planned = json!({"total": 3_u64 << 30, "rows": [{"purpose": "weights", "planned": 1_u64 << 30, "measured": 1_u64 << 29}]});
    std::fs::write(moved.join(".planned.json"), planned.to_string()).unwrap();
    let again = run(&["report", moved.to_str().unwrap()]);
    assert!(again.status.success(), "{}", told(&again));
    let page = std::fs::read_to_string(moved.join("report.html")).unwrap();
    assert!(between(&page, "<h1>", "</h1>").starts_with("Trained 12 steps in "));
    assert!(page.contains("3.00 GiB planned") && page.contains("\"name\":\"planned\""), "no plan");
    let table = between(&page, "<th scope=\"col\">purpose</th>", "</table>");
    assert!(table.contains("weights") && table.contains("1.00 GiB") && table.contains("512 MiB"), "{table}");
    let other = moved.join("other.html");
    run(&["report", moved.to_str().unwrap(), "-o", other.to_str().unwrap()]);
    assert!(other.is_file());
    // Killed before its end, it still has a page.
    std::fs::remove_file(moved.join("result.json")).unwrap();
    std::fs::remove_file(moved.join(".guard/exit.json")).unwrap();
    assert!(run(&["report", moved.to_str().unwrap()]).status.success());
    let page = std::fs::read_to_string(moved.join("report.html")).unwrap();
    assert!(page.contains("Not finished: the run did not complete"), "{}", between(&page, "<h1>", "</h1>"));
    let nothing = run(&["report", "testdata"]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(told(&nothing).contains("`testdata` is not the output folder of a training run"), "{}", told(&nothing));
}

#[test]
fn the_card_is_one_of_the_hubs() {
    let folder = trained();
    let card = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let front = between(&card, "---\n", "\n---\n");
    for line in ["library_name: peft", "pipeline_tag: image-text-to-text", "- lora"] {
        assert!(front.lines().any(|found| found == line), "{line}: {front}");
    }
    // The base is a folder of this machine, which the hub knows nothing of.
    assert!(!front.contains("base_model"), "{front}");
    let log = std::fs::read_to_string(folder.join("log.jsonl")).unwrap();
    let losses = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["eval_loss"].as_f64());
    let best = losses.skip(1).fold(f64::INFINITY, f64::min);
    assert!(card.contains(&format!("| {best:.4} |")), "{card}");
    for part in [
        "# my-adapter",
        "A LoRA adapter of rank 16 for `tiny-model`.",
        "for 12 steps of 8 rows",
        "PeftModel.from_pretrained(base, \"my-adapter\")",
        "model-garden generate --model tiny-model --adapter my-adapter",
        "| `learning-rate` | `0.005` |",
        "## Memory",
    ] {
        assert!(card.contains(part), "{part}: {card}");
    }
    // Nobody else needs to know where things are here.
    assert!(!card.contains(folder.parent().unwrap().to_str().unwrap()), "{card}");
}

/// One number for each line of the log, which everything else that tells of it repeats.
#[test]
fn the_token_accuracy_is_wherever_the_loss_is() {
    let folder = trained();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let log: Vec<Value> = read("log.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shares = |loss: &str, name: &str| -> Vec<f64> {
        let lines = log.iter().filter(|line| line.get(loss).is_some());
        lines.map(|line| line[name].as_f64().unwrap()).collect()
    };
    let (steps, evaluations) = (shares("loss", "mean_token_accuracy"), shares("eval_loss", "eval_mean_token_accuracy"));
    assert_eq!(evaluations.len(), 4);
    for shares in [&steps, &evaluations] {
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
        assert!(shares.last() > shares.first(), "{shares:?}");
    }
    let state: Value = serde_json::from_str(&read("checkpoint-12/trainer_state.json")).unwrap();
    assert_eq!(state["log_history"], json!(log));
    let result: Value = serde_json::from_str(&read("result.json")).unwrap();
    assert_eq!(result["first_mean_token_accuracy"], json!(steps[0]));
    assert_eq!(result["last_mean_token_accuracy"], json!(steps.last()));
    assert_eq!(result["evaluation"]["mean_token_accuracy"], json!(evaluations[3]));
    let events =
        std::fs::read_dir(folder.join("runs")).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    let events: Vec<u8> = events.flatten().collect();
    for (tag, values) in [("train/mean_token_accuracy", &steps), ("eval/mean_token_accuracy", &evaluations)] {
        let found = events.windows(tag.len()).filter(|bytes| *bytes == tag.as_bytes()).count();
        assert_eq!(found, values.len(), "{tag}");
    }
    let words = format!("{:.1} %", 100.0 * evaluations[3]);
    assert!(between(&read("report.html"), "<h2>Evaluations</h2>", "</table>").contains(&words), "{words}");
    assert!(read("README.md").contains("| token accuracy on held-out rows |"), "{}", read("README.md"));
}

#[test]
fn a_run_that_was_stopped_has_a_page_and_an_edited_card_stays() {
    let folder = scratch("training-page-stopped");
    let (dataset, output) = (dataset(&folder, 20), folder.join("out"));
    let flags = ["--max-steps", "400"];
    let words = words(&dataset, &output, &flags);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let guard = model_garden(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let steps = || std::fs::read_to_string(output.join("log.jsonl")).unwrap_or_default().lines().count();
    while steps() < 3 {
        assert!(begin.elapsed() < PATIENCE, "no third step");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-TERM", &guard.id().to_string()]).status().unwrap().success());
    let ended = guard.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", told(&ended));
    let page = std::fs::read_to_string(output.join("report.html")).unwrap();
    assert!(between(&page, "<h1>", "</h1>").starts_with("Stopped at step "), "{}", told(&ended));
    assert!(page.contains("<strong>stopped</strong>") && page.contains("<figcaption><h2>Loss</h2>"));
    // There is no result that a card could describe.
    assert!(!output.join("README.md").exists());
    std::fs::write(output.join("README.md"), "mine").unwrap();
    let last = (steps() + 1).to_string();
    let resumed = train(&dataset, &output, &["--max-steps", &last, "--resume", "auto"]);
    assert!(resumed.status.success(), "{}", told(&resumed));
    assert_eq!(std::fs::read_to_string(output.join("README.md")).unwrap(), "mine", "{}", told(&resumed));
}

#[test]
fn the_page_is_drawn_in_a_browser() {
    let folder = trained();
    let Some(mut browser) = Browser::start("training-page") else { return };
    let file = folder.join("report.html");
    for (width, scheme) in LOOKS {
        browser.open(&file, width, scheme);
        let at = format!("at {width} in {scheme}");
        assert_eq!(browser.troubles(), Vec::<String>::new(), "{at}");
        assert_eq!(browser.ask("window.harm === undefined"), json!(true), "{at}");
        assert_eq!(browser.text("document.querySelector('.word strong').textContent"), "trained", "{at}");
        assert!(browser.number("document.documentElement.scrollWidth - innerWidth") <= 0.0, "{at} is too wide");
        let figures = browser.number("document.querySelectorAll('figure.card').length");
        let drawn = browser.number("document.querySelectorAll('figure.card svg.chart-picture').length");
        assert!(figures >= 6.0 && figures == drawn, "{at}: {figures} charts, {drawn} drawn");
        let broken = "(async () => { const all = [...document.querySelectorAll('.exhibit img')]; \
                      all.forEach((img) => { img.loading = 'eager'; }); await Promise.all(all.map((img) => img.decode())); \
                      return all.filter((img) => img.naturalWidth < 1 || Math.max(img.naturalWidth, img.naturalHeight) > 160).length; })()";
        assert_eq!(browser.number(broken), 0.0, "{at}");
        // No exhibit is wider than its place.
        let wide = "[...document.querySelectorAll('.exhibit')].filter((e) => e.scrollWidth > e.clientWidth + 1).length";
        assert_eq!(browser.number(wide), 0.0, "{at}");
    }
    let names = browser.ask("[...document.querySelectorAll('#chart-1 .curve')].map((c) => c.dataset.curve)");
    assert_eq!(names, json!(["training", "held-out rows"]));
    // Evaluations at steps 0, 4, 8 and 12 have a dot each.
    assert_eq!(browser.number("document.querySelectorAll('#chart-1 .curve.dotted circle').length"), 4.0);
}
