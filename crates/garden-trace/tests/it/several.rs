//! Several series in one file, restarts, and ends of processes.

use std::fmt::Write;

use crate::common::{all, all_shown, all_shown_with, check, mebibytes, series};
use expect_test::expect;
use garden_memory::{EventKind, MIB, Quantity, Subject};
use garden_trace::{Error, ReadOptions, ReadTrace, read, read_all};

fn names(text: &str) -> Vec<String> {
    all(text).into_iter().map(|one| one.name.unwrap_or("-".to_string())).collect()
}

fn selected(text: &str, name: &str) -> Result<ReadTrace, Error> {
    read(text.as_bytes(), &ReadOptions { select: Some(name.to_string()), ..ReadOptions::default() })
}

const RANKS: &str = "step,rank,rss_mb\n1,0,100\n1,1,200\n2,0,101\n2,1,oops\n3,0,102\n3,1,202\n";

#[test]
fn ranks_of_a_long_table() {
    check(
        RANKS,
        expect![[r#"
        == rank 0
        csv | 3 samples | rss_mb | MiB | 0 skipped
          step 1 rss=100 MiB
          step 2 rss=101 MiB
          step 3 rss=102 MiB
        == rank 1
        csv | 2 samples | rss_mb | MiB | 1 skipped
          step 1 rss=200 MiB
          step 3 rss=202 MiB
        note 1 line skipped: value is not a number (line 5, `rss_mb` = `oops`)
    "#]],
    );
    let several = read(RANKS.as_bytes(), &ReadOptions::default()).unwrap_err();
    assert_eq!(several.to_string(), "2 series in one file: `rank 0`, `rank 1`");
    assert_eq!(several.hint().as_deref(), Some("choose one with `--select NAME`"));
    for asked in ["rank 1", "1", "Rank 1", "k 1"] {
        let read = selected(RANKS, asked).unwrap();
        assert_eq!((read.name.as_deref(), read.trace.len()), (Some("rank 1"), 2), "{asked}");
    }
    for asked in ["rank", "7", ""] {
        let error = selected(RANKS, asked).unwrap_err();
        assert_eq!(error.hint().as_deref(), Some("choose one with `--select`: `rank 0`, `rank 1`"), "{asked}");
    }
}

#[test]
fn ranks_of_json_lines() {
    let text = "{\"rank\":0,\"rss_mb\":100}\n{\"rank\":1,\"rss_mb\":200}\n{\"rank\":0,\"rss_mb\":101}\n{\"rank\":1,\"rss_mb\":201}\n";
    assert_eq!(names(text), ["rank 0", "rank 1"]);
    let list = format!("[{}]", text.trim().replace('\n', ","));
    assert_eq!(names(&list), ["rank 0", "rank 1"]);
}

#[test]
fn hosts_and_ranks_together() {
    let mut text = "time,host,local_rank,rss_mb\n".to_string();
    for time in 0..5 {
        for (host, rank) in [("a", 0), ("a", 1), ("b", 0), ("b", 1)] {
            writeln!(text, "{time},{host},{rank},{}", 100 + time).unwrap();
        }
    }
    assert_eq!(
        names(&text),
        ["host a, local rank 0", "host a, local rank 1", "host b, local rank 0", "host b, local rank 1"]
    );
}

#[test]
fn a_column_that_does_not_alternate_is_one_series() {
    let constant = "step,pid,rss_mb\n1,7,100\n2,7,101\n3,7,102\n";
    assert_eq!(names(constant), ["-"]);
    let restarted = "step,pid,rss_mb\n1,7,100\n2,7,101\n1,8,100\n2,8,101\n";
    check(
        restarted,
        expect![[r#"
        csv | 4 samples | rss_mb | MiB | 0 skipped
          step 1 rss=100 MiB
          step 2 rss=101 MiB
          * Restart
          step 1 rss=100 MiB
          step 2 rss=101 MiB
    "#]],
    );
    let numbered = "id,rss_mb\n1,100\n2,101\n3,102\n";
    assert_eq!(names(numbered), ["-"]);
    assert!(all(numbered)[0].trace.events.is_empty());
    let below_each_other = "step,rank,rss_mb\n1,0,100\n2,0,101\n1,1,100\n2,1,101\n";
    assert_eq!(names(below_each_other), ["rank 0", "rank 1"]);
}

#[test]
fn numbers_that_are_no_identities() {
    let mut rows = "index,step,rss_mb\n".to_string();
    for run in 0..4 {
        (0..10).for_each(|index| writeln!(rows, "{index},{},{}", run * 10 + index, 100 + index).unwrap());
    }
    assert_eq!(names(&rows), ["-"]);
    let mut busy = "step,rss_mb,gpu\n".to_string();
    (0..40).for_each(|step| writeln!(busy, "{step},100,{}", 40 + step % 7).unwrap());
    assert_eq!(names(&busy), ["-"]);
    let mut side_by_side = "step,id,rss_mb\n".to_string();
    (0..40).for_each(|row| writeln!(side_by_side, "{},{},100", row / 2, row % 2).unwrap());
    assert_eq!(names(&side_by_side), ["id 0", "id 1"]);
}

#[test]
fn a_wide_table() {
    check(
        "time,gpu0_mb,gpu1_mb\n1,1000,2000\n2,1001,2001\n",
        expect![[r#"
        == GPU 0
        subject Device
        csv | 2 samples | gpu0_mb | MiB | 0 skipped
          t 1 rss=1000 MiB
          t 2 rss=1001 MiB
        == GPU 1
        subject Device
        csv | 2 samples | gpu1_mb | MiB | 0 skipped
          t 1 rss=1.95 GiB
          t 2 rss=1.95 GiB
    "#]],
    );
    assert_eq!(names("step,rank0_rss_mb,rank1_rss_mb\n1,100,200\n2,101,201\n"), ["rank 0", "rank 1"]);
    assert_eq!(names("step,rss_mb,gpu0_mb,gpu1_mb\n1,100,200,9\n2,101,201,9\n"), ["-"]);
}

#[test]
fn gpus_of_a_long_table() {
    let text = "time,gpu,memory_mb\n1,0,1000\n1,1,2000\n2,0,1001\n2,1,2001\n";
    assert_eq!(names(text), ["GPU 0", "GPU 1"]);
    assert_eq!(all(text)[0].trace.subject, Subject::Device);
    let memory = "time,rss_mb,gpu\n1,100,2000\n2,101,2001\n";
    assert_eq!(all(memory)[0].trace.value(0, Quantity::Gpu), Some(2000 * MIB));
}

#[test]
fn ranks_of_a_log() {
    check(
        "***** Running training *****\n  Num examples = 663\n\
         [rank0]: Step 10: RAM: 5000 MB\n[rank1]: Step 10: RAM: 6000 MB\n\
         [rank1]: saving checkpoint to x\n\
         [rank0]: Step 20: RAM: 5100 MB\n[rank1]: Step 20: RAM: 6100 MB\n[Process restarted]\n[rank0]: Step 1: RAM: 4100 MB\n[rank1]: Step 1: RAM: 4200 MB\n",
        expect![[r#"
            == rank 0
            training log | 3 samples | RAM | MiB | 0 skipped
              step 10 rss=4.88 GiB
              step 20 rss=4.98 GiB
              * Restart
              step 1 rss=4.00 GiB
            facts examples=663
            == rank 1
            training log | 3 samples | RAM | MiB | 0 skipped
              step 10 rss=5.86 GiB
              * Checkpoint step 10
              step 20 rss=5.96 GiB
              * Restart
              step 1 rss=4.10 GiB
            facts examples=663
        "#]],
    );
    for (zero, one) in [
        ("[rank 0]", "[rank 1]"),
        ("rank=0", "rank=1"),
        ("[1,0]<stdout>:", "[1,1]<stdout>:"),
        ("(RANK 0)", "(RANK 1)"),
        ("[default0]:", "[default1]:"),
    ] {
        let text = format!("{zero} RAM: 5000 MB\n{one} RAM: 6000 MB\n{zero} RAM: 5001 MB\n{one} RAM: 6001 MB\n");
        assert_eq!(names(&text), ["rank 0", "rank 1"], "{text}");
    }
    assert_eq!(names("node0: RAM: 5 GB\nnode1: RAM: 6 GB\nnode0: RAM: 5 GB\n"), ["host node0", "host node1"]);
    assert_eq!(names("[rank1]: a warning\nRAM: 5 GB\nRAM: 6 GB\n"), ["-"]);
}

#[test]
fn a_log_of_gpus_alone() {
    check(
        "Step 1: GPU memory: 5.2 GB\nStep 2: GPU memory: 5.3 GB\n",
        expect![[r#"
            subject Device
            training log | 2 samples | GPU memory | GiB | 0 skipped
              step 1 rss=5.20 GiB
              step 2 rss=5.30 GiB
        "#]],
    );
    check(
        "GPU 0: 10 GB, GPU 1: 11 GB\nGPU 0: 10.5 GB, GPU 1: 11.5 GB\n",
        expect![[r#"
            == GPU 0
            subject Device
            training log | 2 samples | GPU memory | GiB | 0 skipped
              rss=10.0 GiB
              rss=10.5 GiB
            == GPU 1
            subject Device
            training log | 2 samples | GPU memory | GiB | 0 skipped
              rss=11.0 GiB
              rss=11.5 GiB
        "#]],
    );
    check(
        "GPU 0 memory: 10 GB\nGPU 0 memory: 10.5 GB\n",
        expect![[r#"
            subject Device
            training log | 2 samples | GPU memory | GiB | 0 skipped
              rss=10.0 GiB
              rss=10.5 GiB
        "#]],
    );
    check(
        "Step 1: RAM: 4 GB, GPU memory: 5.2 GB\nStep 2: RAM: 5 GB, GPU memory: 5.3 GB\n",
        expect![[r#"
        training log | 2 samples | RAM | GiB | 0 skipped
          step 1 rss=4.00 GiB gpu=5.20 GiB
          step 2 rss=5.00 GiB gpu=5.30 GiB
    "#]],
    );
}

#[test]
fn deepspeed() {
    check(
        "[2022-02-21 23:35:27,338] [INFO] [utils.py:822:see_memory_usage] before optimizer 1\n\
         [2022-02-21 23:35:27,338] [INFO] [utils.py:827:see_memory_usage] MA 4.96 GB         Max_MA 5.09 GB         CA 6.39 GB         Max_CA 6 GB\n\
         [2022-02-21 23:35:27,338] [INFO] [utils.py:832:see_memory_usage] CPU Virtual Memory:  used = 50.5 GB, percent = 40.2%\n\
         [2022-02-21 23:35:29,951] [INFO] [utils.py:827:see_memory_usage] MA 4.89 GB         Max_MA 5.55 GB         CA 6.39 GB         Max_CA 6 GB\n\
         [2022-02-21 23:35:29,951] [INFO] [utils.py:832:see_memory_usage] CPU Virtual Memory:  used = 50.7 GB, percent = 40.2%\n",
        expect![[r#"
            subject Machine
            training log | 2 samples | CPU Virtual Memory used | GiB | 0 skipped
              t 1645486527.338 rss=50.5 GiB gpu=4.96 GiB
              t 1645486529.951 rss=50.7 GiB gpu=4.89 GiB
        "#]],
    );
    check(
        "MA 5.21 GB         Max_MA 5.9 GB         CA 6.1 GB         Max_CA 6 GB\nMA 5.31 GB         Max_MA 5.9 GB         CA 6.1 GB         Max_CA 6 GB\n",
        expect![[r#"
            subject Device
            training log | 2 samples | MA | GiB | 0 skipped
              rss=5.21 GiB
              rss=5.31 GiB
        "#]],
    );
}

#[test]
fn a_peak_where_there_is_nothing_else() {
    check(
        "Max RSS: 126572 kB\nMax RSS: 226572 kB\n",
        expect![[r#"
        training log | 2 samples | Max RSS | KiB | 0 skipped
          rss=124 MiB
          rss=221 MiB
        note only a peak is shown, which never falls: memory that is given back does not show
    "#]],
    );
    check(
        "\tMaximum resident set size (kbytes): 126572\n",
        expect![[r#"
            training log | 1 samples | Maximum resident set size (kbytes) | KiB | 0 skipped
              rss=124 MiB
            note only a peak is shown, which never falls: memory that is given back does not show
        "#]],
    );
    check(
        "step,peak_rss_mb\n1,100\n2,120\n",
        expect![[r#"
        csv | 2 samples | peak_rss_mb | MiB | 0 skipped
          step 1 rss=100 MiB
          step 2 rss=120 MiB
        note `peak_rss_mb` is a peak, which never falls: memory that is given back does not show
    "#]],
    );
    check(
        "step 1 peak RAM: 7 GB\nstep 1 RAM: 5 GB\nstep 2 peak RAM: 7 GB\nstep 2 RAM: 5.5 GB\n",
        expect![[r#"
        training log | 2 samples | RAM | GiB | 0 skipped
          step 1 rss=5.00 GiB
          step 2 rss=5.50 GiB
    "#]],
    );
}

#[test]
fn peaks_of_gpus_and_the_memory_of_psutil() {
    check(
        "step 1 max memory allocated: 5201 MB\nstep 2 max memory allocated: 5301 MB\n",
        expect![[r#"
        subject Device
        training log | 2 samples | max memory allocated | MiB | 0 skipped
          step 1 rss=5.08 GiB
          step 2 rss=5.18 GiB
        note only a peak is shown, which never falls: memory that is given back does not show
    "#]],
    );
    check(
        "svmem(total=67108864000, available=50000000000, percent=25.1, used=16108810000, free=4)\n\
         svmem(total=67108864000, available=50000000000, percent=25.1, used=16108820000, free=4)\n",
        expect![[r#"
            subject Machine
            training log | 2 samples | virtual_memory().used | bytes | 0 skipped
              rss=15.0 GiB
              rss=15.0 GiB
            note values without a unit are read as bytes (2 of them, first: line 1), since as KiB it would be at least 15.0 TiB; `--unit` overrides
        "#]],
    );
}

fn table(values: impl IntoIterator<Item = u64>) -> String {
    let mut text = "step,rss_mb\n".to_string();
    values
        .into_iter()
        .enumerate()
        .for_each(|(step, value)| writeln!(text, "{step},{value}").expect("a string takes all"));
    text
}

fn events(read: &ReadTrace) -> Vec<(EventKind, usize)> {
    read.trace.events.iter().map(|event| (event.kind, event.before_sample)).collect()
}

#[test]
fn samples_after_the_end_are_not_samples() {
    let read = &all(&table((0..40).map(|i| 4000 + i).chain([0, 0, 0])))[0];
    assert_eq!((read.trace.len(), events(read)), (40, vec![(EventKind::Exit, 40)]));
    assert_eq!(read.input.notes, ["the last 3 samples (0 B) were taken after the process ended"]);
    let read = &all(&table((0..40).map(|i| 4000 + i).chain([12, 11])))[0];
    assert_eq!((read.trace.len(), events(read)), (40, vec![(EventKind::Exit, 40)]));
    assert_eq!(read.input.notes, ["the last 2 samples (at most 12.0 MiB) were taken after the process ended"]);
    for tail in [vec![2400, 2400], vec![12, 3000], vec![12; 20]] {
        let count = 40 + tail.len();
        let read = &all(&table((0..40).map(|i| 4000 + i).chain(tail)))[0];
        assert_eq!((read.trace.len(), events(read)), (count, vec![]));
    }
}

#[test]
fn the_closing_line_of_mprof() {
    check(
        "CMDLINE python3 train.py\nMEM 100.5 1700000000.0\nMEM 101.5 1700000000.1\nMEM 0.000000 1700000000.2\n",
        expect![[r#"
            memory_profiler | 2 samples | MEM | MiB | 0 skipped
              t 1700000000 rss=100 MiB
              t 1700000000.1 rss=102 MiB
              * Exit
            origin command: python3 train.py
            note the last sample (0 B) was taken after the process ended
        "#]],
    );
}

#[test]
fn zeros_in_the_middle_are_a_restart() {
    let values = || (0..20).map(|i| 4000 + i).chain([0, 0]).chain((0..20).map(|i| 300 + 100 * i));
    let mut text = "time_s,rss_mb\n".to_string();
    values().enumerate().for_each(|(time, value)| writeln!(text, "{time},{value}").unwrap());
    let read = &all(&text)[0];
    assert_eq!((read.trace.len(), events(read)), (40, vec![(EventKind::Restart, 20)]));
    assert_eq!(read.input.notes, ["left out: 2 samples of 0 B, which no running process has"]);
    // Steps that run on are one run, in which two readings failed.
    let read = &all(&table(values()))[0];
    assert_eq!((read.trace.len(), events(read)), (40, vec![]));
}

#[test]
fn a_fall_after_a_gap_in_time_is_a_restart() {
    let mut text = "time_s,rss_mb\n".to_string();
    (0..20).for_each(|i| writeln!(text, "{i},{}", 4000 + i).unwrap());
    (0..20).for_each(|i| writeln!(text, "{},{}", 200 + i, 300 + 100 * i).unwrap());
    assert_eq!(events(&all(&text)[0]), [(EventKind::Restart, 20)]);
}

#[test]
fn a_sawtooth_has_no_restarts() {
    let mut text = "time_s,rss_mb\n".to_string();
    for tooth in 0..5 {
        // A collection takes longer than a step, and gives nearly everything back.
        (0..20)
            .for_each(|i| writeln!(text, "{},{}", 3.0 * f64::from(tooth) + 0.1 * f64::from(i), 300 + 200 * i).unwrap());
    }
    assert_eq!(events(&all(&text)[0]), []);
    // Nor does one that ends at its foot end there with the process.
    let teeth = (0..3).flat_map(|_| (0..40).map(|i| 100 + 100 * i)).chain([100, 120]);
    let read = &all(&table(teeth))[0];
    assert_eq!((read.trace.len(), events(read)), (122, vec![]));
}

#[test]
fn more_series_than_anyone_looks_at() {
    let mut text = "step,rank,rss_mb\n".to_string();
    for step in 0..3 {
        (0..60).for_each(|rank| writeln!(text, "{step},{rank},{}", 100 + rank).unwrap());
    }
    let read = all(&text);
    assert_eq!((read.len(), read[0].name.as_deref()), (50, Some("rank 10")));
    assert!(read[0].input.notes.contains(&"60 series; only the 50 with the most memory are kept".to_string()));
}

#[test]
fn a_label_can_be_asked_for_in_every_rank() {
    let options = ReadOptions { column: Some("System RAM".to_string()), ..ReadOptions::default() };
    let text = b"[rank0]: System RAM: 14 GB, RAM: 5 GB\n[rank1]: System RAM: 15 GB, RAM: 6 GB\n";
    expect![[r#"
        == rank 0
        training log | 1 samples | System RAM | GiB | 0 skipped
          rss=14.0 GiB
        == rank 1
        training log | 1 samples | System RAM | GiB | 0 skipped
          rss=15.0 GiB
    "#]]
    .assert_eq(&all_shown_with(text, &options));
}

#[test]
fn rows_of_free_behind_a_host_or_a_step() {
    let row = |used: u32| format!("Mem:          64000       {used}       10000         100       20000       30000\n");
    let two = |used: u32| format!("n0: {}n1: {}", row(used), row(2 * used));
    expect![[r#"
        == host n0
        subject Machine
        free | 2 samples | used | MiB | 0 skipped
          rss=3.91 GiB
          rss=3.92 GiB
        facts memory_limit=67108864000
        == host n1
        subject Machine
        free | 2 samples | used | MiB | 0 skipped
          rss=7.81 GiB
          rss=7.83 GiB
        facts memory_limit=67108864000
    "#]]
    .assert_eq(&all_shown(&(two(4000) + &two(4010))));
    expect![[r#"
        subject Machine
        free | 2 samples | used | MiB | 0 skipped
          step 3 rss=3.91 GiB
          step 4 rss=3.92 GiB
        facts memory_limit=67108864000
    "#]]
    .assert_eq(&all_shown(&format!("step 3 {}step 4 {}", row(4000), row(4010))));
    let header = "node1:                total        used        free      shared  buff/cache   available\n";
    let whole = |used: u32| format!("{header}node1: {}node1: Swap:          8191           0        8191\n", row(used));
    expect![[r#"
        subject Machine
        free | 2 samples | used | MiB | 0 skipped
          rss=3.91 GiB
          rss=3.92 GiB
        facts memory_limit=67108864000
    "#]]
    .assert_eq(&all_shown(&(whole(4000) + &whole(4010))));
}

#[test]
fn columns_that_tell_series_apart() {
    let names =
        ["instance", "command", "server", "job_id", "gpu_uuid", "uuid", "task", "run", "world_rank", "node_rank"];
    for name in names {
        let rows =
            |i: u32| format!("2025-03-01 {i:02}:00:00,x1,{}\n2025-03-01 {i:02}:00:00,x2,{}\n", 8000 + i, 2000 + i);
        let text = format!("time,{name},rss_mb\n{}", (0..20).map(rows).collect::<String>());
        let all = read_all(text.as_bytes(), &ReadOptions::default()).unwrap();
        assert_eq!(all.len(), 2, "{name}");
    }
    // A task that changes from time to time is what the one process does.
    let rows = |i: u32| format!("{i},{},{}\n", if i % 10 < 8 { "train" } else { "eval" }, 8000 + i);
    let text = format!("time,task,rss_mb\n{}", (0..40).map(rows).collect::<String>());
    assert_eq!(read_all(text.as_bytes(), &ReadOptions::default()).unwrap().len(), 1);
}

#[test]
fn marks_of_processes_that_take_turns() {
    let marks = [
        ["(trainer pid=4711)", "(trainer pid=4712)"],
        ["pid=4711", "pid=4712"],
        ["[4711] INFO", "[4712] INFO"],
        ["worker 0", "worker 1"],
        ["Process 0 -", "Process 1 -"],
        ["[GPU0]", "[GPU1]"],
        ["host=n0", "host=n1"],
        ["train-0  |", "train-1  |"],
        ["0:", "1:"],
        ["rank-0", "rank-1"],
        ["Rank[0]", "Rank[1]"],
        ["[trainer-0]", "[trainer-1]"],
        ["rank0.log:", "rank1.log:"],
    ];
    for [one, other] in marks {
        let line = |mark: &str, hour: u32, mb: u32| format!("{mark} 2025-03-01 {hour:02}:00:00 RAM: {mb} MB\n");
        let text: String = (0..20).map(|i| line(one, i, 8000 + i) + &line(other, i, 2000 + i)).collect();
        let all = read_all(text.as_bytes(), &ReadOptions::default()).unwrap();
        assert_eq!(all.len(), 2, "{one}: {:?}", all.iter().map(|read| &read.name).collect::<Vec<_>>());
        assert!(all.iter().all(|read| read.trace.len() == 20), "{one}");
    }
    let shown = |file: u32, i: u32| format!("==> out{file} <==\nstep {i} RAM: {} MB\n\n", 4000 * file + i);
    let text: String = (0..20).map(|i| shown(1, i) + &shown(2, i)).collect();
    assert_eq!(read_all(text.as_bytes(), &ReadOptions::default()).unwrap().len(), 2);
    // Numbers that go on, or change once, are no processes.
    for mark in [|i: u32| format!("[{i}]"), |i: u32| format!("{i}:"), |i: u32| format!("[epoch-{}]", i / 10)] {
        let text: String = (0..20).map(|i| format!("{} RAM: {} MB\n", mark(i), 8000 + i)).collect();
        assert_eq!(read_all(text.as_bytes(), &ReadOptions::default()).unwrap().len(), 1, "{}", mark(3));
    }
}

#[test]
fn series_that_nothing_tells_apart_are_pointed_out() {
    let rows = |i: u32| format!("{i},{}\n{i},{}\n", 8000 + 10 * i, 2000 + i);
    let text = format!("step,rss_mb\n{}", (0..20).map(rows).collect::<String>());
    assert!(all_shown(&text).contains("as if 2 series were mixed in this file"));
    let rows = |i: u32| format!("{i},{}\n{i},{}\n", 8000 + 10 * i, 8001 + 10 * i);
    let text = format!("step,rss_mb\n{}", (0..20).map(rows).collect::<String>());
    assert!(!all_shown(&text).contains("as if"));
}

#[test]
fn runs_side_by_side_in_an_export_of_wandb() {
    let column = |run: &str| {
        let name = format!("{run} - system.proc.memory.rssMB");
        format!("\"{name}\",\"{name}__MIN\",\"{name}__MAX\"")
    };
    let mut text = format!("\"Relative Time (Process)\",{},{}\n", column("cool-run-1"), column("red-2"));
    for i in 0..4 {
        text += &format!("\"{}\",\"{}\",\"4000\",\"7000\",\"9000\",\"9000\",\"9000\"\n", 15 * i, 5000 + i);
    }
    let expected = [("cool-run-1".to_string(), vec![5000, 5001, 5002, 5003]), ("red-2".to_string(), vec![9000; 4])];
    assert_eq!(series(&text), expected);

    let gpus = |columns: [&str; 4]| {
        format!("Step,{}\n", columns.join(",")) + "0,1000000000,2000000000,55.2,54\n1,1000000001,2000000000,55.2,54\n"
    };
    let bytes = "system.gpu.0.memoryAllocatedBytes";
    let share = "system.gpu.0.memory";
    let text =
        gpus([&format!("a - {bytes}"), &format!("b - {bytes}"), &format!("a - {share}"), &format!("b - {share}")]);
    assert_eq!(series(&text).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_series_is_selected_whatever_the_case_of_its_letters() {
    let text: String = (0..30).map(|i| format!("[rank{}]: step {i} RAM: {} MB\n", i % 12, 4000 + i)).collect();
    for asked in ["rank 1", "RANK 1", "Rank 1", " rank 1 "] {
        let options = ReadOptions { select: Some(asked.to_string()), ..ReadOptions::default() };
        let read = read(text.as_bytes(), &options).unwrap();
        assert_eq!(mebibytes(&read), [4001, 4013, 4025], "{asked}");
    }
}

/// Twenty rows of each of two series, in turns or one below the other.
fn rows_of_two(names: [&str; 2], turns: bool, row: impl Fn(&str, u32, u32) -> String) -> String {
    let row = |series: usize, at: u32| row(names[series], at, 4000 + 2000 * series as u32 + at);
    match turns {
        true => (0..20).flat_map(|at| [row(0, at), row(1, at)]).collect(),
        false => {
            (0..2).flat_map(|series| (0..20).map(move |at| (series, at))).map(|(series, at)| row(series, at)).collect()
        }
    }
}

fn names_of(text: &str) -> Vec<String> {
    series(text).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn columns_of_any_name_that_tell_series_apart() {
    let time = |at: u32| format!("2025-03-01 22:{at:02}:00");
    for (column, names) in [
        ("src_host", ["a", "b"]),
        ("proc_name", ["train", "loader"]),
        ("tag", ["x", "y"]),
        ("torch_version", ["2.5", "2.6"]),
    ] {
        let rows = rows_of_two(names, true, |name, at, mib| format!("{},{name},{mib}\n", time(at)));
        assert_eq!(names_of(&format!("time,{column},rss_mb\n{rows}")), names, "{column}");
    }
    for (key, names, turns) in [
        ("run_uuid", ["run r0", "run r1"], false),
        ("job_name", ["r0", "r1"], true),
        ("role", ["r0", "r1"], true),
        ("model", ["r0", "r1"], false),
        ("fold", ["run r0", "run r1"], false),
    ] {
        let rows = rows_of_two(["r0", "r1"], turns, |name, at, mib| {
            format!("{{\"{key}\":\"{name}\",\"step\":{at},\"rss_mb\":{mib}}}\n")
        });
        assert_eq!(names_of(&rows), names, "{key}");
    }
    // Words that come one after the other within a run, and at several times of one step, are of one process.
    let rows = rows_of_two(["warm", "steady"], false, |name, at, mib| format!("{mib},{name},{}\n", mib * 2 + at));
    assert_eq!(names_of(&format!("step,mood,rss_mb\n{rows}")), [""]);
    let rows = rows_of_two(["forward", "backward"], true, |name, at, mib| format!("{mib},{at},{name},{}\n", 5000 + at));
    assert_eq!(names_of(&format!("time_s,step,where,rss_mb\n{rows}")), [""]);
}

#[test]
fn marks_of_processes_behind_time_stamps() {
    for mark in ["(pid {}) ", "- INFO - [{}] ", "pid={} "] {
        let log = rows_of_two(["4711", "4712"], true, |name, at, mib| {
            format!("2025-03-01 22:{at:02}:00,123 {}step {at}: RAM: {mib} MB\n", mark.replace("{}", name))
        });
        let names = names_of(&log);
        assert!(names.len() == 2 && names[0].ends_with("4711"), "{names:?} of {log}");
    }
}

#[test]
fn samples_that_take_turns_without_a_name_are_pointed_out() {
    let status = rows_of_two(["", ""], true, |_, _, mib| format!("VmRSS:\t  {} kB\n", 1024 * mib));
    let numbers = rows_of_two(["", ""], true, |_, _, mib| format!("{} MB\n", mib));
    let stamped = rows_of_two(["", ""], true, |_, at, mib| match mib < 6000 {
        true => format!("22:{at:02}:00\n{mib} MB\n"),
        false => format!("{mib} MB\n"),
    });
    for text in [status, numbers, stamped] {
        let notes = all(&text)[0].input.notes.join("; ");
        assert!(notes.contains("the samples take turns between 2 levels, as if 2 series were mixed"), "{notes}");
    }
    let saw: String = (0..40).map(|at| format!("{} MB\n", 4000 + 200 * (at % 7))).collect();
    assert_eq!(all(&saw)[0].input.notes.len(), 0);
}

#[test]
fn kubectl_without_headers() {
    let rows = rows_of_two(["train-0", "train-1"], true, |name, _, mib| format!("{name}   250m   {mib}Mi\n"));
    assert_eq!(names_of(&rows), ["train-0", "train-1"]);
    let nodes = rows_of_two(["a", "b"], true, |name, _, mib| format!("{name}   250m   12%   {mib}Mi   58%\n"));
    assert_eq!(names_of(&nodes), ["a", "b"]);
}

#[test]
fn mixed_series_are_pointed_out_where_the_first_step_has_one_sample() {
    let rows: String = (0..40)
        .flat_map(|at| [(10 * at + 10, 4000 + at), (10 * at, 6000 + at)])
        .map(|(step, mib)| format!("{step},{mib}\n"))
        .collect();
    let notes = all(&format!("step,rss_mb\n{rows}"))[0].input.notes.join("; ");
    assert!(notes.contains("2 samples share each step or time stamp, at levels far apart"), "{notes}");
}
