//! The meaning of a number in a log, judged by the words before it: `Process RAM:`, `rss=`, `GPU: allocated`,
//! `Num examples =`.
//!
//! Only the clause that ends at the number counts, and only fillers may follow the deciding word, so a sentence that
//! merely mentions memory is not taken for a reading.

use garden_memory::Quantity;

use crate::columns::names::{is_other_amount, is_share_word};
use crate::unit::Unit;

/// The meaning of a number's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    /// No words at all.
    Nothing,
    Step,
    Epoch,
    Elapsed,
    Fact(Fact),
    /// Memory that may be judged.
    Main(Kind),
    /// Another quantity.
    Other(Quantity),
    /// `CPU:` or `GPU:` alone: memory if a unit follows, tensors if tensors are counted, else nothing.
    Cpu,
    Gpu,
    /// Other words.
    Unknown,
}

/// Whose memory it is and how it was measured, the best to judge first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Rss,
    Pss,
    Memory,
    /// The whole machine's memory in use.
    Machine,
    /// A GPU's memory.
    Device,
    /// The process's highest memory so far.
    Peak,
    /// A GPU's highest memory so far.
    DevicePeak,
}

impl Kind {
    /// All kinds, the best first.
    pub(crate) const ALL: [Kind; 7] =
        [Kind::Rss, Kind::Pss, Kind::Memory, Kind::Machine, Kind::Device, Kind::Peak, Kind::DevicePeak];

    /// Whether it is the process's present memory.
    pub(crate) fn is_strong(self) -> bool {
        matches!(self, Kind::Rss | Kind::Pss | Kind::Memory)
    }
}

/// A fact about the run that a banner states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    Examples,
    BatchSize,
    TotalBatchSize,
    Accumulation,
    Epochs,
    TotalSteps,
}

/// The words of a label's last clause, last word last; no label needs more.
pub(crate) struct Words<'a> {
    words: [&'a str; MOST_WORDS],
    count: usize,
    has_percent_sign: bool,
}

const MOST_WORDS: usize = 8;

impl<'a> Words<'a> {
    /// Cuts a label in lower case into words.
    pub(crate) fn of(label: &'a str) -> Self {
        let clause = last_clause(label);
        let mut words = Words { words: [""; MOST_WORDS], count: 0, has_percent_sign: clause.contains('%') };
        let is_cut = |c: char| !c.is_alphanumeric();
        for word in clause.rsplit(is_cut).filter(|word| !word.is_empty()).take(MOST_WORDS) {
            words.words[MOST_WORDS - 1 - words.count] = word;
            words.count += 1;
        }
        words
    }

    /// The words, in the order of the line.
    pub(crate) fn list(&self) -> &[&'a str] {
        &self.words[MOST_WORDS - self.count..]
    }

    /// The words without units at the end.
    pub(crate) fn list_without_unit(&self) -> &[&'a str] {
        let end = self.list().iter().rposition(|word| unit_word(word).is_none()).map_or(0, |last| last + 1);
        &self.list()[..end]
    }

    /// Whether the words name the memory of a part of the program: `data_mem`, `activation memory`.
    pub(crate) fn names_part(&self) -> bool {
        const PARTS: [&str; 17] = [
            "data",
            "dataset",
            "model",
            "param",
            "params",
            "parameter",
            "parameters",
            "weights",
            "activation",
            "activations",
            "optimizer",
            "optim",
            "grad",
            "gradient",
            "gradients",
            "cache",
            "buffer",
        ];
        let memory = self.list().iter().rposition(|word| is_memory(word));
        memory.and_then(|at| at.checked_sub(1)).is_some_and(|before| PARTS.contains(&self.list()[before]))
    }

    /// Whether the words are `total memory`, of the machine or of all parts.
    pub(crate) fn names_total(&self) -> bool {
        matches!(self.list_without_unit(), ["total", memory] if is_memory(memory))
    }

    fn any(&self, wanted: impl Fn(&str) -> bool) -> bool {
        self.list().iter().any(|word| wanted(word))
    }

    fn ends_with(&self, ending: &[&str]) -> bool {
        self.list().ends_with(ending)
    }

    /// Whether the numbers behind it are shares: `mem_percent=`, `RAM (%):`.
    pub(crate) fn name_share(&self) -> bool {
        self.has_percent_sign || self.any(is_share_word)
    }

    /// The unit that the label itself states, as in `rss_mb=`.
    pub(crate) fn unit(&self) -> Option<Unit> {
        self.list().iter().rev().find_map(|word| unit_word(word))
    }

    /// The meaning of the words together.
    pub(crate) fn label(&self) -> Label {
        if self.count == 0 {
            return Label::Nothing;
        }
        self.axis().or_else(|| self.fact().map(Label::Fact)).unwrap_or_else(|| self.memory())
    }

    /// The meaning of an unlabelled number after this step or epoch, as in `Memory at step 50: 5434 MB`.
    pub(crate) fn after_axis(&self, label: &str) -> Label {
        let memory = self.memory();
        if memory != Label::Unknown || self.any(names_gpu) || self.any(is_other_amount) {
            return memory;
        }
        // Only the step itself may precede an unnamed level: file sizes often follow other words.
        let own = label.rsplit_once(':').filter(|(_, rest)| rest.contains(char::is_alphanumeric));
        let words = Words::of(own.map_or(label, |(_, rest)| rest));
        let of_the_axis = |word: &&str| {
            matches!(*word, "step" | "iteration" | "iter" | "epoch" | "global" | "train" | "training" | "after" | "at")
        };
        if words.list().iter().all(of_the_axis) { Label::Step } else { Label::Unknown }
    }

    fn axis(&self) -> Option<Label> {
        let (last, before) = self.list().split_last()?;
        if before.last().is_some_and(|word| matches!(*word, "per" | "max" | "total" | "eval" | "every" | "each")) {
            return None;
        }
        match *last {
            "step" | "iteration" | "iter" | "globalstep" => Some(Label::Step),
            "epoch" => Some(Label::Epoch),
            "elapsed" | "timestamp" => Some(Label::Elapsed),
            _ if self.ends_with(&["elapsed", "time"]) || self.ends_with(&["time", "s"]) => Some(Label::Elapsed),
            _ => None,
        }
    }

    fn fact(&self) -> Option<Fact> {
        const FACTS: [(&[&str], Fact); 9] = [
            (&["num", "examples"], Fact::Examples),
            (&["batch", "size", "per", "device"], Fact::BatchSize),
            (&["per", "device", "train", "batch", "size"], Fact::BatchSize),
            // "Total train batch size (w. parallel, distributed & accumulation) ="
            (&["distributed", "accumulation"], Fact::TotalBatchSize),
            (&["gradient", "accumulation", "steps"], Fact::Accumulation),
            (&["num", "epochs"], Fact::Epochs),
            (&["num", "train", "epochs"], Fact::Epochs),
            (&["total", "optimization", "steps"], Fact::TotalSteps),
            (&["total", "steps"], Fact::TotalSteps),
        ];
        FACTS.iter().find(|(ending, _)| self.ends_with(ending)).map(|(_, fact)| *fact)
    }

    fn memory(&self) -> Label {
        // DeepSpeed's `CPU Virtual Memory:  used =` is psutil's `virtual_memory().used`: the machine's.
        if self.ends_with(&["virtual", "memory", "used"]) {
            return Label::Main(Kind::Machine);
        }
        if self.name_share() {
            return Label::Unknown;
        }
        if self.is_peak() {
            return Label::Main(if self.is_gpu() { Kind::DevicePeak } else { Kind::Peak });
        }
        // DeepSpeed's `MA` is the memory allocated on the GPU.
        if *self.list() == ["ma"] {
            return Label::Gpu;
        }
        let names_resident = self.any(|word| matches!(word, "rss" | "pss" | "vmrss"));
        let not_the_process = |word: &str| matches!(word, "total" | "system" | "sys" | "node" | "disk" | "baseline");
        if self.any(is_other_amount) || (!names_resident && self.any(not_the_process)) {
            return Label::Unknown;
        }
        if self.any(|word| matches!(word, "tensors" | "tensor")) {
            return Label::Other(self.tensors());
        }
        let deciding = self.list().iter().rposition(|word| !is_filler(word));
        let Some(deciding) = deciding else { return self.lone_processor() };
        let decided = match self.list()[deciding] {
            "objects" => Label::Other(Quantity::Objects),
            _ if self.is_gpu() => return self.gpu(),
            "anon" | "rssanon" | "anonymous" => Label::Other(Quantity::Anon),
            "rssfile" => Label::Other(Quantity::File),
            "file" if names_resident => Label::Other(Quantity::File),
            "shmem" | "shm" | "rssshmem" => Label::Other(Quantity::Shmem),
            "swap" | "vmswap" => Label::Other(Quantity::Swap),
            "uss" | "private" => Label::Other(Quantity::Private),
            "shared" => Label::Other(Quantity::Shared),
            "pss" => Label::Main(Kind::Pss),
            "rss" | "vmrss" | "resident" => Label::Main(Kind::Rss),
            "memory" | "mem" | "ram" if names_resident => Label::Main(Kind::Rss),
            "memory" | "mem" | "ram" => Label::Main(Kind::Memory),
            _ => Label::Unknown,
        };
        // `Memory (RSS):` and `RSS memory:` are both resident memory.
        match decided {
            Label::Main(_) if self.any(|word| word == "pss") => Label::Main(Kind::Pss),
            other => other,
        }
    }

    /// Whether the words mean the highest memory of the process: `peak RSS`, `Maximum resident set size (kbytes)`.
    fn is_peak(&self) -> bool {
        let peak = |word: &str| matches!(word, "peak" | "max" | "maximum" | "hwm" | "highest");
        let memory = |word: &str| matches!(word, "rss" | "memory" | "mem" | "ram" | "resident" | "vram");
        let other = |word: &str| is_other_amount(word) && !peak(word) && !matches!(word, "maxrss" | "vmhwm");
        let total = |word: &str| matches!(word, "total" | "system" | "sys" | "per" | "limit");
        let means_peak = self.any(|word| matches!(word, "maxrss" | "vmhwm")) || (self.any(peak) && self.any(memory));
        let ends_well = self.list().last().is_some_and(|last| {
            memory(last) || is_filler(last) || matches!(*last, "maxrss" | "vmhwm" | "allocated" | "vram")
        });
        means_peak && ends_well && !self.any(other) && !self.any(total)
    }

    fn tensors(&self) -> Quantity {
        match self.list().last().copied() {
            Some("cpu") => Quantity::TensorsCpu,
            Some("gpu" | "cuda") => Quantity::TensorsGpu,
            _ => Quantity::Tensors,
        }
    }

    fn is_gpu(&self) -> bool {
        let torch = self.any(|word| matches!(word, "allocated" | "reserved"));
        let host = self.any(|word| matches!(word, "ram" | "rss" | "cpu" | "host"));
        self.any(names_gpu) || (torch && !host)
    }

    fn gpu(&self) -> Label {
        let memory = |word: &str| matches!(word, "mem" | "memory" | "vram" | "allocated" | "reserved" | "used" | "ram");
        if self.any(memory) { Label::Other(Quantity::Gpu) } else { Label::Gpu }
    }

    /// The meaning of fillers alone, such as `CPU:` and `Memory: CPU`.
    fn lone_processor(&self) -> Label {
        match () {
            _ if self.any(names_gpu) => self.gpu(),
            _ if self.any(|word| matches!(word, "cpu" | "host")) => Label::Cpu,
            _ => Label::Unknown,
        }
    }
}

fn is_memory(word: &str) -> bool {
    matches!(word, "memory" | "mem" | "ram")
}

fn names_gpu(word: &str) -> bool {
    ["gpu", "cuda", "vram"].iter().any(|start| word.starts_with(start))
}

fn unit_word(word: &str) -> Option<Unit> {
    match word {
        "kb" | "kib" | "kbytes" => Some(Unit::Kib),
        "mb" | "mib" | "mbytes" => Some(Unit::Mib),
        "gb" | "gib" => Some(Unit::Gib),
        "bytes" => Some(Unit::Bytes),
        _ => None,
    }
}

/// Whether a word may stand between the deciding word and the number.
fn is_filler(word: &str) -> bool {
    unit_word(word).is_some()
        || matches!(
            word,
            "used"
                | "usage"
                | "use"
                | "using"
                | "uses"
                | "in"
                | "is"
                | "at"
                | "now"
                | "current"
                | "currently"
                | "of"
                | "after"
                | "before"
                | "cpu"
                | "host"
                | "process"
                | "consumption"
                | "footprint"
                | "size"
                | "training"
                | "train"
                | "eval"
                | "evaluation"
                | "about"
                | "step"
        )
}

/// The part of a label that belongs to the number after it.
fn last_clause(label: &str) -> &str {
    // Labels are short; a long text before a number is something else and need not be searched.
    let mut from = label.len().saturating_sub(100);
    while !label.is_char_boundary(from) {
        from += 1;
    }
    let label = &label[from..];
    let hard = label.rfind([',', ';', '|']).map_or(0, |at| at + 1);
    let dash = label.rfind(" - ").map_or(0, |at| at + 3);
    let label = key_of(&label[hard.max(dash)..]);
    // A closing bracket ends a clause too, unless it ends the label itself, as in `rss (mb):`.
    match label.rfind([')', ']', '}']) {
        Some(at) if label[at..].contains(char::is_alphanumeric) => &label[at + 1..],
        _ => label,
    }
}

/// The key alone where keys and values follow each other: `rss_mb=` of `mode=free rss_mb=`.
pub(super) fn key_of(label: &str) -> &str {
    let follows = label.trim_end().strip_suffix('=').is_some_and(|label| label.contains('='));
    let from = label.trim_end().rfind(char::is_whitespace).filter(|_| follows);
    from.map_or(label, |from| &label[from..])
}

/// The part of the text after a number that belongs to the number.
pub(crate) fn postfix_clause(after: &str) -> &str {
    let end = after.bytes().position(|byte| matches!(byte, b',' | b';' | b'|' | b'(' | b'['));
    &after[..end.unwrap_or(after.len())]
}

/// The meaning of the clause after a number: `5.4 GB RSS`, `26 GB free`, `6529 tensors`.
pub(crate) fn postfix(clause: &str) -> Option<Postfix> {
    // A colon or equals sign makes these words the label of the next number.
    if clause.trim_end().ends_with([':', '=']) {
        return None;
    }
    // A wide gap separates columns, as between the figures of DeepSpeed.
    if clause.starts_with("   ") {
        return None;
    }
    let mut words = clause.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let first = words.next()?;
    let decided = match first {
        "of" | "host" | "process" | "cpu" | "gpu" | "resident" | "used" => words.next().unwrap_or(first),
        other => other,
    };
    let names_gpu = names_gpu(first) || names_gpu(decided);
    Some(match decided {
        _ if is_other_amount(first) || is_other_amount(decided) || first == "total" => Postfix::OtherAmount,
        "tensors" => Postfix::Is(Label::Other(Quantity::Tensors)),
        "objects" => Postfix::Is(Label::Other(Quantity::Objects)),
        _ if names_gpu => Postfix::Is(Label::Other(Quantity::Gpu)),
        "rss" => Postfix::Is(Label::Main(Kind::Rss)),
        "ram" | "memory" | "mem" => Postfix::Is(Label::Main(Kind::Memory)),
        _ => Postfix::Word,
    })
}

/// The meaning of the text after a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Postfix {
    /// A word that says what the number is.
    Is(Label),
    /// A word that says the number is not the process's memory.
    OtherAmount,
    /// A word that says nothing.
    Word,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_as_logs_have_them() {
        use Label::*;
        for (label, meaning) in [
            ("step ", Step),
            ("'global_step': ", Step),
            (" time per step: ", Unknown),
            ("max_steps=", Unknown),
            (", 'epoch': ", Epoch),
            ("), process ram: ", Main(Kind::Memory)),
            (" - info - root - memory usage: ", Main(Kind::Memory)),
            ("vmrss:\t", Main(Kind::Rss)),
            ("memory (rss): ", Main(Kind::Rss)),
            ("rss_mb=", Main(Kind::Rss)),
            ("memory: cpu ", Main(Kind::Memory)),
            ("gpu memory: ", Other(Quantity::Gpu)),
            ("max memory allocated: ", Main(Kind::DevicePeak)),
            ("peak rss: ", Main(Kind::Peak)),
            ("maximum resident set size (kbytes): ", Main(Kind::Peak)),
            ("max_ma ", Unknown),
            ("memory allocated: ", Other(Quantity::Gpu)),
            ("gpu: ", Gpu),
            ("cpu: ", Cpu),
            ("ram available: ", Unknown),
            ("the model used memory efficiently and loaded ", Unknown),
            (" tensors (cpu: ", Other(Quantity::TensorsCpu)),
            ("  num examples = ", Fact(super::Fact::Examples)),
            ("instantaneous batch size per device = ", Fact(super::Fact::BatchSize)),
            ("  gradient accumulation steps = ", Fact(super::Fact::Accumulation)),
            ("system ram: ", Unknown),
            (": ", Nothing),
        ] {
            assert_eq!(Words::of(label).label(), meaning, "{label}");
        }
    }
}
