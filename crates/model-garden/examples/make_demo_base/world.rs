//! What the base is taught: to say what is in a picture, in words, and to write JSON, in conversations without pictures.
//!
//! No picture has a shape or a colour of the demo, and no answer about a picture is JSON. The demo's words come up in the texts
//! only, so that the head knows them: adapters do not train it.

use garden_data::{Message, Record, StoredPicture};

use crate::demo::drawing::{Colour, Drawing, Outline};
use crate::demo::random::Random;

/// The share of conversations without a picture.
const TEXT_SHARE: f32 = 0.2;
/// Sides of pictures in pixels.
const SIDES: [usize; 2] = [84, 112];
const NUMBERS: [&str; 4] = ["one", "two", "three", "four"];
/// One of them, and several.
const SHAPES: [(&str, &str, Outline); 6] = [
    ("cross", "crosses", cross),
    ("star", "stars", star),
    ("ring", "rings", ring),
    ("diamond", "diamonds", diamond),
    ("bar", "bars", bar),
    ("dome", "domes", dome),
];
const COLOURS: [(&str, Colour); 6] = [
    ("orange", [240.0, 135.0, 30.0]),
    ("purple", [130.0, 45.0, 165.0]),
    ("pink", [245.0, 130.0, 185.0]),
    ("brown", [150.0, 95.0, 50.0]),
    ("turquoise", [55.0, 190.0, 190.0]),
    ("lime", [160.0, 225.0, 50.0]),
];
const DESCRIBE: [&str; 3] = ["Describe the picture.", "What is in the picture?", "What do you see?"];
const WHICH_COLOUR: [&str; 2] = ["Which colour is it?", "Name the colour."];
const HOW_MANY: [&str; 2] = ["How many are there?", "Count them."];
const WHICH_SHAPE: [&str; 2] = ["Which shape is it?", "Name the shape."];
const KEYS: [&str; 12] =
    ["shape", "colour", "count", "name", "animal", "city", "size", "fruit", "kind", "number", "age", "tool"];
#[rustfmt::skip]
const VALUES: [&str; 30] = [
    "circle", "square", "triangle", "red", "green", "blue", "yellow", "dog", "cat", "horse", "apple", "pear", "plum", "hammer", "saw",
    "small", "large", "anna", "paul", "rome", "oslo", "cross", "star", "ring", "diamond", "orange", "purple", "pink", "brown", "lime",
];

fn cross(x: f32, y: f32) -> bool {
    let (x, y) = (x.abs(), y.abs());
    x.min(y) < 0.3 && x.max(y) < 0.92
}

fn star(x: f32, y: f32) -> bool {
    let fifth = std::f32::consts::TAU / 5.0;
    let from_dent = (x.atan2(-y).rem_euclid(fifth) - fifth / 2.0).abs() / (fifth / 2.0);
    x.hypot(y) < 0.42 + 0.58 * from_dent.powi(2)
}

fn ring(x: f32, y: f32) -> bool {
    (0.55..1.0).contains(&x.hypot(y))
}

fn diamond(x: f32, y: f32) -> bool {
    x.abs() / 0.6 + y.abs() < 1.0
}

fn bar(x: f32, y: f32) -> bool {
    x.abs() < 0.94 && y.abs() < 0.3
}

fn dome(x: f32, y: f32) -> bool {
    let y = y - 0.4;
    y < 0.0 && x * x + y * y < 0.81
}

/// A conversation.
pub fn conversation(random: &mut Random) -> Record {
    if random.between(0.0, 1.0) < TEXT_SHARE { text(random) } else { picture(random) }
}

/// A picture: described as a whole, or asked about part by part. Both at once would let the model copy from itself.
pub fn picture(random: &mut Random) -> Record {
    let (shape, shapes, outline) = *random.pick(&SHAPES);
    let (colour, value) = *random.pick(&COLOURS);
    let count = 1 + random.below(NUMBERS.len());
    let number = NUMBERS[count - 1];
    let size = [*random.pick(&SIDES), *random.pick(&SIDES)];
    let data = Drawing::random(random, size, outline, value, count).png().unwrap();
    let mut questions = match random.below(2) {
        0 => {
            let name = if count == 1 { shape } else { shapes };
            vec![(*random.pick(&DESCRIBE), format!("{number} {colour} {name}"))]
        }
        _ => vec![
            (*random.pick(&WHICH_COLOUR), colour.to_string()),
            (*random.pick(&HOW_MANY), number.to_string()),
            (*random.pick(&WHICH_SHAPE), shape.to_string()),
        ],
    };
    random.shuffle(&mut questions);
    let mut messages = Vec::new();
    for (index, (question, answer)) in questions.iter().enumerate() {
        messages.push(match index {
            0 => Message::with_images("user", 1, question),
            _ => Message::text("user", question),
        });
        messages.push(Message::text("assistant", answer));
    }
    let pictures = vec![StoredPicture { name: "drawing".into(), data, ..StoredPicture::default() }];
    Record { place: "base".into(), messages, pictures, ..Record::default() }
}

/// Words that are to be written as JSON.
pub fn text(random: &mut Random) -> Record {
    let mut keys = KEYS;
    random.shuffle(&mut keys);
    let (mut said, mut written) = (Vec::new(), Vec::new());
    for key in &keys[..1 + random.below(3)] {
        let is_number = random.below(3) == 0;
        let word = if is_number { random.below(10).to_string() } else { random.pick(&VALUES).to_string() };
        said.push(format!("{key} {word}"));
        written.push(if is_number { format!(r#""{key}":{word}"#) } else { format!(r#""{key}":"{word}""#) });
    }
    let question = format!("Answer in JSON: {}.", said.join(", "));
    let answer = format!("{{{}}}", written.join(","));
    let messages = vec![Message::text("user", &question), Message::text("assistant", &answer)];
    Record { place: "base".into(), messages, ..Record::default() }
}
