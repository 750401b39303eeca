//! What comes next for a job, decided from what is known about it. Nothing is done here.

use std::time::Duration;

use crate::job::{Findings, Hold, JobError, JobOutcome, JobRecord, Status, Wish, Work};

/// Starts in a row without a newer checkpoint.
pub(super) const MOST_STARTS: u32 = 10;
/// Starts of a look at a job's files.
pub(super) const MOST_LOOKS: u32 = 3;
/// How long such a look may take.
pub(super) const LONGEST_LOOK: Duration = Duration::from_secs(2 * 3600);
/// How long a program whose guard was killed may take to end.
const ORPHAN: Duration = Duration::from_secs(60);
/// The same where the job is cancelled.
const CANCELLED_ORPHAN: Duration = Duration::from_secs(10);
/// How long a job may take to end when it is cancelled, and when it shall save first.
const CANCEL: Duration = Duration::from_secs(60);
const SAVE: Duration = Duration::from_secs(900);
/// How long a process may take until it holds its lock, and until it is gone once it has given it back.
pub(super) const PASSING: Duration = Duration::from_secs(60);

/// The process that works on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    /// There is none.
    None,
    /// It was started and does not hold its lock yet, or has given it back and not ended; its id, if we have started it.
    Starting(Option<u32>),
    /// It runs.
    Running(u32),
    /// It was stopped (SIGSTOP): it does nothing, and hears nothing.
    Stopped(u32),
}

/// What a job's folder says.
#[derive(Clone, Debug, Default)]
pub(super) struct FolderState {
    /// What a look at its files found.
    pub findings: Option<Findings>,
    /// How its last start ended.
    pub outcome: Option<JobOutcome>,
    /// The step of its newest checkpoint.
    pub newest_step: Option<u64>,
    /// A program that runs without its guard.
    pub orphan: Option<u32>,
}

/// What is waited for, and for how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    /// Since the process was asked to end.
    pub asked: Option<Duration>,
    /// Since it was killed.
    pub killed: Option<Duration>,
    /// Since it was first seen without its lock, if it is.
    pub passing: Duration,
    /// Since the look at its files began.
    pub looked: Duration,
    /// Since its program was seen without a guard.
    pub orphaned: Option<Duration>,
    /// What the server lacks: a job that runs is held, and one that ended without a word may have ended of it.
    pub lack: Option<Hold>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Nothing.
    Nothing,
    /// A look at its files begins, once it has its turn.
    Look,
    /// Its process is asked to save and end.
    Ask(u32),
    /// The same, since the server lacks something.
    AskToWait(u32, Hold),
    /// Its process is killed.
    Kill(u32),
    /// The program without a guard is asked to end, or killed.
    AskOrphan(u32),
    KillOrphan(u32),
    /// Its files are fine: it waits for its turn.
    Queue(Box<Findings>),
    /// Its files are not.
    Refuse(Box<Findings>, JobError),
    /// It has a result.
    Succeed {
        tokens: Option<u64>,
        words: String,
    },
    Fail(JobError),
    Cancel(String),
    Pause(String),
    /// It starts again to end where it is.
    Finish,
    /// It waits for something, and goes on from its newest checkpoint then.
    Hold(Hold, String),
    /// It starts again from its newest checkpoint.
    Again(Why),
}

/// Why a job starts again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// We asked it to end, and nobody wishes for that any more.
    Asked(String),
    /// It was asked to end, and not by us.
    StoppedFromOutside(String),
    /// Its process is gone without a word.
    Died,
}

/// What comes next.
pub(super) fn next(job: &JobRecord, folder: &FolderState, process: Process, waits: &Waits) -> Action {
    match job.status {
        // What it has found is taken before its end is waited for.
        Status::ValidatingFiles | Status::Running if folder.findings.is_none() && waits.passing >= PASSING => {
            match (process, waits.killed) {
                (Process::Starting(Some(pid)), None) => Action::Kill(pid),
                _ => Action::Nothing,
            }
        }
        Status::ValidatingFiles => look(job, folder, process, waits),
        Status::Running => work(job, folder, process, waits),
        // What was wished while it changed its place.
        Status::Queued => match job.wish {
            Wish::Cancel => cancelled(),
            Wish::Pause => Action::Pause("it had not started".into()),
            Wish::Finish | Wish::GoOn => Action::Nothing,
        },
        Status::Paused | Status::Succeeded | Status::Failed | Status::Cancelled => Action::Nothing,
    }
}

fn cancelled() -> Action {
    Action::Cancel("The job has been cancelled.".into())
}

/// Ends a process: it is asked, and killed where that does not help in time or nobody wants to wait.
fn end(job: &JobRecord, process: Process, waits: &Waits) -> Action {
    let pid = match process {
        Process::Running(pid) | Process::Stopped(pid) => pid,
        // It does not listen yet: only who does not want to wait ends it.
        Process::Starting(Some(pid)) if job.is_forced && waits.killed.is_none() => return Action::Kill(pid),
        Process::Starting(_) | Process::None => return Action::Nothing,
    };
    let patience = if job.wish == Wish::Cancel { CANCEL } else { SAVE };
    match (job.is_forced, waits.killed, waits.asked) {
        // It is gone as soon as the system has time for that.
        (_, Some(_), _) => Action::Nothing,
        (true, None, _) => Action::Kill(pid),
        (false, None, None) => Action::Ask(pid),
        (false, None, Some(asked)) if asked >= patience => Action::Kill(pid),
        (false, None, Some(_)) => Action::Nothing,
    }
}

/// A job whose files are looked at.
fn look(job: &JobRecord, folder: &FolderState, process: Process, waits: &Waits) -> Action {
    if job.wish == Wish::Cancel {
        return if process == Process::None { cancelled() } else { end(job, process, waits) };
    }
    if let Some(findings) = &folder.findings {
        let refusal = findings.error.clone().or_else(|| no_fit(findings));
        let findings = Box::new(findings.clone());
        return match refusal {
            Some(error) => Action::Refuse(findings, error),
            None => Action::Queue(findings),
        };
    }
    match process {
        Process::Running(pid) | Process::Stopped(pid) if waits.looked >= LONGEST_LOOK => match waits.killed {
            None => Action::Kill(pid),
            Some(_) => Action::Nothing,
        },
        Process::None if waits.looked >= LONGEST_LOOK => {
            let hours = LONGEST_LOOK.as_secs() / 3600;
            let message = format!("checking its files took more than {hours} hours");
            Action::Fail(JobError { code: "validation_timeout".into(), message, param: None })
        }
        Process::None if waits.lack == Some(Hold::Disk) => Action::Nothing,
        Process::None if job.starts >= MOST_LOOKS => {
            let message = format!("checking its files ended {MOST_LOOKS} times without an answer; see the job's log");
            Action::Fail(JobError { code: "validation_died".into(), message, param: None })
        }
        Process::None => Action::Look,
        _ => Action::Nothing,
    }
}

/// Why a job that was planned cannot run here.
fn no_fit(findings: &Findings) -> Option<JobError> {
    let plan = findings.plan.as_ref().filter(|plan| !plan.fits)?;
    Some(JobError {
        code: crate::jobs::DOES_NOT_FIT.into(),
        message: format!("this job does not fit into the server's memory: {}", plan.headline),
        param: Some("model".into()),
    })
}

/// A job that is worked on, or should be.
fn work(job: &JobRecord, folder: &FolderState, process: Process, waits: &Waits) -> Action {
    match process {
        Process::Running(_) | Process::Stopped(_) | Process::Starting(_) if job.wish != Wish::GoOn => {
            return end(job, process, waits);
        }
        Process::Running(pid) => {
            return match (waits.lack, waits.asked, waits.killed) {
                (Some(lack), None, _) => Action::AskToWait(pid, lack),
                // One that hangs would keep a full disk full.
                (Some(_), Some(asked), None) if asked >= SAVE => Action::Kill(pid),
                _ => Action::Nothing,
            };
        }
        // Somebody who may do that has stopped it, and will let it go on.
        Process::Stopped(_) | Process::Starting(_) => return Action::Nothing,
        Process::None => {}
    }
    if let Some(pid) = folder.orphan {
        return orphan(job, pid, waits);
    }
    match &folder.outcome {
        // What was asked to end may call that an error, and a trainer that had not begun yet dies of it.
        Some(JobOutcome::Failed { .. }) if matches!(job.wish, Wish::Cancel | Wish::Pause) => died(job, folder, waits),
        Some(JobOutcome::Failed { .. }) if job.wish == Wish::GoOn && held_for(job).is_some() => {
            Action::Hold(held_for(job).unwrap_or(Hold::Quota), "it ended when it was asked to".into())
        }
        Some(JobOutcome::Done { tokens, words }) => Action::Succeed { tokens: *tokens, words: words.clone() },
        Some(JobOutcome::Failed { error }) => Action::Fail(error.clone()),
        Some(JobOutcome::Stopped { step, words }) => stopped(job, folder, *step, words),
        Some(JobOutcome::NoRoom { words }) => held(job, folder, Hold::Memory, words),
        Some(JobOutcome::NoSpace { words }) => held(job, folder, Hold::Disk, words),
        Some(JobOutcome::NoQuota { words }) => held(job, folder, Hold::Quota, words),
        None => died(job, folder, waits),
    }
}

/// A program without its guard: a trainer notices by itself, saves and ends, any other program is asked to. Then the job can start again without there being two.
fn orphan(job: &JobRecord, pid: u32, waits: &Waits) -> Action {
    let patience = if job.wish == Wish::Cancel { CANCELLED_ORPHAN } else { ORPHAN };
    match waits.orphaned {
        _ if job.is_forced => Action::KillOrphan(pid),
        Some(waited) if waited >= patience => Action::KillOrphan(pid),
        None if matches!(job.order.work, Work::Command { .. }) => Action::AskOrphan(pid),
        _ => Action::Nothing,
    }
}

/// There is no room for it now. What is wished decides first.
fn held(job: &JobRecord, folder: &FolderState, hold: Hold, words: &str) -> Action {
    match job.wish {
        Wish::Cancel => cancelled(),
        Wish::Pause => Action::Pause(words.to_string()),
        Wish::Finish if folder.newest_step.is_none() => nothing_learnt(),
        Wish::Finish | Wish::GoOn => Action::Hold(hold, words.to_string()),
    }
}

/// What the server lacked when it asked the job to end.
fn held_for(job: &JobRecord) -> Option<Hold> {
    job.stop.and_then(|stop| stop.hold)
}

/// It was asked to end, and has saved.
fn stopped(job: &JobRecord, folder: &FolderState, step: Option<u64>, words: &str) -> Action {
    match job.wish {
        Wish::Cancel => Action::Cancel(format!("The job has been cancelled: {words}.")),
        Wish::Pause => Action::Pause(words.to_string()),
        Wish::Finish if step.is_none_or(|step| step == 0) => nothing_learnt(),
        Wish::Finish => Action::Finish,
        Wish::GoOn => match (held_for(job), job.stop) {
            (Some(hold), _) => Action::Hold(hold, words.to_string()),
            // A pause that was taken back.
            (None, Some(_)) => again(job, folder, Why::Asked(words.to_string())),
            // Not us: the machine is shut down, or its operator has done it.
            (None, None) => again(job, folder, Why::StoppedFromOutside(words.to_string())),
        },
    }
}

/// Its process ended without a word.
fn died(job: &JobRecord, folder: &FolderState, waits: &Waits) -> Action {
    match job.wish {
        Wish::Cancel => cancelled(),
        Wish::Pause => Action::Pause("its process ended before it could save".into()),
        Wish::Finish if folder.newest_step.is_none() => nothing_learnt(),
        Wish::Finish | Wish::GoOn => match waits.lack {
            Some(lack) => Action::Hold(lack, "its process ended".into()),
            None => again(job, folder, Why::Died),
        },
    }
}

fn nothing_learnt() -> Action {
    Action::Cancel("The job has been cancelled: no training step had been saved yet.".into())
}

/// It starts again, unless that has not helped often enough.
fn again(job: &JobRecord, folder: &FolderState, why: Why) -> Action {
    let starts = starts_without_progress(job, folder.newest_step);
    if starts < MOST_STARTS {
        return Action::Again(why);
    }
    let message = format!("it ended {starts} times without a newer checkpoint; see the job's log");
    Action::Fail(JobError { code: "supervisor_died".into(), message, param: None })
}

/// Starts since the newest checkpoint.
pub(super) fn starts_without_progress(job: &JobRecord, newest_step: Option<u64>) -> u32 {
    if newest_step > job.newest_step { 1 } else { job.starts }
}

#[cfg(test)]
mod tests;
