//! What a verdict rests on: one sentence and one number for each observation.

use crate::bytes::format_change;
use crate::diagnosis::{Clock, Evidence, Likelihood, Mechanism, Verdict};
use crate::growth::Stretch;
use crate::libraries::Library;
use crate::series::JudgedMemory;
use crate::signs::{Company, Signs};
use crate::trace::Quantity;
use crate::trend::Trend;
use crate::waves::Waves;
use crate::words::{counted, place, rate, size};

/// What the verdict rests on.
pub(crate) fn evidence(signs: &Signs, likelihood: Option<&Likelihood>) -> Vec<Evidence> {
    let mut list = Vec::new();
    let finding = signs.finding;
    if let Some(earlier) = finding.earlier {
        list.push(
            Evidence::number(
                format!(
                    "Two growths: one of {} ended at {}; another of {} goes on underneath and decides.",
                    rate(signs, earlier.rate.value),
                    place(signs, earlier.to),
                    rate(signs, finding.growth.map_or(0.0, |g| g.rate.value))
                ),
                earlier.rate.value,
                "bytes per clock unit",
            )
            .over(earlier.from, earlier.to),
        );
    }
    if let Some(start) = finding.start_up {
        let text = format!(
            "Start-up: memory rose by {} until {} and counts as part of the level.",
            size(start.rise),
            place(signs, start.to)
        );
        list.push(Evidence::number(text, start.rise, "bytes").over(start.from, start.to));
    }
    if let Some(growth) = finding.growth {
        list.push(growth_evidence(signs, &growth));
    }
    list.extend(knee_evidence(signs));
    list.extend(example_evidence(signs));
    list.extend(component_evidence(signs));
    list.extend(count_evidence(signs));
    list.extend(wave_evidence(signs));
    list.extend(signs.shape.staircase.map(|stairs| {
        let text = format!(
            "The floor steps up by about {} at each of {} evaluations or checkpoints, hardly in between.",
            size(stairs.step),
            stairs.events
        );
        Evidence::number(text, stairs.step, "bytes")
    }));
    list.extend(end_of_run(signs));
    if finding.verdict == Verdict::Leak {
        list.push(Evidence::words(
            "The rate held through a further whole pass over examples already seen: no cache of examples does that.",
        ));
    }
    if let Some(odds) = likelihood.filter(|_| finding.mechanism != Mechanism::FilePages) {
        list.push(Evidence::number(
            format!(
                "Odds as far as the length of the growth tells: {:.0} % a leak, {:.0} % bounded.",
                100.0 * odds.leak,
                100.0 * odds.bounded
            ),
            odds.leak,
            "probability of a leak",
        ));
    }
    list.extend(creep_evidence(signs));
    if signs.shape.points.len() < 12 {
        list.push(Evidence::words(format!(
            "{} samples show a straight line or its end; they cannot show slow curvature, waves shorter than {:.0} {}s or a slow \
             growth under a fast one.",
            signs.shape.points.len(),
            2.0 * signs.shape.spacing,
            signs.clock.unit()
        )));
    }
    list
}

fn growth_evidence(signs: &Signs, growth: &Stretch) -> Evidence {
    let ended = if signs.finding.verdict == Verdict::Settled { "rose" } else { "has risen" };
    let factor = if signs.clock == Clock::Time { 60.0 } else { 1.0 };
    let pace = match growth.is_jump {
        true => "in one jump".into(),
        false => format!(
            "at {} (95 %: {} to {})",
            rate(signs, growth.rate.value),
            format_change(factor * growth.rate.low),
            format_change(factor * growth.rate.high)
        ),
    };
    let text = format!(
        "From {} to {} the floor {ended} by {}, {pace}.",
        place(signs, growth.from),
        place(signs, growth.to),
        size(growth.rise),
    );
    let unit = if signs.clock == Clock::Step { "bytes/step" } else { "bytes/unit" };
    Evidence::number(text, growth.rate.value, unit).over(growth.from, growth.to)
}

fn knee_evidence(signs: &Signs) -> Option<Evidence> {
    // Of two growths the faster one's end is told with the slower one.
    let (at, low, high) = signs.finding.knee.filter(|_| signs.finding.earlier.is_none())?;
    let after = signs.shape.points_between(at, signs.shape.last());
    let change = after.last()?.y - after.first()?.y;
    let aligned = match signs.pass_end() {
        Some(end) if signs.finding.aligned => {
            format!(" The first pass over the data ends at step {end:.0}: they coincide.")
        }
        Some(end) => format!(" The first pass over the data ends at step {end:.0}: they do not coincide."),
        None => String::new(),
    };
    Some(
        Evidence::number(
            format!(
                "Growth ended at {} (between {} and {}); the {} since then moved by {}.{aligned}",
                place(signs, at),
                place(signs, low),
                place(signs, high),
                counted(after.len(), "sample"),
                format_change(change)
            ),
            at,
            "place on the clock",
        )
        .over(at, signs.shape.last()),
    )
}

fn example_evidence(signs: &Signs) -> Option<Evidence> {
    let bytes = signs.bytes_per_example()?;
    let mut text = format!("That is {} per example", size(bytes));
    let may_decode = signs.libraries.find(Library::ImageDecoder) != Some(None);
    if signs.finding.verdict != Verdict::Leak && may_decode {
        text += &format!(
            ", the size of a decoded image of {:.1} megapixels at 4 bytes a pixel (PIL) or {:.1} at 3 (arrays)",
            bytes / 4e6,
            bytes / 3e6
        );
    }
    if let Some(ten) = ten_times(signs) {
        text += &format!("; ten times the examples would need about {}", size(ten));
    }
    Some(Evidence::number(text + ".", bytes, "bytes/example"))
}

/// Memory that ten times the examples would need if each is kept.
pub(crate) fn ten_times(signs: &Signs) -> Option<f64> {
    let examples = signs.facts.example_count()?;
    let held = signs.bytes_per_example()? * examples;
    let full = match signs.finding.verdict {
        Verdict::Settled if signs.finding.aligned => signs.finding.knee.map(|_| signs.level().bytes as f64)?,
        Verdict::Growing => {
            let left = signs.pass_end()? - signs.shape.last();
            (left >= 0.0).then(|| signs.present() + signs.finding.growth.map_or(0.0, |g| g.rate.value) * left)?
        }
        _ => return None,
    };
    Some(full + 9.0 * held)
}

/// The parts of what is judged are told only if they come to this much of its rise, and to no more than its inverse.
const ACCOUNTED_FOR: f64 = 0.5;

/// What the growth is made of. Its size is the floor's, told before; the other columns say how it is divided.
fn component_evidence(signs: &Signs) -> Option<Evidence> {
    let rise = signs.finding.growth?.rise;
    let (judged, parts) = match signs.memory {
        JudgedMemory::Unreclaimable => (
            "Judged is what the kernel cannot take back (anonymous + shared memory)",
            [Quantity::Anon, Quantity::Shmem, Quantity::Swap],
        ),
        _ => ("Judged is all resident memory", [Quantity::Anon, Quantity::File, Quantity::Shmem]),
    };
    let shown: Vec<&Company> =
        [Quantity::Anon, Quantity::File, Quantity::Shmem].iter().filter_map(|&part| signs.company_of(part)).collect();
    if shown.is_empty() {
        return None;
    }
    let sum: f64 = parts.iter().filter_map(|&part| signs.company_of(part)).map(|part| part.change).sum();
    // Measured between typical samples of the beginning and of the end, which is a little less than all of it.
    let whole = rise / sum;
    if !(ACCOUNTED_FOR..=1.0 / ACCOUNTED_FOR).contains(&whole) {
        return Some(Evidence::words(format!("{judged}.")));
    }
    let told = |part: &&Company| format!("{} {}", part.quantity.name(), format_change(whole * part.change));
    let told: Vec<String> = shown.iter().map(told).collect();
    Some(Evidence::words(format!("{judged}. Over the growth: {}.", told.join(", "))))
}

fn count_evidence(signs: &Signs) -> Vec<Evidence> {
    let counts = signs.company.iter().filter(|c| c.quantity.is_count());
    counts
        .filter(|c| matches!(c.quantity, Quantity::Tensors | Quantity::Objects))
        .map(|c| {
            let noun = if c.quantity == Quantity::Tensors { "Live tensors" } else { "Python objects" };
            let moved = if c.change.abs() < 0.05 * c.start.max(1.0) { "did not follow" } else { "moved along" };
            Evidence::number(
                format!("{noun} {moved}: {:.0} at the start of the growth, change {:+.0}.", c.start, c.change),
                c.change,
                "count",
            )
        })
        .collect()
}

fn wave_evidence(signs: &Signs) -> Option<Evidence> {
    let unit = signs.clock.unit();
    match signs.shape.waves {
        Waves::Teeth(teeth) => Some(Evidence::number(
            format!(
                "{} complete climbs and drops of {} every {:.0} {unit}s; judged is the floor between them, not the peaks.",
                teeth.count,
                size(teeth.height),
                teeth.period
            ),
            teeth.height,
            "bytes",
        )),
        Waves::Spikes { count, height, .. } => Some(Evidence::number(
            format!("{} of about {}, all of which came back.", counted(count, "spike"), size(height)),
            height,
            "bytes",
        )),
        Waves::None => {
            let height = signs.evaluation_height.filter(|&height| height > signs.shape.material())?;
            Some(Evidence::number(
                format!("Evaluations stand up to {} above training and were judged apart from it.", size(height)),
                height,
                "bytes",
            ))
        }
    }
}

/// What an unending growth would come to at the run's last step.
fn end_of_run(signs: &Signs) -> Option<Evidence> {
    let growth = signs.finding.growth.filter(|_| matches!(signs.finding.verdict, Verdict::Growing | Verdict::Leak))?;
    let last = signs.facts.total_steps.filter(|_| signs.clock == Clock::Step)? as f64;
    let left = last - signs.shape.last();
    if left <= 0.0 || signs.finding.pausing {
        return None;
    }
    let then = signs.present() + growth.rate.value * left;
    let fits = match signs.facts.memory_limit {
        Some(limit) if then > limit.as_f64() => format!(", above the limit of {limit}"),
        Some(limit) => format!(", below the limit of {limit}"),
        None => String::new(),
    };
    Some(Evidence::number(
        format!("At this rate the run's last step ({last:.0}) would be reached with {}{fits}.", size(then)),
        then,
        "bytes",
    ))
}

/// A floor that creeps upwards by less than what is worth a call.
fn creep_evidence(signs: &Signs) -> Option<Evidence> {
    if !matches!(signs.finding.verdict, Verdict::Flat | Verdict::Sawtooth) {
        return None;
    }
    let trend =
        Trend::of(&signs.shape.floor).filter(|trend| trend.rises(3.0) && trend.rise() < signs.shape.material())?;
    Some(Evidence::number(
        format!(
            "The floor creeps up by {} over the whole trace; below {} that is not called growth.",
            size(trend.rise()),
            size(signs.shape.material())
        ),
        trend.rise(),
        "bytes",
    ))
}
