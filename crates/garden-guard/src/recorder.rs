//! The trace being written, and what the program said last.
//!
//! A failed write does not stop the watching: a full disk must not cost the guard its eyes. It is counted and told, the next
//! line is tried again, and a line that was torn by the failure is closed first so that what follows can be read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use garden_memory::{Activity, EventKind, KIB, Libraries, ProcessTrack, Quantity, RunFacts, Sample};
use garden_probe::{ProcessSample, Role, TreeSample};
use garden_trace::{Writer, last_time_s};

use crate::channel::Message;

/// What a process holds is written again when it has changed by this much: smaller changes would make traces of large trees
/// several times longer and show nothing.
const PROCESS_GRAIN: u64 = 256 * KIB;

/// Writes what is sampled and heard to a trace.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    writer: Writer<Steadfast>,
    facts: RunFacts,
    step: Option<f64>,
    activity: Activity,
    /// What was counted since the last sample.
    counts: [(Quantity, Option<u64>); 5],
    /// What was last written of each process, by process id and start time.
    told: BTreeMap<(u32, u64), Told>,
    /// What was written of what processes have loaded.
    libraries: Libraries,
}

/// What was last written of a process.
#[derive(Debug)]
struct Told {
    own: u64,
    /// A shell that was told to run one command becomes that command, and is introduced again.
    command: String,
    /// So is a launcher once it is known for one.
    role: Role,
}

impl Recorder {
    /// Creates the file and writes its header.
    pub fn create(path: &Path, facts: RunFacts, origin: &[(String, String)]) -> io::Result<Recorder> {
        Recorder::write_to(File::create(path)?, path, facts, origin)
    }

    /// Goes on with the trace of an earlier part of the same run, if there is one: another header follows what is there. Also
    /// tells where that ended on the trace's clock.
    pub fn go_on(path: &Path, facts: RunFacts, origin: &[(String, String)]) -> io::Result<(Recorder, Duration)> {
        let file = File::options().read(true).append(true).create(true).open(path)?;
        let earlier = last_time_s(&file).and_then(|time| Duration::try_from_secs_f64(time).ok()).unwrap_or_default();
        Ok((Recorder::write_to(file, path, facts, origin)?, earlier))
    }

    fn write_to(file: File, path: &Path, facts: RunFacts, origin: &[(String, String)]) -> io::Result<Recorder> {
        let mut writer = Writer::new(Steadfast { file, failed: 0, failure: None, is_torn: false });
        writer.header(&facts, origin)?;
        use Quantity::{Arena, Objects, Tensors, TensorsCpu, TensorsGpu};
        let counts = [Tensors, TensorsCpu, TensorsGpu, Objects, Arena].map(|quantity| (quantity, None));
        let mut recorder = Recorder {
            path: path.to_path_buf(),
            writer,
            facts,
            step: None,
            activity: Activity::Train,
            counts,
            told: BTreeMap::new(),
            libraries: Libraries::default(),
        };
        // Without a header the rest would be no trace.
        recorder.writer.get_mut().failure.take().map_or(Ok(recorder), Err)
    }

    /// Where the trace is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is known about the run, given or learnt.
    pub fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// The training step that was told last.
    pub fn step(&self) -> Option<f64> {
        self.step
    }

    /// Lines that could not be written, and why the last of them could not.
    pub fn failures(&self) -> Option<(u64, &io::Error)> {
        let file = self.writer.get_ref();
        file.failure.as_ref().map(|failure| (file.failed, failure))
    }

    /// Writes a sample of a tree, with what the program said last.
    pub fn sample(&mut self, tree: &TreeSample, time_s: f64) -> io::Result<Sample> {
        let mut sample = tree.total.clone();
        sample.step = self.step;
        sample.time_s = Some(milliseconds(time_s));
        sample.activity = self.activity;
        // Once, with the sample after it was told: a count that is repeated would be read as one that was made again.
        for (quantity, count) in &mut self.counts {
            if let Some(count) = count.take() {
                sample.set(*quantity, count);
            }
        }
        self.learn_libraries(&tree.libraries)?;
        let levels = self.processes(&tree.processes)?;
        self.writer.sample(&sample, &levels)?;
        Ok(sample)
    }

    /// Writes what processes have loaded since it was last written, or that it cannot be told of all of them.
    fn learn_libraries(&mut self, found: &Libraries) -> io::Result<()> {
        match (&self.libraries, found) {
            (Libraries::Incomplete, _) | (_, Libraries::Unknown) => Ok(()),
            (_, Libraries::Incomplete) => {
                self.libraries = Libraries::Incomplete;
                self.writer.libraries(None)
            }
            (known, Libraries::Known(names)) => {
                let is_known = |name: &&String| matches!(known, Libraries::Known(known) if known.contains(*name));
                let new: Vec<&String> = names.iter().filter(|name| !is_known(name)).collect();
                if new.is_empty() {
                    return Ok(());
                }
                self.writer.libraries(Some(&new))?;
                let new: Vec<String> = new.into_iter().cloned().collect();
                self.libraries.add(new);
                Ok(())
            }
        }
    }

    /// What is known about what processes have loaded.
    pub fn libraries(&self) -> &Libraries {
        &self.libraries
    }

    /// Introduces new processes, and collects what changed.
    fn processes(&mut self, processes: &[ProcessSample]) -> io::Result<Vec<(u32, Option<u64>)>> {
        let key = |process: &ProcessSample| (process.identity.pid, process.identity.started);
        let mut levels = Vec::new();
        let mut present: Vec<(u32, u64)> = processes.iter().map(key).collect();
        present.sort_unstable();
        self.told.retain(|known, _| {
            let is_here = present.binary_search(known).is_ok();
            if !is_here {
                levels.push((known.0, None));
            }
            is_here
        });
        // A process id that was used again at once is introduced anew instead.
        levels.retain(|(pid, _)| present.iter().all(|(here, _)| here != pid));
        for process in processes {
            let known = self.told.get(&key(process));
            if !known.is_some_and(|told| told.command == process.identity.command && told.role == process.role) {
                self.introduce(process)?;
            } else if known.is_some_and(|told| told.own.abs_diff(process.own) < PROCESS_GRAIN) {
                continue;
            }
            let command = process.identity.command.clone();
            self.told.insert(key(process), Told { own: process.own, command, role: process.role });
            levels.push((process.identity.pid, Some(process.own)));
        }
        Ok(levels)
    }

    fn introduce(&mut self, process: &ProcessSample) -> io::Result<()> {
        self.writer.process(&ProcessTrack {
            pid: process.identity.pid,
            parent: process.identity.parent,
            name: process.identity.name.clone(),
            role: process.role.to_string(),
            command: process.identity.command.clone(),
            ..ProcessTrack::default()
        })
    }

    /// Writes an event.
    pub fn event(&mut self, kind: EventKind, time_s: f64) -> io::Result<()> {
        self.follow(kind);
        self.writer.event(kind, self.step, Some(milliseconds(time_s)))
    }

    /// Takes in what an event means for the samples after it, without writing it.
    pub fn follow(&mut self, kind: EventKind) {
        self.activity = match kind {
            EventKind::EvalStart => Activity::Eval,
            EventKind::EvalEnd | EventKind::Restart => Activity::Train,
            _ => self.activity,
        };
        if kind == EventKind::Restart {
            self.told.clear();
            self.step = None;
        }
    }

    /// Takes in the step that the program is at.
    pub fn at_step(&mut self, step: f64) {
        self.step = Some(step);
    }

    /// Takes in facts that the program told; those given by flags stay.
    pub fn learn(&mut self, told: RunFacts) -> io::Result<()> {
        let facts = self.facts.clone().or(told);
        if facts == self.facts {
            return Ok(());
        }
        self.facts = facts;
        self.writer.facts(&self.facts)
    }

    /// Takes in a message from the event channel, except for its event.
    pub fn hear(&mut self, message: &Message) -> io::Result<()> {
        self.step = message.step.or(self.step);
        let told = [message.tensors, message.tensors_cpu, message.tensors_gpu, message.objects, message.arena];
        for ((_, known), told) in self.counts.iter_mut().zip(told) {
            *known = told.or(*known);
        }
        message.facts.as_ref().map_or(Ok(()), |facts| self.learn(facts.clone()))
    }
}

/// Milliseconds are enough, and keep the lines short.
fn milliseconds(time_s: f64) -> f64 {
    (time_s * 1000.0).round() / 1000.0
}

/// A file that takes what it can, remembers what it could not, and is never the end of the watching.
#[derive(Debug)]
struct Steadfast {
    file: File,
    failed: u64,
    failure: Option<io::Error>,
    is_torn: bool,
}

impl Write for Steadfast {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let opening: &[u8] = if self.is_torn { b"\n" } else { b"" };
        match self.file.write_all(opening).and_then(|()| self.file.write_all(line)) {
            Ok(()) => self.is_torn = false,
            Err(error) => {
                self.is_torn = true;
                self.failed += 1;
                self.failure = Some(error);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_stands_beside_the_sample_after_it_and_no_other() {
        let path = std::env::temp_dir().join(format!("garden-recorder-{}", std::process::id()));
        let mut recorder = Recorder::create(&path, RunFacts::default(), &[]).unwrap();
        let mut taken = |told: Option<u64>| {
            let message = Message { tensors: told, ..Message::default() };
            recorder.hear(&message).unwrap();
            recorder.sample(&TreeSample::default(), 0.0).unwrap().get(Quantity::Tensors)
        };
        assert_eq!([Some(34), None, Some(518), None].map(&mut taken), [Some(34), None, Some(518), None]);
        std::fs::remove_file(path).unwrap();
    }
}
