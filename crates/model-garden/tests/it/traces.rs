//! Every recorded trace under `testdata/traces` gets the verdict that its label promises.
//!
//! The traces are recordings of real programs that leak, fill caches, page in files and so on; `NAME.json` beside each says
//! what is true about it. Asked is the whole trace, its beginnings (nothing healthy may ever be called a leak), the trace
//! without run facts, and the trace rescaled, thinned out and stretched in time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{diagnose, repository, scratch};
use serde_json::Value;

struct Labelled {
    name: String,
    label: Value,
    rows: Vec<Vec<String>>,
}

impl Labelled {
    fn read(path: &Path) -> Labelled {
        let label = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let table = fs::read_to_string(path.with_extension("csv")).unwrap();
        let rows = table.lines().map(|line| line.split(',').map(str::to_string).collect()).collect();
        Labelled { name: path.file_stem().unwrap().to_str().unwrap().to_string(), label, rows }
    }

    fn column(&self, name: &str) -> usize {
        self.rows[0].iter().position(|found| found == name).unwrap()
    }

    fn is(&self, verdict: &str) -> bool {
        self.label["verdict"] == verdict
    }

    fn accepts(&self, verdict: &str) -> bool {
        self.label["accepted_verdicts"].as_array().unwrap().iter().any(|accepted| accepted == verdict)
    }

    fn knee(&self) -> Option<f64> {
        self.label["knee_step"].as_f64().filter(|_| self.label["knee_is_soft"] != true)
    }

    fn flags(&self) -> Vec<String> {
        let facts: &[&str] = match self.label["examples"].is_null() {
            true => &["steps_per_epoch"],
            false => &["examples", "batch_size", "gradient_accumulation"],
        };
        let known = facts.iter().filter_map(|&fact| Some((fact, self.label[fact].as_u64()?)));
        known.flat_map(|(fact, value)| [format!("--{}", fact.replace('_', "-")), value.to_string()]).collect()
    }

    /// Writes the header and these rows, and asks about them.
    fn ask(&self, folder: &Path, variant: &str, rows: &[Vec<String>], flags: &[String]) -> Value {
        let file: PathBuf = folder.join(format!("{}-{variant}.csv", self.name));
        let lines = std::iter::once(&self.rows[0]).chain(rows).map(|row| row.join(","));
        fs::write(&file, lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        diagnose(file.to_str().unwrap(), &flags).0
    }
}

fn check_whole(trace: &Labelled, found: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let verdict = found["verdict"].as_str().unwrap();
    if !trace.accepts(verdict) {
        wrong.push(format!("verdict {verdict}"));
    } else if trace.is(verdict) && !trace.label["mechanism"].as_array().unwrap().contains(&found["mechanism"]) {
        wrong.push(format!("mechanism {}", found["mechanism"]));
    }
    if let Some(knee) = trace.knee().filter(|_| trace.is("settled")) {
        let at = found["knee"]["step"].as_f64();
        if at.is_none_or(|at| (at - knee).abs() > (0.1 * knee).max(5.0)) {
            wrong.push(format!("knee {at:?} instead of {knee}"));
        }
    }
    let rate = trace.label["leak_mib_per_step"].as_f64().filter(|&rate| trace.is("leak") && rate > 0.0);
    if let Some(rate) = rate {
        let found = found["growth"]["bytes_per_step"].as_f64().map(|bytes| bytes / 1_048_576.0);
        if found.is_none_or(|found| !(0.7 * rate..=1.3 * rate).contains(&found)) {
            wrong.push(format!("rate {found:?} MiB per step instead of {rate}"));
        }
    }
    wrong
}

fn check_beginnings(trace: &Labelled, folder: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    let step = trace.column("step");
    let unclear =
        trace.label["ambiguous_steps"].as_array().map(|ends| (ends[0].as_f64().unwrap(), ends[1].as_f64().unwrap()));
    for share in [15, 30, 50, 70] {
        let rows = &trace.rows[1..1 + (trace.rows.len() - 1) * share / 100];
        let last: f64 = rows[rows.len() - 1][step].parse().unwrap();
        if unclear.is_some_and(|(from, to)| (from..=to).contains(&last)) {
            continue;
        }
        let verdict = trace.ask(folder, &format!("{share}"), rows, &trace.flags())["verdict"].clone();
        let leaks_by_now = trace.is("leak") && last > trace.label["leak_from_step"].as_f64().unwrap_or(0.0);
        if verdict == "leak" && !leaks_by_now {
            wrong.push(format!("false alarm at {share} %"));
        }
        if let Some(knee) = trace.knee().filter(|_| trace.label["kind"] == "pil_lazy_decode_retain") {
            if last < 0.6 * knee && verdict != "growing" && verdict != "insufficient" {
                wrong.push(format!("{verdict} at {share} %, still filling"));
            }
            if last > 1.4 * knee && verdict != "settled" {
                wrong.push(format!("{verdict} at {share} %, settled long ago"));
            }
        }
    }
    wrong
}

fn check_without_facts(trace: &Labelled, folder: &Path) -> Vec<String> {
    let found = trace.ask(folder, "no-facts", &trace.rows[1..], &[]);
    let verdict = found["verdict"].as_str().unwrap();
    let honest = match trace.is("leak") {
        true => ["leak", "growing"].contains(&verdict),
        false => ["flat", "sawtooth", "settled", "growing"].contains(&verdict),
    };
    if honest { Vec::new() } else { vec![format!("without facts: {verdict}")] }
}

fn check_variants(trace: &Labelled, folder: &Path) -> Vec<String> {
    let scaled = |factor: f64, ending: &str| -> Vec<Vec<String>> {
        let is_scaled: Vec<bool> = trace.rows[0].iter().map(|name| name.ends_with(ending)).collect();
        let value = |(cell, scaled): (&String, &bool)| match scaled {
            true => format!("{:.3}", cell.parse::<f64>().unwrap() * factor),
            false => cell.clone(),
        };
        trace.rows[1..].iter().map(|row| row.iter().zip(&is_scaled).map(value).collect()).collect()
    };
    let thinned: Vec<Vec<String>> = trace.rows[1..].iter().step_by(3).cloned().collect();
    let mut variants = vec![("every-third", thinned), ("time-times-20", scaled(20.0, "time_s"))];
    // A few labels rest on what is worth a call in MiB, and do not hold at seven times the size.
    if trace.label["holds_at_this_size_only"] != true {
        variants.push(("memory-times-7", scaled(7.0, "_mb")));
    }
    let mut wrong = Vec::new();
    for (name, rows) in variants {
        let found = trace.ask(folder, name, &rows, &trace.flags());
        let verdict = found["verdict"].as_str().unwrap();
        let is_fine = trace.accepts(verdict) || (name == "every-third" && verdict == "growing");
        if !is_fine {
            wrong.push(format!("{name}: {verdict}"));
        }
    }
    wrong
}

#[test]
fn every_recorded_trace_gets_the_verdict_of_its_label() {
    let folder = scratch("labelled-traces");
    let mut labels: Vec<PathBuf> = fs::read_dir(repository("testdata/traces"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .collect();
    labels.sort();
    assert!(labels.len() >= 70, "only {} labelled traces found", labels.len());
    let mut failures = Vec::new();
    for path in labels {
        let trace = Labelled::read(&path);
        let found = trace.ask(&folder, "whole", &trace.rows[1..], &trace.flags());
        let mut wrong = check_whole(&trace, &found);
        wrong.extend(check_beginnings(&trace, &folder));
        wrong.extend(check_without_facts(&trace, &folder));
        wrong.extend(check_variants(&trace, &folder));
        if !wrong.is_empty() {
            failures.push(format!("{}: {}", trace.name, wrong.join("; ")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
