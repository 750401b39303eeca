use std::time::Duration;

use super::*;
use crate::job::{JobOrder, PlannedMemory, StopRequest};

fn job(status: Status, wish: Wish) -> JobRecord {
    let recipe = Box::new(garden_train::Recipe::default());
    let order = JobOrder { id: "a".into(), work: Work::Training { recipe }, memory: None, fetch: None };
    JobRecord { wish, starts: 1, ..JobRecord::new(order, 0, status, "m".into()) }
}

fn command(wish: Wish) -> JobRecord {
    let mut job = job(Status::Running, wish);
    job.order.work = Work::Command { command: vec!["true".into()], memory_limit: None, checkpoint_dir: None };
    job
}

fn forced(job: JobRecord) -> JobRecord {
    JobRecord { is_forced: true, ..job }
}

fn asked(seconds: u64) -> Waits {
    Waits { asked: Some(Duration::from_secs(seconds)), ..Waits::default() }
}

fn ended(outcome: JobOutcome) -> FolderState {
    FolderState { outcome: Some(outcome), ..FolderState::default() }
}

fn is_again(action: &Action) -> bool {
    matches!(action, Action::Again(_))
}

#[test]
fn a_process_is_asked_then_killed() {
    use Process::{None as Gone, Running, Starting, Stopped};
    let (none, folder) = (Waits::default(), FolderState::default());
    let running = |wish| job(Status::Running, wish);
    let killed = Waits { killed: Some(Duration::ZERO), ..asked(70) };
    let table = [
        ("it goes on", running(Wish::GoOn), Running(7), none, Action::Nothing),
        ("it begins", running(Wish::Cancel), Starting(Some(7)), none, Action::Nothing),
        ("it begins, cancelled twice", forced(running(Wish::Cancel)), Starting(Some(7)), none, Action::Kill(7)),
        ("cancelled", running(Wish::Cancel), Running(7), none, Action::Ask(7)),
        ("it was asked", running(Wish::Cancel), Running(7), asked(59), Action::Nothing),
        ("it hangs", running(Wish::Cancel), Running(7), asked(60), Action::Kill(7)),
        ("it was killed", running(Wish::Cancel), Running(7), killed, Action::Nothing),
        ("cancelled twice", forced(running(Wish::Cancel)), Running(7), asked(1), Action::Kill(7)),
        ("stopped and cancelled", running(Wish::Cancel), Stopped(7), none, Action::Ask(7)),
        ("stopped by its operator", running(Wish::GoOn), Stopped(7), none, Action::Nothing),
        ("it saves for long", running(Wish::Pause), Running(7), asked(899), Action::Nothing),
        ("it saves for too long", running(Wish::Pause), Running(7), asked(900), Action::Kill(7)),
        ("while its files are checked", job(Status::ValidatingFiles, Wish::Cancel), Running(7), none, Action::Ask(7)),
    ];
    for (name, job, process, waits, expected) in table {
        assert_eq!(next(&job, &folder, process, &waits), expected, "{name}");
    }
    // One that does not come to its lock, or does not end without it.
    let passing = |seconds| Waits { passing: Duration::from_secs(seconds), ..none };
    let was_killed = Waits { killed: Some(Duration::ZERO), ..passing(60) };
    let looking = |wish| job(Status::ValidatingFiles, wish);
    let table = [
        ("it begins", running(Wish::GoOn), Starting(Some(7)), passing(59), Action::Nothing),
        ("it does not begin", running(Wish::GoOn), Starting(Some(7)), passing(60), Action::Kill(7)),
        ("it was killed", running(Wish::GoOn), Starting(Some(7)), was_killed, Action::Nothing),
        ("it begins, cancelled", running(Wish::Cancel), Starting(Some(7)), passing(59), Action::Nothing),
        ("it does not begin, cancelled", running(Wish::Cancel), Starting(Some(7)), passing(60), Action::Kill(7)),
        ("it does not begin, paused", running(Wish::Pause), Starting(Some(7)), passing(60), Action::Kill(7)),
        ("killed, cancelled twice", forced(running(Wish::Cancel)), Starting(Some(7)), was_killed, Action::Nothing),
        ("a look begins", looking(Wish::GoOn), Starting(Some(7)), passing(59), Action::Nothing),
        ("a look does not begin", looking(Wish::GoOn), Starting(Some(7)), passing(60), Action::Kill(7)),
        ("a look does not begin, cancelled", looking(Wish::Cancel), Starting(Some(7)), passing(60), Action::Kill(7)),
        ("a look was killed", looking(Wish::GoOn), Starting(Some(7)), was_killed, Action::Nothing),
        ("of an earlier server", running(Wish::GoOn), Starting(None), passing(60), Action::Nothing),
    ];
    for (name, job, process, waits, expected) in table {
        assert_eq!(next(&job, &folder, process, &waits), expected, "{name}");
    }
    let found = FolderState { findings: Some(Findings::default()), ..FolderState::default() };
    let told = next(&looking(Wish::GoOn), &found, Starting(Some(7)), &passing(60));
    assert!(matches!(told, Action::Queue(_)), "{told:?}");
    let gone = next(&job(Status::ValidatingFiles, Wish::Cancel), &folder, Gone, &none);
    assert!(matches!(gone, Action::Cancel(_)));
}

#[test]
fn the_end_of_a_start_decides_by_what_is_wished() {
    let done = || ended(JobOutcome::Done { tokens: Some(9), words: "w".into() });
    let stopped = |step| ended(JobOutcome::Stopped { step, words: "w".into() });
    let failed =
        || ended(JobOutcome::Failed { error: JobError { code: "c".into(), message: "m".into(), param: None } });
    let full = || ended(JobOutcome::NoSpace { words: "w".into() });
    let of = |folder: &FolderState, wish| next(&job(Status::Running, wish), folder, Process::None, &Waits::default());
    assert!(matches!(of(&done(), Wish::GoOn), Action::Succeed { tokens: Some(9), .. }));
    assert!(matches!(of(&done(), Wish::Cancel), Action::Succeed { .. }), "it was done before it heard of it");
    assert!(matches!(of(&failed(), Wish::GoOn), Action::Fail(_)));
    assert!(matches!(of(&failed(), Wish::Cancel), Action::Cancel(_)), "a command may call its end an error");
    assert!(matches!(of(&failed(), Wish::Pause), Action::Pause(_)), "one that had not begun dies of being asked");
    // What was asked is in the record, so a server that was started meanwhile knows it, too.
    let asked_for = |hold| JobRecord { stop: Some(StopRequest { pid: 7, hold }), ..job(Status::Running, Wish::GoOn) };
    for folder in [failed(), stopped(Some(3))] {
        let found = next(&asked_for(Some(Hold::Disk)), &folder, Process::None, &Waits::default());
        assert!(matches!(found, Action::Hold(Hold::Disk, _)), "{found:?}");
    }
    let resumed = next(&asked_for(None), &stopped(Some(3)), Process::None, &Waits::default());
    assert!(matches!(resumed, Action::Again(Why::Asked(_))), "{resumed:?}");
    assert!(matches!(of(&stopped(Some(3)), Wish::Cancel), Action::Cancel(_)));
    assert!(matches!(of(&stopped(Some(3)), Wish::Pause), Action::Pause(_)));
    assert_eq!(of(&stopped(Some(3)), Wish::Finish), Action::Finish);
    assert!(matches!(of(&stopped(None), Wish::Finish), Action::Cancel(_)), "nothing is there to keep");
    assert!(is_again(&of(&stopped(Some(3)), Wish::GoOn)));
    assert!(matches!(of(&full(), Wish::GoOn), Action::Hold(Hold::Disk, _)));
    assert!(matches!(of(&full(), Wish::Cancel), Action::Cancel(_)));
    assert!(is_again(&of(&FolderState::default(), Wish::GoOn)), "without a word");
    assert!(matches!(of(&FolderState::default(), Wish::Finish), Action::Cancel(_)));
}

#[test]
fn what_the_server_lacks_holds_a_job_and_does_not_end_it() {
    let lack = |hold| Waits { lack: Some(hold), ..Waits::default() };
    let running = job(Status::Running, Wish::GoOn);
    let folder = FolderState::default();
    assert_eq!(next(&running, &folder, Process::Running(7), &lack(Hold::Quota)), Action::AskToWait(7, Hold::Quota));
    let heard = Waits { asked: Some(Duration::ZERO), ..lack(Hold::Quota) };
    assert_eq!(next(&running, &folder, Process::Running(7), &heard), Action::Nothing);
    let asked = JobRecord { stop: Some(StopRequest { pid: 7, hold: Some(Hold::Quota) }), ..running.clone() };
    let stopped = ended(JobOutcome::Stopped { step: Some(1), words: "w".into() });
    assert!(matches!(next(&asked, &stopped, Process::None, &Waits::default()), Action::Hold(Hold::Quota, _)));
    // However often: it is not its fault.
    let often = JobRecord { starts: 99, ..running.clone() };
    assert!(matches!(next(&often, &folder, Process::None, &lack(Hold::Disk)), Action::Hold(Hold::Disk, _)));
    assert!(matches!(next(&often, &folder, Process::None, &Waits::default()), Action::Fail(_)));
    let progressed = FolderState { newest_step: Some(5), ..FolderState::default() };
    assert!(is_again(&next(&often, &progressed, Process::None, &Waits::default())), "a newer checkpoint counts");
}

#[test]
fn a_program_without_its_guard_ends_before_the_job_goes_on() {
    let folder = FolderState { orphan: Some(9), ..FolderState::default() };
    let since = |seconds| Waits { orphaned: Some(Duration::from_secs(seconds)), ..Waits::default() };
    let table = [
        ("a trainer notices", job(Status::Running, Wish::GoOn), Waits::default(), Action::Nothing),
        ("a command is asked", command(Wish::GoOn), Waits::default(), Action::AskOrphan(9)),
        ("it was asked", command(Wish::GoOn), since(59), Action::Nothing),
        ("it hangs", command(Wish::GoOn), since(60), Action::KillOrphan(9)),
        ("cancelled", command(Wish::Cancel), since(10), Action::KillOrphan(9)),
        ("cancelled twice", forced(command(Wish::Cancel)), Waits::default(), Action::KillOrphan(9)),
    ];
    for (name, job, waits, expected) in table {
        assert_eq!(next(&job, &folder, Process::None, &waits), expected, "{name}");
    }
}

#[test]
fn a_look_ends_with_findings_or_a_reason() {
    let looking = job(Status::ValidatingFiles, Wish::GoOn);
    let of = |job: &JobRecord, folder: &FolderState, process, waits: &Waits| next(job, folder, process, waits);
    let (empty, none) = (FolderState::default(), Waits::default());
    assert_eq!(of(&looking, &empty, Process::None, &none), Action::Look);
    assert_eq!(of(&looking, &empty, Process::Running(7), &none), Action::Nothing);
    let found = |findings| FolderState { findings: Some(findings), ..FolderState::default() };
    assert!(matches!(of(&looking, &found(Findings::default()), Process::Running(7), &none), Action::Queue(_)));
    let plan = PlannedMemory {
        fits: false,
        host_bytes: 1,
        gpu_bytes: None,
        disk_bytes: None,
        headline: "h".into(),
        told: Default::default(),
    };
    let no_fit = Findings { plan: Some(plan), ..Findings::default() };
    let refused = of(&looking, &found(no_fit), Process::None, &none);
    assert!(matches!(refused, Action::Refuse(_, error) if error.code == "does_not_fit"));
    let late = Waits { looked: LONGEST_LOOK, ..Waits::default() };
    assert_eq!(of(&looking, &empty, Process::Running(7), &late), Action::Kill(7));
    let code = |action| match action {
        Action::Fail(error) => error.code,
        other => format!("{other:?}"),
    };
    assert_eq!(code(of(&looking, &empty, Process::None, &late)), "validation_timeout");
    let often = JobRecord { starts: MOST_LOOKS, ..looking.clone() };
    assert_eq!(code(of(&often, &empty, Process::None, &none)), "validation_died");
    let full = Waits { lack: Some(Hold::Disk), ..Waits::default() };
    assert_eq!(of(&often, &empty, Process::None, &full), Action::Nothing, "it waits for space");
}

#[test]
fn a_queued_job_hears_wishes() {
    let of = |status, wish| next(&job(status, wish), &FolderState::default(), Process::None, &Waits::default());
    assert!(matches!(of(Status::Queued, Wish::Cancel), Action::Cancel(_)));
    assert!(matches!(of(Status::Queued, Wish::Pause), Action::Pause(_)));
    for status in [Status::Paused, Status::Succeeded, Status::Failed, Status::Cancelled] {
        assert_eq!(of(status, Wish::Cancel), Action::Nothing);
    }
    assert_eq!(of(Status::Queued, Wish::GoOn), Action::Nothing);
}
