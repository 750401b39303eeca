//! The population of synthetic runs on which the error rates are stated. `docs/diagnose.md` describes it in words.
//!
//! Every run has a floor of a random size, first-order autoregressive noise of a random strength and memory, a random
//! number of steps per epoch, and one of several ways of being sampled. Growth and noise are scaled apart, so the ratio of
//! the two is part of the draw.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::rc::Rc;

use garden_memory::{Activity, MIB, Quantity, RunFacts, Sample, Trace};

/// How many runs of each kind are drawn: `GARDEN_RUNS`, else 600.
pub fn runs() -> u64 {
    std::env::var("GARDEN_RUNS").map_or(600, |text| text.parse().expect("GARDEN_RUNS is a number"))
}

/// SplitMix64 (Steele et al. 2014): small, seedable, good enough for tests.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Even on a logarithmic scale.
    pub fn scale(&mut self, low: f64, high: f64) -> f64 {
        self.between(low.ln(), high.ln()).exp()
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    pub fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Flat,
    Spikes,
    GrowingPeaks,
    WarmUp,
    CappedCache,
    EpochFill,
    LongEpoch,
    RecordHigh,
    Logarithm,
    SquareRoot,
    SecondFill,
    Sawtooth,
    LongSawtooth,
    LinearLeak,
    LeakUnderFill,
    LeakUnderSawtooth,
    LateLeak,
    StaircaseLeak,
    // Later kinds stand at the end, so that the draws of the earlier ones stay the same.
    EpochTeeth,
    PowerLaw,
    RisingDips,
    EpochStaircase,
    Lumps,
    LeakUnderLargeSawtooth,
    LeakBelowACap,
    FasterLeak,
    SlowerLeak,
    DoublingBuffer,
    ChurningHeap,
    LeakWithDips,
    SlowingCapacity,
    PausingLeak,
    Rounds,
    Ramp,
    LongRamp,
    ManyRounds,
    DoublingPopulation,
    WarmUpAndLine,
}

/// Healthy growth that takes its time, and ends: it is told from a leak by its end.
pub const EXTRA: [Kind; 2] = [Kind::Rounds, Kind::Ramp];

/// Healthy growth that lasts as long as a leak's must: while it does, nobody can tell it from one, so it counts from its end on.
pub const LONG: [Kind; 3] = [Kind::LongRamp, Kind::ManyRounds, Kind::DoublingPopulation];

pub const HEALTHY: [Kind; 16] = [
    Kind::Flat,
    Kind::Spikes,
    Kind::GrowingPeaks,
    Kind::WarmUp,
    Kind::CappedCache,
    Kind::EpochFill,
    Kind::LongEpoch,
    Kind::RecordHigh,
    Kind::Logarithm,
    Kind::SquareRoot,
    Kind::SecondFill,
    Kind::Sawtooth,
    Kind::LongSawtooth,
    Kind::EpochTeeth,
    Kind::PowerLaw,
    Kind::RisingDips,
];

pub const LEAKS: [Kind; 14] = [
    Kind::LinearLeak,
    Kind::LeakUnderFill,
    Kind::LeakUnderSawtooth,
    Kind::LateLeak,
    Kind::StaircaseLeak,
    Kind::EpochStaircase,
    Kind::Lumps,
    Kind::LeakUnderLargeSawtooth,
    Kind::LeakBelowACap,
    Kind::FasterLeak,
    Kind::SlowerLeak,
    Kind::DoublingBuffer,
    Kind::ChurningHeap,
    Kind::LeakWithDips,
];

impl Kind {
    /// Leaks at one rate, for which the second pass over the data decides.
    pub fn is_steady(self) -> bool {
        use Kind::*;
        matches!(
            self,
            LinearLeak | LeakUnderFill | LeakUnderSawtooth | LateLeak | StaircaseLeak | ChurningHeap | LeakWithDips
        )
    }
}

/// Kinds that make sense without passes over data.
pub const HEALTHY_SERVICES: [Kind; 10] = [
    Kind::Flat,
    Kind::Spikes,
    Kind::WarmUp,
    Kind::CappedCache,
    Kind::RecordHigh,
    Kind::Logarithm,
    Kind::SquareRoot,
    Kind::PowerLaw,
    Kind::SecondFill,
    Kind::EpochTeeth,
];

pub const LEAKING_SERVICES: [Kind; 4] =
    [Kind::LinearLeak, Kind::LeakUnderSawtooth, Kind::FasterLeak, Kind::ChurningHeap];

/// The same run as a service would show it: no steps, and an hour or two for what was an epoch, so that no cache fills for longer
/// than the rule for data without passes allows.
pub fn without_passes(mut run: Run) -> Run {
    let epoch = run.facts.steps_per_epoch.unwrap_or(50) as f64;
    let first = run.samples[0].step.unwrap_or(0.0);
    for sample in &mut run.samples {
        sample.time_s = sample.step.take().map(|step| (step - first) * 2.0 * 3600.0 / epoch);
    }
    run.facts = RunFacts::default();
    run
}

/// A drawn run: every sample of it, to be cut where one wants to look.
pub struct Run {
    pub facts: RunFacts,
    pub samples: Vec<Sample>,
    /// A restart before this sample, if any.
    pub restart: Option<usize>,
    /// The bytes that are never given back, by the step: what the samples show below waves and noise. `None` where a floor is a matter
    /// of opinion.
    pub floor: Option<Floor>,
    /// The bytes without noise, by the step; `None` where there is no floor.
    pub memory: Option<Floor>,
    /// The step at which growth that ends does so.
    pub end: Option<f64>,
    /// The step from which that shows: a plateau is a tenth as long as the growth, and one and a half times as long as a rest between rounds.
    pub over: Option<f64>,
}

/// Bytes at a step, without waves and noise.
pub type Floor = Rc<dyn Fn(f64) -> f64>;

impl Run {
    pub fn trace(&self, count: usize) -> Trace {
        let mut trace = Trace::default();
        trace.facts = self.facts.clone();
        for (i, sample) in self.samples[..count].iter().enumerate() {
            if self.restart == Some(i) {
                trace.push_event(garden_memory::EventKind::Restart, None, None);
            }
            trace.push(sample);
        }
        trace
    }
}

/// Draws a run of this kind; a third was resumed at a later step, one in ten was restarted once, one in seven has a gap.
pub fn draw(kind: Kind, random: &mut Random) -> Run {
    let mut run = draw_process(kind, random);
    if random.chance(0.15) {
        let length = run.samples.len() as f64;
        let start = (random.between(0.1, 0.8) * length) as usize;
        let end = start + (random.between(0.05, 0.15) * length) as usize;
        run.samples.drain(start..end.min(run.samples.len()));
    }
    if random.chance(0.1) {
        let killed_at = (random.between(0.2, 0.9) * run.samples.len() as f64) as usize;
        let before: Vec<Sample> = run.samples[..killed_at].to_vec();
        run.restart = Some(before.len());
        run.samples.splice(0..0, before);
    }
    run
}

fn draw_process(kind: Kind, random: &mut Random) -> Run {
    let epoch = random.scale(20.0, 120.0).round();
    let leaks = LEAKS.contains(&kind) || matches!(kind, Kind::PausingLeak | Kind::WarmUpAndLine);
    let epochs = match kind {
        _ if leaks => random.between(4.0, 10.0),
        _ if LONG.contains(&kind) => random.between(5.0, 10.0),
        _ => random.between(2.0, 8.0),
    };
    let (epoch, steps) = match kind {
        Kind::LongEpoch => {
            let epoch = random.between(400.0, 900.0).round();
            (epoch, (epoch * random.between(0.3, 0.5)).round())
        }
        _ => (epoch, (epoch * epochs).round()),
    };
    let size = random.scale(64.0, 16384.0) * MIB as f64;
    let phi = random.between(0.0, 0.8);
    // The noise's standard deviation: for leaks a tenth of their growth at most, as the stated rate demands.
    // A staircase whose steps drown in noise is none.
    let least = match kind {
        Kind::Rounds | Kind::LongRamp | Kind::ManyRounds | Kind::DoublingPopulation => 20.0,
        _ if leaks => 10.0,
        _ => 3.0,
    };
    let sigma = size / random.scale(least, 300.0);
    let base = random.scale(256.0, 8192.0) * MIB as f64 + 5.0 * sigma;
    let Shape { value: shape, floor, memory, end, over } = shape_of(kind, size, epoch, steps, random);
    // Teeth are sampled at every step: a few samples per tooth show no teeth.
    let has_teeth = matches!(
        kind,
        Kind::Sawtooth
            | Kind::LeakUnderSawtooth
            | Kind::LeakUnderLargeSawtooth
            | Kind::LeakBelowACap
            | Kind::RisingDips
    );
    let every = if !has_teeth && steps > 200.0 && random.chance(0.3) { random.between(2.0, 6.0).floor() } else { 1.0 };
    let missing = if random.chance(0.3) { random.between(0.05, 0.3) } else { 0.0 };
    // Evaluations disturb some of the runs; a staircase needs them.
    let evaluation = match kind {
        Kind::StaircaseLeak => Some((epoch * random.between(0.3, 0.8)).round().max(8.0)),
        _ if random.chance(0.3) => Some((epoch * random.between(0.5, 2.0)).round().max(8.0)),
        _ => None,
    };
    let mut noise = random.normal();
    let mut samples = Vec::new();
    let mut step = 0.0;
    let mut evaluated = 0.0;
    while step < steps {
        noise = phi * noise + (1.0 - phi * phi).sqrt() * random.normal();
        let is_eval = evaluation.is_some_and(|every| step > 0.0 && step % every == 0.0);
        if is_eval {
            evaluated += 1.0;
        }
        let sampled = step % every == 0.0 && !random.chance(missing);
        let value = base + shape(step, evaluated) + sigma * noise + if is_eval { 0.3 * size } else { 0.0 };
        if sampled || is_eval {
            let activity = if is_eval { Activity::Eval } else { Activity::Train };
            let mut sample = Sample::default();
            (sample.step, sample.activity) = (Some(step), activity);
            sample.set(Quantity::Rss, value.max(0.0) as u64);
            samples.push(sample);
        }
        step += 1.0;
    }
    // A climb of more than two epochs is a leak by the rule until it drops, so long teeth come without facts.
    let known = kind != Kind::LongSawtooth;
    let mut resumed_at = 0.0;
    if random.chance(0.3) {
        resumed_at = random.between(1.0, 50.0).round() * epoch;
        samples.iter_mut().for_each(|sample| sample.step = sample.step.map(|step| step + resumed_at));
    }
    let facts = RunFacts { steps_per_epoch: known.then_some(epoch as u64), ..RunFacts::default() };
    let on_base = |above: Floor| -> Floor { Rc::new(move |step| base + above(step - resumed_at)) };
    let [end, over] = [end, over].map(|place| place.map(|place| place + resumed_at));
    Run { facts, samples, restart: None, floor: floor.map(on_base), memory: memory.map(on_base), end, over }
}

/// What memory does, without noise.
struct Shape {
    /// Bytes above the base at a step, after so many evaluations.
    value: Box<dyn Fn(f64, f64) -> f64>,
    /// Those of them that are never given back.
    floor: Option<Floor>,
    /// All of them, where there is a floor.
    memory: Option<Floor>,
    /// The step at which growth that ends does so.
    end: Option<f64>,
    /// The step from which that shows.
    over: Option<f64>,
}

impl Shape {
    /// Whatever is there stays.
    fn kept(value: impl Fn(f64) -> f64 + 'static) -> Shape {
        let floor: Floor = Rc::new(value);
        let value = Rc::clone(&floor);
        let memory = Some(Rc::clone(&floor));
        Shape { value: Box::new(move |t, _| value(t)), memory, floor: Some(floor), end: None, over: None }
    }

    /// Growth in rounds that ends at a place.
    fn rounds(self, end: f64, every: f64) -> Shape {
        Shape { end: Some(end), over: Some((1.1 * end).max(end + 1.5 * every)), ..self }
    }

    fn ends(self, end: f64) -> Shape {
        Shape { end: Some(end), over: Some(1.1 * end), ..self }
    }

    /// Waves on a floor.
    fn waves(floor: impl Fn(f64) -> f64 + 'static, waves: impl Fn(f64) -> f64 + 'static) -> Shape {
        let floor: Floor = Rc::new(floor);
        let below = Rc::clone(&floor);
        let memory: Floor = Rc::new(move |t| below(t) + waves(t));
        let value = Rc::clone(&memory);
        Shape { value: Box::new(move |t, _| value(t)), memory: Some(memory), floor: Some(floor), end: None, over: None }
    }

    /// People may differ about the floor.
    fn of(value: impl Fn(f64, f64) -> f64 + 'static) -> Shape {
        Shape { value: Box::new(value), floor: None, memory: None, end: None, over: None }
    }
}

/// The capacity of a buffer that began with 1 and grows by a factor whenever its content has filled it.
fn capacity(factor: f64, content: f64) -> f64 {
    factor.powf((content.max(1.0).ln() / factor.ln()).floor() + 1.0)
}

/// The shape of a kind.
fn shape_of(kind: Kind, size: f64, epoch: f64, steps: f64, random: &mut Random) -> Shape {
    let start = random.between(0.25, 0.5) * steps;
    match kind {
        Kind::Flat => Shape::kept(|_| 0.0),
        Kind::Spikes => {
            let every = random.between(20.0, 60.0).round();
            Shape::waves(|_| 0.0, move |t| if t % every == every - 1.0 { size } else { 0.0 })
        }
        Kind::GrowingPeaks => {
            let every = random.between(10.0, 30.0).round();
            Shape::waves(|_| 0.0, move |t| if t % every == every - 1.0 { size * t / steps } else { 0.0 })
        }
        Kind::WarmUp => {
            let constant = random.between(0.03, 0.25) * steps;
            Shape::kept(move |t| -size * (-t / constant).exp_m1())
        }
        Kind::CappedCache => {
            let cap = (random.between(0.2, 1.5) * epoch).min(0.8 * steps);
            Shape::kept(move |t| size * (t / cap).min(1.0)).ends(cap)
        }
        Kind::EpochFill | Kind::LongEpoch => Shape::kept(move |t| size * (t / epoch).min(1.0)).ends(epoch),
        Kind::RecordHigh => {
            let mut best = 0.0_f64;
            let spread = random.between(0.3, 1.0);
            let records: Vec<f64> = (0..=steps as usize)
                .map(|_| {
                    best = best.max((spread * random.normal()).exp());
                    best
                })
                .collect();
            let top = records[records.len() - 1];
            Shape::kept(move |t| size * records[(t as usize).min(records.len() - 1)] / top)
        }
        Kind::Logarithm => {
            let constant = random.between(0.01, 0.1) * steps;
            Shape::kept(move |t| size * (t / constant).ln_1p() / (steps / constant).ln_1p())
        }
        Kind::SquareRoot => Shape::kept(move |t| size * (t / steps).sqrt()),
        Kind::SecondFill => {
            let first = 0.5 * epoch;
            let share = random.between(0.2, 0.8);
            let length = random.between(0.3, 1.0) * epoch;
            Shape::kept(move |t| {
                size * (share * (t / first).min(1.0) + (1.0 - share) * ((t - start) / length).clamp(0.0, 1.0))
            })
            .ends(start + length)
        }
        Kind::Sawtooth => {
            let period = random.between(0.2, 1.2) * epoch;
            Shape::waves(|_| 0.0, move |t| size * (t / period).fract())
        }
        Kind::LongSawtooth => {
            let period = random.between(0.4, 1.1) * steps;
            Shape::waves(|_| 0.0, move |t| size * (t / period).fract())
        }
        Kind::LinearLeak => Shape::kept(move |t| size * t / steps),
        Kind::LeakUnderFill => {
            // The leak is `size`; the fill on top of it is up to fifty times as large.
            let fill = size * random.scale(1.0, 50.0);
            Shape::kept(move |t| size * t / steps + fill * (t / epoch).min(1.0))
        }
        Kind::LeakUnderSawtooth => {
            let period = random.between(0.2, 0.8) * epoch;
            let tooth = size * random.between(0.1, 1.0);
            Shape::waves(move |t| size * t / steps, move |t| tooth * (t / period).fract())
        }
        Kind::LateLeak => Shape::kept(move |t| size * (t - start).max(0.0) / (steps - start)),
        Kind::StaircaseLeak => Shape::of(move |_, evaluated| size * evaluated / 8.0),
        Kind::EpochTeeth => {
            // Workers forked anew for each epoch: they grow at once, steadily or ever more slowly, and end with it.
            let constant = random.scale(0.01, 1.0) * epoch;
            let climb = move |t: f64| (-t / constant).exp_m1() / (-epoch / constant).exp_m1();
            Shape::waves(|_| 0.0, move |t| size * climb(t % epoch))
        }
        Kind::PowerLaw => {
            let power = random.between(0.6, 0.8);
            Shape::kept(move |t| size * (t / steps).powf(power))
        }
        Kind::RisingDips => {
            // A level with dips that get shallower: the lows rise, the level does not.
            let every = random.between(8.0, 30.0).round();
            let constant = random.between(0.2, 1.0) * steps;
            Shape::of(move |t, _| if t % every < every * 0.2 { size * (1.0 - (-t / constant).exp()) } else { size })
        }
        Kind::EpochStaircase => Shape::kept(move |t| size * (t / epoch).floor() / (steps / epoch).floor()),
        Kind::Lumps => {
            let count = random.between(6.0, 30.0).round() as usize;
            let mut places: Vec<f64> = (0..count).map(|_| random.unit() * steps).collect();
            places.sort_by(f64::total_cmp);
            Shape::kept(move |t| size * places.partition_point(|&place| place <= t) as f64 / count as f64)
        }
        Kind::LeakUnderLargeSawtooth => {
            let period = random.between(0.1, 0.8) * epoch;
            let tooth = size * random.between(1.0, 4.0);
            Shape::waves(move |t| size * t / steps, move |t| tooth * (t / period).fract())
        }
        Kind::LeakBelowACap => {
            // A collector that runs whenever the heap reaches a size: the floor rises towards a fixed top.
            let period = random.between(0.1, 0.5) * epoch;
            let top = size * random.between(1.2, 3.0);
            let low = move |t: f64| size * t / steps;
            Shape::waves(low, move |t| (top - low(t)) * (t / period).fract())
        }
        Kind::FasterLeak => {
            let faster = steps - random.between(0.5, 1.5) * epoch;
            let factor = random.between(2.0, 6.0);
            let whole = faster + factor * (steps - faster);
            Shape::kept(move |t| size * (t + (factor - 1.0) * (t - faster).max(0.0)) / whole)
        }
        Kind::SlowerLeak => {
            let slower = random.between(0.15, 0.35) * steps;
            let whole = slower + 0.5 * (steps - slower);
            Shape::kept(move |t| size * (t - 0.5 * (t - slower).max(0.0)) / whole)
        }
        Kind::DoublingBuffer => {
            // The capacity of a list that only grows: the next one when it is full.
            let factor = random.between(1.5, 2.0);
            let first = random.between(4.0, 20.0);
            Shape::kept(move |t| size * capacity(factor, t / first) / capacity(factor, steps / first))
        }
        Kind::SlowingCapacity => {
            // The hash table of a vocabulary: the same for a content that grows ever more slowly.
            let (factor, power) = (random.between(1.5, 2.0), random.between(0.5, 0.8));
            let first = random.between(4.0, 20.0);
            let content = move |t: f64| (t / first).powf(power);
            Shape::kept(move |t| size * capacity(factor, content(t)) / capacity(factor, content(steps)))
        }
        Kind::Rounds => {
            // A pool that grows once in a round, a model whose layers are unfrozen one after the other, a batch that gets larger.
            let count = random.between(2.0, 6.0).floor();
            let every = random.between(0.5, 1.5) * epoch;
            let even = random.chance(0.5);
            let length = if even { 1.0 } else { random.between(1.0, 0.5 * every) };
            let whole = count * every;
            let total = if whole > 0.8 * steps { 0.8 * steps / whole } else { 1.0 };
            Shape::kept(move |t| {
                let at = t / (every * total);
                let (done, inside) = (at.floor(), at.fract() * every);
                size * (done - 1.0 + ((inside + 1.0) / length).min(1.0)).clamp(0.0, count - 1.0) / (count - 1.0)
            })
            .rounds((count - 1.0) * every * total + length - 1.0, every * total)
        }
        Kind::Ramp => {
            // A cache that holds entries for a time, filled steadily: full after up to two passes.
            let length = (random.between(1.0, 2.0) * epoch).min(0.8 * steps);
            Shape::kept(move |t| size * (t / length).min(1.0)).ends(length)
        }
        Kind::LongRamp => {
            // A capacity that is reached after two to four passes, at a steady pace.
            let length = (random.between(2.2, 4.0) * epoch).min(0.8 * steps);
            Shape::kept(move |t| size * (t / length).min(1.0)).ends(length)
        }
        Kind::ManyRounds => {
            // Pools by rounds, as above, but more of them.
            let count = random.between(3.0, 9.0).floor();
            let every = (random.between(0.3, 0.7) * epoch).min(0.8 * steps / count);
            let length = if random.chance(0.5) { 1.0 } else { random.between(1.0, 0.5 * every) };
            Shape::kept(move |t| {
                let (done, inside) = ((t / every).floor(), t % every);
                let level = if done < 1.0 { 0.0 } else { done - 1.0 + ((inside + 1.0) / length).min(1.0) };
                size * level.min(count) / count
            })
            .rounds(count * every + length - 1.0, every)
        }
        Kind::DoublingPopulation => {
            // A curriculum that shows twice as many different examples in each pass, up to all of them.
            let passes = random.between(2.0, 5.0).floor().min((0.8 * steps / epoch).floor());
            let seen = move |t: f64| {
                let pass = (t / epoch).min(passes);
                let done = pass.floor();
                if done < 1.0 { pass } else { done.exp2() * 0.5 + done.exp2() * 0.5 * pass.fract() }
            };
            Shape::kept(move |t| size * seen(t) / seen(passes * epoch)).ends(passes * epoch)
        }
        Kind::WarmUpAndLine => {
            let (constant, warm_up) = (random.between(0.1, 0.8) * epoch, size * random.between(0.2, 2.0));
            Shape::kept(move |t| size * t / steps - warm_up * (-t / constant).exp_m1())
        }
        Kind::PausingLeak => {
            // What leaks runs in some epochs and not in others.
            let (on, off) = (random.between(0.5, 1.5) * epoch, random.between(0.5, 1.5) * epoch);
            let leaked = move |t: f64| (t / (on + off)).floor() * on + (t % (on + off)).min(on);
            Shape::kept(move |t| size * leaked(t) / leaked(steps))
        }
        Kind::LeakWithDips => {
            // Workers that restart at the end of each epoch.
            let (length, depth) = (random.between(1.0, 3.0).round(), size * random.between(0.3, 2.0));
            Shape::of(move |t, _| depth + size * t / steps - if t % epoch >= epoch - length { depth } else { 0.0 })
        }
        Kind::ChurningHeap => {
            // Pages come back only when everything on them is freed, so the level sticks to recent maxima.
            let reach = random.between(3.0, 20.0).round() as usize;
            let drawn: Vec<f64> = (0..steps as usize + reach + 1).map(|_| random.unit()).collect();
            let sticky: Vec<f64> = drawn.windows(reach).map(|near| near.iter().copied().fold(0.0, f64::max)).collect();
            Shape::of(move |t, _| size * t / steps + 0.3 * size * sticky[(t as usize).min(sticky.len() - 1)])
        }
    }
}
