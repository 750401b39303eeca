//! A recorded run: memory samples, events between them, and facts about the run.
//!
//! Samples are kept by column, so a million of them with five quantities take 40 MB instead of 200. File formats are not
//! known here; `garden-trace` reads and writes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::column::Column;
use crate::libraries::Libraries;

/// A quantity that a sample can have a value for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Resident memory of the process (or of the process tree), in bytes.
    Rss,
    /// Resident anonymous memory (heap, stacks), in bytes.
    Anon,
    /// Lower bound of a tree's anonymous memory, in bytes. In a sample that has it, anonymous and resident memory are upper
    /// bounds.
    AnonLeast,
    /// Resident pages of mapped files, in bytes; reclaimable while clean.
    File,
    /// Resident shared memory (`/dev/shm`, pinned host buffers), in bytes.
    Shmem,
    /// Proportional set size: shared pages divided among the processes that share them, in bytes.
    Pss,
    /// Swapped-out memory, in bytes.
    Swap,
    /// Pages that only this process maps, in bytes.
    Private,
    /// Pages that other processes map too, in bytes.
    Shared,
    /// Peak resident memory since the start, in bytes; for a tree an upper bound.
    Peak,
    /// GPU memory of the process (or of the process tree), in bytes.
    Gpu,
    /// GPU memory in use on all GPUs of the machine, by any program, in bytes.
    GpuUsed,
    /// Memory used by the cgroup, caches included, in bytes.
    Group,
    /// Memory available on the machine without swapping, in bytes.
    Available,
    /// Size of the files in `/dev/shm`, in bytes.
    DevShm,
    /// Share of the last ten seconds in which some process waited for memory, in hundredths of a percent.
    Pressure,
    /// Number of live tensors.
    Tensors,
    /// Number of live tensors in host memory.
    TensorsCpu,
    /// Number of live tensors in GPU memory.
    TensorsGpu,
    /// Number of live Python objects.
    Objects,
    /// Buffers of our own trainer, in bytes.
    Arena,
}

impl Quantity {
    /// All quantities, in the order in which files and tables show them.
    pub const ALL: [Quantity; 21] = [
        Quantity::Rss,
        Quantity::Anon,
        Quantity::AnonLeast,
        Quantity::File,
        Quantity::Shmem,
        Quantity::Pss,
        Quantity::Swap,
        Quantity::Private,
        Quantity::Shared,
        Quantity::Peak,
        Quantity::Gpu,
        Quantity::GpuUsed,
        Quantity::Group,
        Quantity::Available,
        Quantity::DevShm,
        Quantity::Pressure,
        Quantity::Tensors,
        Quantity::TensorsCpu,
        Quantity::TensorsGpu,
        Quantity::Objects,
        Quantity::Arena,
    ];

    /// The name in our own trace format, for example `tensors_cpu`.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Rss => "rss",
            Quantity::Anon => "anon",
            Quantity::AnonLeast => "anon_least",
            Quantity::File => "file",
            Quantity::Shmem => "shmem",
            Quantity::Pss => "pss",
            Quantity::Swap => "swap",
            Quantity::Private => "private",
            Quantity::Shared => "shared",
            Quantity::Peak => "peak",
            Quantity::Gpu => "gpu",
            Quantity::GpuUsed => "gpu_used",
            Quantity::Group => "group",
            Quantity::Available => "available",
            Quantity::DevShm => "dev_shm",
            Quantity::Pressure => "pressure",
            Quantity::Tensors => "tensors",
            Quantity::TensorsCpu => "tensors_cpu",
            Quantity::TensorsGpu => "tensors_gpu",
            Quantity::Objects => "objects",
            Quantity::Arena => "arena",
        }
    }

    /// Whether it describes the whole machine or its GPUs, other programs included.
    pub fn is_surroundings(self) -> bool {
        use Quantity::{Available, DevShm, GpuUsed, Group, Pressure};
        matches!(self, GpuUsed | Group | Available | DevShm | Pressure)
    }

    /// Whether it is a bound wherever anonymous memory is one.
    pub fn follows_anon(self) -> bool {
        matches!(self, Quantity::Anon | Quantity::Rss)
    }

    /// Whether it counts things rather than bytes.
    pub fn is_count(self) -> bool {
        matches!(self, Quantity::Tensors | Quantity::TensorsCpu | Quantity::TensorsGpu | Quantity::Objects)
    }
}

/// The process's activity when a sample was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// A training step; the default when nothing is said.
    #[default]
    Train,
    /// An evaluation.
    Eval,
    /// Saving a checkpoint.
    Checkpoint,
}

/// One reading of a process's memory, as it enters or leaves a [`Trace`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Training step, if known.
    pub step: Option<f64>,
    /// Seconds since some fixed moment, if known.
    pub time_s: Option<f64>,
    /// The process's activity.
    pub activity: Activity,
    values: [Option<u64>; Quantity::ALL.len()],
}

impl Sample {
    /// The value of a quantity, if this sample has it.
    pub fn get(&self, quantity: Quantity) -> Option<u64> {
        self.values[quantity as usize]
    }

    /// Sets the value of a quantity.
    pub fn set(&mut self, quantity: Quantity, value: u64) {
        // The largest number marks "absent" in a trace's columns.
        self.values[quantity as usize] = Some(value.min(u64::MAX - 1));
    }

    /// Whether its anonymous and resident memory are upper bounds, not measurements.
    pub fn is_bound(&self) -> bool {
        self.get(Quantity::AnonLeast).is_some()
    }

    /// Unreclaimable memory in bytes, or its lower bound: anonymous, shared and swapped.
    pub fn held(&self) -> u64 {
        self.held_with(self.get(Quantity::AnonLeast).or(self.get(Quantity::Anon)))
    }

    /// Unreclaimable memory in bytes, or its upper bound.
    pub fn held_at_most(&self) -> u64 {
        self.held_with(self.get(Quantity::Anon))
    }

    fn held_with(&self, anon: Option<u64>) -> u64 {
        let parts = [anon, self.get(Quantity::Shmem), self.get(Quantity::Swap)];
        parts.into_iter().flatten().fold(0, u64::saturating_add)
    }

    /// Whether no quantity has a value.
    pub fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }
}

/// Something that happened at a moment of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An epoch ended.
    EpochEnd,
    /// An evaluation began.
    EvalStart,
    /// An evaluation ended.
    EvalEnd,
    /// A checkpoint was saved.
    Checkpoint,
    /// The garbage collector ran.
    Gc,
    /// The process was restarted: later samples are of another process.
    Restart,
    /// The process ended.
    Exit,
}

/// An event and where it stands among the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The event happened before the sample of this index (and after the one before it).
    pub before_sample: usize,
    /// The training step, if the event named one.
    pub step: Option<f64>,
    /// Seconds on the samples' clock, if the event named them.
    pub time_s: Option<f64>,
}

/// One process of a watched tree, and its memory over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessTrack {
    /// Process id; a later process may have the same.
    pub pid: u32,
    /// The parent's process id when it was found.
    pub parent: u32,
    /// The short name.
    pub name: String,
    /// Its role in the run, for example `training` or `worker`.
    pub role: String,
    /// The command line.
    pub command: String,
    /// Its memory without pages shared with the process it was forked from: sample index and bytes, wherever it changed.
    pub levels: Vec<(usize, u64)>,
    /// The first sample without it, if it has exited.
    pub gone: Option<usize>,
}

impl ProcessTrack {
    /// Its memory at a sample; 0 before it was seen and after it exited.
    pub fn at(&self, sample: usize) -> u64 {
        let known = self.levels.partition_point(|&(index, _)| index <= sample);
        let is_gone = self.gone.is_some_and(|gone| sample >= gone);
        if is_gone { 0 } else { known.checked_sub(1).map_or(0, |last| self.levels[last].1) }
    }
}

/// Whose memory the judged samples hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A process or a process tree.
    #[default]
    Process,
    /// A container or cgroup: all its processes, and often its page cache.
    Container,
    /// A whole machine: every program that runs on it.
    Machine,
    /// A GPU: memory of the device, not of the host.
    Device,
}

/// Facts about a run besides its memory. Every field may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFacts {
    /// Examples in the training set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub examples: Option<u64>,
    /// Examples per micro-batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
    /// Micro-batches per optimizer step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradient_accumulation: Option<u64>,
    /// Optimizer steps per epoch, where known directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_per_epoch: Option<u64>,
    /// Optimizer steps of the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// The memory limit above which the process is killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Bytes>,
}

impl RunFacts {
    /// Takes each fact from `self`, or from `other` where `self` does not know it.
    ///
    /// A way of stating the epoch (directly, or by examples and batch) replaces the other way as a whole, so a flag is
    /// never contradicted by a trace's header.
    pub fn or(self, other: RunFacts) -> RunFacts {
        let epoch_given = self.epoch_steps().is_some();
        let from = |ours: Option<u64>, theirs: Option<u64>| if epoch_given { ours } else { ours.or(theirs) };
        RunFacts {
            examples: from(self.examples, other.examples),
            batch_size: from(self.batch_size, other.batch_size),
            gradient_accumulation: from(self.gradient_accumulation, other.gradient_accumulation),
            steps_per_epoch: from(self.steps_per_epoch, other.steps_per_epoch),
            total_steps: self.total_steps.or(other.total_steps),
            memory_limit: self.memory_limit.or(other.memory_limit),
        }
    }

    /// Optimizer steps per epoch: as stated, or ceil(ceil(examples / batch) / accumulation) as the HF Trainer counts.
    pub fn epoch_steps(&self) -> Option<u64> {
        self.steps_per_epoch.filter(|&steps| steps > 0).or_else(|| {
            let examples = self.examples.filter(|&n| n > 0)?;
            let batch = self.batch_size.filter(|&n| n > 0)?;
            let accumulation = self.gradient_accumulation.unwrap_or(1).max(1);
            Some(examples.div_ceil(batch).div_ceil(accumulation).max(1))
        })
    }

    /// Examples that one optimizer step sees.
    pub fn examples_per_step(&self) -> Option<f64> {
        let from_batch = self.batch_size.filter(|&n| n > 0).map(|batch| {
            let accumulation = self.gradient_accumulation.unwrap_or(1).max(1);
            batch.saturating_mul(accumulation) as f64
        });
        from_batch.or_else(|| Some(self.examples? as f64 / self.epoch_steps()? as f64))
    }

    /// Examples in the training set: as stated, or as many as one epoch's steps can see.
    pub fn example_count(&self) -> Option<f64> {
        let counted = || Some(self.epoch_steps()? as f64 * self.examples_per_step()?);
        self.examples.map(|n| n as f64).or_else(counted)
    }
}

/// A recorded run, by column.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Facts about the run.
    pub facts: RunFacts,
    /// Whose memory it is.
    pub subject: Subject,
    /// Where the trace comes from (command, host, versions), as name and value.
    pub origin: Vec<(String, String)>,
    /// Events, in the order in which they happened.
    pub events: Vec<Event>,
    /// The processes of the tree, in the order in which they were found; empty where only totals were recorded.
    pub processes: Vec<ProcessTrack>,
    /// The libraries that the processes have loaded.
    pub libraries: Libraries,
    /// The file's names for its quantities.
    pub names: BTreeMap<Quantity, String>,
    // NaN marks an unknown step or time.
    steps: Vec<f64>,
    times: Vec<f64>,
    activities: Vec<Activity>,
    columns: [Option<Column>; Quantity::ALL.len()],
}

impl Trace {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Adds a sample at the end.
    pub fn push(&mut self, sample: &Sample) {
        let index = self.len();
        self.steps.push(sample.step.unwrap_or(f64::NAN));
        self.times.push(sample.time_s.unwrap_or(f64::NAN));
        self.activities.push(sample.activity);
        for (column, &value) in self.columns.iter_mut().zip(&sample.values) {
            match (column, value) {
                (Some(column), value) => column.push(value),
                (column @ None, Some(_)) => column.insert(Column::absent(index)).push(value),
                (None, None) => {}
            }
        }
    }

    /// Adds an event after the samples pushed so far.
    pub fn push_event(&mut self, kind: EventKind, step: Option<f64>, time_s: Option<f64>) {
        let before_sample = self.len();
        // After a restart none of the earlier processes is left.
        if kind == EventKind::Restart {
            let left = self.processes.iter_mut().filter(|track| track.gone.is_none());
            left.for_each(|track| track.gone = Some(before_sample));
        }
        self.events.push(Event { kind, before_sample, step, time_s });
    }

    /// Whether any sample has this quantity.
    pub fn has(&self, quantity: Quantity) -> bool {
        self.columns[quantity as usize].is_some()
    }

    /// A quantity of one sample.
    pub fn value(&self, index: usize, quantity: Quantity) -> Option<u64> {
        self.columns[quantity as usize].as_ref()?.get(index)
    }

    /// Whether a sample's anonymous and resident memory are upper bounds, not measurements.
    pub fn is_bound(&self, index: usize) -> bool {
        self.value(index, Quantity::AnonLeast).is_some()
    }

    /// A quantity of one sample: the measured value, or its lower bound.
    pub fn at_least(&self, index: usize, quantity: Quantity) -> Option<u64> {
        let value = self.value(index, quantity)?;
        let (Some(least), true) = (self.value(index, Quantity::AnonLeast), quantity.follows_anon()) else {
            return Some(value);
        };
        let most = self.value(index, Quantity::Anon).unwrap_or(least);
        Some(value.saturating_sub(most.saturating_sub(least)))
    }

    /// The step of one sample.
    pub fn step(&self, index: usize) -> Option<f64> {
        self.steps.get(index).copied().filter(|step| step.is_finite())
    }

    /// The time of one sample, in seconds.
    pub fn time_s(&self, index: usize) -> Option<f64> {
        self.times.get(index).copied().filter(|time| time.is_finite())
    }

    /// The process's activity at one sample.
    pub fn activity(&self, index: usize) -> Activity {
        self.activities.get(index).copied().unwrap_or_default()
    }

    /// One sample, reassembled from the columns.
    pub fn sample(&self, index: usize) -> Sample {
        let mut sample = Sample {
            step: self.step(index),
            time_s: self.time_s(index),
            activity: self.activity(index),
            ..Sample::default()
        };
        for quantity in Quantity::ALL {
            if let Some(value) = self.value(index, quantity) {
                sample.set(quantity, value);
            }
        }
        sample
    }

    /// The file's name for a quantity, or ours.
    pub fn name_of(&self, quantity: Quantity) -> &str {
        self.names.get(&quantity).map_or(quantity.name(), String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_counts_as_the_trainer_counts() {
        let story =
            RunFacts { examples: Some(663), batch_size: Some(2), gradient_accumulation: Some(4), ..Default::default() };
        assert_eq!(story.epoch_steps(), Some(83));
        assert_eq!(story.examples_per_step(), Some(8.0));
        assert_eq!(RunFacts { batch_size: Some(2), ..Default::default() }.epoch_steps(), None);
        assert_eq!(RunFacts { steps_per_epoch: Some(0), ..Default::default() }.epoch_steps(), None);
    }

    #[test]
    fn flags_replace_the_header_as_a_whole() {
        let header = RunFacts { examples: Some(663), batch_size: Some(2), total_steps: Some(9), ..Default::default() };
        let flags = RunFacts { steps_per_epoch: Some(40), ..Default::default() };
        let both = flags.or(header);
        assert_eq!((both.epoch_steps(), both.examples, both.total_steps), (Some(40), None, Some(9)));
    }

    #[test]
    fn no_process_outlives_a_restart() {
        let mut trace = Trace::default();
        trace.processes.push(ProcessTrack { levels: vec![(0, 7)], ..Default::default() });
        (0..4).for_each(|_| trace.push(&Sample::default()));
        trace.push_event(EventKind::Restart, None, None);
        assert_eq!([trace.processes[0].at(3), trace.processes[0].at(4)], [7, 0]);
    }

    #[test]
    fn a_sample_comes_back_as_it_went_in() {
        let mut trace = Trace::default();
        let mut first = Sample { step: Some(1.0), ..Default::default() };
        first.set(Quantity::Rss, 7);
        let mut second = Sample { time_s: Some(0.5), activity: Activity::Eval, ..Default::default() };
        second.set(Quantity::Tensors, 3);
        trace.push(&first);
        trace.push(&second);
        assert_eq!([trace.sample(0), trace.sample(1)], [first, second]);
        assert_eq!(trace.value(0, Quantity::Tensors), None);
    }
}
