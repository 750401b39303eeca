//! Says of pictures whether they can be decoded: our side of `testdata/mutate/pictures.py`.
//!
//! The input is one picture behind the other, each with its length before it (8 bytes, the lowest first). Each is answered with a line: `fine`, or what is wrong.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool for a script fails by panicking, and prints")]

use std::io::{Read as _, Write as _};

use garden_data::{MAX_PIXELS, Picture};

fn main() {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut length = [0; 8];
    while input.read_exact(&mut length).is_ok() {
        let mut data = vec![0; u64::from_le_bytes(length) as usize];
        input.read_exact(&mut data).unwrap();
        match Picture::default().decode("", &data, MAX_PIXELS) {
            Ok(()) => writeln!(output, "fine").unwrap(),
            Err(error) => writeln!(output, "{}", error.to_string().replace('\n', " ")).unwrap(),
        }
        output.flush().unwrap();
    }
}
