//! The whole way: a conversation and a picture through the processor and the engine, against what transformers answered.
//!
//! The recorded answer is given along with the prompt, so that one pass tells the choice at each of its places.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use garden_data::{Message, PictureFile, Processor};
use garden_device::Cpu;
use garden_model::{Batch, Checkpoint, Config, GradientCheckpointing, Model, Row, Storage, Training};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny-model")
}

#[test]
fn answers_are_those_of_transformers() {
    let processor = Processor::open(&folder()).unwrap();
    let config = Config::read(&folder().join("config.json")).unwrap();
    assert_eq!(processor.image_token(), config.image_token);
    let checkpoint = Checkpoint::open(&folder()).unwrap();
    let expected: Value = serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap();
    for one in expected["answers"].as_array().unwrap() {
        let name = one["image"].as_str();
        let data = name.map_or_else(Vec::new, |name| std::fs::read(folder().join(name)).unwrap());
        let files: Vec<PictureFile> = name.iter().map(|name| PictureFile { name, data: &data }).collect();
        let message = Message::with_images("user", files.len(), one["text"].as_str().unwrap());
        let prompt = processor.prompt(&[message], &files).unwrap();

        let answer: Vec<i32> =
            one["answer_tokens"].as_array().unwrap().iter().map(|token| token.as_i64().unwrap() as i32).collect();
        let mut tokens = prompt.tokens;
        let first = tokens.len() - 1;
        tokens.extend(&answer[..answer.len() - 1]);
        let row = Row { labels: tokens.clone(), tokens };
        let images = prompt.images;
        let batch = Batch::new(&config, &[row], images).unwrap();
        let mut cpu = Cpu::new(1);
        let limits = batch.limits();
        let mut model = Model::build(
            &mut cpu,
            &config,
            &checkpoint,
            &Training::Full,
            GradientCheckpointing::Off,
            &Storage::default(),
            limits,
        )
        .unwrap();
        let logits = model.logits(&mut cpu, &batch).unwrap();
        let chosen: Vec<i32> = logits.chunks_exact(config.text.vocabulary).skip(first).map(best).collect();
        assert_eq!(chosen, answer);
    }
}

fn best(logits: &[f32]) -> i32 {
    logits.iter().enumerate().max_by(|left, right| left.1.total_cmp(right.1)).unwrap().0 as i32
}
