//! Whose memory a row shows, where a file holds several series: ranks, GPUs, processes, containers, hosts.
//!
//! An identity is a list of parts such as `rank 3` or `pid 4711`. Its name shows only the parts in which the series of a
//! file differ.

use crate::columns::names::words;

/// What a part of an identity counts or names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    Rank,
    LocalRank,
    Worker,
    Gpu,
    Pid,
    Host,
    Device,
    /// A container, a pod, a process's name: the value is the whole name.
    Named,
    /// A number of unknown meaning, such as `id`; an identity only if values recur.
    Number,
    /// A name that may merely describe the row, such as `task`; an identity only if several share each moment.
    Loose,
    /// A run of a program, by its name or number, and one by its seed: runs follow each other in one file.
    Run,
    Seed,
    /// The whole machine.
    Machine,
    /// A label of Prometheus, with its name.
    Label,
}

/// One part of an identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) who: Who,
    pub(crate) value: String,
}

/// The identity of one series.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) parts: Vec<Part>,
    /// A process's command line.
    pub(crate) detail: Option<String>,
}

/// The longest command line in a name.
const LONGEST_DETAIL: usize = 60;

impl Identity {
    /// An identity of one part.
    pub(crate) fn of(who: Who, value: impl Into<String>) -> Identity {
        Identity { parts: vec![Part { who, value: value.into() }], detail: None }
    }

    /// A process, with its command line.
    pub(crate) fn process(pid: &str, command: Option<&str>) -> Identity {
        let command = command.map(|command| command.split_whitespace().collect::<Vec<_>>().join(" "));
        Identity { detail: command.filter(|command| !command.is_empty()), ..Identity::of(Who::Pid, pid) }
    }

    /// The whole machine, beside its processes.
    pub(crate) fn machine() -> Identity {
        Identity::of(Who::Machine, "machine")
    }

    /// The name, from the parts that `shown` accepts by position.
    pub(crate) fn name(&self, shown: impl Fn(usize) -> bool) -> String {
        let parts = self.parts.iter().enumerate().filter(|(place, _)| shown(*place)).map(|(_, part)| part.text());
        let name = parts.collect::<Vec<_>>().join(", ");
        match &self.detail {
            Some(detail) => format!("{name} ({})", cut(detail)),
            None => name,
        }
    }

    /// The identity without process ids, which change when a process is restarted.
    pub(crate) fn without_pid(&self) -> Identity {
        let parts = self.parts.iter().filter(|part| part.who != Who::Pid).cloned();
        Identity { parts: parts.collect(), detail: self.detail.clone() }
    }
}

impl Part {
    fn text(&self) -> String {
        let Part { who, value } = self;
        match who {
            Who::Rank => format!("rank {value}"),
            Who::LocalRank => format!("local rank {value}"),
            Who::Worker => format!("worker {value}"),
            Who::Gpu => format!("GPU {value}"),
            Who::Pid => format!("pid {value}"),
            Who::Host => format!("host {value}"),
            Who::Device => format!("device {value}"),
            Who::Number => format!("id {value}"),
            Who::Run => format!("run {value}"),
            Who::Seed => format!("seed {value}"),
            Who::Named | Who::Loose | Who::Machine | Who::Label => value.clone(),
        }
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST_DETAIL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// The part of an identity that a column of this name holds.
pub(crate) fn column_identity(name: &str) -> Option<Who> {
    // A nested key such as `labels.rank` means its last word; a table's heading may have a path in front, too.
    let own = name.rsplit(['.', '/']).next().unwrap_or(name);
    Some(match words(own).concat().as_str() {
        "rank" | "globalrank" | "rankid" | "worldrank" => Who::Rank,
        "localrank" => Who::LocalRank,
        "worker" | "workerid" => Who::Worker,
        "gpu" | "gpuindex" | "gpuid" | "gpuidx" => Who::Gpu,
        "pid" | "processid" => Who::Pid,
        "host" | "hostname" | "node" | "nodename" | "noderank" | "server" => Who::Host,
        "device" | "deviceid" | "deviceindex" => Who::Device,
        "container" | "containername" | "containerid" | "pod" | "podname" | "name" | "process" | "processname" => {
            Who::Named
        }
        "id" | "index" => Who::Number,
        "run" | "runid" | "runname" | "runuuid" | "runhash" | "runkey" | "runnumber" | "trial" | "trialid"
        | "experiment" | "fold" => Who::Run,
        "seed" | "randomseed" => Who::Seed,
        "instance" | "command" | "cmd" | "job" | "jobid" | "uuid" | "gpuuuid" | "task" | "taskid" => Who::Loose,
        _ => return names_something(own).then_some(Who::Loose),
    })
}

/// Whether a column's name ends like one that says what a row is about: `src_host`, `proc_name`, `model`.
fn names_something(name: &str) -> bool {
    const THINGS: [&str; 24] = [
        "host",
        "node",
        "machine",
        "vm",
        "pod",
        "container",
        "namespace",
        "service",
        "app",
        "proc",
        "process",
        "role",
        "actor",
        "name",
        "uuid",
        "job",
        "model",
        "variant",
        "version",
        "branch",
        "config",
        "backend",
        "method",
        "user",
    ];
    // What happens within one process is named, too.
    const HAPPENINGS: [&str; 8] = ["event", "phase", "stage", "metric", "span", "function", "func", "file"];
    let words = words(name);
    let last = words.last().is_some_and(|last| THINGS.contains(&last.as_str()));
    last && !words.iter().any(|word| HAPPENINGS.contains(&word.as_str()))
}

/// Whether values recur in turn, as those of several series written side by side do; equal neighbours count once.
pub(crate) fn recurs<'v>(values: impl Iterator<Item = &'v str>) -> bool {
    let mut seen: Vec<&str> = Vec::new();
    for value in values {
        if seen.last() == Some(&value) {
            continue;
        }
        if seen.contains(&value) {
            return true;
        }
        seen.push(value);
    }
    false
}

/// A column of a wide table: the series that `gpu0_mb` or `rss_rank_1` belongs to, and its name without the number.
pub(crate) fn wide_column(name: &str) -> Option<(Who, String, String)> {
    let words = words(name);
    for (at, word) in words.iter().enumerate() {
        let stem = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let glued =
            (stem.len() < word.len()).then(|| wide_word(stem)).flatten().map(|who| (who, &word[stem.len()..], 1));
        let next = words.get(at + 1).filter(|next| next.chars().all(|c| c.is_ascii_digit()));
        let apart = next.and_then(|number| Some((wide_word(word)?, number.as_str(), 2)));
        if let Some((who, number, length)) = glued.or(apart) {
            let rest: Vec<&str> = words[..at].iter().chain(&words[at + length..]).map(String::as_str).collect();
            return Some((who, number.to_string(), rest.join("_")));
        }
    }
    None
}

fn wide_word(word: &str) -> Option<Who> {
    Some(match word {
        "rank" => Who::Rank,
        "gpu" | "cuda" => Who::Gpu,
        "worker" => Who::Worker,
        "node" | "host" => Who::Host,
        "pid" => Who::Pid,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_identity_columns() {
        for (name, who) in [
            ("pid", Some(Who::Pid)),
            ("local_rank", Some(Who::LocalRank)),
            ("GPU index", Some(Who::Gpu)),
            ("labels.rank", Some(Who::Rank)),
            ("process name", Some(Who::Named)),
            ("rank_loss", None),
            ("user", Some(Who::Loose)),
            ("src_host", Some(Who::Loose)),
            ("event_name", None),
            ("run_uuid", Some(Who::Run)),
        ] {
            assert_eq!(column_identity(name), who, "{name}");
        }
    }

    #[test]
    fn wide_columns() {
        let wide = |name| wide_column(name).map(|(who, number, rest)| format!("{who:?} {number} {rest}"));
        assert_eq!(wide("gpu0_mb"), Some("Gpu 0 mb".to_string()));
        assert_eq!(wide("rss_rank_12"), Some("Rank 12 rss".to_string()));
        assert_eq!(wide("rss_mb"), None);
    }

    #[test]
    fn values_in_turn_recur_and_blocks_do_not() {
        assert!(recurs(["0", "1", "0", "1"].into_iter()));
        assert!(!recurs(["0", "0", "1", "1", "2"].into_iter()));
    }
}
