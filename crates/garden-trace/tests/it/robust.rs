//! Whatever the bytes are: no panic, finite samples, bounded memory.

use std::io::{self, Read};

use garden_memory::{Bytes, GIB, Quantity};
use garden_trace::{ReadOptions, ReadTrace, Unit, read, read_all};

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
    "Mon Jan 15 12:00:03 UTC 2024\n               total        used        free      shared  buff/cache   available\nMem:            23Gi       1.2Gi        16Gi        12Mi       6.5Gi        22Gi\nSwap:             0B          0B          0B\nMem: 64000 4030 9 9 9 9\n",
    "  PID   RSS    VSZ CMD\n27459 416000 500400 python3 train.py\n  PID                  STARTED   RSS COMMAND\n27459 Mon Nov 16 15:11:48 2026  416000 bash -c x\n",
    "root     27512  101  4.2 9876540 416000 pts/0   Rl+  15:11   5:39 python3 train-vision --model m\nroot     27513  0.0  0.0   6520  2280 pts/0    S+   15:22   0:00 grep train-vision\n",
    "top - 15:22:44 up 16:09\nMiB Mem :  24105.6 total,  16608.9 free,   1282.5 used,   6618.7 buff/cache\n  PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND\n16148 root      30  10  667412 1.2g 136144 S  58.8   1.2   0:04.93 python3\n",
    "10:00:00 AM   UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command\n10:00:01 AM  1000      4711    120.00      0.00 1234567  456789   2.85  python3\nAverage:     1000      4711    120.00      0.00 1234567  456894   2.85  python3\n",
    "\x1b[2J\x1b[HCONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %     NET I/O\na1b2c3d4e5f6   train     101.25%   1.5GiB / 31GiB        4.84%     1.2kB / 0B\n",
    "POD       NAME      CPU(cores)   MEMORY(bytes)\ntrain-0   main      250m         1234Mi\ntrain-0   sidecar   1m           60Mi\n",
    "timestamp, index, memory.used [MiB], memory.total [MiB]\n2024/01/15 12:00:03.123, 0, 1234 MiB, 24576 MiB\n2024/01/15 12:00:03.125, 1, 4321 MiB, 24576 MiB\n",
    "2024/01/15 12:00:03.123, 0, 1234 MiB, 24576 MiB\n2024/01/15 12:00:03.125, 1, 4321 MiB, 24576 MiB\n2024/01/15 12:00:04.123, 0, 1235 MiB, 24576 MiB\n",
    "| NVIDIA-SMI 535.129.03 |\n|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |\n| N/A   32C    P0              63W / 400W |   1234MiB / 81920MiB |      0%      Default |\n",
    "# gpu        pid  type    fb   command\n# Idx          #   C/G    MB   name\n    0       4711     C  1234   python3\n    0       4711     C  1235   python3\n",
    "{\"status\":\"success\",\"data\":{\"resultType\":\"matrix\",\"result\":[{\"metric\":{\"pod\":\"a\"},\"values\":[[1700000000,\"4.2e9\"],[1700000015,\"0\"]]},{\"metric\":{\"pod\":\"b\"},\"values\":[[1700000000,\"4.2e9\"]]}]}}",
    "Name:\tpython3\nPid:\t4711\nVmHWM:\t  426572 kB\nVmRSS:\t  410000 kB\nRssAnon:\t  400000 kB\nMemTotal:       24684112 kB\nMemAvailable:   23434928 kB\n",
    "23:59:59 - 4000 MB\n00:00:01 - 4001 MB\n",
    "Mon Jan 15 10:00:00 UTC 2024\n4002\nMon Jan 15 10:00:01 UTC 2024\n4003\n",
    "step,rank,rss\n1,0,100000000\n1,1,200000000\n2,0,0\n2,1,200000001\n3,0,0\n",
    "time,gpu0_mb,gpu1_mb\n1,1000,2000\n2,1001,2001\n",
    "[rank0]: Step 10: RAM: 5000\n[rank1]: Step 10: RAM: 6000 MB\nGPU 0: 10 GB, GPU 1: 11 GB\nMA 5.21 GB         Max_MA 5.9 GB\nCPU Virtual Memory:  used = 50.5 GB, percent = 40.2%\n",
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
        ..ReadOptions::default()
    }
}

#[test]
fn damaged_files_never_panic() {
    let first = garden_testing::seed();
    for seed in first..first + 20_000 {
        let mut random = Random(seed);
        let (bytes, options) = (mutate(&mut random), options(&mut random));
        let outcome = std::panic::catch_unwind(|| {
            if let Ok(all) = read_all(bytes.as_slice(), &options) {
                assert!(!all.is_empty());
                all.iter().for_each(assert_sound);
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
        let options = ReadOptions { machine: Some(Bytes(64 * GIB)), ..ReadOptions::default() };
        let whole = read_all(text.as_bytes(), &options).unwrap();
        let pieces = read_all(Pieces(text.as_bytes(), Random(seed as u64)), &options).unwrap();
        let inputs = |all: &[ReadTrace]| all.iter().map(|read| read.input.clone()).collect::<Vec<_>>();
        assert_eq!(inputs(&whole), inputs(&pieces), "{text}");
        assert!(whole[0].input.samples > 0, "{text}");
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
            let count = buffer.len().min(11);
            buffer[..count].copy_from_slice(&b"step,rss_mb"[..count]);
            Ok(count)
        }
    }
    assert_eq!(read(Broken(false), &ReadOptions::default()).unwrap_err().to_string(), "reading failed at line 1");
}
