//! Twenty programs that fork (`testdata/programs/forking.py`), an eighth of their size: what is said of their memory is within 3 % of
//! the truth, or a bound that holds. `testdata/check_forking.py` does the same with the binary and at full size.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on must fail, or say why it does not run"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use garden_memory::{MIB, Quantity};
use garden_probe::{Identity, Process, Sampler};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/programs/forking.py");
const SCALE: &str = "8";
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(120);
/// Programs that run at the same time: they mostly wait.
const AT_ONCE: usize = 5;

/// A program that is killed when the test ends, whatever happens; its children die with it.
struct Program {
    child: Child,
    said: Receiver<String>,
}

impl Program {
    /// Starts a program as the leader of a session, as the monitor does, so that its orphans are known.
    fn start(name: &str) -> Program {
        let mut command = Command::new("setsid");
        command.args(["python3", PROGRAM, name, SCALE]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, said) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let program = Program { child, said };
        assert_eq!(program.said.recv_timeout(PATIENCE).unwrap(), "begun");
        program
    }

    fn is_quiet(&self) -> bool {
        self.said.try_recv().is_ok_and(|line| line == "quiet")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes of a session.
fn members(session: u32) -> Vec<Identity> {
    let names = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let identities = names.filter_map(|name| Identity::of(name.to_str()?.parse().ok()?));
    identities.filter(|identity| identity.session == session).collect()
}

/// The processes of a program, and the sum of their `Pss_Anon`.
fn read_all(program: &Program) -> (Vec<u32>, u64) {
    let members = members(program.child.id());
    let pids = members.iter().map(|identity| identity.pid).collect();
    // A process that has just ended has none.
    let share = |identity| Some(Process::open(identity).ok()?.shares().ok()?.pss_anon);
    (pids, members.into_iter().filter_map(share).sum())
}

/// Whether two amounts differ by at most 3 %; small ones, by what a program's own start brings.
fn is_near(found: u64, expected: u64) -> bool {
    found.abs_diff(expected) <= (expected * 3 / 100).max(MIB)
}

/// Runs one program; an error says what is wrong with its samples.
fn check(name: &str) -> Result<(), String> {
    let program = Program::start(name);
    let mut sampler = Sampler::of(program.child.id()).unwrap();
    let begin = Instant::now();
    while !program.is_quiet() {
        sampler.sample().ok_or("ended before it was quiet")?;
        std::thread::sleep(PAUSE);
        if begin.elapsed() > PATIENCE {
            return Err(format!("{name} never became quiet"));
        }
    }
    let mut samples = Vec::new();
    // The truth once nothing changes any more: while a process that has ended lingers, the others' shares are too small.
    let mut last = read_all(&program);
    let expected = loop {
        let mut measured = 0;
        while measured < 3 {
            std::thread::sleep(PAUSE);
            let sample = sampler.sample().ok_or("ended")?;
            samples.push((sample.total.get(Quantity::Anon).unwrap(), sample.total.get(Quantity::AnonLeast)));
            measured += u32::from(!sample.total.is_bound());
            if begin.elapsed() > PATIENCE {
                return Err(format!("{name} was never measured: {:?}", sample.total));
            }
        }
        let now = read_all(&program);
        if now.0 == last.0 && now.1.abs_diff(last.1) <= MIB / 4 {
            break now.1;
        }
        last = now;
    };
    for (shown, least) in samples {
        // Counters and shares are read at different moments and may differ by a few pages.
        let holds = least.is_some_and(|least| least <= expected + MIB / 4 && expected <= shown + MIB / 4);
        if !is_near(shown, expected) && !holds {
            let least = least.map(|least| least / MIB);
            return Err(format!("{name}: {} MiB (at least {least:?}), but it is {}", shown / MIB, expected / MIB));
        }
    }
    Ok(())
}

#[test]
fn forking_programs_are_measured_or_bounded() {
    let listed = Command::new("python3").args([PROGRAM, "--list"]).output();
    let Ok(listed) = listed else { return garden_testing::missing("python3") };
    if Command::new("setsid").arg("true").status().is_err() {
        return garden_testing::missing("setsid");
    }
    // Taken from the end: the largest programs, which are listed first, begin first.
    let names: Vec<String> = String::from_utf8(listed.stdout).unwrap().lines().rev().map(str::to_string).collect();
    assert_eq!(names.len(), 20, "{}", String::from_utf8_lossy(&listed.stderr));
    let (waiting, wrong) = (Mutex::new(names), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(name) = waiting.lock().unwrap().pop() else { return };
                    if let Err(problem) = check(&name) {
                        wrong.lock().unwrap().push(problem);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
