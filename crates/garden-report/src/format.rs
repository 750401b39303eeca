//! Numbers as text: places on the clock, amounts, rates and intervals, the same in every format.
//!
//! Numbers that are not finite have no text: the functions return `None` or leave the part out, and never print 0 for it.

use garden_memory::{Bytes, Clock, Diagnosis, Phase, PhaseKind, Verdict, format_change};

use crate::Report;

/// Rates beyond this are printed as powers of ten: no machine has as much, and hundreds of digits help nobody.
const ABSURD: f64 = 1e18;

/// The format of places on a diagnosis's clock.
#[derive(Clone, Copy, Debug)]
pub struct ClockWords {
    /// The clock.
    pub clock: Clock,
    /// The place that is written as zero.
    pub zero: f64,
    /// The unit of times, the same throughout a report.
    pub unit: TimeUnit,
}

impl ClockWords {
    /// The words for a report's clock: times count from the first sample.
    pub(crate) fn new(report: &Report) -> Self {
        let clock = report.diagnosis.clock;
        let places = report.memory.points.iter().map(|point| point.0).filter(|x| x.is_finite());
        let first = places.clone().next().unwrap_or(0.0);
        ClockWords::over(clock, if clock == Clock::Time { first } else { 0.0 }, places)
    }

    /// The words for a clock with these places, on which `zero` is written as 0.
    pub fn over(clock: Clock, zero: f64, places: impl Iterator<Item = f64>) -> Self {
        ClockWords { clock, zero, unit: TimeUnit::fitting(places.fold(zero, f64::max) - zero) }
    }

    /// The clock's name in a heading, such as `step` or `time`.
    pub fn name(self) -> &'static str {
        match self.clock {
            Clock::Time => "time",
            _ => self.clock.unit(),
        }
    }

    /// A place as the labels of an axis show it: `83`, `12:30`, `2:05`.
    pub fn bare(self, x: f64) -> String {
        match self.clock {
            Clock::Time => self.unit.write(x - self.zero),
            _ => whole(x),
        }
    }

    /// A place on its own: `83`, or a time with its unit (`2:05 h`).
    pub fn number(self, x: f64) -> String {
        let suffix = if self.clock == Clock::Time { self.unit.suffix() } else { "" };
        format!("{}{suffix}", self.bare(x))
    }

    /// The unit of an axis: `steps`, or that of its times.
    pub fn axis_unit(self) -> &'static str {
        match self.clock {
            Clock::Time => self.unit.suffix().trim_start(),
            Clock::Step => "steps",
            Clock::Sample => "samples",
        }
    }

    /// A stretch: `10 to 83`, or `0:00 to 2:05 h`.
    pub fn range(self, from: f64, to: f64) -> String {
        format!("{} to {}", self.bare(from), self.number(to))
    }

    /// A stretch in a sentence: `steps 10 to 83`, or `0:00 to 2:05 h`.
    pub fn stretch(self, from: f64, to: f64) -> String {
        match self.clock {
            Clock::Time => self.range(from, to),
            _ => format!("{}s {}", self.clock.unit(), self.range(from, to)),
        }
    }

    /// A rate with its interval, per step, per sample or per minute.
    pub fn rate(self, rate: f64, low: Option<f64>, high: Option<f64>) -> Option<String> {
        match self.clock {
            Clock::Time => rate_per_minute(rate, low, high),
            _ => rate_per(rate, low, high, self.clock.unit()),
        }
    }
}

/// The place of a diagnosis's knee on its clock.
pub(crate) fn knee_place(report: &Report) -> Option<f64> {
    let knee = report.diagnosis.knee?;
    let middle = (knee.low + knee.high) / 2.0;
    let place = match report.diagnosis.clock {
        Clock::Step => knee.step,
        // The time counts from the first sample of the process that decides.
        Clock::Time => knee.time_s.map(|time| time + judged_from(report)),
        Clock::Sample => None,
    };
    Some(place.unwrap_or(middle)).filter(|x| x.is_finite())
}

fn judged_from(report: &Report) -> f64 {
    let deciding = report.diagnosis.parts.iter().find(|part| part.decides);
    deciding.map_or(ClockWords::new(report).zero, |part| part.from)
}

/// A rate in bytes per second, written per minute.
pub(crate) fn rate_per_minute(rate: f64, low: Option<f64>, high: Option<f64>) -> Option<String> {
    rate_per(60.0 * rate, low.map(|low| 60.0 * low), high.map(|high| 60.0 * high), "minute")
}

/// A rate per `unit`, with its interval as far as it is known.
pub(crate) fn rate_per(rate: f64, low: Option<f64>, high: Option<f64>, unit: &str) -> Option<String> {
    let finite = |x: &f64| x.is_finite();
    let interval = match (low.filter(finite), high.filter(finite)) {
        // Signs are repeated only where the interval reaches zero.
        (Some(low), Some(high)) if low > 0.0 => Some((unsigned(low), unsigned(high))),
        (Some(low), Some(high)) => Some((change(low), change(high))),
        _ => None,
    };
    let between = interval.map(|(low, high)| between(&change(rate), &low, &high)).unwrap_or_default();
    rate.is_finite().then(|| format!("{} per {unit}{between}", change(rate)))
}

/// An amount with its interval: `16.6 GiB (95 %: 16.5 to 16.8)`.
pub(crate) fn amount(bytes: u64, low: u64, high: u64) -> String {
    let text = Bytes(bytes).to_string();
    let between = between(&text, &Bytes(low).to_string(), &Bytes(high).to_string());
    format!("{text}{between}")
}

/// The interval in brackets. Its ends lose their unit where all three are written in the same one.
fn between(value: &str, low: &str, high: &str) -> String {
    let unit = |text: &str| text.rsplit_once(' ').map(|(_, unit)| unit.to_string());
    if unit(value) == unit(low) && unit(low) == unit(high) {
        let number = |text: &str| text.split(' ').next().unwrap_or_default().to_string();
        return format!(" (95 %: {} to {})", number(low), number(high));
    }
    format!(" (95 %: {low} to {high})")
}

fn change(bytes: f64) -> String {
    if bytes.abs() >= ABSURD { format!("{bytes:+.1e} B") } else { format_change(bytes) }
}

fn unsigned(bytes: f64) -> String {
    change(bytes).trim_start_matches('+').to_string()
}

/// A number without decimals.
pub(crate) fn whole(x: f64) -> String {
    match x {
        _ if !x.is_finite() => "?".to_string(),
        _ if x.abs() >= 1e15 => format!("{x:.2e}"),
        // Adding zero turns -0 into 0.
        _ => format!("{:.0}", x.round() + 0.0),
    }
}

/// A share of one as a percentage; certainty is never claimed by rounding.
pub(crate) fn percent(share: f64) -> Option<String> {
    match share {
        _ if !share.is_finite() => None,
        _ if share >= 0.995 => Some("over 99 %".to_string()),
        _ if share < 0.005 => Some("under 1 %".to_string()),
        _ => Some(format!("{:.0} %", 100.0 * share)),
    }
}

/// The unit of times, and their format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// `83`.
    Seconds,
    /// `12:30`.
    Minutes,
    /// `2:05`.
    Hours,
    /// `4.5`.
    Days,
}

impl TimeUnit {
    /// The unit in which times up to `seconds` read well.
    pub fn fitting(seconds: f64) -> TimeUnit {
        match seconds {
            s if (120.0..7200.0).contains(&s) => TimeUnit::Minutes,
            s if (7200.0..345_600.0).contains(&s) => TimeUnit::Hours,
            s if (345_600.0..1e12).contains(&s) => TimeUnit::Days,
            _ => TimeUnit::Seconds,
        }
    }

    /// The text after the number.
    pub fn suffix(self) -> &'static str {
        match self {
            TimeUnit::Seconds => " s",
            TimeUnit::Minutes => " min",
            TimeUnit::Hours => " h",
            TimeUnit::Days => " d",
        }
    }

    /// A time without the unit.
    fn write(self, seconds: f64) -> String {
        match self {
            TimeUnit::Seconds if seconds.abs() < 9.95 && seconds.fract().abs() > 1e-6 => format!("{seconds:.1}"),
            TimeUnit::Seconds => whole(seconds),
            TimeUnit::Minutes => sexagesimal(seconds),
            TimeUnit::Hours => sexagesimal(seconds / 60.0),
            TimeUnit::Days => format!("{:.1}", seconds / 86_400.0 + 0.0),
        }
    }
}

/// Sixtieths as `whole:sixtieths`, such as `2:05`.
fn sexagesimal(sixtieths: f64) -> String {
    let sign = if sixtieths.round() < 0.0 { "-" } else { "" };
    let size = sixtieths.abs().round();
    format!("{sign}{}:{:02.0}", whole((size / 60.0).floor()), size % 60.0)
}

/// The name of a phase. A floor that rose is only growth if the verdict is about growth: it may have been start-up, or fallen again.
pub(crate) fn phase_name(diagnosis: &Diagnosis, phase: &Phase) -> &'static str {
    let is_growth = !matches!(diagnosis.verdict, Verdict::Flat | Verdict::Sawtooth);
    match phase.kind {
        PhaseKind::Growth if is_growth => "growth",
        PhaseKind::Growth => "rise",
        PhaseKind::Plateau => "plateau",
        PhaseKind::Fall => "fall",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_memory::MIB;

    const M: f64 = MIB as f64;

    #[test]
    fn rates_share_a_unit_and_show_signs_where_they_matter() {
        let rate = |rate: f64, low: f64, high: f64| rate_per(rate * M, Some(low * M), Some(high * M), "step");
        assert_eq!(rate(171.0, 169.0, 173.0).as_deref(), Some("+171 MiB per step (95 %: 169 to 173)"));
        assert_eq!(rate(-0.5, -1.5, 0.25).as_deref(), Some("-512 KiB per step (95 %: -1.50 MiB to +256 KiB)"));
        assert_eq!(rate_per(M, None, Some(M), "second").as_deref(), Some("+1.00 MiB per second"));
        assert_eq!(rate_per(f64::NAN, None, None, "step"), None);
        assert_eq!(rate_per(-1e300, None, None, "step").as_deref(), Some("-1.0e300 B per step"));
    }

    #[test]
    fn times_grow_their_units() {
        let written = |seconds: f64, longest: f64| {
            let words = ClockWords { clock: Clock::Time, zero: 100.0, unit: TimeUnit::fitting(longest) };
            words.range(100.0, 100.0 + seconds)
        };
        assert_eq!(written(0.5, 9.0), "0 to 0.5 s");
        assert_eq!(written(750.0, 800.0), "0:00 to 12:30 min");
        assert_eq!(written(7500.0, 8000.0), "0:00 to 2:05 h");
        assert_eq!(written(-750.0, 8000.0), "0:00 to -0:13 h");
        assert_eq!(written(388_800.0, 400_000.0), "0.0 to 4.5 d");
        assert_eq!(written(1e300, 1e300), "0 to 1.00e300 s");
    }

    #[test]
    fn certainty_is_never_claimed_by_rounding() {
        let shares = [1.0, 0.97, 0.001].map(|share| percent(share).unwrap_or_default());
        assert_eq!(shares, ["over 99 %", "97 %", "under 1 %"]);
    }
}
