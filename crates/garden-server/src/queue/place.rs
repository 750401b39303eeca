//! Which queued jobs start now. Nothing is done here.

use crate::job::Hold;

/// Memory that a job takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub host: u64,
    pub gpu: u64,
}

/// A job that waits for its turn; those that come first are in front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    pub need: Need,
    /// Bytes of the disk that it may still come to take: its checkpoints and its result.
    pub disk: u64,
    /// Those of them that it takes before long: the next checkpoints. At the quota it waits again.
    pub soon: u64,
    /// Whether it may be tried again by now.
    pub is_due: bool,
}

/// What there is for jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    /// Jobs at the same time.
    pub slots: usize,
    /// Memory of all jobs together, where that is bounded.
    pub host: Option<u64>,
    pub gpu: GpuMemory,
    /// Free bytes of the disk, and those that are left of the quota.
    pub disk: u64,
    pub quota: u64,
}

/// Memory of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GpuMemory {
    /// It is being looked for.
    NotKnownYet,
    /// There is none.
    #[default]
    None,
    Bytes(u64),
}

/// What becomes of jobs that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placed {
    /// Those that start, by their places in the list.
    pub starts: Vec<usize>,
    /// Those that wait for more than their turn.
    pub holds: Vec<(usize, Hold)>,
}

/// Places jobs in their order: a small one does not overtake a large one that waits for others of ours, which would then never find room. One that waits for
/// something that no job of ours will give back is passed by.
pub(super) fn place(waiting: &[Waiting], running: &[Need], free: &Free) -> Placed {
    let mut used = running.iter().fold(Need::default(), |sum, need| add(sum, *need));
    let mut slots = free.slots.saturating_sub(running.len());
    let (mut disk, mut quota) = (free.disk, free.quota);
    let mut placed = Placed::default();
    for (index, job) in waiting.iter().enumerate() {
        if slots == 0 {
            break;
        }
        if !job.is_due {
            continue;
        }
        if job.disk > disk || job.soon > quota {
            placed.holds.push((index, if job.disk > disk { Hold::Disk } else { Hold::Quota }));
            continue;
        }
        if !fits_beside(used, job.need, free) {
            break;
        }
        placed.starts.push(index);
        (used, slots) = (add(used, job.need), slots - 1);
        (disk, quota) = (disk - job.disk, quota - job.soon);
    }
    placed
}

/// Whether a job fits beside others. Alone it may start in any case: it is planned again with what is free then.
fn fits_beside(used: Need, more: Need, free: &Free) -> bool {
    let fits = |used: u64, more: u64, all: u64| used == 0 || used.saturating_add(more) <= all;
    let gpu = match free.gpu {
        GpuMemory::NotKnownYet => used.gpu == 0 || more.gpu == 0,
        GpuMemory::None => true,
        GpuMemory::Bytes(all) => fits(used.gpu, more.gpu, all),
    };
    gpu && free.host.is_none_or(|all| fits(used.host, more.host, all))
}

fn add(one: Need, other: Need) -> Need {
    Need { host: one.host.saturating_add(other.host), gpu: one.gpu.saturating_add(other.gpu) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(host: u64) -> Waiting {
        Waiting { need: Need { host, gpu: 0 }, disk: 1, soon: 1, is_due: true }
    }

    #[test]
    fn jobs_are_placed_in_their_order() {
        let free = Free { slots: 2, host: Some(10), gpu: GpuMemory::None, disk: 100, quota: 100 };
        let need = |host| Need { host, gpu: 0 };
        let late = Waiting { is_due: false, ..job(1) };
        let heavy = Waiting { disk: 200, soon: 200, ..job(1) };
        let later = Waiting { disk: 200, ..job(1) };
        type Row<'a> = (&'a str, Vec<Waiting>, Vec<Need>, Free, Vec<usize>, Vec<(usize, Hold)>);
        let table: Vec<Row<'_>> = vec![
            ("two slots", vec![job(1), job(1), job(1)], vec![], free, vec![0, 1], vec![]),
            ("one is taken", vec![job(1), job(1)], vec![need(1)], free, vec![0], vec![]),
            ("none is left", vec![job(1)], vec![need(1), need(1)], free, vec![], vec![]),
            ("a small one does not overtake", vec![job(8), job(1)], vec![need(5)], free, vec![], vec![]),
            ("alone it is tried", vec![job(80)], vec![], free, vec![0], vec![]),
            ("one that waits is passed by", vec![late, job(1)], vec![], free, vec![1], vec![]),
            ("the disk", vec![heavy, job(1)], vec![], Free { quota: 1000, ..free }, vec![1], vec![(0, Hold::Disk)]),
            ("the disk is for all that is planned", vec![later, job(1)], vec![], free, vec![1], vec![(0, Hold::Disk)]),
            ("the quota is for what comes next", vec![later], vec![], Free { disk: 1000, ..free }, vec![0], vec![]),
            ("the quota", vec![heavy, job(1)], vec![], Free { disk: 1000, ..free }, vec![1], vec![(0, Hold::Quota)]),
            (
                "space is given once",
                vec![job(1), job(1)],
                vec![],
                Free { disk: 1, ..free },
                vec![0],
                vec![(1, Hold::Disk)],
            ),
        ];
        for (name, waiting, running, free, starts, holds) in table {
            assert_eq!(place(&waiting, &running, &free), Placed { starts, holds }, "{name}");
        }
    }

    #[test]
    fn a_gpu_that_is_looked_for_takes_one_job() {
        let on_gpu = Waiting { need: Need { host: 1, gpu: 6 }, is_due: true, ..Waiting::default() };
        let free = |gpu| Free { slots: 3, host: None, gpu, disk: 0, quota: 0 };
        let starts = |gpu| place(&[on_gpu, on_gpu], &[], &free(gpu)).starts.len();
        assert_eq!([GpuMemory::NotKnownYet, GpuMemory::Bytes(10), GpuMemory::Bytes(12)].map(starts), [1, 1, 2]);
    }
}
