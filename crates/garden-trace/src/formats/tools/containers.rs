//! `docker stats` and `kubectl top`: memory of containers, pods and nodes, with the limit where it is printed.

use garden_memory::{Quantity, Subject};

use super::{Claim, Family, Figure, Listen, Told, Tool};
use crate::error::Error;
use crate::series::identity::{Identity, Part, Who};
use crate::series::mixed;
use crate::time::Stamp;

pub(super) const DOCKER: Tool = Tool { name: "docker stats", documented_as: "docker", example: "docker-stats.txt" };
pub(super) const KUBECTL: Tool = Tool { name: "kubectl top", documented_as: "kubectl", example: "kubectl-top.txt" };

/// The tools of this file.
pub(in crate::formats) const FAMILY: Family =
    Family { tools: &[DOCKER, KUBECTL], listen: |_| Box::new(Containers::default()) };

/// Reads rows of containers.
#[derive(Default)]
pub(super) struct Containers {
    docker: Option<Docker>,
    kubectl: Option<Kubectl>,
    unnamed: Unnamed,
}

/// Rows that show the memory of a container and not its name.
#[derive(Default)]
struct Unnamed {
    values: Vec<f64>,
    /// Rows below the last header, and the most below any.
    since_header: usize,
    most: usize,
}

impl Unnamed {
    fn saw(&mut self, bytes: u64, under_header: bool) {
        self.values.push(bytes as f64);
        self.since_header += usize::from(under_header);
        self.most = self.most.max(self.since_header);
    }

    /// Whether the rows are of several containers.
    fn are_several(&self) -> bool {
        self.most > 1 || mixed::turns(&self.values).is_some()
    }
}

/// The header of `docker stats`: whether ids come before names.
#[derive(Clone, Copy)]
struct Docker {
    name: usize,
}

/// The header of `kubectl top`.
struct Kubectl {
    memory: usize,
    names: Vec<usize>,
    subject: Subject,
}

impl Listen for Containers {
    fn take(&mut self, line: &str, _: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.contains("MEM USAGE / LIMIT") {
            self.unnamed.since_header = 0;
            let has_id = line.starts_with("CONTAINER ID") || line.starts_with("ID ");
            self.docker = Some(Docker { name: usize::from(has_id && words.contains(&"NAME")) });
            return Claim::Yes;
        }
        if let Some(memory) = words.iter().position(|word| *word == "MEMORY(bytes)") {
            let names = (0..memory).filter(|&at| ["NAMESPACE", "POD", "NAME"].contains(&words[at])).collect();
            let subject = if words.contains(&"MEMORY%") || words.contains(&"MEMORY(%)") {
                Subject::Machine
            } else {
                Subject::Container
            };
            self.kubectl = Some(Kubectl { memory, names, subject });
            return Claim::Yes;
        }
        let kubectl = || self.kubectl.as_ref()?.row(&words);
        match docker_row(self.docker, &words).or_else(kubectl).or_else(|| kubectl_without_header(&words)) {
            Some(Row::Sample(one)) => {
                if one.identity.is_none() {
                    let bytes = one.sample.get(Quantity::Rss).unwrap_or(0);
                    self.unnamed.saw(bytes, self.docker.is_some());
                }
                told.push(*one);
            }
            Some(Row::Blank) => {}
            None => return Claim::No,
        }
        Claim::Yes
    }

    fn refusal(&self) -> Option<Error> {
        self.unnamed.are_several().then_some(Error::NoUsedMemory {
            problem: "`docker stats` shows several containers without their names",
            advice: "record the names too: `docker stats --format \"{{.Name}} {{.MemUsage}}\"`",
        })
    }
}

enum Row {
    Sample(Box<Told>),
    /// A container without a value yet.
    Blank,
}

/// A row such as `a1b2c3 train 101.25% 1.5GiB / 31GiB 4.84% ..`; without a header, as `--format` prints it, only the
/// name, the memory and other figures may stand in it.
fn docker_row(header: Option<Docker>, words: &[&str]) -> Option<Row> {
    let slash = words.iter().position(|word| *word == "/").filter(|&slash| slash > 0)?;
    let (used, limit) = (words[slash - 1], *words.get(slash + 1)?);
    let before = &words[..slash - 1];
    if header.is_some() && used == "--" && limit == "--" {
        return Some(Row::Blank);
    }
    let (used, limit) = (bytes(used)?, bytes(limit)?);
    if header.is_none() && !is_formatted(before, &words[slash + 2..]) {
        return None;
    }
    let is_id = |word: &str| word.len() == 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let place = header.map_or(usize::from(before.len() > 1 && is_id(before[0])), |header| header.name);
    let name = before.get(place).map(|name| name.trim_end_matches([':', ',']));
    let mut told = Told::new(DOCKER, Subject::Container, "MEM USAGE", used.0, used.1);
    told.limit = Some(limit.0);
    let told = match name {
        Some(name) => told.of(Identity::of(Who::Named, name)),
        None => told,
    };
    Some(Row::Sample(Box::new(told)))
}

/// An amount as docker prints it, with its unit glued to it, and the unit.
fn bytes(word: &str) -> Option<(u64, u64)> {
    let figure = Figure::parse(word.trim_end_matches(',')).filter(|_| word.trim_end_matches(',').ends_with('B'))?;
    Some((figure.bytes(1)?, figure.factor?))
}

/// Whether the words around `1.5GiB / 31GiB` are a name and figures, not a sentence of a log.
fn is_formatted(before: &[&str], after: &[&str]) -> bool {
    const LABELS: [&str; 12] =
        ["ram", "mem", "memory", "rss", "gpu", "vram", "cpu", "used", "usage", "host", "total", "swap"];
    let is_percent = |word: &str| word.strip_suffix('%').is_some_and(|number| number.parse::<f64>().is_ok());
    let is_figure =
        |word: &&str| *word == "/" || is_percent(word) || Figure::parse(word.trim_end_matches(',')).is_some();
    let names: Vec<&&str> = before.iter().filter(|word| !is_percent(word)).collect();
    let is_name = |word: &&&str| {
        let bare = word.trim_end_matches([':', ',']).to_ascii_lowercase();
        !LABELS.contains(&bare.as_str()) && !bare.contains(['=', '(', '[', ':'])
    };
    names.len() <= 2 && names.iter().all(is_name) && after.iter().all(is_figure)
}

/// A row of `kubectl top --no-headers`: names, processors such as `250m`, memory such as `1234Mi`, and shares of a node.
fn kubectl_without_header(words: &[&str]) -> Option<Row> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_processor = |word: &&str| word.strip_suffix('m').is_some_and(is_number);
    let processors = words.iter().position(is_processor).filter(|at| (1..=3).contains(at))?;
    let share = |at: usize| words.get(at).is_some_and(|word| word.strip_suffix('%').is_some_and(is_number));
    let is_node = share(processors + 1);
    let memory = processors + 1 + usize::from(is_node);
    let is_whole = words.len() == memory + 1 + usize::from(is_node);
    let is_memory = words.get(memory)?.strip_suffix('i').is_some_and(|word| word.ends_with(['K', 'M', 'G']));
    let subject = if is_node { Subject::Machine } else { Subject::Container };
    let layout = Kubectl { memory, names: (0..processors).collect(), subject };
    if is_whole && is_memory { layout.row(words) } else { None }
}

impl Kubectl {
    fn row(&self, words: &[&str]) -> Option<Row> {
        let memory = *words.get(self.memory)?;
        if memory == "<unknown>" {
            return Some(Row::Blank);
        }
        let figure = Figure::parse(memory).filter(|_| words.len() > self.memory)?;
        let factor = figure.factor.unwrap_or(1);
        let parts = self.names.iter().map(|&at| Part { who: Who::Named, value: words[at].to_string() });
        let identity = Identity { parts: parts.collect(), detail: None };
        let told = Told::new(KUBECTL, self.subject, "MEMORY(bytes)", figure.bytes(1)?, factor);
        Some(Row::Sample(Box::new(told.of(identity))))
    }
}
