//! Which columns of a table, or keys of JSON objects, hold the memory to judge, and which tell series apart.
//!
//! The memory is the requested column, else RSS, else PSS, else plain "memory" or "ram"; where there is none of the host,
//! a GPU's; where there is no level at all, a peak. Columns such as `gpu0_mb` and `gpu1_mb` are a series each.

use std::collections::HashMap;

use garden_memory::{Quantity, Subject};

use crate::ReadOptions;
use crate::amount::Amount;
use crate::columns::names::{Meaning, is_of_kernel, is_share, understand, understand_peak, words, words_without_unit};
use crate::columns::{Columns, Use};
use crate::error::Error;
use crate::formats::nvidia_smi;
use crate::reading::{Blocks, Reading};
use crate::series::identity::{Identity, Part, Who, column_identity, recurs, wide_column};
use crate::time::parse_moment;
use crate::unit::rule::{BESIDE_PIDS, Convention, KERNEL, PS, PSUTIL};

/// The chosen columns.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// One for each series of a wide table; otherwise a single one.
    pub(crate) variants: Vec<Variant>,
    /// The columns that tell series apart.
    pub(crate) identity: Vec<(usize, Who)>,
    /// Their values in the head of the file.
    seen: HashMap<usize, Vec<String>>,
}

/// The columns of one series.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) series: Option<Identity>,
    pub(crate) columns: Columns,
}

/// Values of an identity column looked at in the head of a file.
const MOST_SEEN: usize = 500;
/// Rows of one run, on average, where runs follow each other.
const SHORTEST_BLOCK: usize = 4;
/// No machine has more GPUs, so a larger number is not a GPU's index.
const MOST_GPUS: f64 = 64.0;

impl Choice {
    /// Decides what each named column is.
    pub(crate) fn of(names: Vec<String>, options: &ReadOptions) -> Result<Self, Error> {
        let wide = if options.column.is_none() { wide_group(&names) } else { Vec::new() };
        let plain = main_column(&names, &wide, options);
        let variants = match plain {
            Err(_) if !wide.is_empty() => {
                let others: Vec<usize> = wide.iter().map(|(index, _)| *index).collect();
                let variant = |(index, identity): &Wide| Variant {
                    series: Some(identity.clone()),
                    columns: choose(&names, *index, &others, options),
                };
                wide.iter().map(variant).collect()
            }
            plain => vec![Variant { series: None, columns: choose(&names, plain?, &[], options) }],
        };
        let mut choice = Choice { variants, identity: Vec::new(), seen: HashMap::new() };
        choice.identity = identity_columns(&names, choice.columns().main());
        Ok(choice)
    }

    /// The columns of the first series.
    pub(crate) fn columns(&self) -> &Columns {
        &self.variants[0].columns
    }

    /// Plain "memory" beside a GPU's index is the GPU's.
    fn judge_device_of_gpus(&mut self) {
        for Variant { columns, .. } in &mut self.variants {
            if understand(&columns.names[columns.main()]).meaning == Meaning::Memory {
                columns.subject = Subject::Device;
            }
        }
    }

    /// Whether the values of a column in the head of the file are of use: all but amounts.
    pub(crate) fn wants_text(&self, index: usize) -> bool {
        let is_amount =
            |(used, what): &(usize, Use)| *used == index && matches!(what, Use::Value { .. } | Use::Limit { .. });
        // A column such as `gpu` looks like an amount until its values say that it is an index.
        let is_identity = self.identity.iter().any(|(identity, _)| *identity == index);
        is_identity || !self.columns().used.iter().any(is_amount)
    }

    /// The column of steps or times.
    fn axis(&self) -> Option<usize> {
        self.used_as(|used| matches!(used, Use::Step | Use::Time { .. }))
    }

    /// The first column of such a use.
    fn used_as(&self, is_wanted: impl Fn(&Use) -> bool) -> Option<usize> {
        self.columns().used.iter().find(|(_, used)| is_wanted(used)).map(|(index, _)| *index)
    }

    /// A column of words whose name says nothing and that yet tells series apart: several of its values share each time.
    fn unnamed_identity(&self, seen: &HashMap<usize, Vec<String>>) -> Option<usize> {
        let values = |index: Option<usize>| index.and_then(|index| seen.get(&index)).map_or(&[][..], Vec::as_slice);
        let times = values(self.used_as(|used| matches!(used, Use::Time { .. })));
        let is_used = |index: usize| self.columns().used.iter().any(|(used, _)| *used == index);
        let tells = |&index: &usize| {
            let words = values(Some(index));
            let is_other = understand(&self.columns().names[index]).meaning == Meaning::Unknown;
            let shares = || share_moments(words, times) && are_distinct(words, times);
            is_other && !is_used(index) && are_words(words) && shares()
        };
        (0..self.columns().names.len()).find(tells)
    }

    /// Takes in a number from the head of the file.
    pub(crate) fn observe(&mut self, index: usize, amount: Amount) {
        self.variants.iter_mut().for_each(|variant| variant.columns.observe(index, amount));
    }

    /// Takes in the text of an identity column from the head of the file.
    pub(crate) fn observe_text(&mut self, index: usize, text: &str) {
        let seen = self.seen.entry(index).or_default();
        if seen.len() < MOST_SEEN {
            seen.push(text.trim().to_string());
        }
    }

    /// Settles what the head of the file shows: provisional units, and which columns are identities.
    pub(crate) fn settle(&mut self, options: &ReadOptions) {
        self.variants.iter_mut().for_each(|variant| variant.columns.settle(options.machine));
        let seen = std::mem::take(&mut self.seen);
        let values = |index: &usize| seen.get(index).map_or(&[][..], Vec::as_slice);
        let moments = self.axis().map_or(&[][..], |axis| values(&axis));
        let names = self.columns().names.clone();
        self.identity.retain(|(index, who)| match who {
            // A number of the row comes again too, in another run, but not twice at one moment.
            Who::Number => share_moments(values(index), moments),
            Who::Loose => {
                let values = values(index);
                share_moments(values, moments) || (are_words(values) && begin_anew(values, moments))
            }
            Who::Run | Who::Seed => share_moments(values(index), moments) || come_in_blocks(values(index)),
            // A column `gpu` may hold the memory of the only GPU, or how busy it is.
            Who::Gpu if names[*index].trim().eq_ignore_ascii_case("gpu") => takes_turns(values(index)),
            Who::Gpu => {
                values(index).iter().all(|value| value.parse::<f64>().is_ok_and(is_index) || is_device_name(value))
            }
            _ => true,
        });
        if self.identity.is_empty() && self.variants.len() == 1 {
            self.identity.extend(self.unnamed_identity(&seen).map(|index| (index, Who::Loose)));
        }
        if self.identity.iter().any(|(_, who)| *who == Who::Gpu) {
            self.judge_device_of_gpus();
        }
        for (index, _) in &self.identity {
            self.variants.iter_mut().for_each(|variant| variant.columns.forget(*index));
        }
    }

    /// Settles a choice whose columns were told by their values.
    pub(crate) fn settle_headless(&mut self) {
        self.seen.clear();
        for (index, _) in &self.identity {
            self.variants.iter_mut().for_each(|variant| variant.columns.forget(*index));
        }
    }

    /// Whether the rows have times.
    pub(crate) fn has_times(&self) -> bool {
        self.columns().used.iter().any(|(_, used)| matches!(used, Use::Time { .. }))
    }

    /// Declares the columns to the reading.
    pub(crate) fn introduce(&self, reading: &mut Reading) {
        reading.blocks = Blocks::Restarts;
        for variant in self.variants.iter().rev() {
            variant.columns.introduce(reading);
        }
        if self.variants.len() > 1 {
            reading.blocks = Blocks::Series;
            reading.names.remove(&Quantity::Rss);
        }
    }

    /// The identity of a row, given its cells; none if all of them are blank.
    pub(crate) fn identity_of<'c>(&self, cell: impl Fn(usize) -> Option<&'c str>) -> Identity {
        let parts = self.identity.iter().map(|&(index, who)| {
            let value = cell(index).unwrap_or_default().trim().trim_matches('"').to_string();
            Part { who, value }
        });
        Identity { parts: parts.collect(), detail: None }
    }
}

/// Whether several values share each moment, as those of series written side by side do.
fn share_moments(values: &[String], moments: &[String]) -> bool {
    if values.len() != moments.len() || !recurs(values.iter().map(String::as_str)) {
        return false;
    }
    let changes = || (1..values.len()).filter(|&at| values[at] != values[at - 1]);
    let shared = changes().filter(|&at| moments[at] == moments[at - 1]).count();
    // Of two series that take turns every other change is at one moment.
    5 * shared >= 2 * changes().count()
}

/// Whether no value comes twice at one moment.
fn are_distinct(values: &[String], moments: &[String]) -> bool {
    let mut pairs: Vec<(&String, &String)> = moments.iter().zip(values).collect();
    pairs.sort_unstable();
    pairs.windows(2).all(|pair| pair[0] != pair[1])
}

/// Most words of a column that tells series apart.
const MOST_WORDS: usize = 64;

/// Whether values are a few words, rather than numbers, times or sentences.
fn are_words(values: &[String]) -> bool {
    let is_word = |value: &&String| {
        !value.is_empty() && value.len() <= 80 && value.parse::<f64>().is_err() && parse_moment(value).is_none()
    };
    let mut distinct: Vec<&String> = values.iter().collect();
    distinct.sort_unstable();
    distinct.dedup();
    (2..=MOST_WORDS).contains(&distinct.len()) && distinct.iter().all(is_word)
}

/// Whether steps or times go back exactly where values change: each is a run of its own.
fn begin_anew(values: &[String], axis: &[String]) -> bool {
    let place = |at: usize| axis[at].parse::<f64>().ok().or_else(|| Some(parse_moment(&axis[at])?.seconds));
    let is_run = |at: usize| {
        let goes_back = place(at).zip(place(at - 1)).map(|(now, before)| now < before);
        goes_back == Some(values[at] != values[at - 1])
    };
    values.len() == axis.len() && come_in_blocks(values) && (1..values.len()).all(is_run)
}

/// Whether values stay the same for many rows each: runs one below the other, and not a number of each row.
fn come_in_blocks(values: &[String]) -> bool {
    let changes = (1..values.len()).filter(|&at| values[at] != values[at - 1]).count();
    changes * SHORTEST_BLOCK <= values.len()
}

/// Whether values are the indices of GPUs that take turns: 0, 1, 0, 1, or names of devices.
fn takes_turns(values: &[String]) -> bool {
    let mut distinct: Vec<&String> = values.iter().collect();
    distinct.sort_unstable();
    distinct.dedup();
    let is_contiguous = (0..distinct.len()).all(|index| distinct.contains(&&index.to_string()));
    let is_known = is_contiguous || distinct.iter().all(|value| is_device_name(value));
    let turns = || values.iter().map(String::as_str);
    is_known && distinct.len() as f64 <= MOST_GPUS && (distinct.len() == 1 || recurs(turns()))
}

fn is_index(value: f64) -> bool {
    (0.0..MOST_GPUS).contains(&value) && value.fract() == 0.0
}

fn is_device_name(value: &str) -> bool {
    value.starts_with("cuda:") || value.starts_with("GPU") || value.starts_with("NVIDIA")
}

fn choose(names: &[String], main: usize, others: &[usize], options: &ReadOptions) -> Columns {
    let name = &names[main];
    let mut columns = Columns::beside(names.to_vec(), main, others, convention(names, main), options);
    let meaning = understand(name).meaning;
    if meaning == Meaning::Quantity(Quantity::Gpu) || nvidia_smi::is_query(names) {
        columns.subject = Subject::Device;
    }
    if let Some(total) = total_beside(names, main) {
        columns.add_limit(total);
    }
    if machine_used(names) == Some(main) {
        columns.subject = Subject::Machine;
    } else if meaning == Meaning::Unknown && options.column.is_none() {
        columns.note(format!("`{name}` is a peak, which never falls: {ONLY_A_PEAK}"));
    }
    columns
}

/// The column of all memory beside that of the memory in use: `memory.total` beside `memory.used`.
fn total_beside(names: &[String], main: usize) -> Option<usize> {
    let mut wanted = words_without_unit(&names[main]);
    let used = wanted.iter_mut().find(|word| matches!(word.as_str(), "used" | "usage" | "use"))?;
    *used = "total".to_string();
    names.iter().position(|name| words_without_unit(name) == wanted)
}

/// What a running maximum cannot show.
pub(crate) const ONLY_A_PEAK: &str = "memory that is given back does not show";

/// The main column; `wide` are columns of a wide table, which are a series each.
fn main_column(names: &[String], wide: &[Wide], options: &ReadOptions) -> Result<usize, Error> {
    if let Some(asked) = &options.column {
        let missing = || Error::NoSuchColumn { asked: asked.clone(), available: names.to_vec() };
        let found = find_column(names, asked).ok_or_else(missing)?;
        let is_amount = !is_share(&names[found]);
        return if is_amount { Ok(found) } else { Err(Error::Share { column: names[found].clone() }) };
    }
    let meanings: Vec<Meaning> = names.iter().map(|name| understand(name).meaning).collect();
    let is_free = |at: &usize| !wide.iter().any(|(index, _)| index == at);
    let find = |wanted: &dyn Fn(usize) -> bool| (0..names.len()).filter(is_free).find(|&at| wanted(at));
    // `rss_mb` is the process's; `initial_rss_mb` and `children_rss_mb` say more words for something else.
    let is = |meaning: Meaning| {
        let of_meaning = (0..names.len()).filter(is_free).filter(|&at| meanings[at] == meaning);
        of_meaning.min_by_key(|&at| words_without_unit(&names[at]).len())
    };
    let gpu = |at: usize| meanings[at] == Meaning::Quantity(Quantity::Gpu);
    let says_memory = |at: usize| {
        let is_memory =
            |word: &String| matches!(word.as_str(), "mem" | "memory" | "vram" | "allocated" | "reserved" | "used");
        understand(&names[at]).factor.is_some() || words(&names[at]).iter().any(is_memory)
    };
    let is_lone = |at: usize| words(&names[at]).len() == 1;
    let host = is(Meaning::Quantity(Quantity::Rss)).or(is(Meaning::Quantity(Quantity::Pss))).or(is(Meaning::Memory));
    let device = || find(&|at| gpu(at) && says_memory(at)).or_else(|| find(&|at| gpu(at) && is_lone(at)));
    let peak = || find(&|at| understand_peak(&names[at]));
    let missing = || Error::NoMemoryColumn { columns: names.to_vec() };
    let of_wide = || if wide.is_empty() { peak().or_else(|| machine_used(names)) } else { None };
    host.or_else(device).or_else(of_wide).ok_or_else(missing)
}

/// The memory in use of a machine, in a table with the columns of `free`: total, used and free.
fn machine_used(names: &[String]) -> Option<usize> {
    let find = |prefix: &[&str], wanted: &str| {
        names.iter().position(|name| {
            let words = words_without_unit(name);
            words.split_last().is_some_and(|(last, before)| last == wanted && before == prefix)
        })
    };
    let of = |prefix: &[&str]| {
        let find = |wanted: &str| find(prefix, wanted);
        // `dstat` has no total, but names the caches.
        let rest = find("free").or_else(|| find("available"));
        find("total").or_else(|| find("cach")).and(rest).and(find("used"))
    };
    of(&[]).or_else(|| of(&["mem"])).or_else(|| of(&["memory"]))
}

/// A column of a wide table: its index, and the series that it is.
type Wide = (usize, Identity);

/// Columns that differ only in the values of their identities.
struct WideGroup {
    whose: Vec<Who>,
    rest: String,
    members: Vec<Wide>,
}

/// Two or more columns of memory that differ only in a number, or in the name of a run in front.
fn wide_group(names: &[String]) -> Vec<Wide> {
    let is_memory = |name: &str| {
        let meaning = understand(name).meaning;
        matches!(meaning, Meaning::Memory | Meaning::Quantity(Quantity::Rss | Quantity::Pss | Quantity::Gpu))
    };
    let has_runs = has_several_runs(names);
    let mut groups: Vec<WideGroup> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let run = name.split_once(RUN_ENDS).filter(|_| has_runs);
        let own = run.map_or(name.as_str(), |(_, own)| own);
        let numbered = wide_column(own);
        // Without its number, `rank0_rss` is a memory column; `gpu0_mb` is one with it.
        let is_series = match &numbered {
            Some((who, _, rest)) => is_memory(rest) || (*who == Who::Gpu && is_memory(own)),
            None => run.is_some() && is_memory(own),
        };
        if !is_series {
            continue;
        }
        let run = run.map(|(run, _)| Part { who: Who::Named, value: run.trim().to_string() });
        let rest = numbered.as_ref().map_or(own.to_string(), |(_, _, rest)| rest.clone());
        let number = numbered.map(|(who, value, _)| Part { who, value });
        let identity = Identity { parts: run.into_iter().chain(number).collect(), detail: None };
        let whose: Vec<Who> = identity.parts.iter().map(|part| part.who).collect();
        match groups.iter_mut().find(|group| group.whose == whose && group.rest == rest) {
            Some(group) => group.members.push((index, identity)),
            None => groups.push(WideGroup { whose, rest, members: vec![(index, identity)] }),
        }
    }
    // Host memory first, then the group of GPUs' memory in use.
    let wide = groups.into_iter().filter(|group| group.members.len() > 1);
    wide.min_by_key(|group| group.whose.contains(&Who::Gpu)).map(|group| group.members).unwrap_or_default()
}

/// What stands between the name of a run and that of its column, in what W&B exports.
const RUN_ENDS: &str = " - ";

fn has_several_runs(names: &[String]) -> bool {
    let mut runs = names.iter().filter_map(|name| Some(name.split_once(RUN_ENDS)?.0));
    runs.next().is_some_and(|first| runs.any(|run| run != first))
}

fn identity_columns(names: &[String], main: usize) -> Vec<(usize, Who)> {
    if nvidia_smi::is_query(names) {
        return nvidia_smi::identity_columns(names);
    }
    let identity = |(index, name): (usize, &String)| Some((index, column_identity(name)?));
    let mut found: Vec<(usize, Who)> =
        names.iter().enumerate().filter(|(index, _)| *index != main).filter_map(identity).collect();
    // What may merely describe the row is no identity where something else is.
    for weak in [Who::Number, Who::Loose, Who::Seed, Who::Run] {
        if found.iter().any(|(_, who)| *who != weak) {
            found.retain(|(_, who)| *who != weak);
        }
    }
    found
}

/// Who wrote the numbers of the main column, judged by its name and its neighbours.
fn convention(names: &[String], main: usize) -> Convention {
    let words = words(&names[main]);
    let has = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
    if is_of_kernel(&names[main]) {
        return KERNEL;
    }
    let beside = |wanted: &[&str]| {
        let is_wanted = |name: &String| wanted.contains(&name.trim().to_ascii_lowercase().as_str());
        names.iter().enumerate().any(|(index, name)| index != main && is_wanted(name))
    };
    let is_rss = matches!(names[main].trim().to_ascii_lowercase().as_str(), "rss" | "rsz" | "size" | "rssize");
    match () {
        _ if is_rss && beside(&["vsz", "%mem", "%cpu", "pmem", "pcpu", "tty", "stat", "rsz"]) => PS,
        _ if has(&["rss"]) && names.iter().any(|name| name.rsplit(['.', '_']).next() == Some("vms")) => PSUTIL,
        _ if is_rss && beside(&["pid", "cmd", "comm", "command", "args"]) => BESIDE_PIDS,
        _ => Convention::None,
    }
}

/// Finds a column by its exact name, else by its letters and digits alone, else without its unit.
pub(crate) fn find_column(names: &[String], asked: &str) -> Option<usize> {
    let bare = |name: &str| words(name).concat();
    let exact = names.iter().position(|name| name.trim() == asked.trim());
    let alike = || names.iter().position(|name| !bare(name).is_empty() && bare(name) == bare(asked));
    let without_unit = |name: &String| words_without_unit(name).concat();
    let beside_unit = || names.iter().position(|name| !bare(asked).is_empty() && without_unit(name) == bare(asked));
    exact.or_else(alike).or_else(beside_unit)
}
