//! `ps`, `top -b`, `pidstat -r` and `smem`: rows of processes under a header that repeats, in KiB.
//!
//! The columns may stand in any order; a command line, which has blanks of its own, may stand anywhere among them. The
//! rows of `ps aux` are known without a header too, as a `grep` leaves them. `grep` and `ps` themselves are left out, and
//! so are threads of the kernel, which have no memory of their own.

use garden_memory::{KIB, Quantity, Subject};

use super::{Claim, Family, Figure, Listen, Told, Tool};
use crate::error::Error;
use crate::series::identity::{Identity, Who};
use crate::time::Stamp;

pub(super) const PS: Tool = Tool { name: "ps", documented_as: "ps", example: "ps.txt" };
pub(super) const TOP: Tool = Tool { name: "top", documented_as: "top", example: "top.txt" };
pub(super) const PIDSTAT: Tool = Tool { name: "pidstat", documented_as: "pidstat", example: "pidstat.txt" };
pub(super) const SMEM: Tool = Tool { name: "smem", documented_as: "smem", example: "smem.txt" };

/// The tools of this file.
pub(in crate::formats) const FAMILY: Family =
    Family { tools: &[PS, TOP, PIDSTAT, SMEM], listen: |_| Box::new(Processes::default()) };

/// Reads rows of processes.
#[derive(Default)]
pub(super) struct Processes {
    layout: Option<Layout>,
    /// Rows of another report of the same tool follow, such as those of `pidstat -u`, which have no memory.
    is_foreign: bool,
    left_out: usize,
    /// Without process ids: the names below the present header, and whether one came twice.
    names: Vec<String>,
    is_mixed: bool,
}

/// The columns of a header, by position.
#[derive(Clone, Debug, PartialEq)]
struct Layout {
    tool: Tool,
    column: &'static str,
    count: usize,
    rss: usize,
    pid: Option<usize>,
    /// The command line.
    command: Option<usize>,
    /// The start time as `ps` prints it with `lstart`: five words.
    started: Option<usize>,
    /// Time since the process began: `etime` and `etimes` of `ps`.
    elapsed: Option<usize>,
    others: Vec<(usize, Quantity)>,
}

/// The columns of `top -b`.
const TOP_COLUMNS: &str = "PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND";

/// The columns of `ps aux`.
const AUX: &str = "USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND";

impl Listen for Processes {
    fn take(&mut self, line: &str, _: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        if let Some(layout) = Layout::of(line) {
            (self.layout, self.is_foreign) = (Some(layout), false);
            self.names.clear();
            return Claim::Yes;
        }
        if is_header_without_memory(line) {
            (self.layout, self.is_foreign) = (None, true);
            return Claim::Yes;
        }
        if let Some(claim) = take_summary(line, told) {
            return claim;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let row = self.layout.as_ref().and_then(|layout| layout.row(&words));
        let row = row.or_else(|| is_aux(&words).then(|| Layout::of(AUX)?.row(&words)).flatten());
        let row = row.or_else(|| is_top(&words).then(|| Layout::of(TOP_COLUMNS)?.row(&words)).flatten());
        let Some(row) = row else {
            let is_row = self.is_foreign && words.iter().take(2).any(|word| word.parse::<u32>().is_ok());
            return if is_row { Claim::Yes } else { Claim::No };
        };
        let program = row.identity.as_ref().and_then(command_of).map(program_of);
        let is_kernel_thread =
            program.is_some_and(|name| name.starts_with('[')) && row.sample.get(Quantity::Rss) == Some(0);
        if matches!(program, Some("grep" | "egrep" | "fgrep" | "rg" | "pgrep" | "ps")) {
            self.left_out += 1;
        } else if !is_kernel_thread {
            self.check_name(&row);
            told.push(row);
        }
        Claim::Yes
    }

    fn refusal(&self) -> Option<Error> {
        let problem = "several processes of `ps` have one name, and their rows have no pid";
        let advice = "record the pid too: `while sleep 1; do ps -p PID -o pid,rss,cmd; done`";
        self.is_mixed.then_some(Error::NoUsedMemory { problem, advice })
    }

    fn note(&self) -> Option<String> {
        let rows = if self.left_out == 1 { "row" } else { "rows" };
        (self.left_out > 0).then(|| format!("left out: {} {rows} of `grep` and `ps` themselves", self.left_out))
    }
}

impl Processes {
    /// Without a process id only the name tells processes apart, which must not come twice below one header.
    fn check_name(&mut self, row: &Told) {
        let Some(identity) = row.identity.as_ref().filter(|identity| identity.parts[0].who == Who::Named) else {
            return;
        };
        let name = &identity.parts[0].value;
        self.is_mixed |= self.names.contains(name);
        self.names.push(name.clone());
    }
}

impl Layout {
    /// The layout that a line states, if it is a header.
    fn of(line: &str) -> Option<Layout> {
        // No tool separates columns by tabs; somebody's table with such names may have any unit.
        if line.contains('\t') {
            return None;
        }
        let words: Vec<&str> = line.trim_start_matches('#').split_whitespace().collect();
        // Times in front of rows, as pidstat writes them, are taken off as stamps.
        let words = if matches!(words.first(), Some(&("Time" | "TIME"))) { &words[1..] } else { &words[..] };
        let find = |wanted: &[&str]| words.iter().position(|word| wanted.contains(word));
        let rss = find(&["RSS", "RSZ", "RSSIZE", "RES"])?;
        let (pid, command) = (find(&["PID", "TGID"]), find(&["COMMAND", "CMD", "Command", "ARGS"]));
        let is_lone = words.len() == 1 || (words.len() == 2 && command.is_some());
        let is_header = words.iter().all(|word| word.parse::<f64>().is_err()) && (pid.is_some() || is_lone);
        let tool = match () {
            _ if find(&["TIME+"]).is_some() || words[rss] == "RES" => TOP,
            _ if find(&["minflt/s"]).is_some() => PIDSTAT,
            _ if find(&["USS"]).is_some() && find(&["PSS"]).is_some() => SMEM,
            _ => PS,
        };
        let other = |name: &str, quantity| find(&[name]).map(|at| (at, quantity));
        let others = [other("PSS", Quantity::Pss), other("USS", Quantity::Private), other("Swap", Quantity::Swap)];
        is_header.then(|| Layout {
            tool,
            column: if words[rss] == "RES" { "RES" } else { "RSS" },
            count: words.len(),
            rss,
            pid,
            command,
            started: find(&["STARTED"]),
            elapsed: find(&["ELAPSED"]),
            others: others.into_iter().flatten().collect(),
        })
    }

    /// A row below the header.
    fn row(&self, words: &[&str]) -> Option<Told> {
        let extra = words.len().checked_sub(self.count)?;
        let long_start = self.started.filter(|&at| words.get(at).is_some_and(|word| is_weekday(word)));
        let shift = if long_start.is_some() { 4 } else { 0 };
        if extra < shift || (extra > shift && self.command.is_none()) {
            return None;
        }
        // Words before the command count from the left, those behind it from the right.
        let place = |column: usize| {
            let moved = if long_start.is_some_and(|at| column > at) { shift } else { 0 };
            let behind = self.command.is_some_and(|command| column > command);
            if behind { words.len() - (self.count - column) } else { column + moved }
        };
        let amount = |column: usize| Figure::parse(words.get(place(column))?);
        let rss = amount(self.rss)?;
        let told = Told::new(self.tool, Subject::Process, self.column, rss.bytes(KIB)?, rss.factor.unwrap_or(KIB));
        let command = self.command.map(|at| {
            let from = place(at);
            let to = words.len().saturating_sub(self.count - at - 1);
            words.get(from..to).unwrap_or_default().join(" ")
        });
        let mut told = match (self.pid, command) {
            (Some(pid), command) => {
                let pid = words.get(place(pid)).filter(|pid| pid.parse::<u32>().is_ok())?;
                told.of(Identity::process(pid, command.as_deref()))
            }
            (None, Some(command)) => told.of(Identity::of(Who::Named, command)),
            (None, None) => told,
        };
        told.sample.time_s = self.elapsed.and_then(|column| elapsed_of(words.get(place(column))?));
        for &(column, quantity) in &self.others {
            if let Some(bytes) = amount(column).and_then(|figure| figure.bytes(KIB)) {
                told.sample.set(quantity, bytes);
            }
        }
        Some(told)
    }
}

/// Seconds of `95`, `01:35`, `1:00:35` or `2-01:00:35`.
fn elapsed_of(word: &str) -> Option<f64> {
    let (days, clock) = word.split_once('-').unwrap_or(("0", word));
    let parts: Option<Vec<f64>> = clock.split(':').map(|part| part.parse::<u32>().ok().map(f64::from)).collect();
    let seconds = parts?.into_iter().fold(0.0, |sum, part| 60.0 * sum + part);
    Some(f64::from(days.parse::<u32>().ok()?) * 86_400.0 + seconds)
}

/// Whether a line is the header of `pidstat`'s reports on processors, disks and the like.
fn is_header_without_memory(line: &str) -> bool {
    const RATES: [&str; 4] = ["%usr", "kB_rd/s", "cswch/s", "StkSize"];
    let words: Vec<&str> = line.trim_start_matches('#').split_whitespace().collect();
    words.contains(&"PID") && words.iter().any(|word| RATES.contains(word)) && !words.contains(&"RSS")
}

fn is_weekday(word: &str) -> bool {
    ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].contains(&word)
}

/// Whether words are a row of `ps aux`, whose header a `grep` has swallowed.
fn is_aux(words: &[&str]) -> bool {
    let [_, pid, cpu, memory, virtual_size, rss, terminal, state, _, time, _, ..] = words else { return false };
    let whole = |word: &str| word.parse::<u64>().is_ok();
    let percent = |word: &str| word.parse::<f64>().is_ok();
    let is_terminal = *terminal == "?" || terminal.starts_with("pts/") || terminal.starts_with("tty");
    let is_state = state.starts_with(|c: char| "RSDTtZIWXKP".contains(c)) && state.len() <= 6;
    [pid, virtual_size, rss].iter().all(|word| whole(word))
        && [cpu, memory].iter().all(|word| percent(word))
        && (cpu.contains('.') || memory.contains('.'))
        && is_terminal
        && is_state
        && time.contains(':')
}

/// Whether words are a row of `top -b`, whose header a `grep` has swallowed.
fn is_top(words: &[&str]) -> bool {
    let [pid, _, priority, nice, virtual_size, resident, shared, state, cpu, memory, time, _, ..] = words else {
        return false;
    };
    let is_amount = |word: &&str| Figure::parse(word).is_some();
    let is_percent = |word: &&str| word.replace(',', ".").parse::<f64>().is_ok();
    pid.parse::<u32>().is_ok()
        && (*priority == "rt" || priority.parse::<i32>().is_ok())
        && nice.parse::<i32>().is_ok()
        && [virtual_size, resident, shared].into_iter().all(is_amount)
        && matches!(*state, "R" | "S" | "D" | "I" | "T" | "t" | "Z")
        && [cpu, memory].into_iter().all(is_percent)
        && time.contains(':')
}

/// The command line of a process.
fn command_of(identity: &Identity) -> Option<&str> {
    let name = identity.parts.iter().find(|part| part.who == Who::Named).map(|part| part.value.as_str());
    identity.detail.as_deref().or(name)
}

/// The name of a command line's program.
fn program_of(command: &str) -> &str {
    let first = command.split_whitespace().next().unwrap_or_default();
    first.rsplit('/').next().unwrap_or(first)
}

/// The lines above and below the rows; `top` shows the machine's memory there.
fn take_summary(line: &str, told: &mut Vec<Told>) -> Option<Claim> {
    const KNOWN: [&str; 7] = ["Tasks:", "Threads:", "%Cpu", "Cpu(s):", "Average:", "KiB Swap", "MiB Swap"];
    if KNOWN.iter().any(|start| line.starts_with(start)) || line.starts_with("GiB Swap") {
        return Some(Claim::Yes);
    }
    if line.starts_with("Linux ") && line.trim_end().ends_with("CPU)") {
        return Some(Claim::Yes);
    }
    let (unit, rest) = line.split_once(" Mem")?;
    let factor = garden_memory::unit_factor(unit).filter(|_| unit.ends_with("iB"))?;
    let words: Vec<&str> = rest.split([' ', ',', ':']).filter(|word| !word.is_empty()).collect();
    let before = |name: &str| {
        let at = words.iter().position(|word| word.trim_end_matches('.') == name)?.checked_sub(1)?;
        Figure::parse(words[at].trim_end_matches('+'))?.bytes(factor)
    };
    let mut machine = Told::new(TOP, Subject::Machine, "used", before("used")?, factor).of(Identity::machine());
    machine.limit = before("total");
    told.push(machine);
    Some(Claim::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(lines: &[&str]) -> Vec<String> {
        let (mut processes, mut told) = (Processes::default(), Vec::new());
        for line in lines {
            assert_eq!(processes.take(line, None, &mut told), Claim::Yes, "{line}");
        }
        told.iter()
            .map(|one| {
                let name = one.identity.as_ref().map_or(String::new(), |identity| identity.name(|_| true));
                format!("{name} {}", one.sample.get(Quantity::Rss).unwrap_or(0) / KIB)
            })
            .collect()
    }

    #[test]
    fn columns_in_any_order() {
        assert_eq!(rows(&["PID CMD RSS VSZ", "7 python3 a b.py 4160 5004"]), ["pid 7 (python3 a b.py) 4160"]);
        assert_eq!(
            rows(&["  PID                  STARTED   RSS COMMAND", "7 Mon Nov 16 15:11:48 2026  4160 bash -c x"]),
            ["pid 7 (bash -c x) 4160"]
        );
        assert_eq!(rows(&["  RSS", "4160"]), [" 4160"]);
        assert_eq!(
            rows(&["PID User     Command     Swap      USS      PSS      RSS", "7 me  python3 x.py  0  100 150 200"]),
            ["pid 7 (python3 x.py) 200"]
        );
    }
}
