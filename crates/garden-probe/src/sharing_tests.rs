//! Tests of the sharing arithmetic: forks, exits, `exec` and readings, in small numbers.

use super::*;

const PARENT: u32 = 10;

fn anon(bytes: u64) -> Kinds {
    Kinds { anon: bytes, ..Kinds::default() }
}

fn shmem(bytes: u64) -> Kinds {
    Kinds { shmem: bytes, ..Kinds::default() }
}

fn parent(held: Kinds) -> Present {
    Present {
        pid: PARENT,
        started: 1,
        parent: 1,
        origin: None,
        image: 7,
        execs: 0,
        held,
        faulted: 0,
        faults_of_children: 0,
    }
}

fn fork(pid: u32, held: Kinds) -> Present {
    Present { pid, parent: PARENT, origin: Some(PARENT), ..parent(held) }
}

fn total(sharing: &Sharing, present: &[Present]) -> u64 {
    present.iter().fold(Kinds::default(), |sum, process| sum.plus(process.held)).less(sharing.excess()).total()
}

/// Follows each state in turn and returns the total after each.
fn totals(states: &[&[Present]]) -> Vec<u64> {
    let mut sharing = Sharing::default();
    let step = |present: &&[Present]| {
        sharing.follow(present);
        total(&sharing, present)
    };
    states.iter().map(step).collect()
}

#[test]
fn forks_come_and_go_without_a_trace() {
    let (p, a, b) = (parent(shmem(100)), fork(11, shmem(100)), fork(12, shmem(100)));
    assert_eq!(totals(&[&[p], &[p, a, b], &[p, b], &[p]]), [100; 4]);
    assert_eq!(totals(&[&[p], &[p, a, b], &[a, b], &[b]]), [100; 4]);
    // A process id after a wrap-around may be below its parent's.
    assert_eq!(totals(&[&[p], &[fork(3, shmem(100)), p], &[p]]), [100; 3]);
}

#[test]
fn what_a_fork_takes_for_itself_counts() {
    let p = parent(shmem(100));
    assert_eq!(totals(&[&[p], &[p, fork(11, shmem(100))], &[p, fork(11, shmem(130))]]), [100, 100, 130]);
    // Seen late, it holds more than it can have from its parent.
    assert_eq!(totals(&[&[p], &[p, fork(11, shmem(150))]]), [100, 150]);
}

#[test]
fn what_one_gives_back_the_others_still_hold() {
    let (p, a, b) = (parent(shmem(100)), fork(11, shmem(100)), fork(12, shmem(100)));
    let small = parent(shmem(5));
    assert_eq!(totals(&[&[p, a, b], &[small, a, b], &[small, a, b], &[small, a, b]]), [100; 4]);
    assert_eq!(totals(&[&[p, a, b], &[p, fork(11, shmem(5)), b]]), [100, 100]);
}

#[test]
fn pages_of_files_that_a_fork_fills_in_later_are_its_origins() {
    let held = |file: u64| Kinds { anon: 0, file, shmem: 100 };
    let p = parent(held(8));
    assert_eq!(
        totals(&[&[p], &[p, fork(11, held(1))], &[p, fork(11, held(6))], &[p, fork(11, held(9))]]),
        [108, 108, 108, 109]
    );
}

#[test]
fn another_program_shares_nothing() {
    let p = parent(shmem(100));
    let program = |held: u64| Present { execs: 1, origin: None, ..fork(11, shmem(held)) };
    assert_eq!(totals(&[&[p, fork(11, shmem(100))], &[p, program(7)], &[p, program(70)]]), [100, 107, 170]);
    let stranger = Present { origin: None, ..fork(11, shmem(100)) };
    assert_eq!(totals(&[&[p], &[p, stranger]]), [100, 200]);
}

#[test]
fn forks_own_what_they_do_not_share_and_pass_the_place_on() {
    let (p, a, b) = (parent(anon(100)), fork(11, anon(120)), fork(12, anon(100)));
    let mut sharing = Sharing::default();
    let own = |sharing: &Sharing| [(PARENT, 100), (11, 120), (12, 100)].map(|(pid, held)| sharing.own(pid, held));
    sharing.follow(&[p, a, b]);
    assert_eq!(own(&sharing), [100, 20, 0]);
    sharing.follow(&[a, b]);
    assert_eq!(own(&sharing)[1..], [120, 0]);
}

fn reading(process: &Present, pss: u64, shared: u64) -> Reading {
    let shares = Shares { pss, pss_shmem: pss, shared, ..Shares::default() };
    Reading { pid: process.pid, held: process.held, shares, is_borrowed: false }
}

#[test]
fn a_reading_replaces_what_was_assumed() {
    let (p, a, b) = (parent(shmem(100)), fork(11, shmem(100)), fork(12, shmem(100)));
    let mut sharing = Sharing::default();
    sharing.follow(&[p, a, b]);
    // 40 of the first fork's pages are private, so only two processes share the originals.
    sharing.learn(&[reading(&p, 20 + 20, 100), reading(&a, 40 + 20, 60), reading(&b, 20 + 20, 100)]);
    assert_eq!((total(&sharing, &[p, a, b]), sharing.own(11, 100), sharing.own(12, 100)), (140, 40, 0));
    sharing.follow(&[p, b]);
    assert_eq!(total(&sharing, &[p, b]), 100);
    // One more fork after the reading.
    let c = fork(13, shmem(100));
    sharing.follow(&[p, b, c]);
    assert_eq!(total(&sharing, &[p, b, c]), 100);
}

#[test]
fn who_cannot_be_read_keeps_what_was_assumed() {
    let (p, a) = (parent(shmem(100)), fork(11, shmem(100)));
    let mut sharing = Sharing::default();
    sharing.follow(&[p, a]);
    sharing.learn(&[]);
    assert_eq!(total(&sharing, &[p, a]), 100);
}

#[test]
fn before_exec_the_origins_memory_is_not_counted_twice() {
    let (p, a) = (parent(shmem(100)), fork(11, shmem(100)));
    let mut sharing = Sharing::default();
    sharing.follow(&[p, a]);
    let own = Shares { pss: 100, pss_shmem: 100, private: 100, ..Shares::default() };
    let [of_origin, of_fork] = [p, a].map(|process| Reading { shares: own, ..reading(&process, 0, 0) });
    assert!(of_fork.is_same_memory(&of_origin));
    sharing.learn(&[of_origin, Reading { is_borrowed: true, ..of_fork }]);
    assert_eq!(total(&sharing, &[p, a]), 100);
}

#[test]
fn programs_that_are_no_forks_may_have_the_same_files_until_that_is_read() {
    let (p, a) = (parent(shmem(100)), fork(11, shmem(100)));
    let stranger = Present { origin: None, ..fork(12, shmem(60)) };
    let mut sharing = Sharing::default();
    sharing.follow(&[p, a]);
    assert_eq!(sharing.unread_strangers(&[p, a]), 0);
    sharing.follow(&[p, a, stranger]);
    assert_eq!(sharing.unread_strangers(&[p, a, stranger]), 60);
    sharing.learn(&[reading(&p, 50, 100), reading(&a, 50, 100), reading(&stranger, 60, 0)]);
    assert_eq!(sharing.unread_strangers(&[p, a, stranger]), 0);
}

#[test]
fn bytes_are_spread_by_weight_as_far_as_there_is_room() {
    let held = Kinds { anon: 200, file: 8, shmem: 0 };
    assert_eq!(held.spread(208, Kinds { anon: 100, file: 8, shmem: 0 }), held);
    assert_eq!(held.spread(54, Kinds { anon: 50, file: 4, shmem: 0 }), Kinds { anon: 50, file: 4, shmem: 0 });
    assert_eq!(held.spread(5, Kinds::default()), anon(5));
}
