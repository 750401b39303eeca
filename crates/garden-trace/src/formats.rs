//! The formats of input, in one table: [`FORMATS`].
//!
//! A format is a file of this folder with a function that recognises it by the first 64 KiB and returns a [`Reader`], and an entry
//! in the table. The order of the table is that of the attempts: the strict formats come first, and what none of them
//! claims is read as a log. If a log turns out to hold no memory, the file is examined once more for the most helpful
//! error. Tools whose output may be mixed in one file have a table of their own (`tools.rs`).

mod amounts;
mod closest;
mod cloudwatch;
mod gpustat;
mod grafana;
mod influx;
mod jsonl;
mod kubernetes;
pub(crate) mod log;
mod mprof;
pub(crate) mod nvidia_smi;
pub(crate) mod own;
mod pandas;
mod prometheus;
mod psrecord;
mod table;
mod tools;
mod trainer_state;

use std::io::{Chain, Cursor, Read};

use crate::ReadOptions;
use crate::columns::choice::Choice;
use crate::error::{Error, shorten};
use crate::lines::{HeadLine, Lines, Source};
use crate::reading::{Origin, Reading};

/// A format of input.
pub(crate) struct Format {
    /// What it is called where an unknown file is refused; tools are named one by one.
    known_as: Option<&'static str>,
    /// The first cell of its row in docs/formats.md.
    #[cfg_attr(not(test), expect(dead_code, reason = "the documentation is compared in tests"))]
    documented_as: &'static str,
    /// Its example in testdata/formats.
    #[cfg_attr(not(test), expect(dead_code, reason = "the examples are read in tests"))]
    example: &'static str,
    recognise: fn(&Head<'_>) -> Recognised,
}

/// All formats, in the order in which they are tried.
pub(crate) const FORMATS: [Format; 18] = [
    Format {
        known_as: Some("a model-garden trace"),
        documented_as: "our own trace",
        example: "own.jsonl",
        recognise: own::recognise,
    },
    Format {
        known_as: Some("`mprofile_*.dat` of memory_profiler"),
        documented_as: "memory_profiler",
        example: "mprofile.dat",
        recognise: mprof::recognise,
    },
    Format {
        known_as: Some("psrecord logs"),
        documented_as: "psrecord",
        example: "psrecord.log",
        recognise: psrecord::recognise,
    },
    Format {
        known_as: Some("Prometheus range queries"),
        documented_as: "Prometheus",
        example: "prometheus.json",
        recognise: prometheus::recognise,
    },
    Format {
        known_as: Some("answers of Kubernetes' metrics API"),
        documented_as: "Kubernetes",
        example: "kubernetes.json",
        recognise: kubernetes::recognise,
    },
    Format {
        known_as: Some("`aws cloudwatch get-metric-statistics`"),
        documented_as: "CloudWatch",
        example: "cloudwatch.json",
        recognise: cloudwatch::recognise,
    },
    Format {
        known_as: Some("`trainer_state.json`"),
        documented_as: "Hugging Face",
        example: "trainer_state.json",
        recognise: trainer_state::recognise,
    },
    Format {
        known_as: Some("`gpustat --json`"),
        documented_as: "gpustat",
        example: "gpustat.json",
        recognise: gpustat::recognise,
    },
    Format {
        known_as: Some("`to_json()` of pandas"),
        documented_as: "pandas",
        example: "pandas.json",
        recognise: pandas::recognise,
    },
    Format {
        known_as: Some("one JSON list of objects"),
        documented_as: "JSON lines, one JSON list",
        example: "array.json",
        recognise: jsonl::recognise_array,
    },
    Format {
        known_as: Some("JSON lines such as {\"step\":10,\"rss_mb\":5434}"),
        documented_as: "JSON lines, one JSON list",
        example: "lines.jsonl",
        recognise: jsonl::recognise_lines,
    },
    Format {
        known_as: Some("InfluxDB's line protocol"),
        documented_as: "InfluxDB",
        example: "influx.txt",
        recognise: influx::recognise,
    },
    Format { known_as: None, documented_as: "ps", example: "ps.txt", recognise: tools::recognise },
    Format {
        known_as: Some("CSV exports of Grafana"),
        documented_as: "Grafana",
        example: "grafana.csv",
        recognise: grafana::recognise,
    },
    Format {
        known_as: Some("CSV or TSV with a header such as `step,rss_mb`"),
        documented_as: "CSV, TSV, semicolons, Markdown",
        example: "table.csv",
        recognise: table::recognise,
    },
    Format {
        known_as: Some("`nvidia-smi --query-gpu=timestamp,index,memory.used --format=csv`"),
        documented_as: "nvidia-smi",
        example: "nvidia-smi.csv",
        recognise: nvidia_smi::recognise,
    },
    Format {
        known_as: Some("one amount per line"),
        documented_as: "amounts",
        example: "amounts.txt",
        recognise: amounts::recognise,
    },
    Format {
        known_as: Some("training logs with lines such as `Step 10: RAM: 5434 MB`"),
        documented_as: "training log",
        example: "training.log",
        recognise: log::recognise,
    },
];

/// All formats as the refusal of an unknown file names them.
pub(crate) fn known() -> String {
    let formats = FORMATS.iter().filter_map(|format| format.known_as).collect::<Vec<_>>().join("; ");
    let tools = tools::all().map(|tool| format!("`{}`", tool.name)).collect::<Vec<_>>().join(", ");
    format!("{formats}; output of {tools}")
}

/// The head of a file whose format is looked for.
pub(crate) struct Head<'f> {
    /// The first bytes, without a byte order mark.
    pub(crate) bytes: &'f [u8],
    /// Their complete lines that are not blank.
    pub(crate) lines: &'f [HeadLine],
    pub(crate) options: &'f ReadOptions,
}

/// How much of a file is searched for the keys of a JSON document.
const KEYS_WITHIN: usize = 4096;

impl Head<'_> {
    /// The beginning of a JSON document, without white space.
    fn json_keys(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(KEYS_WITHIN)]).split_whitespace().collect()
    }
}

/// The reader of a file that a format claims, or the refusal of a file that it knows and cannot use; `None` if it is of another format.
pub(crate) type Recognised = Option<Result<Box<dyn Reader>, Error>>;

/// Claims a file.
fn claim(reader: impl Reader + 'static) -> Recognised {
    Some(Ok(Box::new(reader)))
}

/// Reads a file of one format; it has what recognition learned.
pub(crate) trait Reader {
    /// The format's name in reports.
    fn name(&self) -> &'static str;

    /// Who wrote the file.
    fn origin(&self) -> Origin {
        Origin::Foreign
    }

    /// Reads the file to its end.
    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error>;
}

/// A file being read.
pub(crate) struct Contents<'f> {
    pub(crate) lines: FileLines<'f>,
    pub(crate) head: &'f [HeadLine],
    pub(crate) options: &'f ReadOptions,
}

/// The lines of a file whose head was read before.
pub(crate) type FileLines<'f> = Lines<Chain<Cursor<Vec<u8>>, Box<dyn Read + 'f>>>;

/// Reads another text with the reader of its format: that of a document which holds the rows of another format.
fn read_as(
    text: &str,
    recognise: fn(&Head<'_>) -> Recognised,
    options: &ReadOptions,
    reading: &mut Reading,
) -> Result<(), Error> {
    let source = Source::open(Box::new(text.as_bytes()) as Box<dyn Read + '_>)?;
    let lines = source.head_lines();
    if lines.is_empty() {
        return Err(Error::Empty);
    }
    let head = Head { bytes: &source.head, lines: &lines, options };
    let reader = recognise(&head).unwrap_or_else(|| Err(explain_nothing(&lines, options)))?;
    reader.read(&mut Contents { lines: source.into_lines(), head: &lines, options }, reading)
}

/// Recognises the format.
pub(crate) fn recognise(head: &Head<'_>) -> Result<Box<dyn Reader>, Error> {
    refuse_binary(head.bytes)?;
    if head.lines.is_empty() {
        return Err(Error::Empty);
    }
    FORMATS
        .iter()
        .find_map(|format| (format.recognise)(head))
        .unwrap_or_else(|| Err(explain_nothing(head.lines, head.options)))
}

/// The error for a file without a single memory value.
fn explain_nothing(head: &[HeadLine], options: &ReadOptions) -> Error {
    if let Some(Err(error)) = jsonl::columns_of_lines(head, options) {
        return error;
    }
    if let [first, second, ..] = head
        && let Some((delimiter, names)) = table::header_names(&first.text)
        && table::fits(&second.text, delimiter, &names)
    {
        return match Choice::of(names.clone(), options) {
            Err(error) => error,
            Ok(_) => Error::NoMemoryColumn { columns: names },
        };
    }
    if let Some(error) = closest::known_tool(head) {
        return error;
    }
    let first_line = head.first().map(|line| shorten(&line.text)).unwrap_or_default();
    Error::Unrecognised { first_line, closest: closest::find(head) }
}

/// Share of odd bytes that no text reaches, whatever its encoding, and that random bytes exceed twice over.
const BINARY_SHARE: f64 = 0.3;

fn refuse_binary(head: &[u8]) -> Result<(), Error> {
    let known: [(&[u8], &str, &str); 2] = [
        (b"PK\x03\x04", "a zip archive", "unpack it first"),
        (b"\x28\xb5\x2f\xfd", "zstd", "decompress it first: `zstd -dc FILE | model-garden diagnose -`"),
    ];
    if let Some(&(_, looks_like, advice)) = known.iter().find(|(magic, ..)| head.starts_with(magic)) {
        return Err(Error::Binary { looks_like, advice });
    }
    let (mut odd, mut all) = (0usize, 0usize);
    for chunk in head.utf8_chunks() {
        // NUL bytes do not count: a log that was truncated while open begins with thousands of them.
        let is_odd = |c: &char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\x1b' | '\x08' | '\x0c' | '\0');
        odd += chunk.valid().chars().filter(is_odd).count() + chunk.invalid().len();
        all += chunk.valid().chars().filter(|&c| c != '\0').count() + chunk.invalid().len();
    }
    if odd as f64 > BINARY_SHARE * all as f64 || (all == 0 && !head.is_empty()) {
        let advice = "pass the text log with the memory values, not a model, archive or profile";
        return Err(Error::Binary { looks_like: "not text", advice });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::fs;
    use std::path::{Path, PathBuf};

    use expect_test::expect_file;

    use super::*;
    use crate::read_all;

    fn repository(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
    }

    /// The example and the documentation's first cell of each format and each tool.
    fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        let formats = FORMATS.iter().map(|format| (format.example, format.documented_as));
        formats.chain(tools::all().map(|tool| (tool.example, tool.documented_as)))
    }

    fn example(name: &str) -> Vec<u8> {
        fs::read(repository("testdata/formats").join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[test]
    fn every_format_reads_its_example() {
        let mut shown = String::new();
        for (name, _) in all() {
            for read in read_all(example(name).as_slice(), &ReadOptions::default()).expect(name) {
                let (input, known) = (&read.input, |text: &Option<String>| text.clone().unwrap_or_default());
                let series = read.name.map_or(String::new(), |name| format!(" ({name})"));
                let last = read.trace.sample(read.trace.len() - 1);
                let _ = writeln!(
                    shown,
                    "{name}: {}{series} | {} {} of a {:?} | {} samples to step {:?}, time {:?}, {:?} bytes | {} skipped",
                    input.format,
                    known(&input.column),
                    known(&input.unit),
                    read.trace.subject,
                    input.samples,
                    last.step,
                    last.time_s,
                    last.get(garden_memory::Quantity::Rss),
                    input.skipped
                );
            }
        }
        expect_file![repository("testdata/expected/formats.txt")].assert_eq(&shown);
    }

    #[test]
    fn no_other_format_claims_an_example() {
        let options = ReadOptions::default();
        for (place, format) in FORMATS.iter().enumerate() {
            let text = example(format.example);
            let source = Source::open(text.as_slice()).expect("an example is readable");
            let lines = source.head_lines();
            let head = Head { bytes: &source.head, lines: &lines, options: &options };
            let first = FORMATS.iter().position(|format| (format.recognise)(&head).is_some());
            assert_eq!(first, Some(place), "{}", format.example);
        }
    }

    #[test]
    fn every_format_is_documented_and_has_one_example() {
        let page = fs::read_to_string(repository("docs/formats.md")).expect("the page is there");
        for (example, row) in all() {
            assert!(page.lines().any(|line| line.starts_with(&format!("| {row} |"))), "{example}: no row `{row}`");
        }
        let mut known: Vec<&str> = all().map(|(example, _)| example).collect();
        known.sort_unstable();
        known.dedup();
        let files = fs::read_dir(repository("testdata/formats")).expect("the folder is there");
        let mut files: Vec<String> =
            files.map(|file| file.expect("readable").file_name().to_string_lossy().into_owned()).collect();
        files.sort_unstable();
        assert_eq!(files, known);
    }
}
