//! A trace with its diagnosis: the input of every report about memory.

use garden_memory::{
    Bytes, Diagnosis, Input, Mechanism, Quantity, Question, RunFacts, SeriesVerdict, Subject, Trace, Verdict, diagnose,
    judged_series, quantity_series,
};

use crate::{Page, Report, Section, Series, illustrate};

/// A trace with its diagnosis.
#[derive(Clone, Debug)]
pub struct JudgedTrace {
    trace: Trace,
    facts: RunFacts,
    /// The answer.
    pub diagnosis: Diagnosis,
}

impl JudgedTrace {
    /// Judges a trace; `input` says how it was read. The limit is the question's, else the trace's own, else this machine's.
    pub fn of(trace: Trace, input: Input, question: Question, machine_limit: Option<Bytes>) -> JudgedTrace {
        let facts = question.facts.or(trace.facts.clone());
        let limit_is_given = facts.memory_limit.is_some();
        // A GPU's limit is not the host's, and a trace with more memory than this machine has was recorded elsewhere.
        let highest = (0..trace.len()).filter_map(|index| trace.value(index, Quantity::Rss)).max().unwrap_or(0);
        let is_elsewhere = machine_limit.is_some_and(|limit| highest > limit.0);
        let own = machine_limit.filter(|_| trace.subject != Subject::Device && !is_elsewhere);
        let facts = RunFacts { memory_limit: facts.memory_limit.or(own), ..facts };
        let mut diagnosis =
            diagnose(&trace, &Question { facts: facts.clone(), limit_is_assumed: !limit_is_given, ..question });
        diagnosis.input.format = input.format;
        diagnosis.input.unit = input.unit;
        diagnosis.input.skipped += input.skipped;
        diagnosis.input.notes.splice(0..0, input.notes);
        if !limit_is_given && diagnosis.forecast.limit_bytes.is_some() {
            diagnosis.input.notes.push("using this machine's memory limit; set another with --memory-limit".into());
        }
        if let Some(limit) =
            machine_limit.filter(|_| !limit_is_given && is_elsewhere && trace.subject != Subject::Device)
        {
            diagnosis.input.notes.push(format!(
                "no limit is known: the trace has more memory than this machine ({limit}), so it was recorded elsewhere; pass \
                 --memory-limit"
            ));
        }
        JudgedTrace { trace, facts, diagnosis }
    }

    /// Of several series in a file: the one that decides, with the verdicts on all of them.
    ///
    /// A leak decides before a limit in reach, that before growth, and growth before everything else; among equals, the fastest
    /// growth or else the highest level.
    pub fn that_decides(all: Vec<(String, JudgedTrace)>) -> Option<JudgedTrace> {
        let weight = |(_, judged): &(String, JudgedTrace)| {
            let found = &judged.diagnosis;
            let rank = match found.verdict {
                Verdict::Leak => 4,
                _ if found.is_bad_news() => 3,
                Verdict::Growing if found.mechanism != Mechanism::FilePages => 2,
                Verdict::Insufficient => 0,
                _ => 1,
            };
            let rate = found.growth.bytes_per_second.or(found.growth.bytes_per_step).unwrap_or(0.0);
            (rank, if rank > 1 { rate } else { 0.0 }, found.level.map_or(0, |level| level.bytes))
        };
        let heavier = |a: &usize, b: &usize| {
            let (a, b) = (weight(&all[*a]), weight(&all[*b]));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2))
        };
        // The first of equals.
        let decides = (0..all.len()).rev().max_by(heavier)?;
        let series = all.iter().enumerate().map(|(index, (name, judged))| SeriesVerdict {
            name: name.clone(),
            samples: judged.diagnosis.input.samples,
            verdict: judged.diagnosis.verdict,
            mechanism: judged.diagnosis.mechanism,
            summary: judged.diagnosis.summary.clone(),
            decides: index == decides,
        });
        let series: Vec<SeriesVerdict> = series.collect();
        let (name, mut judged) = all.into_iter().nth(decides)?;
        judged.diagnosis.summary.insert_str(0, &format!("{}. {name}: ", tally(&series)));
        judged.diagnosis.series = series;
        Some(judged)
    }

    /// The peak resident memory reported by the kernel, in bytes.
    pub fn resident_peak(&self) -> u64 {
        let peaks = (0..self.trace.len()).filter_map(|index| self.trace.sample(index).get(Quantity::Peak));
        peaks.max().unwrap_or(0)
    }

    /// The last time in the trace, in seconds from its beginning.
    pub fn seconds(&self) -> f64 {
        (0..self.trace.len()).rev().find_map(|index| self.trace.time_s(index)).unwrap_or(0.0)
    }

    /// The report without the charts of a page, with the caller's sections. `command` is the command line that makes it.
    pub fn report(&self, title: &str, sections: Vec<Section>, command: Option<String>) -> Report<'_> {
        Report {
            title: title.to_string(),
            memory: Series { name: memory_name(&self.trace), points: judged_series(&self.trace) },
            counts: counts(&self.trace),
            charts: Vec::new(),
            samples: None,
            sections,
            origin: &self.trace.origin,
            facts: &self.facts,
            command,
            version: env!("CARGO_PKG_VERSION"),
            diagnosis: &self.diagnosis,
        }
    }

    /// The report with its charts.
    pub fn illustrated(&self, title: &str, sections: Vec<Section>, command: Option<String>) -> Report<'_> {
        let mut report = self.report(title, sections, command);
        illustrate(&mut report, &self.trace);
        report
    }

    /// The parts of the report, charts included, for a page about more than memory.
    pub fn page(&self, title: &str) -> Page {
        let report = self.illustrated(title, Vec::new(), None);
        Page { charts: report.charts.clone(), ..report.page() }
    }
}

/// The verdicts on several series, counted: `2 series: 1 leak, 1 flat`.
fn tally(series: &[SeriesVerdict]) -> String {
    let order =
        [Verdict::Leak, Verdict::Growing, Verdict::Settled, Verdict::Sawtooth, Verdict::Flat, Verdict::Insufficient];
    let count = |verdict: Verdict| series.iter().filter(|one| one.verdict == verdict).count();
    let words = order.into_iter().map(|verdict| (count(verdict), verdict)).filter(|(count, _)| *count > 0);
    let words: Vec<String> = words.map(|(count, verdict)| format!("{count} {}", verdict.name())).collect();
    format!("{} series: {}", series.len(), words.join(", "))
}

fn memory_name(trace: &Trace) -> String {
    trace.name_of(if trace.has(Quantity::Rss) { Quantity::Rss } else { Quantity::Pss }).to_string()
}

fn counts(trace: &Trace) -> Vec<Series> {
    Quantity::ALL
        .into_iter()
        .filter(|&quantity| quantity.is_count() && trace.has(quantity))
        .map(|quantity| Series { name: trace.name_of(quantity).to_string(), points: quantity_series(trace, quantity) })
        .collect()
}
