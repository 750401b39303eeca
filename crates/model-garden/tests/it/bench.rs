//! `model-garden bench` on a processor.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use crate::common::{run, told};
use serde_json::Value;

const TINY: [&str; 9] = ["bench", "--shape", "tiny", "--device", "cpu", "--threads", "2", "--steps", "2"];

fn measured(words: &[&str]) -> Value {
    let output = run(&[&TINY[..], words, &["--json"]].concat());
    assert!(output.status.success(), "{}", told(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} is missing: {value:#}"))
}

#[test]
fn everything_is_measured_and_adds_up() {
    let found = measured(&[]);
    // 2 rows of 64 + 32 tokens, 15 of them trained; an image token is 4 patches.
    for (path, expected) in [
        ("/micro_step/rows", 2.0),
        ("/micro_step/tokens", 192.0),
        ("/micro_step/trained_tokens", 30.0),
        ("/micro_step/patches", 512.0),
        ("/gradient_accumulation", 4.0),
    ] {
        assert_eq!(number(&found, path), expected, "{path}");
    }
    let micro_step = number(&found, "/micro_step_ms");
    let stages = ["batch", "vision", "forward", "backward", "update"];
    let stages = stages.map(|stage| number(&found, &format!("/stages_ms/{stage}")));
    assert!(stages.iter().all(|stage| *stage > 0.0), "{found:#}");
    // Marks and clock are read one after the other: between them there is nothing but a thread that may have to wait for a core.
    let sum: f64 = stages.iter().sum();
    assert!(sum <= micro_step && sum >= 0.9 * micro_step, "{sum} of {micro_step}: {found:#}");
    assert!((number(&found, "/update_ms") / stages[4] - 4.0).abs() < 1e-9);
    let (fastest, slowest) = (number(&found, "/fastest_micro_step_ms"), number(&found, "/slowest_micro_step_ms"));
    assert!(fastest <= micro_step && micro_step <= slowest);
    assert!((number(&found, "/tokens_per_second") - 192e3 / micro_step).abs() < 1e-6 * 192e3 / micro_step);
    let rate = number(&found, "/flop") / (micro_step / 1e3);
    assert!((number(&found, "/flop_per_second") / rate - 1.0).abs() < 1e-9);
    assert!(found["share_of_peak"].is_null() && found["card"].is_null(), "a processor has no sheet to look it up in");

    assert_eq!(found["memory"]["planned_bytes"], found["memory"]["held_bytes"]);
    let plan = found["memory"]["plan"].as_object().unwrap();
    assert_eq!(
        plan.values().map(|bytes| bytes.as_f64().unwrap()).sum::<f64>(),
        number(&found, "/memory/planned_bytes")
    );
    let (resident, peak) = (number(&found, "/host/resident_bytes"), number(&found, "/host/peak_resident_bytes"));
    assert!(resident <= peak && peak > number(&found, "/memory/planned_bytes"));
    assert!(number(&found, "/start/loaded_seconds") < number(&found, "/start/first_step_seconds"));

    let losses: Vec<f64> = found["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    assert_eq!((losses.len(), found["steps_ms"].as_array().unwrap().len()), (4, 2), "two steps go before");
    assert!(losses[3] < losses[0], "it learns the one batch that it has: {losses:?}");
}

#[test]
fn weights_and_work_are_the_same_in_every_run() {
    let words = ["--load-in-4bit", "--recompute", "none", "--vision", "--gradient-accumulation", "1"];
    let (one, other) = (measured(&words), measured(&words));
    for field in ["losses", "flop", "micro_step"] {
        assert_eq!(one[field], other[field], "{field}");
    }
    let plain = measured(&["--gradient-accumulation", "1"]);
    assert_ne!(plain["losses"], one["losses"], "weights of 4 bits are others");
    assert!(number(&one, "/memory/plan/weights") < number(&plain, "/memory/plan/weights"));
    assert!(number(&one, "/flop") > number(&plain, "/flop"), "a vision tower that is trained has a backward pass");
    assert_eq!((number(&one, "/flop_made_again"), number(&plain, "/flop_made_again") > 0.0), (0.0, true));
}

#[test]
fn the_text_begins_with_the_answer_and_says_what_was_left_out() {
    let output = run(&[&TINY[..], &["--layers", "2", "--image-tokens", "12", "--text-tokens", "8"]].concat());
    let text = told(&output);
    let first = text.lines().nth(2).unwrap();
    assert!(first.contains(" ms per micro-step, ") && first.ends_with(" tokens/s on 2 threads of the CPU"), "{text}");
    for part in [
        "tiny, random bf16 weights, LoRA of rank 16 on the decoder, each layer recomputed",
        "only 2 of 3 decoder layers and 2 of 3 vision blocks",
        "2 rows of 12 image tokens (112 x 84 pixels) and 8 text tokens, 3 of them trained; 4 micro-steps per step, 2 steps after 2 of warm-up",
        "once per step",
        "with a second forward pass",
        " planned\n",
        "at peak\n",
        "to the end of the first step",
    ] {
        assert!(text.contains(part), "`{part}` is missing:\n{text}");
    }
}

#[test]
fn what_cannot_fit_is_refused_before_anything_is_made() {
    let output = run(&["bench", "--shape", "qwen2.5-vl-72b", "--device", "cpu", "--batch-size", "5000"]);
    let text = told(&output);
    assert!(
        text.starts_with("exit 1\n----- stderr\nerror: ") && text.contains("TiB of host memory, but only "),
        "{text}"
    );
    assert!(text.contains("\nhint: try --load-in-4bit"), "{text}");
    let output = run(&["bench", "--shape", "huge"]);
    let text = told(&output);
    assert!(text.starts_with("exit 2\n") && text.contains("qwen2.5-vl-7b") && text.contains("or tiny"), "{text}");
}
