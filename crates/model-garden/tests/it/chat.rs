//! `model-garden chat` on the tiny random model.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::common::{model_garden, run, run_with_input};
use crate::resume::signal;

const MODEL: &str = "testdata/tiny-model";
const IMAGE: &str = "testdata/tiny-model/harbour.jpg";
const QUESTION: &str = "How many boats are in the picture?";

fn chat(words: &[&str], said: &str) -> Output {
    let all = [&["chat", "--model", MODEL, "--device", "cpu", "--threads", "1"], words].concat();
    run_with_input(&all, said.as_bytes())
}

fn turns(words: &[&str], said: &str) -> Vec<Value> {
    let done = chat(&[words, &["--json", "--max-new-tokens", "12"]].concat(), said);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn texts(turns: &[Value]) -> Vec<&str> {
    turns.iter().map(|turn| turn["text"].as_str().unwrap()).collect()
}

#[test]
fn the_first_answer_is_that_of_generate_and_later_ones_read_only_what_is_new() {
    let large = ["--min-pixels", "300000", "--max-pixels", "400000"];
    let first = run(&[
        &["generate", "--model", MODEL, "--image", IMAGE, "--prompt", QUESTION, "--max-new-tokens", "12", "--json"][..],
        &large,
        &["--device", "cpu", "--threads", "1"],
    ]
    .concat());
    let first: Value = serde_json::from_slice(&first.stdout).unwrap();
    let said =
        format!("{QUESTION}\nAnd how many birds?\n/clear\n/image {IMAGE}\n{QUESTION}\n/quit\nnobody hears this\n");
    let talked = turns(&[&["--image", IMAGE], &large[..]].concat(), &said);
    let expected = first["answers"][0]["text"].as_str().unwrap();
    let texts = texts(&talked);
    assert_eq!((texts.len(), texts[0], texts[2]), (3, expected, expected));
    let numbers = |name: &str| talked.iter().map(|turn| turn[name].as_u64().unwrap()).collect::<Vec<u64>>();
    assert!(numbers("prompt_tokens")[0] > 400, "{talked:?}");
    assert!(numbers("prompt_tokens")[1] > numbers("prompt_tokens")[0] + 12, "{talked:?}");
    // A piece has 256 tokens; the same conversation again is known, too.
    assert_eq!(numbers("reused_tokens"), [0, 256, 256]);
}

#[test]
fn what_is_said_is_answered_on_standard_output_and_mistakes_are_told() {
    let done = chat(&["--max-new-tokens", "5"], "hello\n/nothing\n\nhello\\\nagain\n");
    let (answers, told) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && answers.lines().count() == 2, "{answers}{told}");
    assert!(told.contains("/nothing is no command") && told.contains("(cut off: "), "{told}");
    for (said, why) in [
        ("/image nothing.png\nhello\n", "cannot use the image `nothing.png`"),
        ("what is <|image_pad|>?\n", "which only the chat template may write"),
    ] {
        let done = chat(&[], said);
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && told.contains(why), "{told}");
    }
    let long = "word ".repeat(400);
    let done = chat(&["--context", "300"], &format!("hello\n{long}\n"));
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(2) && told.contains("tokens with this message; --context is 300"), "{told}");
    // One that ends where the context does.
    let cut = turns(&["--context", "50"], "hello there, how are you today?\n");
    let [used, new] = ["prompt_tokens", "new_tokens"].map(|name| cut[0][name].as_u64().unwrap());
    assert!(used < 50 && used + new == 50, "{cut:?}");
}

#[test]
fn an_interrupt_stops_the_answer_and_then_the_program() {
    // An answer of a thousand tokens, unless it is stopped.
    let words = ["chat", "--model", MODEL, "--device", "cpu", "--threads", "1", "--temperature", "1.5", "--seed", "7"];
    let mut child =
        model_garden(&words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    input.write_all(b"hello\n").unwrap();
    output.read_exact(&mut [0; 8]).unwrap();
    signal("-INT", child.id());
    let mut letter = [0];
    let mut answered = 0;
    while letter != *b"\n" {
        output.read_exact(&mut letter).unwrap();
        answered += 1;
    }
    // It goes on: the next line is answered, too.
    input.write_all(b"/clear\n/nothing\n").unwrap();
    let mut told = Vec::new();
    let mut errors = child.stderr.take().unwrap();
    while !String::from_utf8_lossy(&told).contains("/nothing is no command") {
        errors.read_exact(&mut letter).unwrap();
        told.extend(letter);
    }
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("(stopped)") && answered < 3000, "{told}");
    // Between answers it ends.
    signal("-INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_request_to_end_ends_it_in_the_middle_of_an_answer() {
    let words = ["chat", "--model", MODEL, "--device", "cpu", "--threads", "1", "--temperature", "1.5", "--seed", "7"];
    let mut child = model_garden(&words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    input.write_all(b"hello\n").unwrap();
    output.read_exact(&mut [0; 8]).unwrap();
    signal("-TERM", child.id());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}
