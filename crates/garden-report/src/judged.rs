//! A trace with its diagnosis: the input of every report about memory.

use garden_memory::{
    Bytes, Diagnosis, Input, Quantity, Question, RunFacts, Trace, diagnose, judged_series, quantity_series,
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
        let facts = RunFacts { memory_limit: facts.memory_limit.or(machine_limit), ..facts };
        let mut diagnosis = diagnose(&trace, &Question { facts: facts.clone(), ..question });
        diagnosis.input.format = input.format;
        diagnosis.input.unit = input.unit;
        diagnosis.input.skipped += input.skipped;
        diagnosis.input.notes.splice(0..0, input.notes);
        if !limit_is_given && diagnosis.forecast.limit_bytes.is_some() {
            diagnosis.input.notes.push("using this machine's memory limit; set another with --memory-limit".into());
        }
        JudgedTrace { trace, facts, diagnosis }
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
