//! The bound on what the process that trains holds, looked at after each step: the guard samples once a second, in which a leak of 200 MB a step passes any
//! limit.
//!
//! All memory of a run is taken before its first step, so what is added from step to step is not in the plan. The run ends with a checkpoint as soon as it
//! holds more than it may, or would with one more step like the last two. A start makes one step at least, so that a run under too small a limit comes
//! to its end all the same.

use garden_probe::{MachineProbe, OwnMemory};

/// The machine and the control group are asked again once this share of what they had left is taken.
const ROOM_TAKEN: u64 = 16;
/// What is added since the first step has to be this share of the limit at least: less is the allocator's.
const LEAST_GROWTH: u64 = 64;
/// A step adds much, so that the next is expected to add as much, from this share of the limit on.
const MUCH: u64 = 32;

/// More is held than may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossed {
    pub held: u64,
    pub limit: u64,
}

/// The bound.
pub struct Bound {
    own: Option<OwnMemory>,
    around: MachineProbe,
    /// What somebody has asked for.
    asked: Option<u64>,
    growth: Growth,
}

/// What is known of the run's memory; numbers in, a decision out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Growth {
    /// What may be held, and what has to be held for it to be asked for again.
    limit: u64,
    ask_at: u64,
    /// What saving takes.
    saving: u64,
    /// What was held before the first step, and after the last one.
    first: u64,
    last: u64,
    /// What the last two steps have added.
    rises: [u64; 2],
}

impl Bound {
    pub fn new(asked: Option<u64>) -> Bound {
        let around = MachineProbe::of(std::process::id());
        Bound { own: OwnMemory::open().ok(), around, asked, growth: Growth::default() }
    }

    /// Everything is there; steps begin.
    pub fn begin(&mut self, saving: u64) {
        let held = self.held().unwrap_or(0);
        self.growth = Growth { saving, first: held, last: held, ..Growth::default() };
    }

    /// A step was made.
    pub fn after_step(&mut self) -> Option<Crossed> {
        let held = self.held()?;
        self.ask_for_limit(held);
        self.growth.after_step(held)
    }

    /// Between two batches of an evaluation, which gives its own memory back before anything is saved.
    pub fn in_evaluation(&mut self) -> Option<Crossed> {
        let held = self.held()?;
        self.ask_for_limit(held);
        self.growth.crossed(held, self.growth.limit)
    }

    fn held(&self) -> Option<u64> {
        self.own.as_ref()?.anonymous()
    }

    /// The smallest of what was asked for and what the machine and the control group have left.
    fn ask_for_limit(&mut self, held: u64) {
        if held < self.growth.ask_at {
            return;
        }
        let room = self.around.look().headroom.unwrap_or(u64::MAX);
        let around = held.saturating_add(room);
        self.growth.limit = self.asked.map_or(around, |asked| asked.min(around));
        self.growth.ask_at = held.saturating_add((room / ROOM_TAKEN).max(1));
    }
}

impl Growth {
    fn after_step(&mut self, held: u64) -> Option<Crossed> {
        self.rises = [held.saturating_sub(self.last), self.rises[0]];
        self.last = held;
        let most = self.limit.saturating_sub(self.saving);
        let rise = self.rises[0].min(self.rises[1]);
        let next = if rise >= self.limit / MUCH { held.saturating_add(rise) } else { held };
        self.crossed(next, most).map(|crossed| Crossed { held, ..crossed })
    }

    fn crossed(&self, held: u64, most: u64) -> Option<Crossed> {
        let has_grown = held.saturating_sub(self.first) > self.limit / LEAST_GROWTH;
        // Before the first step of a start nothing is known yet.
        (self.limit > 0 && held > most && has_grown).then_some(Crossed { held, limit: self.limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// After which step a run ends that holds so much after each of its steps, in MiB; a limit of 1000, and 20 for saving.
    fn ends_after(first: u64, held: &[u64]) -> Option<usize> {
        let known = Growth { limit: 1000 * MIB, saving: 20 * MIB, first: first * MIB, ..Growth::default() };
        let mut growth = Growth { last: known.first, ..known };
        held.iter().position(|held| growth.after_step(held * MIB).is_some()).map(|index| index + 1)
    }

    #[test]
    fn a_run_ends_before_its_leak_passes_the_limit_or_one_step_after() {
        // 200 a step: the fourth would not fit, and that is known after two.
        assert_eq!(ends_after(300, &[500, 700, 900, 1100]), Some(3));
        assert_eq!(ends_after(600, &[800, 1000]), Some(2));
        // The first step says nothing about the second.
        assert_eq!(ends_after(900, &[1100, 1300]), Some(1));
        // Slow leaks are not forecast here: the guard does that.
        assert_eq!(ends_after(960, &[965, 970, 975, 980, 985, 990]), Some(5));
    }

    #[test]
    fn what_was_planned_stays() {
        assert_eq!(ends_after(975, &[979, 979, 980, 979]), None);
        // Close to the limit or above it from the start: ending would bring nothing.
        assert_eq!(ends_after(1010, &[1012, 1011, 1020, 1024]), None);
        // One step alone that takes much, as when kernels are loaded, is no leak.
        assert_eq!(ends_after(300, &[900, 900, 910, 915]), None);
        assert_eq!(ends_after(700, &[900, 650, 900, 650]), None);
    }

    #[test]
    fn this_process_knows_what_it_holds() {
        let own = OwnMemory::open().unwrap();
        let before = own.anonymous().unwrap();
        let block = vec![1_u8; 64 << 20];
        let after = own.anonymous().unwrap();
        assert!(after.saturating_sub(before) > 60 << 20, "{before} to {after}, {}", block[before as usize % 1000]);
    }
}
