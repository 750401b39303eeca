//! Weighs the known causes of growing memory, of the host or of a GPU, against the evidence in the trace.
//!
//! Naive Bayes with hand-set weights: each cause starts with a prior (how common it is) and is multiplied by a factor
//! for every sign for or against it. The score is its share of the sum, which includes an unnamed cause, so that no
//! known cause is ever certain from shape alone. Factors: 8 for a sign that hardly anything else leaves, 3 for a sign it
//! usually leaves, 0.3 and 0.1 for the same against it; a sign it cannot leave rules it out. A cause whose library no
//! process has loaded is possible only if the library is built into another file, which has its own factor
//! (`NOT_LOADED`). The catalogue is in `catalogue.rs`.
//!
//! While growth is undecided there is one set of odds: the share of leaks among runs of this shape (`context.rs`) is the prior, what
//! was measured beside the shape (bytes per example, tensors, objects, components) moves it by Bayes' rule, and the causes that never
//! end share the odds of a leak, the others those of an end.

use crate::bytes::{Bytes, MIB};
use crate::catalogue::{CATALOGUE, Entry, Home, OF_A_SERVICE, ON_A_DEVICE, Trait};
use crate::context::{Context, Program, round};
use crate::diagnosis::{Cause, Likelihood, Mechanism, RuledOut, Verdict};
use crate::libraries::Library;
use crate::phrasing::place;
use crate::trace::{Quantity, Subject};

/// The unnamed cause's weight, in the unit of priors: it fits every shape.
const UNKNOWN: f64 = 4.5;
/// Causes with at least this prior are common enough to report as ruled out.
const USUAL_SUSPECT: f64 = 1.0;
/// Causes below this share are not worth a line.
const WORTH_A_LINE: f64 = 0.02;
/// Plausible bytes of a decoded image: from 180 x 180 pixels at 3 bytes to 100 megapixels at 4.
const IMAGE_BYTES: (f64, f64) = (0.09 * MIB as f64, 400.0 * MIB as f64);

/// Factor for a cause whose library no process has loaded: it would have to be built into another file.
const NOT_LOADED: f64 = 0.01;

/// A cause is named in the advice if it is at least this likely, this many times as likely as the next, and a measurement beside the
/// shape speaks for it: shapes alone were wrong in ten of thirteen recordings.
const NAMED: (f64, f64) = (0.5, 2.0);

/// What became of weighing the causes.
#[derive(Default)]
pub(crate) struct Weighed {
    /// The causes that fit, likeliest first.
    pub causes: Vec<Cause>,
    /// The causes that the numbers exclude.
    pub ruled_out: Vec<RuledOut>,
    /// The odds of a leak, with all that was measured.
    pub likelihood: Option<Likelihood>,
    /// Whether the first cause is earned: named by a measurement, not only by its shape.
    pub is_earned: bool,
}

/// Weighs all causes that the program may have.
pub(crate) fn weigh_causes(context: &Context) -> Weighed {
    let likelihood = context.likelihood();
    if matches!(context.finding.mechanism, Mechanism::None) {
        return Weighed { likelihood, ..Weighed::default() };
    }
    let known = match (context.subject, context.program()) {
        (Subject::Device, _) => ON_A_DEVICE,
        (_, Program::Training) => CATALOGUE,
        _ => OF_A_SERVICE,
    };
    let asked = known.iter().filter(|entry| is_asked(entry, context));
    let scales: Vec<(&Entry, Scales)> = asked.map(|entry| (entry, weigh(entry, context))).collect();
    let odds = Odds::of(&scales, likelihood);
    let mut causes = Vec::new();
    let (mut ruled_out, mut by_shape) = (Vec::new(), Vec::new());
    for (entry, scale) in scales {
        if let Some(reason) = scale.impossible {
            let line = RuledOut { id: entry.id, title: entry.title, reason };
            match scale.excluded_by {
                Excluded::Measurement => ruled_out.push(line),
                Excluded::Shape if entry.prior >= USUAL_SUSPECT => by_shape.push(line),
                Excluded::Shape => {}
            }
            continue;
        }
        let score = round(odds.share(entry, &scale), 2);
        if score >= WORTH_A_LINE {
            let (supporting, against) = (scale.supporting, scale.against);
            let cause = Cause { id: entry.id, title: entry.title, score, supporting, against, fix: entry.fix };
            causes.push((cause, scale.is_earned));
        }
    }
    if context.finding.growth.is_none() {
        // Without growth there is nothing to rule out.
        ruled_out.clear();
        by_shape.clear();
    }
    causes.sort_by(|a, b| b.0.score.total_cmp(&a.0.score));
    ruled_out.append(&mut by_shape);
    let next = causes.get(1).map_or(0.0, |(cause, _)| cause.score);
    let is_earned = causes
        .first()
        .is_some_and(|(first, is_measured)| *is_measured && first.score >= NAMED.0 && first.score >= NAMED.1 * next);
    let causes = causes.into_iter().map(|(cause, _)| cause).collect();
    Weighed { causes, ruled_out, likelihood: odds.likelihood.or(likelihood), is_earned }
}

/// How the weights of causes become shares: of one sum, or of the odds of a leak and of an end.
struct Odds {
    /// The sums of the weights of causes that end and of those that never do, the unnamed ones included.
    sums: [f64; 2],
    /// The odds, if the growth is undecided.
    likelihood: Option<Likelihood>,
}

impl Odds {
    fn of(scales: &[(&Entry, Scales)], prior: Option<Likelihood>) -> Odds {
        // As likely before the measurements as after them: the weights without and with what was measured.
        let sums = |never: bool| {
            let one_kind = scales.iter().filter(|(entry, _)| never_ends(entry) == never);
            let possible = one_kind.filter(|(_, scale)| scale.impossible.is_none() || scale.is_refuted);
            possible.fold((0.5 * UNKNOWN, 0.5 * UNKNOWN), |(before, after), (_, scale)| {
                let weight = if scale.is_refuted { 0.0 } else { scale.weight };
                (before + scale.weight / scale.measured, after + weight)
            })
        };
        let (ends, never) = (sums(false), sums(true));
        let likelihood = prior.map(|prior| {
            let (leak, bounded) = (prior.leak * never.1 / never.0, prior.bounded * ends.1 / ends.0);
            let leak = round(leak / (leak + bounded).max(f64::MIN_POSITIVE), 2);
            Likelihood { leak, bounded: round(1.0 - leak, 2) }
        });
        Odds { sums: [ends.1, never.1], likelihood }
    }

    fn share(&self, entry: &Entry, scale: &Scales) -> f64 {
        let [ends, never] = self.sums;
        match self.likelihood {
            Some(odds) if never_ends(entry) => odds.leak * scale.weight / never,
            Some(odds) => odds.bounded * scale.weight / ends,
            None => scale.weight / (ends + never),
        }
    }
}

fn never_ends(entry: &Entry) -> bool {
    entry.traits.contains(&Trait::NeverEnds)
}

/// Whether to weigh a cause: a stand-in counts only where the library of the cause it replaces is missing.
fn is_asked(entry: &Entry, context: &Context) -> bool {
    entry.traits.iter().all(|sign| match sign {
        Trait::Without(library) => context.libraries.find(*library) == Some(None),
        _ => true,
    })
}

/// The weighing of one cause.
struct Scales {
    weight: f64,
    /// The part of the weight that comes from measurements beside the shape and the clock.
    measured: f64,
    /// Whether a measurement beside the shape speaks for it.
    is_earned: bool,
    /// Ruled out by such a measurement.
    is_refuted: bool,
    supporting: Vec<String>,
    against: Vec<String>,
    impossible: Option<String>,
    excluded_by: Excluded,
}

/// Why a cause is ruled out.
#[derive(Clone, Copy)]
enum Excluded {
    /// By another column, the epoch or the verdict: reported for every cause.
    Measurement,
    /// By its shape alone: reported for the usual suspects only.
    Shape,
}

impl Scales {
    fn speaks_for(&mut self, factor: f64, text: impl Into<String>) {
        self.weight *= factor;
        self.supporting.push(text.into());
    }

    fn speaks_against(&mut self, factor: f64, text: impl Into<String>) {
        self.weight *= factor;
        self.against.push(text.into());
    }

    fn rules_out(&mut self, text: impl Into<String>) {
        self.impossible.get_or_insert(text.into());
    }

    /// A measurement beside the shape speaks for it.
    fn is_shown(&mut self, factor: f64, text: impl Into<String>) {
        self.measured *= factor;
        self.is_earned = true;
        self.speaks_for(factor, text);
    }

    /// A measurement beside the shape speaks against it.
    fn is_doubted(&mut self, factor: f64, text: impl Into<String>) {
        self.measured *= factor;
        self.speaks_against(factor, text);
    }

    /// A measurement beside the shape excludes it.
    fn is_excluded(&mut self, text: impl Into<String>) {
        self.is_refuted |= self.impossible.is_none();
        self.rules_out(text);
    }
}

fn weigh(entry: &Entry, context: &Context) -> Scales {
    let mut scales = Scales {
        weight: entry.prior,
        measured: 1.0,
        is_earned: false,
        is_refuted: false,
        supporting: Vec::new(),
        against: Vec::new(),
        impossible: None,
        excluded_by: Excluded::Measurement,
    };
    // Measurements come first, so that the reason given is a measured one where possible.
    weigh_component(entry, context, &mut scales);
    for sign in entry.traits {
        weigh_trait(*sign, context, &mut scales);
    }
    if scales.impossible.is_none() {
        scales.excluded_by = Excluded::Shape;
        weigh_shape(entry, context, &mut scales);
    }
    scales
}

fn weigh_shape(entry: &Entry, context: &Context, scales: &mut Scales) {
    let mechanism = context.finding.mechanism;
    let expected: Vec<&str> = entry.typical.iter().map(|&m| in_words(m)).collect();
    let expected = expected.join(" or ");
    if entry.typical.contains(&mechanism) {
        // Steps at evaluations and checkpoints are seen with their cause, and hardly anything else makes them.
        let is_seen = mechanism == Mechanism::Staircase;
        scales.is_earned |= is_seen;
        scales.speaks_for(if is_seen { 8.0 } else { 3.0 }, format!("the shape fits: {}", in_words(mechanism)));
    } else if let Some(how) = may_be_a_fill(context).filter(|_| entry.typical.contains(&Mechanism::EpochFill)) {
        scales.speaks_for(3.0, how);
    } else if entry.possible.contains(&mechanism) {
        scales.speaks_against(0.5, format!("it would usually show as {expected}"));
    } else {
        scales.rules_out(format!("it would show as {expected}"));
    }
}

/// Why a growth may still be a fill that ends with the pass over the data, if nothing rules that out.
fn may_be_a_fill(context: &Context) -> Option<String> {
    let finding = context.finding;
    match (finding.mechanism, finding.knee, context.epoch()) {
        (Mechanism::CappedCache, Some((knee, _, _)), None) => {
            Some(format!("the shape fits if the first pass over the data ends near {}", place(context, knee)))
        }
        (Mechanism::Linear, None, None) => Some("the shape fits during the first pass over the data".into()),
        (Mechanism::Linear, None, Some(_)) if context.pass_end().is_some_and(|end| context.shape.last() <= end) => {
            Some("the shape fits: steady growth during the first pass over the data".into())
        }
        _ => None,
    }
}

/// A mechanism as a reader would describe it.
fn in_words(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::None => "no growth during training",
        Mechanism::WarmUp => "a rise that slows down and ends early",
        Mechanism::EpochFill => "growth until every example has been seen once",
        Mechanism::CappedCache => "steady growth up to a cap",
        Mechanism::RecordHigh => "ever rarer jumps to new highs",
        Mechanism::FilePages => "growth of file pages only",
        Mechanism::CopyOnWrite => "shared pages turning private",
        Mechanism::Sawtooth => "climbs and drops on a floor",
        Mechanism::Spikes => "spikes that fall back",
        Mechanism::Staircase => "steps up at events",
        Mechanism::Linear => "steady growth per step",
        Mechanism::LateOnset => "growth that starts late",
    }
}

/// Weighs where the growth sits, if the trace splits memory into components.
fn weigh_component(entry: &Entry, context: &Context, scales: &mut Scales) {
    if context.finding.growth.is_none() {
        return;
    }
    let (quantity, word) = match entry.home {
        Home::Anon => (Quantity::Anon, "anonymous memory"),
        Home::File => (Quantity::File, "pages of mapped files"),
        Home::Shmem => (Quantity::Shmem, "shared memory"),
        Home::Elsewhere => return,
    };
    match context.covariate(quantity).map(|one| one.share) {
        Some(share) if share >= 0.6 => {
            // Nearly everything is anonymous; little is anything else.
            scales.is_earned |= entry.home != Home::Anon;
            scales.speaks_for(2.0, format!("{:.0} % of the growth is {word}", 100.0 * share.min(1.0)));
        }
        Some(share) if share <= 0.2 => {
            scales.rules_out(format!("it grows {word}, only {:.0} % of this growth", 100.0 * share.max(0.0)));
        }
        Some(share) => {
            scales.speaks_against(0.3, format!("only {:.0} % of the growth is {word}", 100.0 * share));
        }
        // Shared memory is rare, so without a split it is less likely than the heap.
        None if entry.home == Home::Anon => {
            scales.speaks_against(0.7, format!("not measured: whether the growth is {word}"));
        }
        None => scales.speaks_against(0.3, format!("not measured: whether the growth is {word}")),
    }
}

fn weigh_trait(sign: Trait, context: &Context, scales: &mut Scales) {
    match sign {
        Trait::PerExample => weigh_per_example(context, scales),
        Trait::ImageSized => weigh_image_size(context, scales),
        Trait::SmallPerExample => match context.bytes_per_example() {
            Some(bytes) if bytes < IMAGE_BYTES.0 => {
                scales.is_shown(8.0, format!("{} per example is the size of text or metadata", Bytes::from_f64(bytes)));
            }
            Some(bytes) => {
                scales.is_doubted(0.1, format!("{} per example is large for text or metadata", Bytes::from_f64(bytes)));
            }
            None => {}
        },
        Trait::LargePerExample => match context.bytes_per_example().map(|bytes| (bytes, Bytes::from_f64(bytes))) {
            Some((bytes, size)) if bytes < IMAGE_BYTES.0 => scales.is_excluded(format!("{size} per example is small")),
            Some((_, size)) => scales.is_shown(3.0, format!("{size} per example is more than text or metadata")),
            None => {}
        },
        Trait::TensorsRise => weigh_tensors(context, scales),
        Trait::ObjectsRise => match context.covariate(Quantity::Objects) {
            Some(c) if c.change > 0.05 * c.start => {
                scales.is_shown(8.0, format!("Python objects rose by {:.0} from {:.0}", c.change, c.start));
            }
            Some(_) => scales.is_excluded("the number of Python objects did not rise"),
            None => {
                scales.against.push(unknown(context, Quantity::Objects, "the number of Python objects"));
                weigh_library(Library::Python, context, scales);
            }
        },
        Trait::NeverEnds => {
            if context.finding.verdict == Verdict::Settled {
                scales.rules_out("it never ends, but this growth did");
            }
        }
        Trait::Ends => {
            if context.finding.verdict == Verdict::Leak {
                scales.rules_out("it is bounded, but this growth outlasted another pass over the same examples");
            }
        }
        Trait::Slows => {
            if context.finding.slowing {
                scales.speaks_for(3.0, "the growth slows down");
            } else {
                scales.speaks_against(0.3, "the growth does not slow down");
            }
        }
        Trait::Small => {
            let rise = context.finding.growth.map_or(0.0, |growth| growth.rise);
            if rise > 2048.0 * MIB as f64 {
                scales.speaks_against(0.1, format!("it is rarely as large as {}", Bytes::from_f64(rise)));
            }
        }
        Trait::AtFirstSteps => weigh_first_steps(context, scales),
        Trait::AtEvaluations => match context.evaluation_height {
            Some(height) if height > context.shape.material() => {
                scales.speaks_for(3.0, format!("evaluations peak {} above training", Bytes::from_f64(height)));
            }
            _ => scales.speaks_against(0.1, "no evaluation in the trace stands out"),
        },
        Trait::OnlyInAChild => scales.speaks_against(0.3, "not measured: which process grows"),
        Trait::Forked => weigh_forked(context, scales),
        Trait::Needs(library) => weigh_library(library, context, scales),
        Trait::Without(library) => scales.supporting.push(not_loaded(library)),
    }
}

/// Weighs whether the library that a cause needs is loaded.
fn weigh_library(library: Library, context: &Context, scales: &mut Scales) {
    match context.libraries.find(library) {
        Some(None) => scales.speaks_against(NOT_LOADED, not_loaded(library)),
        Some(Some(name)) => scales.supporting.push(format!("{name} is loaded")),
        None => {}
    }
}

fn not_loaded(library: Library) -> String {
    format!("no process has loaded a known {}", library.words())
}

/// Weighs causes that keep something per example: the growth has to follow first-seen examples.
fn weigh_per_example(context: &Context, scales: &mut Scales) {
    let boundary = context.pass_end();
    match (boundary, context.finding.verdict) {
        (Some(end), Verdict::Settled) if context.finding.aligned => {
            let knee = context.finding.knee.map_or(end, |knee| knee.0);
            scales.speaks_for(
                3.0,
                format!("growth ended at step {knee:.0}, where every example had been seen once (step {end:.0})"),
            );
        }
        (Some(end), Verdict::Settled) => {
            scales.rules_out(format!("growth did not end with the first pass over the data (step {end:.0})"));
        }
        (Some(end), _) if context.is_beyond_first_pass() => {
            scales.rules_out(format!("growth continued after every example had been seen (step {end:.0})"));
        }
        (Some(end), _) => {
            scales.speaks_for(2.0, format!("every example so far was new (until step {end:.0})"));
        }
        (None, _) => scales.against.push("not known: the step that ends the first pass over the data".into()),
    }
}

fn weigh_image_size(context: &Context, scales: &mut Scales) {
    let Some(bytes) = context.bytes_per_example() else { return };
    let size = Bytes::from_f64(bytes);
    if bytes < IMAGE_BYTES.0 {
        scales.is_excluded(format!("{size} per example is too little for decoded pixels"));
    } else if bytes > IMAGE_BYTES.1 {
        scales.is_doubted(0.1, format!("{size} per example is more than 100 megapixels"));
    } else {
        scales.is_shown(
            3.0,
            format!(
                "{size} per example is a decoded image of {:.1} megapixels (PIL, 4 bytes a pixel) or {:.1} (arrays, 3 bytes)",
                bytes / 4e6,
                bytes / 3e6
            ),
        );
    }
}

/// Why nothing is known of a count during the growth.
fn unknown(context: &Context, quantity: Quantity, what: &str) -> String {
    match context.measured.contains(&quantity) {
        true => format!("counted too seldom during the growth: {what}"),
        false => format!("not measured: {what}"),
    }
}

fn weigh_tensors(context: &Context, scales: &mut Scales) {
    match context.covariate(Quantity::Tensors) {
        Some(c) if c.change >= 0.05 * c.start && c.change >= 1.0 => {
            scales.is_shown(8.0, format!("live tensors rose by {:.0} from {:.0} during the growth", c.change, c.start));
        }
        Some(c) => scales.is_excluded(format!(
            "the number of live tensors stayed at {:.0} while memory grew (change {:+.0})",
            c.start, c.change
        )),
        None => {
            scales.against.push(unknown(context, Quantity::Tensors, "the number of live tensors"));
            weigh_library(Library::DeepLearning, context, scales);
        }
    }
    if let Some(gpu) = context.covariate(Quantity::Gpu).filter(|gpu| gpu.share < 0.02) {
        scales
            .is_doubted(0.3, format!("GPU memory did not grow with it (change {})", crate::format_change(gpu.change)));
    }
}

fn weigh_first_steps(context: &Context, scales: &mut Scales) {
    let ended = context.finding.knee.filter(|_| context.finding.verdict == Verdict::Settled);
    let (Some(growth), Some(knee)) = (context.finding.growth, ended) else {
        scales.rules_out("it happens only in the first steps, but this growth continues");
        return;
    };
    let samples = context.shape.points_between(growth.from, knee.0).len();
    if samples > 6 || context.finding.late {
        scales.rules_out(format!(
            "it happens only in the first steps, but this growth ended at {}",
            place(context, knee.0)
        ));
    } else {
        scales.speaks_for(8.0, "the growth was over within the first few samples");
    }
}

fn weigh_forked(context: &Context, scales: &mut Scales) {
    let (private, shared) = (context.covariate(Quantity::Private), context.covariate(Quantity::Shared));
    match (private, shared) {
        (Some(private), Some(shared)) if private.change > 0.0 && shared.change < -0.5 * private.change => {
            scales.is_shown(8.0, "private pages rose while shared pages fell by about as much");
        }
        (Some(_), Some(_)) => scales.is_excluded("shared pages did not turn private"),
        _ => scales.speaks_against(0.3, "not measured: private and shared pages of the workers"),
    }
}
