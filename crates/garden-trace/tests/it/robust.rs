//! Whatever the bytes are: no panic, finite samples, bounded memory.

use std::io::{self, Read};

use garden_memory::Quantity;
use garden_trace::{ReadOptions, ReadTrace, Unit, read};

/// SplitMix64 (Steele, Lea and Flood, 2014): a small generator that any seed starts well.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

const VALID: &[&str] = &[
    "step,time_s,rss_mb,anon_mb,label\n0,0.5,34.094,20.117,train\n1,0.9,37.160,23.184,eval\n2,1.2,38,24,train\n",
    "step;rss;gpu_gb\n1;543,5;1,5\n2;1002,25;1,5\n",
    "Step\tProcess RAM (MB)\n1\t\"7,159 MB\"\n2\t900 KiB\n",
    "{\"model_garden_trace\":1,\"facts\":{\"examples\":663},\"origin\":{\"host\":\"a\"}}\n{\"step\":10,\"rss\":123,\"activity\":\"eval\"}\n{\"event\":\"epoch_end\",\"step\":83}\n",
    "{\"step\":10,\"rss_mb\":5434,\"epoch\":0.12}\n{\"step\":20,\"memory\":{\"rss\":99},\"rss_mb\":\"5 GB\"}\n",
    "[{\"step\": 1, \"mem_mb\": 10}, {\"step\": 2, \"mem_mb\": 11}]",
    "CMDLINE python x.py\nMEM 12.345678 1700000000.1234\nCHLD 1 2.5 1700000000.2\nFUNC f 1.0 2.0 3.0 4.0 0\nMEM 13.5 1700000001.1\n",
    "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n       0.000        0.000        5.293       16.512\n",
    "2025-01-01 12:00:03,123 - INFO - Step 10: 6529 tensors (CPU: 330, GPU: 6199), Process RAM: 5552 MB (+1,607 MB)\n\x1b[1m[Process restarted]\x1b[0m\n  5%|▍  | 12/249 [00:31<10:12,  2.58s/it, ram=5.4GB]\rEpoch 1/3 Step 40/83 mem 5 GB Δ+3 MB\n***** Running Evaluation *****\n  Num examples = 663 | Total steps = 249\n{'loss': 1.2, 'epoch': 1.23}\n",
];

fn mutate(random: &mut Random) -> Vec<u8> {
    let pick = |random: &mut Random| VALID[random.below(VALID.len())].as_bytes().to_vec();
    let mut bytes = pick(random);
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => bytes.extend_from_within(at..),
            3 => {
                let other = pick(random);
                let from = random.below(other.len());
                bytes.splice(at..at, other[from..].iter().copied());
            }
            4 => {
                let noise: Vec<u8> = (0..random.below(40)).map(|_| random.next() as u8).collect();
                bytes.splice(at..at, noise);
            }
            5 => {
                let tricky = [
                    "\n",
                    "\r",
                    "\"",
                    ",",
                    "\0",
                    "9".repeat(400).as_str(),
                    "-",
                    "nan",
                    "1e999",
                    "\u{feff}",
                    "{",
                    "[",
                    "é",
                    "Δ",
                    "/",
                    ":",
                    "\x1b[",
                ]
                .map(str::to_string);
                bytes.splice(at..at, tricky[random.below(tricky.len())].bytes());
            }
            _ => {
                let end = (at + random.below(20)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
    bytes
}

fn assert_sound(read: &ReadTrace) {
    let trace = &read.trace;
    assert_eq!(read.input.samples, trace.len());
    for index in 0..trace.len() {
        let sample = trace.sample(index);
        assert!(sample.step.is_none_or(f64::is_finite) && sample.time_s.is_none_or(f64::is_finite));
        assert!(!sample.is_empty());
        if read.input.format != "model-garden trace" {
            assert!(trace.value(index, Quantity::Rss).is_some());
        }
    }
    assert!(trace.events.iter().all(|event| event.before_sample <= trace.len()));
}

fn options(random: &mut Random) -> ReadOptions {
    let column = ["rss_mb", "mem", "step", "ram"][random.below(4)].to_string();
    ReadOptions {
        column: (random.below(8) == 0).then_some(column),
        unit: (random.below(8) == 0).then_some([Unit::Mib, Unit::Kib, Unit::Bytes][random.below(3)]),
    }
}

#[test]
fn damaged_files_never_panic() {
    let first = garden_testing::seed();
    for seed in first..first + 20_000 {
        let mut random = Random(seed);
        let (bytes, options) = (mutate(&mut random), options(&mut random));
        let outcome = std::panic::catch_unwind(|| {
            if let Ok(read) = read(bytes.as_slice(), &options) {
                assert_sound(&read);
            }
        });
        assert!(outcome.is_ok(), "GARDEN_SEED={seed} fails with {:?}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn pieces_of_any_size_read_the_same() {
    struct Pieces<'a>(&'a [u8], Random);
    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.1.below(5) == 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = (1 + self.1.below(7)).min(buffer.len()).min(self.0.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }
    for (seed, text) in VALID.iter().enumerate() {
        let whole = read(text.as_bytes(), &ReadOptions::default()).unwrap();
        let pieces = read(Pieces(text.as_bytes(), Random(seed as u64)), &ReadOptions::default()).unwrap();
        assert_eq!(whole.input, pieces.input, "{text}");
        assert!(whole.input.samples > 0, "{text}");
    }
}

/// A header, one line of `length` letters that nobody stores, and a sample.
struct LongLine {
    head: &'static [u8],
    length: usize,
    tail: &'static [u8],
}

impl Read for LongLine {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.head.is_empty() {
            return self.head.read(buffer);
        }
        if self.length == 0 {
            return self.tail.read(buffer);
        }
        let count = self.length.min(buffer.len());
        buffer[..count].fill(b'7');
        self.length -= count;
        Ok(count)
    }
}

#[test]
fn a_line_of_any_length_is_passed_over_and_counted() {
    for (head, tail) in [
        (&b"step,rss_mb\n1,10\n"[..], &b"\n2,11\n"[..]),
        (b"Step 1: RAM: 10 MB\n", b"\nStep 2: RAM: 11 MB\n"),
        (b"{\"step\":1,\"rss_mb\":10}\n", b"\n{\"step\":2,\"rss_mb\":11}\n"),
        (b"{\"model_garden_trace\":1}\n{\"rss\":1}\n", b"\n{\"rss\":2}\n"),
        (b"MEM 1.0 1.0\n", b"\nMEM 2.0 2.0\n"),
        (b"# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n0 0 1 1\n", b"\n1 0 2 2\n"),
        (b"[{\"step\":1,\"rss_mb\":10},{\"x\":\"", b"\"},{\"step\":2,\"rss_mb\":11}]"),
    ] {
        let read = read(LongLine { head, length: 64 << 20, tail }, &ReadOptions::default()).unwrap();
        assert_eq!((read.trace.len(), read.input.skipped), (2, 1), "{:?}", read.input);
        assert!(read.input.notes[read.input.notes.len() - 1].contains("longer than 1 MiB"), "{:?}", read.input.notes);
    }
}

#[test]
fn a_read_error_names_the_line() {
    struct Broken(bool);
    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                return Err(io::Error::other("disk on fire"));
            }
            buffer[..11].copy_from_slice(b"step,rss_mb");
            Ok(11)
        }
    }
    assert_eq!(read(Broken(false), &ReadOptions::default()).unwrap_err().to_string(), "reading failed at line 1");
}
