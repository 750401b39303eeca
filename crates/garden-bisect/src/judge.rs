//! The judgement: each run's kind of growth, the growth added by its last piece, and its keeper.

use crate::experiment::{Experiment, Held, How, Run, Visit, WorkersHeld};
use crate::finding::{Cause, Finding, Growth, Kind, StageFinding};
use crate::growth::{Chance, Garbage, Rise, beyond, growth, held, kind, per_example};
use crate::holders::{Keeper, dropped, given_back, keeper};
use crate::phrasing;

/// The version of the JSON contract.
const SCHEMA: u32 = 1;
/// Memory that a worker allocates, or copies from its parent, just by running, whatever the data: up to 0.6 MiB seen with torch.
const BY_RUNNING: i64 = 1 << 20;
/// A piece that alone grows by this share of its chain's addition keeps the memory itself.
const ALONE: f64 = 0.5;

/// Judges an experiment. `memory_limit` is the limit of the machine or its cgroup, in bytes.
pub fn judge(experiment: &Experiment, memory_limit: Option<u64>) -> Finding {
    let runs = Judged::all(experiment);
    let mut growths: Vec<Growth> =
        runs.iter().filter_map(|judged| judged.growth(experiment, &runs, memory_limit)).collect();
    // Equally severe growths stay in pipeline order: a later one may follow from an earlier one.
    growths.sort_by_key(|growth| std::cmp::Reverse(growth.kind.gravity()));
    let failed = runs.iter().find(|judged| judged.finding.has_failed());
    let matters = growths.first().filter(|growth| !matches!(growth.kind, Kind::WarmUp | Kind::FilePages));
    let verdict = match (&matters, failed) {
        (Some(growth), _) => growth.kind,
        (None, Some(_)) => Kind::Failed,
        (None, None) => growths.first().map_or(Kind::Flat, |growth| growth.kind),
    };
    let mut finding = Finding {
        schema: SCHEMA,
        verdict,
        summary: String::new(),
        advice: phrasing::advice(&growths, verdict),
        examples: experiment.examples,
        dataset_length: experiment.dataset_length,
        memory_limit,
        stages: runs.iter().map(|judged| judged.finding.clone()).map(|stage| told(stage, &growths)).collect(),
        growths,
        notes: phrasing::notes(experiment, &runs),
    };
    finding.summary = phrasing::summary(&finding, failed.and_then(|judged| judged.finding.error.as_deref()));
    finding
}

/// The finding on a run, with the kind from the closer look.
fn told(mut stage: StageFinding, growths: &[Growth]) -> StageFinding {
    if let Some(growth) = growths.iter().find(|growth| growth.run == stage.name) {
        stage.kind = growth.kind;
    }
    stage
}

/// A run and the finding on it.
pub(crate) struct Judged<'a> {
    pub run: &'a Run,
    pub finding: StageFinding,
    rise: Rise,
}

impl<'a> Judged<'a> {
    fn all(experiment: &'a Experiment) -> Vec<Judged<'a>> {
        let mut judged: Vec<Judged> = Vec::new();
        for run in &experiment.runs {
            let before = judged.iter().rev().find(|before| before.run.how == How::Chain && run.how == How::Chain);
            let rise = Rise::new(run, before.map(|before| before.run));
            let finding = stage(
                run,
                before.map(|before| &before.finding),
                &rise,
                run.examples.unwrap_or(experiment.examples),
                experiment.workers,
            );
            judged.push(Judged { run, finding, rise });
        }
        judged
    }

    /// The growth because of this run's last piece, with its keeper.
    fn growth(&self, experiment: &Experiment, runs: &[Judged<'a>], memory_limit: Option<u64>) -> Option<Growth> {
        let kind = self.finding.kind;
        let is_told = match self.run.how {
            // If a chain was stopped because memory ran out, so is every longer one.
            How::Chain => {
                kind.is_growth()
                    && !(self.was_stopped_early() && self.chain_before(runs).is_some_and(Judged::was_stopped_early))
            }
            // Workers run the pieces of the chain: growth of the chain was found already.
            How::Workers => {
                kind.is_growth() && (kind == Kind::Copies || !runs.iter().any(|other| other.is_growing_chain()))
            }
            How::Alone | How::Look => false,
        };
        if !is_told {
            return None;
        }
        let begins_with = self.run.stages.last().cloned().unwrap_or_default();
        let look = experiment.looks.iter().find(|look| look.name == self.run.name);
        let shorter = experiment.looks.iter().filter(|look| look.stages.len() < self.run.stages.len());
        let earlier = shorter.max_by_key(|look| look.stages.len());
        // A leak shows in a later pass; the first pass includes caches too.
        let found = match look.and_then(|look| look.later.as_ref()).filter(|_| kind == Kind::Leak) {
            Some(later) => {
                let [grown, added] = [&self.finding.growth, &self.finding.added]
                    .map(|growth| mean(&growth[1..]).saturating_mul(later.passes as i64));
                keeper(kind, Some(later), earlier.and_then(|look| look.later.as_ref()), grown, added)
            }
            None => {
                let look = look.and_then(|look| look.holders.as_ref());
                let passes = look.map_or(0, |look| look.passes as usize);
                let [grown, added] =
                    [&self.finding.growth, &self.finding.added].map(|growth| over(passes, growth, kind));
                keeper(kind, look, earlier.and_then(|look| look.holders.as_ref()), grown, added)
            }
        };
        let total: i64 = self.finding.added.iter().sum();
        let examples = self.run.examples.unwrap_or(experiment.examples);
        // Memory comes in lumps, so a curve may hide a limit that the cache itself reports.
        let is_full = found.is_full && found.entries.is_some_and(|entries| entries < examples);
        let kind = if kind == Kind::Cache && is_full { Kind::FullCache } else { kind };
        let full = (kind == Kind::FullCache).then(|| self.rise.full_after().or(found.entries)).flatten();
        let bytes = match kind {
            Kind::Garbage => self.garbage_per_example(examples),
            Kind::Cache => Some(self.kept(&found) / examples.max(1) as i64),
            Kind::FullCache => found.entries.or(full).map(|filled| self.kept(&found) / filled.max(1) as i64),
            _ => per_example(kind, &self.finding.added, examples).or_else(|| self.stopped_growth()),
        };
        let mut growth = Growth {
            run: self.run.name.clone(),
            kind,
            cause: found.cause,
            keeper: self.keeper_name(&found, total, runs),
            held_at: found.held_at,
            holds: found.holds,
            explained: found.explained,
            begins_with,
            bytes_per_example: bytes,
            full_dataset_bytes: bytes.filter(|_| kind.is_kept()).zip(experiment.dataset_length).map(
                |(bytes, length)| {
                    let all = bytes.saturating_mul(found.limit.map_or(length, |most| most.min(length)) as i64);
                    all.min(self.shared_by_each(experiment.workers).filter(|_| kind == Kind::Copies).unwrap_or(all))
                },
            ),
            holds_at_most: found.limit,
            full_after: full,
            gives_back: given_back(self.run),
            summary: String::new(),
        };
        growth.summary = phrasing::growth(&growth, experiment, memory_limit);
        Some(growth)
    }

    fn is_growing_chain(&self) -> bool {
        self.run.how == How::Chain
            && matches!(self.finding.kind, Kind::Leak | Kind::Cache | Kind::Undecided | Kind::Garbage)
    }

    /// The keeper's name: from the look, else the piece that grows alone, else the piece whose dropping gave the memory back.
    fn keeper_name(&self, found: &Keeper, total: i64, runs: &[Judged<'a>]) -> Option<String> {
        let last = self.run.stages.last()?;
        if self.run.how == How::Workers {
            return None;
        }
        let alone = runs.iter().find(|other| other.run.how == How::Alone && other.run.stages.last() == Some(last));
        let grows_alone = alone.is_some_and(|alone| {
            let own: i64 = alone.finding.growth.iter().sum();
            let all: i64 = self.finding.added.iter().take(alone.finding.growth.len()).sum();
            // A failed run has not grown.
            own > 0 && own as f64 >= ALONE * all as f64
        });
        let itself = (last == "dataset" || grows_alone).then(|| last.clone());
        found
            .name
            .clone()
            .or(itself)
            .or_else(|| dropped(self.run, self.chain_before(runs).map(|before| before.run), total))
    }

    /// Bytes that a loader worker still shared with its parent before the passes: it cannot copy more.
    fn shared_by_each(&self, workers: u64) -> Option<i64> {
        let base = self.run.base?.workers?;
        (workers > 0).then(|| (base.held - base.private).max(0) / workers as i64)
    }

    /// Bytes kept by a cache. Small objects first fill Python's free memory, some hundred KiB, so their sizes may say more than the growth.
    fn kept(&self, found: &Keeper) -> i64 {
        let total: i64 = self.finding.added.iter().sum();
        if found.cause == Some(Cause::ExampleCache) { total.max(found.known) } else { total }
    }

    /// The run of the chain without its last piece.
    fn chain_before<'r>(&self, runs: &'r [Judged<'a>]) -> Option<&'r Judged<'a>> {
        let before = self.run.stages.split_last()?.1;
        runs.iter().find(|other| other.run.how == How::Chain && other.run.stages == before)
    }

    /// Whether it was stopped in its first pass because memory ran out.
    fn was_stopped_early(&self) -> bool {
        self.run.stopped.is_some() && self.run.passes.is_empty()
    }

    /// Bytes freed by the garbage collector, automatically and at the end, for each example of each pass.
    fn garbage_per_example(&self, examples: u64) -> Option<i64> {
        let by_itself = self.run.collections.map_or(0, |collections| collections.bytes);
        let all = by_itself + self.finding.collected.unwrap_or(0).max(0);
        Some(all / (examples.max(1) as i64 * self.run.passes.len().max(1) as i64))
    }

    /// Growth per example of a run that was stopped in its first pass because memory ran out.
    fn stopped_growth(&self) -> Option<i64> {
        self.run.stopped?;
        let last = self.run.visits.last()?;
        (last.examples > 0)
            .then(|| (last.held - self.run.base.map_or(last.held, |base| base.held)) / last.examples as i64)
    }
}

fn stage(run: &Run, before: Option<&StageFinding>, rise: &Rise, examples: u64, workers: u64) -> StageFinding {
    let grown = held(run);
    let added = beyond(&grown, before.map_or(&[], |before| &before.growth));
    let earlier: Vec<i64> = grown.iter().zip(&added).map(|(grown, added)| grown - added).collect();
    let collected = collected(run);
    let collected_before = before.and_then(|before| before.collected).unwrap_or(0).max(0);
    let mut kind = match &run.error {
        Some(_) if grown.len() < 2 => Kind::Failed,
        _ if grown.is_empty() && run.stopped.is_some() => Kind::Undecided,
        _ => {
            let at_once = run.collections.map_or(0, |collections| collections.largest);
            let before = before.and_then(|before| before.collected_at_once).unwrap_or(0);
            let at_once = if at_once > 2 * before { at_once } else { 0 };
            kind(
                &added,
                Garbage { at_the_end: collected.unwrap_or(0) - collected_before, at_once },
                run,
                rise,
                Chance::new(examples, &earlier),
            )
        }
    };
    let (mut shown, mut shown_added) = (grown, added);
    if run.how == How::Workers && kind != Kind::Failed {
        (kind, shown) = copied(run, examples, workers);
        shown_added.clone_from(&shown);
    }
    let retained = run.passes.iter().map(|pass| pass.before_trim - pass.end.held).max().unwrap_or(0);
    StageFinding {
        name: run.name.clone(),
        is_alone: run.how == How::Alone,
        is_workers: run.how == How::Workers,
        kind,
        growth: shown,
        added: shown_added,
        collected,
        collected_at_once: run.collections.map(|collections| collections.largest),
        retained: retained.max(0),
        seconds: run.passes.iter().map(|pass| pass.seconds).collect(),
        error: run.error.as_ref().map(phrasing::error),
    }
}

/// The growth of loader workers: memory they allocated, or else pages of their parent that they copied.
fn copied(run: &Run, examples: u64, workers: u64) -> (Kind, Vec<i64>) {
    let grown = |of: fn(WorkersHeld) -> i64| {
        growth(run, |pass| pass.end.workers.map(of), run.base.and_then(|base| base.workers).map(of))
    };
    let held = grown(|one| one.held);
    // Memory they allocated is in their private pages too.
    let copies: Vec<i64> = grown(|one| one.private).iter().zip(&held).map(|(own, held)| own - held.max(&0)).collect();
    let is_more = |grown: &[i64]| grown.iter().sum::<i64>() > BY_RUNNING.saturating_mul(workers as i64);
    let of_workers = of_workers(run);
    match kind(&held, Garbage::default(), &of_workers, &Rise::new(&of_workers, None), Chance::new(examples, &[])) {
        Kind::Failed => (Kind::Failed, held),
        kind @ (Kind::Leak | Kind::Cache | Kind::FullCache | Kind::Undecided) if is_more(&held) => (kind, held),
        _ if is_more(&copies) => (Kind::Copies, copies),
        _ => (Kind::Flat, held),
    }
}

/// The run with the memory of all workers as its own.
fn of_workers(run: &Run) -> Run {
    let base = run.base.and_then(|base| Some(Held { held: base.workers?.held, ..Held::default() }));
    let visit = |visit: &Visit| Some(Visit { held: visit.workers?.held, allocated: None, ..*visit });
    Run { base, visits: run.visits.iter().filter_map(visit).collect(), ..Run::default() }
}

/// Growth over the first `passes` passes. For a leak it is taken from the mean of the later passes, since it may be small.
fn over(passes: usize, growth: &[i64], kind: Kind) -> i64 {
    if kind != Kind::Leak || growth.len() < 2 {
        return growth.iter().take(passes).sum();
    }
    let mean = mean(&growth[1..]);
    growth[0].max(mean).saturating_add(mean.saturating_mul((passes as i64 - 1).max(0)))
}

fn mean(values: &[i64]) -> i64 {
    values.iter().sum::<i64>() / values.len().max(1) as i64
}

/// Bytes given back by `gc.collect()` at the end.
fn collected(run: &Run) -> Option<i64> {
    let after = run.after.first().filter(|after| after.what.starts_with("gc.collect"))?;
    Some(run.passes.last()?.end.held - after.held)
}
