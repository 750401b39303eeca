//! Which process wrote a log line, by marks that also mean other things: `[0]`, `0:`, `pid=4711`, `train-0 |`.
//!
//! A mark counts only if nearly all lines with memory in the head of the file have one of its form, and its values take
//! turns again and again. The name of a file, in front of a line that `grep` found, needs no turns.

use crate::series::identity::{Identity, Part, Who, column_identity};
use crate::time::moment_at;

/// The form of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `pid=4711`, `(pid 4711)`, `(trainer pid=4711)`.
    Pid,
    /// `[4711]`, `[gpu0]`, `[trainer-0]`, `<0>`.
    Bracket,
    /// `worker 0`, `process 0`, `host=n0`.
    Word,
    /// `0:` of `srun -l`.
    Task,
    /// `rank0.log:` of `grep`.
    File,
    /// `train-0 |`, `trainer-0 main`, `r0:`.
    First,
}

/// Finds the mark of a form in front of a line.
type Find = fn(&str) -> Option<Part>;

const FORMS: [(Form, Find); 6] = [
    (Form::Pid, pid),
    (Form::Bracket, bracket),
    (Form::Word, word),
    (Form::Task, task),
    (Form::File, file),
    (Form::First, first),
];

/// More processes than print into one log.
const MOST_VALUES: usize = 64;
/// The share of lines with memory that must have the mark.
const MOST_LINES: f64 = 0.9;
/// How often each value must give way to another, on average, before the values are those of processes.
const TURNS: usize = 3;

/// The form of the marks in a log, if there are any.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    form: Option<Form>,
    /// The key of the marks in lines of keys and values: `host` in `ts=1700000000 host=n0 rss_mb=4000`.
    key: Option<String>,
    /// The file that `tail -f` of several files shows at present.
    shown: Option<Part>,
}

impl Marks {
    /// Judges the lines with memory in the head of a file, in lower case.
    pub(super) fn of(lines: &[String]) -> Marks {
        let are_marks = |values: Vec<String>, needs_turns: bool| {
            let mut distinct = values.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let turns = values.windows(2).filter(|pair| pair[0] != pair[1]).count();
            let take_turns = turns >= TURNS * distinct.len() || !needs_turns;
            let are_enough = values.len() as f64 >= MOST_LINES * lines.len() as f64;
            are_enough && take_turns && (2..=MOST_VALUES).contains(&distinct.len())
        };
        let is_used = |(form, mark): &&(Form, Find)| {
            let values = lines.iter().filter_map(|line| mark(behind_stamp(line))).map(|part| part.value);
            are_marks(values.collect(), *form != Form::File)
        };
        let form = FORMS.iter().find(is_used).map(|(form, _)| *form);
        let tells = |key: &&str| {
            are_marks(lines.iter().filter_map(|line| key_part(line, key)).map(|part| part.value).collect(), true)
        };
        let key = lines.first().and_then(|line| pairs(line).map(|(key, _)| key).find(tells));
        Marks { form, key: key.map(str::to_string).filter(|_| form.is_none()), shown: None }
    }

    /// The identity that a line in lower case states by a mark.
    pub(super) fn identity_of(&mut self, line: &str) -> Option<Identity> {
        if let Some(file) = line.strip_prefix("==> ").and_then(|line| line.trim_end().strip_suffix(" <==")) {
            self.shown = part(Who::Named, file);
        }
        if let Some(shown) = &self.shown {
            return Some(Identity { parts: vec![shown.clone()], detail: None });
        }
        if let Some(key) = &self.key {
            return Some(Identity { parts: vec![key_part(line, key)?], detail: None });
        }
        let form = self.form?;
        let (_, mark) = FORMS.iter().find(|(known, _)| *known == form)?;
        Some(Identity { parts: vec![mark(behind_stamp(line))?], detail: None })
    }
}

/// The keys and values of a line.
fn pairs(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split([' ', ',', ';', '\t']).filter_map(|word| word.split_once('='))
}

/// What a key says about whose line it is.
fn key_part(line: &str, wanted: &str) -> Option<Part> {
    let who = column_identity(wanted).filter(|who| !matches!(who, Who::Number | Who::Run | Who::Seed))?;
    let (_, value) = pairs(line).find(|(key, _)| *key == wanted)?;
    part(who, value.trim_matches('"'))
}

/// What of a line stands behind its time stamp and the level of its logger.
fn behind_stamp(line: &str) -> &str {
    let text = line.trim_start_matches(['[', '(']);
    let Some(moment) = moment_at(text) else { return line };
    let mut rest = text[moment.length..].trim_start_matches([' ', ']', ')', '-', '|', ',', ':']);
    for level in ["info", "debug", "warning", "warn", "error"] {
        let behind = rest.trim_start_matches('[').strip_prefix(level);
        rest = behind.map_or(rest, |behind| behind.trim_start_matches([' ', ']', ')', '-', '|', ',', ':']));
    }
    rest
}

fn part(who: Who, value: &str) -> Option<Part> {
    (!value.is_empty()).then(|| Part { who, value: value.to_string() })
}

fn digits(text: &str) -> &str {
    &text[..text.bytes().take_while(u8::is_ascii_digit).count()]
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && digits(text).len() == text.len()
}

fn is_name(text: &str) -> bool {
    text.len() < 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn pid(line: &str) -> Option<Part> {
    let text = match line.strip_prefix('(') {
        Some(inner) => inner.split_once(')')?.0,
        None => line,
    };
    let text = if line.starts_with('(') { &text[text.rfind("pid")?..] } else { text };
    part(Who::Pid, digits(text.strip_prefix("pid")?.strip_prefix(['=', ' ', ':'])?))
}

fn bracket(line: &str) -> Option<Part> {
    let (inner, _) = match line.as_bytes().first()? {
        b'[' => line[1..].split_once(']')?,
        b'<' => line[1..].split_once('>')?,
        _ => return None,
    };
    match inner.strip_prefix("gpu").map(|number| number.trim_start_matches([' ', ':'])) {
        Some(number) if is_number(number) => part(Who::Gpu, number),
        _ if is_number(inner) => part(Who::Number, inner),
        _ if is_name(inner) && inner.ends_with(|c: char| c.is_ascii_digit()) => part(Who::Named, inner),
        _ => None,
    }
}

fn word(line: &str) -> Option<Part> {
    if let Some(host) = line.strip_prefix("host=") {
        return part(Who::Host, host.split_whitespace().next()?);
    }
    let (name, who) =
        [("worker ", Who::Worker), ("process ", Who::Number)].into_iter().find(|(name, _)| line.starts_with(name))?;
    part(who, digits(&line[name.len()..]))
}

fn task(line: &str) -> Option<Part> {
    let (number, _) = line.trim_start().split_once(": ")?;
    if is_number(number) { part(Who::Rank, number) } else { None }
}

fn file(line: &str) -> Option<Part> {
    let (path, _) = line.split_once(':')?;
    let is_log = [".log", ".txt", ".out", ".err"].iter().any(|ending| path.ends_with(ending));
    if is_log && !path.contains(char::is_whitespace) { part(Who::Named, path) } else { None }
}

fn first(line: &str) -> Option<Part> {
    let word = line.split([' ', '|', ':', '\t']).next()?;
    let has_letter = word.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_numbered = word.ends_with(|c: char| c.is_ascii_digit());
    if is_name(word) && has_letter && is_numbered { part(Who::Named, word) } else { None }
}
