//! The demo's dataset: drawn pictures, and what is in them as JSON.
//!
//! Every answer is as likely as every other, so whoever does not look at the picture is right in one of three shapes, one of four colours and one of
//! three counts. Training and held-out pictures come from streams of random numbers that have nothing in common.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;

use super::drawing::{Colour, Drawing, Outline};
use super::random::Random;

/// What the model is asked about every picture.
pub const PROMPT: &str = "What is in the picture? Answer in JSON.";
/// The rows that are trained.
pub const TRAIN: &str = "train.jsonl";
/// The rows that are held out.
pub const EVALUATION: &str = "eval.jsonl";
/// How many rows the demo trains: 80 of each answer.
pub const TRAINED: usize = 80 * Truth::NUMBER;
/// How many rows the demo holds out: 4 of each answer.
pub const HELD_OUT: usize = 4 * Truth::NUMBER;
/// The fields of an answer, and by how many values each is guessed right by chance.
pub const FIELDS: [(&str, usize); 3] = [("shape", SHAPES.len()), ("colour", COLOURS.len()), ("count", MOST)];

/// Sides of pictures in pixels: multiples of 28, which is what one token of a picture covers.
const SIDES: [usize; 2] = [84, 112];
/// The most figures of a picture.
const MOST: usize = 3;
const SHAPES: [(&str, Outline); 3] = [("circle", circle), ("square", square), ("triangle", triangle)];
const COLOURS: [(&str, Colour); 4] = [
    ("red", [215.0, 40.0, 40.0]),
    ("green", [40.0, 165.0, 60.0]),
    ("blue", [45.0, 80.0, 215.0]),
    ("yellow", [235.0, 205.0, 40.0]),
];

fn circle(x: f32, y: f32) -> bool {
    x * x + y * y < 1.0
}

fn square(x: f32, y: f32) -> bool {
    x.abs().max(y.abs()) < std::f32::consts::FRAC_1_SQRT_2
}

/// Equal sides, one corner at the top.
fn triangle(x: f32, y: f32) -> bool {
    // Each side lies half a radius from the centre.
    let half_root = 3.0_f32.sqrt() / 2.0;
    y < 0.5 && half_root * x - 0.5 * y < 0.5 && -half_root * x - 0.5 * y < 0.5
}

/// What a picture is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Truth {
    shape: usize,
    colour: usize,
    count: usize,
}

impl Truth {
    /// How many different ones there are.
    pub const NUMBER: usize = SHAPES.len() * COLOURS.len() * MOST;

    fn numbered(number: usize) -> Truth {
        let (shape, rest) = (number % SHAPES.len(), number / SHAPES.len());
        Truth { shape, colour: rest % COLOURS.len(), count: 1 + rest / COLOURS.len() }
    }

    /// The answer that is wanted: compact, fields in this order.
    pub fn answer(self) -> String {
        let (shape, colour) = (SHAPES[self.shape].0, COLOURS[self.colour].0);
        format!(r#"{{"shape":"{shape}","colour":"{colour}","count":{}}}"#, self.count)
    }

    fn draw(self, random: &mut Random) -> Drawing {
        let size = [*random.pick(&SIDES), *random.pick(&SIDES)];
        Drawing::random(random, size, SHAPES[self.shape].1, COLOURS[self.colour].1, self.count)
    }
}

/// A picture and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What is in the picture.
    pub truth: Truth,
    /// The file.
    pub png: Vec<u8>,
}

/// Rows of both splits: so many to train, so many to hold out. No picture is there twice.
pub fn rows(seed: u64, train: usize, held_out: usize) -> io::Result<[Vec<Row>; 2]> {
    let mut seen = HashSet::new();
    let mut split = |stream: u64, length: usize| {
        let mut random = Random::new(seed, stream);
        let mut rows = Vec::with_capacity(length);
        for truth in truths(&mut random, length) {
            let png = loop {
                let png = truth.draw(&mut random).png().map_err(io::Error::other)?;
                if seen.insert(png.clone()) {
                    break png;
                }
            };
            rows.push(Row { truth, png });
        }
        Ok::<_, io::Error>(rows)
    };
    Ok([split(0, train)?, split(1, held_out)?])
}

/// Each answer equally often, up to the last few, in any order.
fn truths(random: &mut Random, length: usize) -> Vec<Truth> {
    let mut truths = Vec::with_capacity(length + Truth::NUMBER);
    while truths.len() < length {
        let mut all: Vec<Truth> = (0..Truth::NUMBER).map(Truth::numbered).collect();
        random.shuffle(&mut all);
        truths.extend(all);
    }
    truths.truncate(length);
    truths
}

/// Where a picture is in the dataset's folder.
fn picture(split: &str, number: usize) -> String {
    format!("{split}/{number:04}.png")
}

/// The first picture that is not learnt from.
pub fn first_held_out() -> String {
    picture(EVALUATION.trim_end_matches(".jsonl"), 0)
}

/// Writes a dataset into a folder: two files of rows, and the pictures that they name.
pub fn write(folder: &Path, seed: u64, train: usize, held_out: usize) -> io::Result<()> {
    for (file, rows) in [TRAIN, EVALUATION].into_iter().zip(rows(seed, train, held_out)?) {
        let name = file.trim_end_matches(".jsonl");
        fs::create_dir_all(folder.join(name))?;
        let mut lines = String::new();
        for (number, row) in rows.iter().enumerate() {
            let image = picture(name, number);
            fs::write(folder.join(&image), &row.png)?;
            lines += &json!({"prompt": PROMPT, "image": image, "response": row.truth.answer()}).to_string();
            lines.push('\n');
        }
        fs::write(folder.join(file), lines)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_rows_and_another_seed_others() {
        assert_eq!(rows(5, 20, 4).unwrap(), rows(5, 20, 4).unwrap());
        assert_ne!(rows(5, 20, 4).unwrap(), rows(6, 20, 4).unwrap());
    }

    #[test]
    fn every_answer_is_as_frequent_as_every_other() {
        for split in rows(1, 3 * Truth::NUMBER, 2 * Truth::NUMBER).unwrap() {
            let mut counts: HashMap<String, usize> = HashMap::new();
            for row in &split {
                *counts.entry(row.truth.answer()).or_default() += 1;
            }
            assert_eq!(counts.len(), Truth::NUMBER);
            assert!(counts.values().all(|count| *count == split.len() / Truth::NUMBER));
        }
    }

    #[test]
    fn no_picture_is_there_twice() {
        let [train, held_out] = rows(2, 360, 72).unwrap();
        let different: HashSet<&Vec<u8>> = train.iter().chain(&held_out).map(|row| &row.png).collect();
        assert_eq!(different.len(), 360 + 72);
    }

    #[test]
    fn areas_tell_the_outlines_apart() {
        let share = |outline: Outline| {
            let places = || (0..200).map(|place| (place as f32 + 0.5) / 100.0 - 1.0);
            places().flat_map(|x| places().map(move |y| outline(x, y))).filter(|inside| *inside).count() as f32 / 1e4
        };
        for ((name, outline), area) in SHAPES.into_iter().zip([std::f32::consts::PI, 2.0, 1.299]) {
            assert!((share(outline) - area).abs() < 0.02, "{name} has an area of {}", share(outline));
        }
    }

    #[test]
    fn a_folder_can_be_read_as_a_dataset() {
        let folder = std::env::temp_dir().join(format!("garden-demo-{}", std::process::id()));
        write(&folder, 9, 6, 3).unwrap();
        for (file, length) in [(TRAIN, 6), (EVALUATION, 3)] {
            let dataset = garden_data::Dataset::open(&folder.join(file)).unwrap();
            assert_eq!(dataset.len(), length);
            let record = dataset.read(length - 1).unwrap();
            assert_eq!(record.pictures.len(), 1);
            assert_eq!(record.messages.len(), 2);
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
