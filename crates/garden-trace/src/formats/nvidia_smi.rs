//! `nvidia-smi`, in all of its forms.
//!
//! - Queries (`--query-gpu=.. --format=csv`, `--query-compute-apps`) are tables with commas: read by `table.rs`, with what
//!   is said here of their columns. Without a header `headless.rs` finds the columns; a lone column is one amount per line.
//! - The drawn table, the list (`-q`), `dmon` and `pmon` are in `text.rs`, since output of other tools may stand beside them.
//!
//! GPUs in rows without an index are told apart by their order, where time stamps or repeated headers show how many there are.

mod headless;
pub(super) mod text;

use garden_memory::Subject;

use super::table::Layout;
use super::{Contents, Head, Reader, Recognised, amounts, claim, table};
use crate::columns::choice::Choice;
use crate::error::Error;
use crate::reading::{Origin, Reading};
use crate::series::Series;
use crate::series::identity::{Identity, Who};

/// Whether the names are those of `--query-gpu` or `--query-compute-apps`.
pub(crate) fn is_query(names: &[String]) -> bool {
    // The key of a nested object, `memory.used`, has no unit behind it.
    names.iter().any(|name| name.starts_with("memory.used [") || name.starts_with("used_gpu_memory"))
}

/// The columns of a query that tell series apart.
pub(crate) fn identity_columns(names: &[String]) -> Vec<(usize, Who)> {
    let find = |wanted: &[&str]| names.iter().position(|name| wanted.contains(&name.trim()));
    // Names do not tell GPUs of one kind apart.
    let orders: [&[&str]; 3] = [&["index"], &["uuid", "gpu_uuid"], &["pci.bus_id", "gpu_bus_id"]];
    let gpu = orders.iter().find_map(|order| find(order)).map(|index| (index, Who::Gpu));
    let pid = find(&["pid"]).map(|index| (index, Who::Pid));
    gpu.into_iter().chain(pid).collect()
}

/// Recognises queries, with a header or without.
pub(super) fn recognise(head: &Head<'_>) -> Recognised {
    if let Some(mut layout) = table::layout_of(head.lines, head.options).filter(|layout| is_query(layout.names())) {
        if layout.is_header_repeated && layout.choice().identity.is_empty() {
            layout.tell_apart_by_order(Who::Gpu);
        }
        return claim(Query(layout));
    }
    let amounts = amounts::are_amounts(head.lines);
    if amounts && !headless::has_stamps(head.lines) {
        let is_lone = amounts::are_all(head.lines, is_mebibytes) && amounts::foreign_names(head.lines).is_none();
        return is_lone.then(|| claim(Lone))?;
    }
    let layout = headless::recognise(head.lines, head.options)?;
    Some(layout.map(|layout| Box::new(Query(layout)) as Box<dyn Reader>))
}

/// An amount as `--query-gpu=memory.used --format=csv,noheader` prints it.
fn is_mebibytes(line: &str) -> bool {
    line.trim().strip_suffix(" MiB").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

const NAME: &str = "nvidia-smi";

/// Rows of a query.
struct Query(Layout);

impl Reader for Query {
    fn name(&self) -> &'static str {
        NAME
    }

    fn origin(&self) -> Origin {
        Origin::NvidiaSmi
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        let Query(layout) = self;
        table::read(&mut file.lines, layout, reading)?;
        // The first series of the reading has no identity, and no rows.
        if layout.is_told_by_order() && reading.series.len() > 2 {
            reading.note(BY_ORDER);
        } else if !layout.is_told_by_order() && is_untold(layout.choice()) {
            reading.note("the rows have no `index`: those of several GPUs could not be told apart");
        }
        Ok(())
    }
}

/// Whether rows have neither an index nor a time, which would show how many GPUs there are.
fn is_untold(choice: &Choice) -> bool {
    choice.identity.is_empty() && !choice.has_times()
}

/// Lines of memory in use alone.
struct Lone;

impl Reader for Lone {
    fn name(&self) -> &'static str {
        NAME
    }

    fn origin(&self) -> Origin {
        Origin::NvidiaSmi
    }

    fn read(&self, file: &mut Contents<'_>, reading: &mut Reading) -> Result<(), Error> {
        amounts::read(&mut file.lines, file.options, reading)?;
        reading.trace().subject = Subject::Device;
        reading.note("read as `memory.used` of one GPU; to tell several apart, query `index,memory.used`");
        Ok(())
    }
}

/// The note where only the order of rows tells GPUs apart.
const BY_ORDER: &str = "the GPUs are told apart by the order of their rows; query `index` to be sure";
/// Most GPUs told apart by their place in each group of rows.
const MOST_PLACES: usize = 16;
/// Rows of one moment lie closer together than this share of the time to the next moment.
const TOGETHER: f64 = 0.25;
/// Groups that must agree on how many rows each moment has.
const FEWEST_GROUPS: usize = 3;

/// Tells GPUs apart that only their order does: rows without an index, so many at each moment.
pub(crate) fn split_by_place(series: &mut Vec<Series>) {
    let [only] = series.as_slice() else { return };
    let Some(count) = rows_per_moment(only) else { return };
    let part = |place: usize| {
        let mut one = only.clone();
        one.identity = Some(Identity::of(Who::Gpu, place.to_string()));
        one.rebuild(|index, _| index % count == place);
        one.note(BY_ORDER);
        one
    };
    *series = (0..count).map(part).collect();
}

fn rows_per_moment(series: &Series) -> Option<usize> {
    let trace = &series.trace;
    if trace.subject != Subject::Device || series.identity.is_some() {
        return None;
    }
    let times: Vec<f64> = (0..trace.len()).map_while(|index| trace.time_s(index)).collect();
    if times.len() < trace.len() {
        return None;
    }
    (2..=MOST_PLACES).find(|&count| {
        let groups = times.len() / count;
        let is_apart = |group: usize| {
            let (first, next) = (group * count, (group + 1) * count);
            let pause = times[next] - times[next - 1];
            pause > 0.0 && times[next - 1] - times[first] < TOGETHER * pause
        };
        groups >= FEWEST_GROUPS && (0..groups - 1).all(is_apart)
    })
}
