//! Pictures against what PIL and transformers recorded (`testdata/data`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use garden_input::FAMILIES;
use std::path::{Path, PathBuf};

use garden_data::{ImageSettings, MAX_PIXELS, Patcher, Picture, picture_size};
use serde_json::Value;

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(testdata(path)).unwrap()).unwrap()
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(testdata("data/recorded/pictures").join(name)).unwrap()
}

fn decoded(name: &str) -> Picture {
    let mut picture = Picture::default();
    picture.decode(name, &file(name), MAX_PIXELS).unwrap();
    picture
}

/// The largest and the mean difference of bytes.
fn differences(left: &[u8], right: &[u8]) -> (u8, f64) {
    assert_eq!(left.len(), right.len());
    let all = left.iter().zip(right).map(|(left, right)| left.abs_diff(*right));
    (all.clone().max().unwrap_or(0), all.map(f64::from).sum::<f64>() / left.len() as f64)
}

fn settings() -> ImageSettings {
    let recorded = json("data/recorded/pictures.json");
    ImageSettings {
        min_pixels: recorded["min_pixels"].as_u64().unwrap(),
        max_pixels: recorded["max_pixels"].as_u64().unwrap(),
        ..ImageSettings::of(&FAMILIES[0].images)
    }
}

fn pictures() -> Vec<Value> {
    json("data/recorded/pictures.json")["pictures"].as_array().unwrap().clone()
}

/// The resized picture from its patches, the other way round than the code under test does it.
fn unpatched(patches: &[f32], grid: [usize; 3], settings: &ImageSettings) -> Vec<u8> {
    let [_, rows, columns] = grid;
    let side = settings.patch;
    let mut pixels = vec![0; rows * columns * side * side * 3];
    for (number, patch) in patches.chunks_exact(settings.patch_values()).enumerate() {
        let (block, inner) = (number / 4, number % 4);
        let row = block / (columns / 2) * 2 + inner / 2;
        let column = block % (columns / 2) * 2 + inner % 2;
        for (place, value) in patch.iter().enumerate() {
            let (channel, frame, y, x) =
                (place / (2 * side * side), place / (side * side) % 2, place / side % side, place % side);
            let byte = (f64::from(*value) * settings.deviation[channel] + settings.mean[channel]) * 255.0;
            let at = ((row * side + y) * columns * side + column * side + x) * 3 + channel;
            assert!((byte - byte.round()).abs() < 1e-3, "{byte} is no byte");
            assert!(frame == 0 || pixels[at] == byte.round() as u8, "frames differ");
            pixels[at] = byte.round() as u8;
        }
    }
    pixels
}

/// Decoding, from the file, and resizing, from the pixels that PIL decoded, each by itself.
#[test]
fn pictures_are_those_of_pil_and_transformers() {
    let settings = settings();
    let mut patcher = Patcher::new(settings.clone());
    let mut report = String::new();
    for one in pictures() {
        let name = one["name"].as_str().unwrap();
        let [width, height] = ["width", "height"].map(|side| one[side].as_u64().unwrap() as usize);
        assert_eq!(picture_size(name, &file(name), MAX_PIXELS).unwrap(), (width, height), "{name}");
        let (ours, theirs) = (decoded(name), decoded(&format!("{name}.decoded.png")));
        assert_eq!((ours.width, ours.height), (width, height), "{name}");
        let (decode_most, decode_mean) = differences(&ours.pixels, &theirs.pixels);

        let grid = settings.grid(width, height).unwrap();
        assert_eq!(serde_json::json!(grid), one["grid"], "{name}");
        let mut patches = vec![0.0; grid[1] * grid[2] * settings.patch_values()];
        patcher.write(&theirs, grid, &mut patches);
        let resized = decoded(&format!("{name}.resized.png"));
        let (resize_most, resize_mean) = differences(&unpatched(&patches, grid, &settings), &resized.pixels);
        if (decode_most, resize_most) != (0, 0) {
            report += &format!(
                "{name}: decoding differs by {decode_most} ({decode_mean:.3}), resizing by {resize_most} ({resize_mean:.3})\n"
            );
        }
        if resize_most == 0 {
            for sample in one["samples"].as_array().unwrap() {
                let place = sample[0].as_u64().unwrap() as usize;
                let expected = sample[1].as_f64().unwrap() as f32;
                assert!((patches[place] - expected).abs() <= 1e-6, "{name} {place}: {} {expected}", patches[place]);
            }
        }
    }
    assert_eq!(report, "");
}

#[test]
fn sizes_are_those_of_smart_resize() {
    for one in json("data/recorded/sizes.json").as_array().unwrap() {
        let [height, width, min_pixels, max_pixels] = [0, 1, 2, 3].map(|place| one[place].as_u64().unwrap());
        let settings = ImageSettings { min_pixels, max_pixels, ..ImageSettings::of(&FAMILIES[0].images) };
        let size = settings.smart_resize(height as usize, width as usize).ok();
        assert_eq!(serde_json::json!(size), one[4], "{one}");
    }
}

fn refused(data: &[u8], max_pixels: u64) -> String {
    Picture::default().decode("a.jpg", data, max_pixels).unwrap_err().to_string()
}

#[test]
fn bad_pictures_are_refused_with_their_name() {
    let jpeg = file("420.jpg");
    assert_eq!(refused(&jpeg, 4000), "picture `a.jpg`: the picture has 53 x 77 pixels; at most 4000 are decoded");
    assert_eq!(refused(&[], 9), "picture `a.jpg`: the file is empty");
    let half = &jpeg[..jpeg.len() / 2];
    let expected = format!("the file is truncated: it ends after {} bytes, within the picture", half.len());
    assert_eq!(refused(half, MAX_PIXELS), format!("picture `a.jpg`: {expected}"));
    let progressive = file("progressive.jpg");
    assert!(refused(&progressive[..progressive.len() - 2], MAX_PIXELS).contains("truncated"));
    let png = file("rgb.png");
    assert_eq!(refused(&png[..png.len() / 2], MAX_PIXELS), "picture `a.jpg`: the file is truncated");
    // A frame of no height.
    let start = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    let mut flat = jpeg.clone();
    flat[start + 5..start + 7].fill(0);
    assert_eq!(refused(&flat, MAX_PIXELS), "picture `a.jpg`: the picture has 53 x 0 pixels");
    let mut arithmetic = jpeg;
    arithmetic[start + 1] = 0xc9;
    let expected = "picture `a.jpg`: the picture is arithmetically coded, which is not supported";
    assert_eq!(refused(&arithmetic, MAX_PIXELS), expected);
    // Four billion pixels in a file of a few bytes.
    let mut bomb = png;
    bomb[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    assert!(refused(&bomb, MAX_PIXELS).starts_with("picture `a.jpg`: the "));
}

#[test]
fn strips_are_refused_by_their_sides() {
    let error = ImageSettings::of(&FAMILIES[0].images).grid(3, 700).unwrap_err();
    assert_eq!(error, "the picture has 3 x 700 pixels; its sides may differ by at most a factor of 200");
}

/// Cut off anywhere and with bytes changed, a file gives an error or a picture, never a panic.
#[test]
fn broken_pictures_never_panic() {
    let mut number = garden_testing::seed();
    let mut random = |below: usize| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) as usize % below
    };
    let mut picture = Picture::default();
    let settings = settings();
    let mut patcher = Patcher::new(settings.clone());
    for one in pictures() {
        let name = one["name"].as_str().unwrap();
        let data = file(name);
        if data.len() > 50_000 {
            continue;
        }
        for attempt in 0..120 {
            let mut broken = data.clone();
            if attempt % 3 == 0 {
                broken.truncate(random(data.len()));
            }
            for _ in 0..random(6) {
                let place = random(broken.len().max(1)).min(if attempt % 2 == 0 { 600 } else { usize::MAX });
                if let Some(byte) = broken.get_mut(place) {
                    *byte = random(256) as u8;
                }
            }
            if picture.decode(name, &broken, 200_000).is_ok()
                && let Ok(grid) = settings.grid(picture.width, picture.height)
            {
                let mut patches = vec![0.0; grid[1] * grid[2] * settings.patch_values()];
                patcher.write(&picture, grid, &mut patches);
            }
        }
    }
}

/// What Pillow refuses and decoders may let pass: files that are shorter than they say, and damage where no pixel is.
#[test]
fn damage_that_no_pixel_shows_is_refused() {
    let changed = |name: &str, place: usize, bytes: &[u8]| {
        let mut data = file(name);
        data[place..place + bytes.len()].copy_from_slice(bytes);
        data
    };
    let cut = |name: &str| {
        let mut data = file(name);
        data.remove(300);
        data
    };
    let jpeg = file("420.jpg");
    // The first Huffman table, behind its class, number and counts: lengths of 0, 1, 2 ... bits.
    let table = jpeg.windows(2).position(|pair| pair == [0xff, 0xc4]).unwrap();
    let cases = [
        (cut("lossy.webp"), "truncated"),
        (cut("alpha-lossy.webp"), "truncated"),
        (file("alpha-frames.webp")[..7000].to_vec(), "truncated"),
        (changed("lossless.webp", 7, &[0xe2]), "truncated"),
        (changed("alpha.webp", 19, &[0xfe]), "longer than the file"),
        (changed("rgb-transparent.png", 38, b"r"), "broken"),
        (changed("turned-3.png", 51, &[0x11]), "broken"),
        (changed("420.jpg", table + 21 + 5, &[0x25]), "more than 15 bits"),
        (changed("420.jpg", 2, &[0x00]), "not a JPEG"),
        (changed("alpha.bmp", 54, &[1]), "an unknown order of colour bits"),
        (changed("420.jpg", 3, &[0x08]), "an invalid marker 08"),
        (changed("gray-alpha.tiff", 131, &[0x41]), "not supported"),
        (changed("palette.bmp", 46, &[0, 0x80, 0x80, 0x80]), "2155905024 colours"),
    ];
    for (data, words) in cases {
        let problem = refused(&data, MAX_PIXELS);
        assert!(problem.contains(words), "{problem} ({words})");
    }
}
