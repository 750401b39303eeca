//! Pictures of which not everything is used, and pictures that are not read (`testdata/data/odd_pictures.py`): what headers tell, and what only decoding finds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use garden_data::{
    Dataset, ExampleSettings, MAX_PIXELS, PartlyUsed, Picture, Processor, Survey, SurveySettings, picture_size,
};
use serde_json::json;

use crate::survey::Scratch;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn odd(name: &str) -> Vec<u8> {
    std::fs::read(testdata("data/odd").join(name)).unwrap()
}

fn decoded(name: &str) -> Result<Picture, String> {
    let mut picture = Picture::default();
    picture.decode(name, &odd(name), MAX_PIXELS).map_err(|error| error.to_string())?;
    Ok(picture)
}

/// A row for each picture.
fn survey(name: &str, pictures: &[&str], decodes: bool) -> Survey {
    let scratch = Scratch::new(name);
    let row = |picture: &&str| json!({"prompt": "q", "image": testdata("data/odd").join(picture), "response": "a"});
    let dataset = Dataset::open(&scratch.rows(&pictures.iter().map(row).collect::<Vec<_>>())).unwrap();
    let processor = Processor::open(&testdata("tiny-model")).unwrap();
    let example = ExampleSettings::default();
    let settings = SurveySettings { example: &example, batch_size: 1, keeps_sizes: false, decodes, threads: 2 };
    Survey::of(&dataset, &processor, settings, |_| {})
}

/// Row numbers and problems.
fn problems(survey: &Survey) -> Vec<(usize, &str)> {
    survey.problems.iter().map(|problem| (problem.row, problem.problem.as_str())).collect()
}

#[test]
fn the_first_frame_is_what_pillow_uses() {
    for name in [
        "pages.tiff",
        "frames.gif",
        "frames.png",
        "default-image.png",
        "frames.webp",
        "one.gif",
        "one.webp",
        "one.tiff",
        "gray-16.png",
        "gray-16.tiff",
        "cmyk.tiff",
    ] {
        let mut pillow = Picture::default();
        pillow.decode(name, &odd(&format!("{name}.decoded.png")), MAX_PIXELS).unwrap();
        assert!(decoded(name).unwrap() == pillow, "{name}");
    }
}

#[test]
fn frames_and_16_bit_gray_are_told() {
    let names = [
        "one.gif",
        "pages.tiff",
        "one.webp",
        "frames.gif",
        "frames.png",
        "default-image.png",
        "frames.webp",
        "one.tiff",
        "gray-16.png",
        "gray-16.tiff",
    ];
    let survey = survey("told", &names, false);
    assert_eq!(survey.problem_count, 0, "{:?}", survey.problems);
    let place = |row: usize| survey.several_frames.first.rsplit(':').next() == Some(&(row + 1).to_string());
    assert_eq!((survey.several_frames.pictures, place(1)), (5, true), "{:?}", survey.several_frames);
    assert_eq!(survey.clipped_gray.pictures, 2);
    assert!(survey.clipped_gray.first.ends_with(":9"), "{:?}", survey.clipped_gray);
    let words = survey.picture_words();
    assert!(
        words[0].starts_with("5 pictures have several frames or pages: the first one is used, first "),
        "{words:?}"
    );
    assert!(words[1].starts_with("2 pictures have 16-bit gray: values above 255 become white"), "{words:?}");
}

#[test]
fn headers_tell_what_cannot_be_decoded() {
    for (name, words) in [
        ("jpeg.tiff", "with JPEG compression is not supported: convert it to PNG"),
        ("float.tiff", "of floating-point numbers is not supported"),
        ("signed.tiff", "of signed numbers is not supported"),
        ("lab.tiff", "in L*a*b* is not supported"),
        ("palette.tiff", "with a palette is not supported"),
        ("ycbcr.tiff", "in YCbCr is not supported"),
        ("one.avif", "an AVIF picture, which is not read: convert it"),
    ] {
        let header = picture_size(name, &odd(name), MAX_PIXELS).map(drop).map_err(|error| error.to_string());
        assert!(header.as_ref().is_err_and(|error| error.contains(words)), "{name}: {header:?}");
        assert_eq!(decoded(name).map(drop), header, "{name}");
    }
    let survey = survey("headers", &["one.tiff", "jpeg.tiff", "float.tiff"], false);
    assert_eq!(survey.left_out, [1, 2]);
}

#[test]
fn only_decoding_finds_damage_behind_a_header() {
    let names = ["one.tiff", "one.png", "one.gif", "one.jpg", "frames.webp"];
    let quick = survey("quick", &names, false);
    assert_eq!(problems(&quick), []);
    let whole = survey("whole", &names, true);
    let rows: Vec<usize> = problems(&whole).iter().map(|(row, _)| *row).collect();
    assert_eq!((rows, whole.left_out.as_slice()), (vec![1, 3], &[1, 3][..]));
    assert!(problems(&whole).iter().all(|(_, problem)| problem.contains("truncated")), "{:?}", whole.problems);
    assert_eq!(whole.tally.kept, 3);
    // Apart from the damage the two say the same.
    assert_eq!((whole.fingerprint, whole.pictures), (quick.fingerprint, quick.pictures));
    assert_ne!(whole.several_frames, PartlyUsed::default());
}
