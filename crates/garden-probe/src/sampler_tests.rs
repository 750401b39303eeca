//! Tests of the sampler on real processes: a Python program that forks, writes and ends on request.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::*;

/// Holds `SIZE` MiB. `fork N`, `dirty MIB` (by the first fork), `spin` (a thread computes from then on) and `end` are answered once done.
const PROGRAM: &str = r#"
import os, sys, threading
size = int(sys.argv[1]) << 20
block = bytearray(b"x") * size
forks = []
def serve(inbox, outbox):
    while True:
        word = os.read(inbox, 16)
        if not word:
            os._exit(0)
        for place in range(0, int(word) << 20, 4096):
            block[place] = 1
        os.write(outbox, b"d")
def spin():
    while True:
        pass
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "fork":
        for _ in range(int(rest[0])):
            (inbox, to_fork), (from_fork, outbox) = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(to_fork)
                for _, end, _ in forks:
                    os.close(end)
                serve(inbox, outbox)
            os.close(inbox)
            forks.append((pid, to_fork, from_fork))
    if word == "dirty":
        os.write(forks[0][1], rest[0].encode())
        os.read(forks[0][2], 1)
    if word == "spin":
        threading.Thread(target=spin, daemon=True).start()
    if word == "end":
        for _, end, _ in forks:
            os.close(end)
        for pid, _, _ in forks:
            os.waitpid(pid, 0)
        forks = []
    print(word, flush=True)
"#;

struct Program {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts the program; `None`, with the reason printed, where there is no Python.
    fn start(mebibytes: u32) -> Option<Program> {
        let size = mebibytes.to_string();
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM, &size]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            garden_testing::missing("python3");
            return None;
        };
        let (input, output) = (child.stdin.take()?, BufReader::new(child.stdout.take()?).lines());
        let mut program = Program { child, input, output };
        assert_eq!(program.answer(), "ready");
        Some(program)
    }

    fn answer(&mut self) -> String {
        self.output.next().unwrap().unwrap()
    }

    fn ask(&mut self, request: &str) {
        writeln!(self.input, "{request}").unwrap();
        assert!(request.starts_with(&self.answer()));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Forks exit once their parent's end of the pipe is closed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rss(sample: &TreeSample) -> u64 {
    sample.total.get(Quantity::Rss).unwrap()
}

fn assert_near(found: u64, expected: u64, tolerance: u64) {
    assert!(found.abs_diff(expected) <= tolerance, "{} MiB, not {} MiB", found / MIB, expected / MIB);
}

/// Takes samples for a while: later actions of forks must not show.
fn assert_stays_near(sampler: &mut Sampler, expected: u64) {
    for _ in 0..20 {
        assert_near(rss(&sampler.sample().unwrap()), expected, 10 * MIB);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Takes samples until memory is measured again, whatever that costs.
fn wait_for_measurement(sampler: &mut Sampler) -> TreeSample {
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        sampler.shares_pace.set_due(Instant::now());
        let sample = sampler.sample().unwrap();
        if !sample.total.is_bound() {
            return sample;
        }
        assert!(Instant::now() < patience, "{:?}", sample.total);
    }
}

#[test]
fn forks_change_nothing_whether_shares_are_read_or_not() {
    let far = Duration::from_secs(3600);
    for reads_shares in [true, false] {
        let Some(mut program) = Program::start(200) else { return };
        let mut sampler = Sampler::of(program.child.id()).unwrap();
        let alone = rss(&sampler.sample().unwrap());
        assert_near(alone, 210 * MIB, 15 * MIB);
        if !reads_shares {
            sampler.shares_pace.set_due(Instant::now() + far);
        }
        program.ask("fork 4");
        let first = sampler.sample().unwrap();
        assert_eq!(first.processes.len(), 5);
        assert_near(rss(&first), alone, 10 * MIB);
        assert_stays_near(&mut sampler, alone);
        program.ask("end");
        let last = sampler.sample().unwrap();
        assert_eq!(last.processes.len(), 1);
        assert_near(rss(&last), alone, 10 * MIB);
        assert_eq!(last.total.get(Quantity::Private), None);
    }
}

#[test]
fn what_a_fork_writes_to_becomes_its_own() {
    let Some(mut program) = Program::start(200) else { return };
    let mut sampler = Sampler::of(program.child.id()).unwrap();
    let alone = rss(&sampler.sample().unwrap());
    program.ask("fork 4");
    assert_stays_near(&mut sampler, alone);
    program.ask("dirty 50");
    // At once only an upper bound is known; once all shares have been read, memory is measured.
    let at_once = sampler.sample().unwrap();
    assert!(at_once.total.is_bound(), "{:?}", at_once.total);
    assert_near(rss(&at_once), alone + 50 * MIB, 10 * MIB);
    let sample = wait_for_measurement(&mut sampler);
    assert_near(rss(&sample), alone + 50 * MIB, 10 * MIB);
    let mut own: Vec<u64> = sample.processes.iter().map(|process| process.own).collect();
    own.sort_unstable();
    assert_near(own[4], alone, 10 * MIB);
    assert_near(own[3], 50 * MIB, 10 * MIB);
    assert!(own[..3].iter().all(|&bytes| bytes < 10 * MIB), "{own:?}");
    let peak = sample.total.get(Quantity::Peak).unwrap();
    assert!(peak >= rss(&sample) && peak < rss(&sample) + 40 * MIB, "{peak}");
    assert!(sampler.counter_error() < 8 * MIB, "{}", sampler.counter_error());
    program.ask("end");
    assert_near(rss(&sampler.sample().unwrap()), alone, 10 * MIB);
}

/// An unknown fork shares the pages that are read, so a round in which a process came does not count.
#[test]
fn a_fork_during_a_round_of_readings_begins_it_anew() {
    let Some(mut program) = Program::start(200) else { return };
    let mut sampler = Sampler::of(program.child.id()).unwrap();
    let alone = rss(&sampler.sample().unwrap());
    program.ask("fork 4");
    sampler.sample().unwrap();
    program.ask("dirty 50");
    for processes in 5..8 {
        // The first sample sees the new process, and a round begins at the second.
        for _ in 0..3 {
            sampler.shares_pace.set_due(Instant::now());
            let sample = sampler.sample().unwrap();
            assert_eq!(sample.processes.len(), processes);
            assert!(sample.total.is_bound(), "{:?}", sample.total);
            assert_near(rss(&sample), alone + 50 * MIB, 10 * MIB);
        }
        assert!(sampler.round.as_ref().unwrap().is_of(&sampler.present));
        program.ask("fork 1");
    }
    let sample = wait_for_measurement(&mut sampler);
    assert_eq!(sample.processes.len(), 8);
    assert_near(rss(&sample), alone + 50 * MIB, 10 * MIB);
}

/// A thread that runs may be in the middle of a fork: the child has the pages already, but cannot be seen yet.
#[test]
fn readings_count_once_no_fork_can_be_under_way() {
    let Some(mut program) = Program::start(200) else { return };
    let mut sampler = Sampler::of(program.child.id()).unwrap();
    let alone = rss(&sampler.sample().unwrap());
    ["fork 1", "dirty 50", "spin"].into_iter().for_each(|request| program.ask(request));
    sampler.sample().unwrap();
    sampler.shares_pace.set_due(Instant::now());
    let sample = sampler.sample().unwrap();
    assert!(sampler.pending.is_some() && sample.total.is_bound(), "{:?}", sample.total);
    // It was one.
    program.ask("fork 1");
    let sample = sampler.sample().unwrap();
    assert!(sampler.pending.is_none() && sample.total.is_bound(), "{:?}", sample.total);
    assert_near(rss(&wait_for_measurement(&mut sampler)), alone + 50 * MIB, 10 * MIB);
}

/// Whoever reads the memory of a process keeps its pages for a moment after its end.
#[test]
fn shares_are_not_read_shortly_after_an_end() {
    let Some(mut program) = Program::start(200) else { return };
    let mut sampler = Sampler::of(program.child.id()).unwrap();
    sampler.sample().unwrap();
    assert!(sampler.may_read_shares());
    program.ask("fork 2");
    sampler.sample().unwrap();
    assert!(sampler.may_read_shares());
    program.ask("end");
    let begin = Instant::now();
    sampler.sample().unwrap();
    assert!(!sampler.may_read_shares() || begin.elapsed() > LINGERS);
    std::thread::sleep(LINGERS);
    assert!(sampler.may_read_shares());
}

#[test]
fn when_a_decision_hangs_on_it_everybody_is_read_at_once() {
    let Some(mut program) = Program::start(200) else { return };
    let mut sampler = Sampler::of(program.child.id()).unwrap();
    let alone = rss(&sampler.sample().unwrap());
    program.ask("fork 10");
    sampler.shares_pace.set_due(Instant::now() + Duration::from_secs(3600));
    program.ask("dirty 50");
    assert!(sampler.sample().unwrap().total.is_bound());
    let mut sample = sampler.measure().unwrap();
    // The fork that wrote may still be on its way to sleep.
    let patience = Instant::now() + Duration::from_secs(30);
    while sample.total.is_bound() {
        assert!(Instant::now() < patience, "{:?}", sample.total);
        std::thread::sleep(Duration::from_millis(5));
        sample = sampler.sample().unwrap();
    }
    assert_near(rss(&sample), alone + 50 * MIB, 10 * MIB);
    // There is nothing more to measure.
    assert!(sampler.measure().is_none());
}

#[test]
fn another_program_of_the_same_name_is_not_a_fork() {
    let mut shell = Command::new("bash");
    let script = "bash -c 'read -r _; exec bash -c \"echo other; read -r _; :\"'; :";
    let Ok(mut child) = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        garden_testing::missing("bash");
        return;
    };
    let mut input = child.stdin.take().unwrap();
    let mut sampler = Sampler::of(child.id()).unwrap();
    while sampler.sample().unwrap().processes.len() < 2 {}
    writeln!(input).unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "other");
    sampler.sample().unwrap();
    let sample = sampler.sample().unwrap();
    assert!(sample.processes.iter().all(|process| process.own == process.memory.rss), "{sample:?}");
    drop(input);
    child.wait().unwrap();
}

#[test]
fn a_single_process_knows_its_peak_and_its_surroundings() {
    let mut sampler = Sampler::of(std::process::id()).unwrap();
    let sample = sampler.sample().unwrap();
    let get = |quantity: Quantity| sample.total.get(quantity);
    assert!(get(Quantity::Peak) >= get(Quantity::Rss));
    assert_eq!(get(Quantity::Available), sample.around.available);
    assert_eq!(get(Quantity::DevShm), sample.around.dev_shm);
    assert_eq!(get(Quantity::GpuUsed).is_some(), sampler.gpus.is_some());
}

#[test]
fn only_a_counter_that_stands_still_has_an_error() {
    let found = Shares { rss: 100 * MIB, ..Shares::default() };
    assert_eq!(counter_error(99 * MIB, &found, 99 * MIB + 1), MIB - 1);
    assert_eq!(counter_error(50 * MIB, &found, 60 * MIB), 0);
}
