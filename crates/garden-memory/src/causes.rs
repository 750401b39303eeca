//! Weighs the known causes of growing host memory against what the trace shows.
//!
//! Naive Bayes with hand-set weights: each cause starts with a prior (how often it is met) and is multiplied by a factor
//! for every sign that speaks for or against it. The score is its share of the sum, in which an unnamed cause keeps a seat,
//! so that no cause of ours is ever certain from shape alone. Factors: 8 a sign that hardly anything else leaves, 3 a sign
//! it usually leaves, 0.3 and 0.1 the same against it; a sign it cannot leave rules it out. What needs a library that no
//! process has loaded can only be where that is built into something else, which has a factor of its own. The catalogue is
//! in `catalogue.rs`.

use crate::bytes::{Bytes, MIB};
use crate::catalogue::{CATALOGUE, Entry, Home, Trait};
use crate::diagnosis::{Cause, Mechanism, RuledOut, Verdict};
use crate::libraries::Library;
use crate::signs::Signs;
use crate::trace::Quantity;
use crate::words::place;

/// The unnamed cause's weight, in the unit of priors: it fits every shape.
const UNKNOWN: f64 = 4.5;
/// A cause that is met this often is worth saying that it is not it.
const USUAL_SUSPECT: f64 = 1.0;
/// Causes below this share are not worth a line.
const WORTH_A_LINE: f64 = 0.02;
/// Bytes per example that a decoded image can have: from 180 x 180 pixels at 3 bytes to 100 megapixels at 4.
const IMAGE_BYTES: (f64, f64) = (0.09 * MIB as f64, 400.0 * MIB as f64);

/// How much less likely a cause is whose library no process has loaded: it would have to be a part of another file.
const NOT_LOADED: f64 = 0.01;

/// The causes that fit, likeliest first, and those that cannot be.
pub(crate) fn weigh_causes(signs: &Signs) -> (Vec<Cause>, Vec<RuledOut>) {
    if matches!(signs.finding.mechanism, Mechanism::None) {
        return (Vec::new(), Vec::new());
    }
    let asked = CATALOGUE.iter().filter(|entry| is_asked(entry, signs));
    let scales: Vec<(&Entry, Scales)> = asked.map(|entry| (entry, weigh(entry, signs))).collect();
    let total: f64 =
        UNKNOWN + scales.iter().filter(|(_, s)| s.impossible.is_none()).map(|(_, s)| s.weight).sum::<f64>();
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
        let score = (scale.weight / total * 100.0).round() / 100.0;
        if score >= WORTH_A_LINE {
            let (supporting, against) = (scale.supporting, scale.against);
            causes.push(Cause { id: entry.id, title: entry.title, score, supporting, against, fix: entry.fix });
        }
    }
    if signs.finding.growth.is_none() {
        // Without growth there is nothing to clear anybody of.
        ruled_out.clear();
        by_shape.clear();
    }
    causes.sort_by(|a, b| b.score.total_cmp(&a.score));
    ruled_out.append(&mut by_shape);
    (causes, ruled_out)
}

/// Whether a cause is to be weighed: those that stand in for another are so only where that one lacks its library.
fn is_asked(entry: &Entry, signs: &Signs) -> bool {
    entry.traits.iter().all(|sign| match sign {
        Trait::Without(library) => signs.libraries.find(*library) == Some(None),
        _ => true,
    })
}

/// The weighing of one cause.
struct Scales {
    weight: f64,
    supporting: Vec<String>,
    against: Vec<String>,
    impossible: Option<String>,
    excluded_by: Excluded,
}

/// What rules a cause out.
#[derive(Clone, Copy)]
enum Excluded {
    /// Another column, the epoch or the verdict: worth saying for every cause.
    Measurement,
    /// Its usual shape alone: worth saying for the usual suspects.
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
}

fn weigh(entry: &Entry, signs: &Signs) -> Scales {
    let mut scales = Scales {
        weight: entry.prior,
        supporting: Vec::new(),
        against: Vec::new(),
        impossible: None,
        excluded_by: Excluded::Measurement,
    };
    // What was measured comes first, so that the reason given is a measured one where there is one.
    weigh_component(entry, signs, &mut scales);
    for sign in entry.traits {
        weigh_trait(*sign, signs, &mut scales);
    }
    if scales.impossible.is_none() {
        scales.excluded_by = Excluded::Shape;
        weigh_shape(entry, signs, &mut scales);
    }
    scales
}

fn weigh_shape(entry: &Entry, signs: &Signs, scales: &mut Scales) {
    let mechanism = signs.finding.mechanism;
    let expected: Vec<&str> = entry.typical.iter().map(|&m| in_words(m)).collect();
    let expected = expected.join(" or ");
    if entry.typical.contains(&mechanism) {
        scales.speaks_for(3.0, format!("the shape fits: {}", in_words(mechanism)));
    } else if let Some(how) = may_be_a_fill(signs).filter(|_| entry.typical.contains(&Mechanism::EpochFill)) {
        scales.speaks_for(3.0, how);
    } else if entry.possible.contains(&mechanism) {
        scales.speaks_against(0.5, format!("it would usually show as {expected}"));
    } else {
        scales.rules_out(format!("it would show as {expected}"));
    }
}

/// How a growth that is not known to end with a pass over the data may still be one, if nothing says otherwise.
fn may_be_a_fill(signs: &Signs) -> Option<String> {
    let finding = signs.finding;
    match (finding.mechanism, finding.knee, signs.epoch()) {
        (Mechanism::CappedCache, Some((knee, _, _)), None) => {
            Some(format!("the shape fits if the first pass over the data ends near {}", place(signs, knee)))
        }
        (Mechanism::Linear, None, None) => Some("the shape fits while the first pass over the data lasts".into()),
        (Mechanism::Linear, None, Some(_)) if signs.pass_end().is_some_and(|end| signs.shape.last() <= end) => {
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
        Mechanism::EpochFill => "growth until every example was seen once",
        Mechanism::CappedCache => "steady growth up to a cap",
        Mechanism::RecordHigh => "ever rarer jumps to new records",
        Mechanism::FilePages => "growth of file pages only",
        Mechanism::CopyOnWrite => "shared pages turning private",
        Mechanism::Sawtooth => "climbs and drops on a floor",
        Mechanism::Spikes => "spikes that return",
        Mechanism::Staircase => "steps up at events",
        Mechanism::Linear => "steady growth per step",
        Mechanism::LateOnset => "growth that began late",
    }
}

/// Where the growth sits, if the trace splits memory into components.
fn weigh_component(entry: &Entry, signs: &Signs, scales: &mut Scales) {
    if signs.finding.growth.is_none() {
        return;
    }
    let (quantity, word) = match entry.home {
        Home::Anon => (Quantity::Anon, "anonymous memory"),
        Home::File => (Quantity::File, "pages of mapped files"),
        Home::Shmem => (Quantity::Shmem, "shared memory"),
        Home::Elsewhere => return,
    };
    match signs.company_of(quantity).map(|company| company.share) {
        Some(share) if share >= 0.6 => {
            scales.speaks_for(2.0, format!("{:.0} % of the growth is {word}", 100.0 * share.min(1.0)));
        }
        Some(share) if share <= 0.2 => {
            scales.rules_out(format!("it grows {word}, which made up {:.0} % of the growth", 100.0 * share.max(0.0)));
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

fn weigh_trait(sign: Trait, signs: &Signs, scales: &mut Scales) {
    match sign {
        Trait::PerExample => weigh_per_example(signs, scales),
        Trait::ImageSized => weigh_image_size(signs, scales),
        Trait::SmallPerExample => match signs.bytes_per_example() {
            Some(bytes) if bytes < IMAGE_BYTES.0 => {
                scales
                    .speaks_for(8.0, format!("{} per example is the size of text or metadata", Bytes::from_f64(bytes)));
            }
            Some(bytes) => {
                scales.speaks_against(0.1, format!("{} per example is a lot for that", Bytes::from_f64(bytes)));
            }
            None => {}
        },
        Trait::LargePerExample => match signs.bytes_per_example().map(|bytes| (bytes, Bytes::from_f64(bytes))) {
            Some((bytes, size)) if bytes < IMAGE_BYTES.0 => scales.rules_out(format!("{size} per example is little")),
            Some((_, size)) => scales.speaks_for(3.0, format!("{size} per example is more than text or metadata")),
            None => {}
        },
        Trait::TensorsRise => weigh_tensors(signs, scales),
        Trait::ObjectsRise => match signs.company_of(Quantity::Objects) {
            Some(c) if c.change > 0.05 * c.start => {
                scales.speaks_for(8.0, format!("Python objects rose from {:.0} by {:.0}", c.start, c.change));
            }
            Some(_) => scales.rules_out("the number of Python objects did not rise"),
            None => {
                scales.against.push("not measured: the number of Python objects".into());
                weigh_library(Library::Python, signs, scales);
            }
        },
        Trait::NeverEnds => {
            if signs.finding.verdict == Verdict::Settled {
                scales.rules_out("it never ends, and this growth did");
            }
        }
        Trait::Ends => {
            if signs.finding.verdict == Verdict::Leak {
                scales.rules_out("it is bounded, and this growth outlasted a further pass over the same examples");
            }
        }
        Trait::Slows => {
            if signs.finding.slowing {
                scales.speaks_for(3.0, "the growth slows down");
            } else {
                scales.speaks_against(0.3, "the growth does not slow down");
            }
        }
        Trait::Small => {
            let rise = signs.finding.growth.map_or(0.0, |growth| growth.rise);
            if rise > 2048.0 * MIB as f64 {
                scales.speaks_against(0.1, format!("it is rarely as large as {}", Bytes::from_f64(rise)));
            }
        }
        Trait::AtFirstSteps => weigh_first_steps(signs, scales),
        Trait::AtEvaluations => match signs.evaluation_height {
            Some(height) if height > signs.shape.material() => {
                scales.speaks_for(3.0, format!("evaluations stand {} above training", Bytes::from_f64(height)));
            }
            _ => scales.speaks_against(0.1, "no evaluation in the trace stands out"),
        },
        Trait::OnlyInAChild => scales.speaks_against(0.3, "not measured: which process of the tree grows"),
        Trait::Forked => weigh_forked(signs, scales),
        Trait::Needs(library) => weigh_library(library, signs, scales),
        Trait::Without(library) => scales.supporting.push(not_loaded(library)),
    }
}

/// Causes that are the work of a library.
fn weigh_library(library: Library, signs: &Signs, scales: &mut Scales) {
    match signs.libraries.find(library) {
        Some(None) => scales.speaks_against(NOT_LOADED, not_loaded(library)),
        Some(Some(name)) => scales.supporting.push(format!("{name} is loaded")),
        None => {}
    }
}

fn not_loaded(library: Library) -> String {
    format!("no process has loaded a known {}", library.words())
}

/// Causes that hold something for each example: the growth has to follow first-seen examples.
fn weigh_per_example(signs: &Signs, scales: &mut Scales) {
    let boundary = signs.pass_end();
    match (boundary, signs.finding.verdict) {
        (Some(end), Verdict::Settled) if signs.finding.aligned => {
            let knee = signs.finding.knee.map_or(end, |knee| knee.0);
            scales.speaks_for(
                3.0,
                format!("growth ended at step {knee:.0}, where every example had been seen once (step {end:.0})"),
            );
        }
        (Some(end), Verdict::Settled) => {
            scales.rules_out(format!("growth did not end where the first pass over the data does (step {end:.0})"));
        }
        (Some(end), _) if signs.is_beyond_first_pass() => {
            scales.rules_out(format!("growth went on after every example had been seen (step {end:.0})"));
        }
        (Some(end), _) => {
            scales.speaks_for(2.0, format!("every example so far was seen for the first time (until step {end:.0})"));
        }
        (None, _) => scales.against.push("not known: the step at which every example has been seen once".into()),
    }
}

fn weigh_image_size(signs: &Signs, scales: &mut Scales) {
    let Some(bytes) = signs.bytes_per_example() else { return };
    let size = Bytes::from_f64(bytes);
    if bytes < IMAGE_BYTES.0 {
        scales.rules_out(format!("{size} per example is too little for decoded pixels"));
    } else if bytes > IMAGE_BYTES.1 {
        scales.speaks_against(0.1, format!("{size} per example is more than 100 megapixels"));
    } else {
        scales.speaks_for(
            3.0,
            format!(
                "{size} per example is a decoded image of {:.1} megapixels (PIL, 4 bytes a pixel) or {:.1} (arrays, 3 bytes)",
                bytes / 4e6,
                bytes / 3e6
            ),
        );
    }
}

fn weigh_tensors(signs: &Signs, scales: &mut Scales) {
    match signs.company_of(Quantity::Tensors) {
        Some(c) if c.change >= 0.05 * c.start && c.change >= 1.0 => {
            scales
                .speaks_for(8.0, format!("live tensors rose from {:.0} by {:.0} during the growth", c.start, c.change));
        }
        Some(c) => scales.rules_out(format!(
            "the number of live tensors stayed at {:.0} while memory grew (change {:+.0})",
            c.start, c.change
        )),
        None => {
            scales.against.push("not measured: the number of live tensors".into());
            weigh_library(Library::DeepLearning, signs, scales);
        }
    }
    if let Some(gpu) = signs.company_of(Quantity::Gpu).filter(|gpu| gpu.share < 0.02) {
        scales.speaks_against(
            0.3,
            format!("GPU memory did not grow along (change {})", crate::format_change(gpu.change)),
        );
    }
}

fn weigh_first_steps(signs: &Signs, scales: &mut Scales) {
    let ended = signs.finding.knee.filter(|_| signs.finding.verdict == Verdict::Settled);
    let (Some(growth), Some(knee)) = (signs.finding.growth, ended) else {
        scales.rules_out("it happens at the first steps only, and this growth goes on");
        return;
    };
    let samples = signs.shape.points_between(growth.from, knee.0).len();
    if samples > 6 || signs.finding.late {
        scales.rules_out(format!(
            "it happens at the first steps only, and this growth ended at {}",
            place(signs, knee.0)
        ));
    } else {
        scales.speaks_for(8.0, "the growth was over within the first few samples");
    }
}

fn weigh_forked(signs: &Signs, scales: &mut Scales) {
    let (private, shared) = (signs.company_of(Quantity::Private), signs.company_of(Quantity::Shared));
    match (private, shared) {
        (Some(private), Some(shared)) if private.change > 0.0 && shared.change < -0.5 * private.change => {
            scales.speaks_for(8.0, "private pages rose while shared pages fell by about as much");
        }
        (Some(_), Some(_)) => scales.rules_out("shared pages did not turn into private ones"),
        _ => scales.speaks_against(0.3, "not measured: private and shared pages of the workers"),
    }
}
