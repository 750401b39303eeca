//! The series of one file: which of them are one run that was restarted, their names, and which one was asked for.

use garden_memory::{Bytes, MIB, Subject};

use crate::error::Error;
use crate::reading::Blocks;
use crate::series::Series;
use crate::series::identity::{Identity, Part, Who};

/// More series than anyone looks at.
const MOST_KEPT: usize = 50;

/// Joins series that are one thing before and after a restart: a new process id, or blocks whose clock runs on.
pub(crate) fn join_restarts(series: &mut Vec<Series>, blocks: Blocks) {
    if series.len() < 2 {
        return;
    }
    join_groups(series, |one| {
        let identity = one.identity.as_ref()?;
        identity.parts.iter().any(|part| part.who == Who::Pid).then(|| identity.without_pid())
    });
    let is_run = |part: &Part| matches!(part.who, Who::Run | Who::Seed);
    let is_one_run = |one: &Series| one.identity.as_ref().is_some_and(|identity| !identity.parts.iter().any(is_run));
    if blocks == Blocks::Restarts && series.iter().all(is_one_run) {
        join_groups(series, |_| Some(Identity::default()));
    }
}

/// Joins the series of each group in which none runs beside another.
fn join_groups(series: &mut Vec<Series>, group: impl Fn(&Series) -> Option<Identity>) {
    let mut groups: Vec<(Option<Identity>, Vec<Series>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for one in series.drain(..) {
        let key = group(&one);
        let place = key.as_ref().and_then(|key| places.get(key).copied());
        match place {
            Some(place) => {
                let (_, members): &mut (_, Vec<Series>) = &mut groups[place];
                members.push(one);
            }
            None => {
                places.extend(key.clone().map(|key| (key, groups.len())));
                groups.push((key, vec![one]));
            }
        }
    }
    for (_, members) in groups {
        let follow = members.windows(2).all(|pair| follows(&pair[0], &pair[1]));
        let mut members = members.into_iter();
        match members.next() {
            Some(first) if follow => series.push(members.fold(first, |mut all, next| {
                all.append(next);
                all
            })),
            first => series.extend(first.into_iter().chain(members)),
        }
    }
    series.sort_by_key(|one| one.rows);
}

/// Whether a series begins after another one ended, in the file and on the clock.
fn follows(before: &Series, after: &Series) -> bool {
    let in_file = before.rows.zip(after.rows).is_some_and(|((_, last), (first, _))| last < first);
    let (old, new) = (&before.trace, &after.trace);
    let Some(last) = old.len().checked_sub(1) else { return false };
    let is_pid =
        before.identity.as_ref().is_some_and(|identity| identity.parts.iter().any(|part| part.who == Who::Pid));
    let on_clock = match (old.time_s(last), new.time_s(0), old.step(last), new.step(0)) {
        (Some(before), Some(after), ..) => before <= after,
        // A restarted process begins again with the first step; another rank does, too.
        (_, _, Some(before), Some(after)) => is_pid || before < after,
        _ => true,
    };
    in_file && on_clock
}

/// Leaves out the series that nobody asks about; returns notes that count them.
pub(crate) fn leave_out(series: &mut Vec<Series>, least_peak: Option<u64>) -> Vec<String> {
    let mut notes = Vec::new();
    if least_peak.is_none() && series.len() <= MOST_KEPT {
        return notes;
    }
    let is_process = |one: &Series| one.trace.subject == Subject::Process;
    if let Some(least) = least_peak.filter(|&least| series.iter().any(|one| is_process(one) && one.peak() > least)) {
        let before = series.len();
        series.retain(|one| !is_process(one) || one.peak() > least);
        if series.len() < before {
            let left = before - series.len();
            let noun = if left == 1 { "process that never takes" } else { "processes that never take" };
            notes.push(format!("left out: {left} {noun} more than {}", Bytes(least)));
        }
    }
    let peaks: Vec<u64> = series.iter().map(Series::peak).collect();
    if series.len() > MOST_KEPT {
        let mut sorted = peaks.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let (least, total) = (sorted[MOST_KEPT - 1], series.len());
        let mut kept = 0;
        let mut keeps = peaks.iter().map(|&peak| peak >= least);
        series.retain(|_| {
            let keep = keeps.next().unwrap_or(false) && kept < MOST_KEPT;
            kept += usize::from(keep);
            keep
        });
        notes.push(format!("{total} series; only the {MOST_KEPT} with the most memory are kept"));
    }
    notes
}

/// The least memory of a process that is worth a series where a tool lists all processes.
pub(crate) const LEAST_PEAK: u64 = 50 * MIB;

/// The name of each series; none for the only one.
pub(crate) fn names(series: &[Series]) -> Vec<Option<String>> {
    if series.len() < 2 {
        return vec![None; series.len()];
    }
    series.iter().map(|one| Some(name_among(one, series))).collect()
}

fn name_among(one: &Series, series: &[Series]) -> String {
    let Some(identity) = &one.identity else { return "other lines".to_string() };
    let others = || series.iter().filter_map(|other| other.identity.as_ref());
    let alike = others().all(|other| other.parts.len() == identity.parts.len());
    let differs = |place: usize| others().any(|other| other.parts.get(place) != identity.parts.get(place));
    let any_differs = (0..identity.parts.len()).any(differs);
    identity.name(|place| !alike || !any_differs || differs(place))
}

/// The series that was asked for; none if no one was.
pub(crate) fn select(names: &[Option<String>], series: &[Series], asked: Option<&str>) -> Result<Option<usize>, Error> {
    let Some(asked) = asked else { return Ok(None) };
    let wanted = asked.trim().to_lowercase();
    let full = |place: usize| {
        let of_only = || series[place].identity.as_ref().map(|identity| identity.name(|_| true));
        names[place].clone().or_else(of_only).unwrap_or_default()
    };
    let all: Vec<String> = (0..series.len()).map(full).collect();
    let has_value = |part: &Part| part.value.to_lowercase() == wanted;
    let by_value =
        |place: usize| series[place].identity.as_ref().is_some_and(|identity| identity.parts.iter().any(has_value));
    let exact: Vec<usize> = (0..all.len()).filter(|&place| all[place].to_lowercase() == wanted).collect();
    let value: Vec<usize> = (0..all.len()).filter(|&place| by_value(place)).collect();
    let part: Vec<usize> = (0..all.len()).filter(|&place| all[place].to_lowercase().contains(&wanted)).collect();
    let found = [exact, value, part].into_iter().find(|found| !found.is_empty()).unwrap_or_default();
    match found[..] {
        [place] if !wanted.is_empty() => Ok(Some(place)),
        _ => Err(Error::NoSuchSeries {
            asked: asked.to_string(),
            available: all.into_iter().filter(|name| !name.is_empty()).collect(),
        }),
    }
}
