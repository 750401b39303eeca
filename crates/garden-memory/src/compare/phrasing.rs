//! A comparison in words.

use super::{is_notable, missing};
use crate::bytes::{format_between, format_change};
use crate::comparison::{Comparison, Effect, GrowthContrast, Interval, TimeEffect};
use crate::diagnosis::Clock;
use crate::phrasing::size;

/// The growth is halved if its ratio's interval lies between these.
const HALF: (f64, f64) = (0.4, 0.6);
/// The growth is doubled if its ratio's interval lies between these.
const DOUBLE: (f64, f64) = (1.7, 2.3);

/// The answer in one sentence.
pub(super) fn summary(comparison: &Comparison) -> String {
    let Some(growth) = &comparison.growth else {
        return format!("Not enough data to compare: {}.", missing(comparison));
    };
    let mut phrases = vec![growth.text.clone()];
    phrases.extend(level(comparison));
    phrases.extend(comparison.step_time.as_ref().map(|time| time.text.clone()));
    let sentence = phrases.join(", ");
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>() + ".").unwrap_or_default()
}

/// The advice about the change, in a few words.
pub(super) fn advice(comparison: &Comparison) -> String {
    let is_lower = comparison.highest.as_ref().is_some_and(|level| is_notable(level) && level.difference < 0.0);
    let time = comparison.step_time.as_ref().map(|time| time.effect);
    let advice = match (comparison.effect, time) {
        (Effect::Insufficient, _) => "record more of both",
        (Effect::Unclear, _) if is_lower => "keep it for its lower level; repeat both to be sure of the growth",
        (Effect::Unclear, _) => "repeat both, or measure for longer",
        // What holds a gigabyte less and grows a little may be the very fix.
        (Effect::More, _) if is_lower => "keep it for its lower level, and find out what grows now",
        (Effect::More, _) => "remove it",
        (Effect::None, _) if is_lower => "keep it if the lower level is needed",
        (Effect::None, Some(TimeEffect::Costs)) => "remove it",
        (Effect::None, Some(TimeEffect::Saves)) => "it does not reduce growth; keep it for its speed",
        (Effect::None, _) => "it does not reduce growth",
        (Effect::Ends | Effect::Less, Some(TimeEffect::Costs)) => "it helps, at that price",
        (Effect::Ends | Effect::Less, _) => "keep it",
    };
    advice.into()
}

/// The effect on growth, such as `no effect on growth (-0.30 to +0.40 MiB per step)`.
pub(super) fn growth(effect: Effect, growth: &GrowthContrast, clock: Clock) -> String {
    let (factor, unit) = match clock {
        // People think in minutes when there are no steps.
        Clock::Time => (60.0, "minute"),
        clock => (1.0, clock.unit()),
    };
    let rate = |value: f64| format!("{} per {unit}", format_change(factor * value));
    let range =
        |interval: Interval| format!("{} per {unit}", format_between(factor * interval.low, factor * interval.high));
    let between = range(growth.difference);
    match effect {
        Effect::None => format!("no effect on growth ({between})"),
        Effect::Ends => format!("ends the growth of {}: {} remain", rate(growth.before.value), range(growth.after)),
        Effect::Less => match growth.ratio {
            Some(ratio) if ratio.low >= HALF.0 && ratio.high <= HALF.1 => format!("halves the growth ({between})"),
            Some(ratio) if ratio.value > 0.0 => {
                format!("cuts the growth by {} ({between})", percent(1.0 - ratio.value))
            }
            _ => format!(
                "lowers the growth by {} ({between})",
                rate(growth.difference.value.abs()).trim_start_matches('+')
            ),
        },
        Effect::More => match growth.ratio {
            Some(ratio) if ratio.low >= DOUBLE.0 && ratio.high <= DOUBLE.1 => format!("doubles the growth ({between})"),
            Some(ratio) => format!("raises the growth by {} ({between})", percent(ratio.value - 1.0)),
            None => format!("adds growth of {} ({between})", rate(growth.difference.value)),
        },
        Effect::Unclear | Effect::Insufficient => {
            format!("too noisy to tell: the difference in growth may be anything from {between}")
        }
    }
}

/// The effect on the time of a step, such as `costs 3.1 % of step time (2.5 to 3.7)`.
pub(super) fn time(effect: TimeEffect, share: Interval) -> String {
    let Interval { value, low, high } = share;
    match effect {
        TimeEffect::None => format!("no effect on step time ({:+.1} to {:+.1} %)", 100.0 * low, 100.0 * high),
        TimeEffect::Costs => {
            format!("costs {} of step time ({} to {})", percent(value), bare(low), bare(high))
        }
        TimeEffect::Saves => {
            format!("saves {} of step time ({} to {})", percent(-value), bare(-high), bare(-low))
        }
        TimeEffect::Unclear => {
            format!("step time too noisy to tell ({:+.1} to {:+.1} %)", 100.0 * low, 100.0 * high)
        }
    }
}

/// The highest level, if it moved and no effect on growth explains it.
fn level(comparison: &Comparison) -> Option<String> {
    let is_told = matches!(comparison.effect, Effect::None | Effect::Unclear);
    let level = comparison.highest.as_ref().filter(|level| is_told && is_notable(level))?;
    let way = if level.difference < 0.0 { "lower" } else { "higher" };
    Some(format!("the peak is {} {way}", size(level.difference.abs())))
}

fn percent(share: f64) -> String {
    format!("{} %", bare(share))
}

fn bare(share: f64) -> String {
    let digits = if share.abs() < 0.0995 { 1 } else { 0 };
    format!("{:.digits$}", 100.0 * share)
}
