//! The finding, the run's facts and the other columns combined: the one place where words, forecast and causes look
//! things up.

use std::ops::Range;

use crate::bytes::Bytes;
use crate::claims::Claims;
use crate::diagnose::{Judged, Question};
use crate::diagnosis::*;
use crate::evidence::creep;
use crate::judge::{Finding, PLATEAU_LENGTH, PLATEAU_SAMPLES, sure_from};
use crate::libraries::{Libraries, Library};
use crate::segments::Segment;
use crate::series::{JudgedMemory, Series, Timeline};
use crate::shape::Shape;
use crate::stats::{Point, median, noise_of_differences, quantile};
use crate::trace::{EventKind, ProcessTrack, Quantity, RunFacts, Subject, Trace};
use crate::trend::Trend;
use crate::waves::Waves;

/// So many samples in a row on one side of a fitted line are where memory stands.
const LAST: usize = 3;
/// Share of an epoch beyond its end after which the end of a fill shows, or one sample if that takes longer.
const MARGIN: f64 = 0.06;
/// The share of leaks among simulated runs called growing, by the passes over the data since the growth began: below so many
/// passes, this share. Half of the runs leak; `docs/diagnose.md` describes them, and a test measures the shares.
const LEAKS_IF_STEADY: [(f64, f64); 4] = [(0.5, 0.29), (1.0, 0.59), (1.5, 0.75), (f64::INFINITY, 0.89)];
const LEAKS_IF_SLOWING: [(f64, f64); 4] = [(1.0, 0.06), (2.0, 0.12), (3.0, 0.19), (f64::INFINITY, 0.34)];

/// How a column other than the judged one moved while the judged one grew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covariate {
    pub quantity: Quantity,
    /// Change over the growth, in the quantity's unit.
    pub change: f64,
    /// Median before or at the start of the growth.
    pub start: f64,
    /// Change as a share of the judged growth (bytes only).
    pub share: f64,
}

/// What kind of program a trace is of, as far as it tells: it decides which causes are asked and which words are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// It trains: it has steps, epochs, evaluations or checkpoints, or a deep-learning framework.
    Training,
    /// Another Python program.
    Python,
    /// A program that has loaded no Python, or nobody knows.
    Other,
}

/// What was said already about the data and the limit, so that no advice asks for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// That its examples never come again.
    pub no_epochs: bool,
    /// That growth over time alone is never called a leak.
    pub never_a_leak: bool,
    /// What the program may use.
    pub limit: bool,
}

impl Asked {
    pub(crate) fn of(question: &Question) -> Asked {
        Asked {
            no_epochs: question.no_epochs,
            never_a_leak: question.leak_after.is_some_and(f64::is_infinite),
            limit: question.facts.memory_limit.is_some() && !question.limit_is_assumed,
        }
    }
}

/// Everything known about one judged part.
pub(crate) struct Context<'a> {
    pub asked: Asked,
    pub clock: Clock,
    /// The trace's first place on the clock; reported times count from here.
    pub origin: f64,
    pub finding: &'a Finding,
    pub shape: &'a Shape,
    pub series: &'a Series,
    pub memory: JudgedMemory,
    pub subject: Subject,
    pub facts: &'a RunFacts,
    pub libraries: &'a Libraries,
    /// Whether the trace has events that only training has.
    pub has_training_events: bool,
    /// The Python module that was run, if the trace names it.
    pub module: Option<String>,
    pub seconds_per_unit: Option<f64>,
    pub covariates: Vec<Covariate>,
    /// The quantities of which the trace has samples, however few.
    pub measured: Vec<Quantity>,
    /// How far memory rises above its surroundings during evaluations, if there are any.
    pub evaluation_height: Option<f64>,
}

impl<'a> Context<'a> {
    pub(crate) fn gather(
        trace: &'a Trace,
        part: Range<usize>,
        timeline: &Timeline,
        judged: &'a Judged,
        shape: &'a Shape,
        facts: &'a RunFacts,
        seconds_per_unit: Option<f64>,
    ) -> Context<'a> {
        let finding = &judged.finding;
        let covariates = finding.growth.map_or_else(Vec::new, |growth| {
            Quantity::ALL
                .into_iter()
                .filter(|&quantity| {
                    trace.has(quantity) && !quantity.is_surroundings() && quantity != Quantity::AnonLeast
                })
                .filter_map(|quantity| {
                    let series = Series::of(trace, part.clone(), timeline, JudgedMemory::Only(quantity));
                    covariate(&series.points, quantity, growth.from, growth.to, growth.rise)
                })
                .collect()
        });
        let evaluation_height = evaluation_height(&judged.series);
        Context {
            asked: Asked::default(),
            clock: timeline.clock,
            origin: timeline.first(),
            finding,
            shape,
            series: &judged.series,
            memory: judged.memory,
            subject: trace.subject,
            facts,
            libraries: &trace.libraries,
            has_training_events: trace.events.iter().any(|event| is_of_training(event.kind)),
            module: module(trace),
            seconds_per_unit,
            covariates,
            measured: Quantity::ALL.into_iter().filter(|&quantity| trace.has(quantity)).collect(),
            evaluation_height,
        }
    }

    pub(crate) fn covariate(&self, quantity: Quantity) -> Option<&Covariate> {
        self.covariates.iter().find(|c| c.quantity == quantity)
    }

    /// What kind of program this is.
    pub(crate) fn program(&self) -> Program {
        let has = |library| self.libraries.find(library).flatten().is_some();
        let trains = self.clock == Clock::Step
            || self.has_training_events
            || self.facts.epoch_steps().is_some()
            || !self.series.events.is_empty()
            || self.measured.contains(&Quantity::Tensors)
            || has(Library::DeepLearning);
        match () {
            () if trains => Program::Training,
            () if has(Library::Python) || self.module.is_some() => Program::Python,
            () => Program::Other,
        }
    }

    /// Steps per epoch, on the judged clock.
    pub(crate) fn epoch(&self) -> Option<f64> {
        self.facts
            .epoch_steps()
            .filter(|_| self.clock == Clock::Step && !self.asked.no_epochs)
            .map(|steps| steps as f64)
    }

    /// Where the pass over the data ends in which the growth began.
    pub(crate) fn pass_end(&self) -> Option<f64> {
        let growth = self.finding.growth?;
        let start = if self.finding.late || self.finding.earlier.is_some() { growth.from } else { self.shape.origin() };
        Some(start + self.epoch()?)
    }

    /// Where bounded and unbounded growth can be told apart.
    ///
    /// Inside the first pass that is its end plus one sample (or a few per cent of the pass); beyond it, the end of the
    /// further pass that a leak has to outlast.
    pub(crate) fn decided_at(&self) -> Option<f64> {
        let end = self.pass_end()?;
        let margin = self.shape.spacing.max(MARGIN * self.epoch()?);
        let now = self.now();
        if now < end + margin { Some(end + margin) } else { self.finding.leak_known_at.filter(|&known| known > now) }
    }

    /// Whether the growth has visibly gone on beyond the first pass over the data.
    pub(crate) fn is_beyond_first_pass(&self) -> bool {
        let end = self.pass_end().zip(self.epoch());
        end.is_some_and(|(end, epoch)| self.shape.last() > end + self.shape.spacing.max(MARGIN * epoch))
    }

    /// Where a plateau that has just begun will be long enough to count, and sure enough.
    pub(crate) fn plateau_needed(&self) -> Option<f64> {
        let growth = self.finding.growth?;
        let (knee, _, _) = self.finding.knee?;
        let samples = PLATEAU_SAMPLES as f64 * self.shape.spacing;
        let long_enough = knee + (PLATEAU_LENGTH * (growth.to - growth.from)).max(samples);
        let sure_enough = sure_from(self.shape, knee, &growth).unwrap_or(knee);
        Some(long_enough.max(sure_enough).max(self.now() + self.shape.spacing))
    }

    /// The last sample of the part, whatever the program did then.
    pub(crate) fn now(&self) -> f64 {
        self.series.until.max(self.shape.last())
    }

    /// The run's last step.
    pub(crate) fn last_step(&self) -> Option<f64> {
        self.facts.total_steps.filter(|_| self.clock == Clock::Step).map(|steps| steps as f64)
    }

    /// Where memory stands now.
    pub(crate) fn present(&self) -> f64 {
        self.level().bytes as f64
    }

    /// Where the stretch begins at whose level memory rests, if it does.
    pub(crate) fn rests_since(&self) -> Option<f64> {
        match (self.finding.verdict, self.shape.segments.last()) {
            (Verdict::Settled, Some(segment)) => Some(self.shape.floor[segment.start].x),
            (Verdict::Flat, _) if self.finding.growth.is_none() && creep(self).is_none() => Some(self.shape.first()),
            _ => None,
        }
    }

    /// Where the last whole swing of the load began: between its low and its high, no sample is the level.
    pub(crate) fn swings_since(&self) -> Option<f64> {
        let swing = self.shape.swing?;
        Some(self.shape.last() - swing.period).filter(|&from| from >= self.shape.first())
    }

    /// The mean of the last whole swing of the load; else the typical sample of the stretch in which memory rests; while it moves, the floor's fitted line at the end, raised to where
    /// samples typically lie. The last three samples say more than any line where they all lie on one side of it.
    pub(crate) fn level(&self) -> Level {
        let shape = self.shape;
        let is_leak = self.finding.verdict == Verdict::Leak;
        let in_bytes = |[level, low, high]: [f64; 3]| {
            let [bytes, low, high] = [level, low, high].map(|value| Bytes::from_f64(value).0);
            Level { bytes, low, high }
        };
        if let Some(from) = self.swings_since().filter(|_| !is_leak) {
            let values: Vec<f64> = shape.points_between(from, shape.last()).iter().map(|p| p.y).collect();
            let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
            return in_bytes([mean, quantile(&values, 0.025), quantile(&values, 0.975)]);
        }
        if let Some(from) = self.rests_since() {
            let values: Vec<f64> = shape.points_between(from, shape.last()).iter().map(|p| p.y).collect();
            return in_bytes([0.5, 0.025, 0.975].map(|share| quantile(&values, share)));
        }
        let noise = 2.0 * shape.noise.sigma;
        let Some(segment) = shape.segments.last() else { return in_bytes([0.0; 3]) };
        let now = segment.line.at(shape.last());
        if matches!(shape.waves, Waves::Teeth(_)) {
            // Lows are the lowest of their neighbours' noise.
            let below = 2.0 * noise_of_differences(&shape.points);
            return in_bytes([now, now - noise, now + noise + below]);
        }
        let recent = shape.points_between(shape.floor[segment.start].x, shape.last());
        let above: Vec<f64> = recent.iter().map(|p| p.y - segment.line.at(p.x)).collect();
        let [level, low, high] =
            [0.5, 0.025, 0.975].map(|share| segment.line.at(shape.last()) + quantile(&above, share));
        let last = &shape.points[shape.points.len().saturating_sub(LAST)..];
        let (lowest, highest) =
            last.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(p.y), high.max(p.y)));
        let level = if last.len() < LAST { level } else { level.max(lowest).min(highest) };
        in_bytes([level, low.min(now - noise).min(level), high.max(now + noise).max(level)])
    }

    pub(crate) fn growth(&self, claims: &Claims) -> Growth {
        let Some((growth, pace)) = self.finding.growth.zip(claims.pace) else { return Growth::default() };
        let per_step = self.clock == Clock::Step;
        let per_second = self.seconds_per_unit.map(|seconds| growth.rate.value / seconds);
        Growth {
            bytes_per_step: per_step.then_some(growth.rate.value),
            low: pace.low,
            high: pace.high,
            bytes_per_second: per_second.filter(|rate| rate.is_finite()),
            bytes_per_example: self.bytes_per_example(),
        }
    }

    /// Bytes that each example adds: while examples are seen for the first time, or for every example of a leak.
    pub(crate) fn bytes_per_example(&self) -> Option<f64> {
        let growth = self.finding.growth?;
        let examples = self.facts.examples_per_step().filter(|_| self.clock == Clock::Step)?;
        let follows = match self.finding.verdict {
            Verdict::Settled => self.finding.aligned,
            _ => self.shape.staircase.is_none() && !self.finding.slowing,
        };
        (follows && examples > 0.0).then(|| growth.rate.value / examples)
    }

    pub(crate) fn knee(&self) -> Option<Knee> {
        let (at, low, high) = self.finding.knee?;
        Some(Knee {
            step: (self.clock == Clock::Step).then(|| at.round()),
            low,
            high,
            time_s: self.seconds_per_unit.map(|seconds| (at - self.origin) * seconds),
        })
    }

    pub(crate) fn phases(&self) -> Vec<Phase> {
        let shape = self.shape;
        let mut phases: Vec<Phase> = Vec::new();
        for (k, segment) in shape.segments.iter().enumerate() {
            let points = &shape.floor[segment.start..segment.end];
            let from = phases.last().map_or(shape.first(), |previous| previous.to);
            let to = shape.segments.get(k + 1).map_or(shape.last(), |next| self.border(segment, next));
            let (start, end) = (shape.start_level(segment), shape.end_level(segment));
            let error = Trend::of(points).map_or(0.0, |trend| trend.rate(shape.resolution).high - trend.slope);
            let moved = (end - start).abs() >= shape.material().min(0.05 * self.whole_range()).max(shape.noise.sigma);
            let kind = match segment.line.slope {
                slope if moved && slope - error > 0.0 => PhaseKind::Growth,
                slope if moved && slope + error < 0.0 => PhaseKind::Fall,
                _ => PhaseKind::Plateau,
            };
            phases.push(Phase {
                kind,
                from,
                to,
                start_bytes: Bytes::from_f64(start).0,
                end_bytes: Bytes::from_f64(end).0,
                rate: segment.line.slope,
                low: segment.line.slope - error.min(1e300),
                high: segment.line.slope + error.min(1e300),
            });
        }
        phases
    }

    /// Where one segment gives way to the next: at the knee if it lies there, else at the next one's first point.
    fn border(&self, segment: &Segment, next: &Segment) -> f64 {
        let (left, right) = (self.shape.floor[segment.end - 1].x, self.shape.floor[next.start].x);
        self.finding.knee.map(|knee| knee.0).filter(|knee| (left..=right).contains(knee)).unwrap_or(right)
    }

    fn whole_range(&self) -> f64 {
        let values: Vec<f64> = self.shape.floor.iter().map(|p| p.y).collect();
        quantile(&values, 1.0) - quantile(&values, 0.0)
    }

    /// How likely the growth is to end, while that is undecided: the share of leaks among simulated runs that looked like this.
    ///
    /// Without the length of a pass, passes are taken to be even on a logarithmic scale from ten to a million steps (or seconds).
    pub(crate) fn likelihood(&self) -> Option<Likelihood> {
        if self.finding.verdict != Verdict::Growing || self.finding.pausing {
            return None;
        }
        if self.finding.mechanism == Mechanism::FilePages {
            return Some(Likelihood { leak: 0.0, bounded: 1.0 });
        }
        let growth = self.finding.growth?;
        let length = (growth.to - growth.from).max(1.0);
        let table = if self.finding.slowing { &LEAKS_IF_SLOWING } else { &LEAKS_IF_STEADY };
        let share = |passes: f64| table.iter().find(|(below, _)| passes < *below).map_or(0.5, |(_, share)| *share);
        let leak = match self.epoch() {
            Some(epoch) => share(length / epoch),
            None => {
                let over = ((length / 10.0).max(1.0).log10() / 5.0).min(1.0);
                // Half of a pass that is not over yet is over, on average.
                (1.0 - over) * share(0.5) + over * share(f64::MAX)
            }
        };
        Some(Likelihood { leak: round(leak, 2), bounded: round(1.0 - leak, 2) })
    }

    /// How sure the verdict is; see `docs/json.md` for what each number stands for.
    pub(crate) fn confidence(&self) -> f64 {
        let samples = self.shape.points.len() as f64;
        // No claim from few samples is surer than this: 0.75 at 7, 0.92 at 24, 0.98 at 100 samples.
        let by_samples = 1.0 - 1.75 / samples.max(5.0);
        let sure = match self.finding.verdict {
            Verdict::Settled => {
                let growth = self.finding.growth.map_or(1.0, |g| (g.to - g.from).max(1e-9));
                let plateau = self.finding.knee.map_or(0.0, |(at, _, _)| self.shape.last() - at);
                // A plateau as long as the growth before it leaves one chance in nine that the growth resumes; knowing
                // why it ended (the epoch's end) leaves a third of that.
                let doubt = 0.22 / (1.0 + plateau / growth) * if self.finding.aligned { 0.33 } else { 1.0 };
                1.0 - doubt
            }
            Verdict::Leak => 0.99,
            // "Undecided so far" is itself a safe statement.
            Verdict::Growing => 0.95,
            Verdict::Sawtooth => match self.shape.waves {
                Waves::Teeth(teeth) => 1.0 - 0.3 / teeth.count as f64,
                _ => 0.7,
            },
            _ => 0.97,
        };
        // Nothing here is surer than the measured error rates.
        round(sure.min(by_samples).min(0.99), 2)
    }
}

/// Rounds to digits after the point.
pub(crate) fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// Whether only training has such events.
fn is_of_training(kind: EventKind) -> bool {
    matches!(kind, EventKind::EpochEnd | EventKind::EvalStart | EventKind::EvalEnd | EventKind::Checkpoint)
}

/// The Python module that was run: by the command, or by a process it started (`bash train.sh`).
fn module(trace: &Trace) -> Option<String> {
    let command = trace.origin.iter().find(|(name, _)| name == "command").map(|(_, line)| line);
    // Behind a launcher, the process that gained most is the one that trains.
    let gained = |track: &ProcessTrack| {
        let most = track.levels.iter().map(|level| level.1).max().unwrap_or(0);
        most - track.levels.first().map_or(0, |level| level.1)
    };
    let mut tracks: Vec<&ProcessTrack> = trace.processes.iter().collect();
    tracks.sort_by_key(|track| std::cmp::Reverse(gained(track)));
    tracks.into_iter().map(|track| &track.command).chain(command).find_map(|line| module_of(line))
}

/// The Python module that a command line runs: `python src/train.py` and `torchrun -m src.train` run `src.train`.
fn module_of(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let named = words.windows(2).find(|pair| pair[0] == "-m").map(|pair| pair[1].to_string());
    let script = words.iter().find_map(|word| word.strip_suffix(".py"));
    let is_module = |name: &String| {
        let is_name = |part: &str| {
            part.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_alphanumeric() || c == '_')
        };
        name.split('.').all(is_name)
    };
    let of_script = |path: &str| match path.starts_with('/') {
        // An absolute path can only be found by its file name.
        true => path.rsplit('/').next().unwrap_or(path).to_string(),
        false => path.trim_start_matches("./").replace('/', "."),
    };
    script.map(of_script).or(named).filter(is_module)
}

/// Another column's measurements must cover this share of a growth to say how the column moved over it.
const COVERS: f64 = 0.5;

/// How another column moved over a growth; `None` if too little of it was measured.
pub(crate) fn covariate(points: &[Point], quantity: Quantity, from: f64, to: f64, rise: f64) -> Option<Covariate> {
    let inside: Vec<Point> = points.iter().filter(|p| p.x >= from && p.x <= to).copied().collect();
    // The typical value of the first and of the last tenth: single samples may be spikes.
    let edge = (inside.len() / 10).max(1);
    let (early, late) = (inside.get(..edge)?, &inside[inside.len() - edge..]);
    let typical = |of: fn(&Point) -> f64, points: &[Point]| median(&points.iter().map(of).collect::<Vec<_>>());
    let covered = (typical(|p| p.x, late) - typical(|p| p.x, early)) / (to - from).max(f64::MIN_POSITIVE);
    if inside.len() < 2 || covered < COVERS {
        return None;
    }
    let start = typical(|p| p.y, early);
    let change = typical(|p| p.y, late) - start;
    // The judged rise is over the whole growth, this change only over the part that was measured.
    Some(Covariate { quantity, change, start, share: change / (rise * covered).max(1.0) })
}

pub(crate) fn evaluation_height(series: &Series) -> Option<f64> {
    let heights: Vec<f64> = series
        .aside
        .iter()
        .filter_map(|p| {
            let after = series.points.partition_point(|q| q.x < p.x);
            let before = series.points.get(after.checked_sub(1)?)?;
            Some(p.y - before.y)
        })
        .collect();
    (!heights.is_empty()).then(|| quantile(&heights, 0.9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_of_a_command() {
        let of = |line| module_of(line).unwrap_or_default();
        assert_eq!(of("python3 train.py --lr 1e-4 --config other.yaml"), "train");
        assert_eq!(of("torchrun --nproc-per-node 2 ./src/train.py"), "src.train");
        assert_eq!(of("/opt/bin/python -u /home/me/run/sft.py"), "sft");
        assert_eq!(of("python -m package.train --x"), "package.train");
        assert_eq!([of("./train"), of("python -c 'print(1)'"), of("python my-train.py")], ["", "", ""]);
    }
}
