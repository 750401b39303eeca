//! Units: numbers that state none, in tables, JSON, logs and alone.

use std::fmt::Write;

use crate::common::{all, all_shown, all_shown_with, shown, shown_with};
use expect_test::{Expect, expect};
use garden_memory::{Bytes, GIB, MIB, Quantity};
use garden_trace::{Error, ReadOptions, Unit, read};

fn on(machine_gib: u64) -> ReadOptions {
    ReadOptions { machine: Some(Bytes(machine_gib * GIB)), ..ReadOptions::default() }
}

fn check(text: &str, expected: Expect) {
    expected.assert_eq(&shown(text));
}

fn sequence(from: u64, step: u64, to: u64) -> String {
    let mut text = String::new();
    for value in (from..=to).step_by(step as usize) {
        writeln!(text, "{value}").expect("a string takes all");
    }
    text
}

/// The format, unit and highest value of a text.
fn summary(text: &str, options: &ReadOptions) -> String {
    match read(text.as_bytes(), options) {
        Ok(read) => {
            let values = (0..read.trace.len()).filter_map(|index| read.trace.value(index, Quantity::Rss));
            let most = Bytes(values.max().unwrap_or(0));
            format!("{}: {} {most}", read.input.format, read.input.unit.unwrap_or_default())
        }
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn a_column_of_kibibytes() {
    let text = format!("rss\n{}", sequence(4_000_000, 30_000, 7_600_000));
    assert_eq!(summary(&text, &on(64)), "csv: KiB 7.25 GiB");
    assert_eq!(summary(&text, &ReadOptions::default()), "csv: KiB 7.25 GiB");
    let read = read(text.as_bytes(), &on(64)).unwrap();
    expect![[r#"
        column `rss` has no unit: read as KiB, since as bytes it would be at most 7.25 MiB and as MiB at least 3.81 TiB; `--unit` overrides
    "#]].assert_eq(&(read.input.notes.join("\n") + "\n"));
}

#[test]
fn a_column_of_two_possible_units() {
    let text = format!("rss\n{}", sequence(769_000, 7, 769_100));
    assert_eq!(summary(&text, &on(64)), "csv: KiB 751 MiB");
    expect![[r#"
        error: column `rss` has no unit: 769098 may be KiB (751 MiB) or MiB (751 GiB)
        hint: pass `--unit kib` (751 MiB at most) or `--unit mib` (751 GiB at most)
    "#]]
    .assert_eq(&shown(&text));
    let given = ReadOptions { unit: Some(Unit::Mib), ..ReadOptions::default() };
    assert_eq!(summary(&text, &given), "csv: MiB 751 GiB");
    let error = read(text.as_bytes(), &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, Error::AmbiguousUnit { is_possible: true, .. }));
}

#[test]
fn numbers_alone() {
    assert_eq!(summary(&sequence(4000, 30, 7600), &ReadOptions::default()), "amounts: MiB 7.42 GiB");
    assert_eq!(summary(&sequence(4_000_000, 30_000, 7_600_000), &on(64)), "amounts: KiB 7.25 GiB");
    assert_eq!(summary("5000000000\n5100000000\n", &on(64)), "amounts: bytes 4.75 GiB");
    check(
        "3\n4\n5\n",
        expect![[r#"
            error: column `value` has no unit, and 5 fits none: 5 B, 5.00 KiB, 5.00 MiB or 5.00 GiB
            hint: pass `--unit bytes` (5 B at most), `--unit kib` (5.00 KiB at most), `--unit mib` (5.00 MiB at most) or `--unit gib` (5.00 GiB at most)
        "#]],
    );
}

#[test]
fn a_time_stamp_and_an_amount() {
    check(
        "23:59:59 - 4000 MB\n00:00:01 - 4001 MB\n",
        expect![[r#"
        amounts | 2 samples | value | MiB | 0 skipped
          t 86399 rss=3.91 GiB
          t 86401 rss=3.91 GiB
    "#]],
    );
    check(
        "2024-01-15 10:00:00 4000\n2024-01-15 10:00:01 4001\n",
        expect![[r#"
        amounts | 2 samples | value | MiB | 0 skipped
          t 1705312800 rss=3.91 GiB
          t 1705312801 rss=3.91 GiB
        note column `value` has no unit: read as MiB, since as KiB it would be at most 3.91 MiB; `--unit` overrides
    "#]],
    );
    check(
        "1700000000 4000\n1700000001 4001\n",
        expect![[r#"
        amounts | 2 samples | value | MiB | 0 skipped
          t 1700000000 rss=3.91 GiB
          t 1700000001 rss=3.91 GiB
        note column `value` has no unit: read as MiB, since as KiB it would be at most 3.91 MiB; `--unit` overrides
    "#]],
    );
    check(
        "Mon Jan 15 10:00:00 UTC 2024\n4000\nMon Jan 15 10:00:01 UTC 2024\n4001\n",
        expect![[r#"
        amounts | 2 samples | value | MiB | 0 skipped
          t 1705312800 rss=3.91 GiB
          t 1705312801 rss=3.91 GiB
        note column `value` has no unit: read as MiB, since as KiB it would be at most 3.91 MiB; `--unit` overrides
    "#]],
    );
}

#[test]
fn units_are_decided_by_all_rows() {
    let mut text = "step,rss\n".to_string();
    (0..20_000).for_each(|step| writeln!(text, "{step},{}", 20_000 + step * 10).unwrap());
    // The first rows would be MiB on this machine; the last ones can only be KiB.
    assert_eq!(summary(&text, &on(64)), "csv: KiB 215 MiB");
}

#[test]
fn names_and_neighbours_decide() {
    assert_eq!(summary("time,VmRSS\n1,126571\n2,126573\n", &on(512)), "csv: KiB 124 MiB");
    assert_eq!(summary("PID,VSZ,RSS\n7,900001,12657\n7,900001,12661\n", &on(512)), "csv: KiB 12.4 MiB");
    assert_eq!(summary("time,rss,vms\n1,126571008,2\n2,126575104,2\n", &on(512)), "csv: bytes 121 MiB");
    assert_eq!(summary("{\"rss\": 7159930880}\n{\"rss\": 7159934976}\n", &on(64)), "json lines: bytes 6.67 GiB");
    assert_eq!(
        summary("{\"rss\": 2159931392}\n{\"rss\": 2159935488}\n", &ReadOptions::default()),
        "json lines: bytes 2.01 GiB"
    );
}

#[test]
fn units_as_headers_spell_them() {
    for name in ["RSS [kB]", "rss_kB", "RSS (kB)", "RSS/kB", "RSS in kB", "Memory [kB]", "RES_kB", "Memory_KByte(s)"] {
        let text = format!("time;{name}\n0;5000000\n1;5000100\n");
        assert_eq!(summary(&text, &on(64)), "csv (semicolons): KiB 4.77 GiB", "{name}");
    }
    for name in ["RSS [MB]", "rss_mB", "RSS MByte", "rssMb"] {
        assert_eq!(summary(&format!("time,{name}\n0,5000\n1,5001\n"), &on(64)), "csv: MiB 4.88 GiB", "{name}");
    }
}

#[test]
fn bare_numbers_in_logs() {
    for (text, expected) in [
        (
            "pmem(rss=7159930880, vms=9159930880)\npmem(rss=7159930881, vms=9159930880)\n",
            "training log: bytes 6.67 GiB",
        ),
        ("step 1 rss=7159930880\nstep 2 rss=7159930883\n", "training log: bytes 6.67 GiB"),
        ("VmRSS: 126572\nVmRSS: 126573\n", "training log: KiB 124 MiB"),
        ("VmRSS: 126572 (kB)\nVmRSS: 126573 (kB)\n", "training log: KiB 124 MiB"),
        ("step 1 maxrss 126572 (kb)\nstep 2 maxrss 126573 (kb)\n", "training log: KiB 124 MiB"),
        ("ru_maxrss: 126572\nru_maxrss: 126573\n", "training log: KiB 124 MiB"),
        ("step 1 rss 7600000\nstep 2 rss 7600001\n", "training log: KiB 7.25 GiB"),
        ("step 1 mem 5434\nstep 2 mem 5435\n", "training log: MiB 5.31 GiB"),
        ("Mem: 2.25 G\nMem: 2.5 G\n", "training log: GiB 2.50 GiB"),
        ("RAM 45% (14.5 G)\nRAM 46% (14.6 G)\n", "training log: GiB 14.6 GiB"),
        (
            "torch.cuda.memory_allocated: 5583457280\ntorch.cuda.memory_allocated: 5583457281\n",
            "training log: bytes 5.20 GiB",
        ),
    ] {
        assert_eq!(summary(text, &ReadOptions::default()), expected, "{text}");
    }
}

#[test]
fn a_level_that_no_process_has_is_noted() {
    check(
        "step,rss_kb\n1,100\n2,200\n",
        expect![[r#"
        csv | 2 samples | rss_kb | KiB | 0 skipped
          step 1 rss=100 KiB
          step 2 rss=200 KiB
        note the highest value is 200 KiB, less than nearly any program takes: check the column and its unit
    "#]],
    );
    check(
        "step,rss_gb\n1,9000\n2,9001\n",
        expect![[r#"
        csv | 2 samples | rss_gb | GiB | 0 skipped
          step 1 rss=8.79 TiB
          step 2 rss=8.79 TiB
        note the highest value is 8.79 TiB, more than nearly any machine has: check the column and its unit
    "#]],
    );
}

#[test]
fn columns_beside_the_judged_one_share_its_unit() {
    expect![[r#"
        csv | 2 samples | rss | KiB | 0 skipped
          step 1 rss=6.83 GiB shmem=100 KiB gpu=5.08 GiB
          step 2 rss=6.83 GiB shmem=104 KiB gpu=5.18 GiB
        note column `rss` has no unit: read as KiB, since as bytes it would be at most 6.83 MiB and as MiB at least 6.83 TiB; `--unit` overrides
        note column `shmem` has no unit: read as KiB; `--unit` overrides
        note column `gpu_mem` has no unit: read as MiB; `--unit` overrides
    "#]]
        .assert_eq(&all_shown_with(b"step,rss,shmem,gpu_mem\n1,7159934,100,5200\n2,7159935,104,5300\n", &on(64)));
}

#[test]
fn a_total_beside_the_memory_in_use_has_its_unit() {
    for (text, expected) in [
        (
            "{\"memory\": {\"used\": 42949672960, \"total\": 68719476736}}\n{\"memory\": {\"used\": 42950907527, \"total\": 68719476736}}\n",
            "json lines, memory.used: bytes, 40.0 GiB of 64.0 GiB",
        ),
        (
            "time,memory_used,memory_total\n0,40000,64000\n1,40001,64000\n",
            "csv, memory_used: MiB, 39.1 GiB of 62.5 GiB",
        ),
        (
            "time,memory_used,memory_total\n0,40960000,65536000\n1,40961024,65536000\n",
            "csv, memory_used: KiB, 39.1 GiB of 62.5 GiB",
        ),
        ("time,mem_used_gb,mem_total\n0,40.5,64\n1,40.25,64\n", "csv, mem_used_gb: GiB, 40.5 GiB of 64.0 GiB"),
        (
            "time,mem_used,mem_total\n0,40.5 GiB,64 GiB\n1,40.25 GiB,64 GiB\n",
            "csv, mem_used: GiB, 40.5 GiB of 64.0 GiB",
        ),
    ] {
        let read = read(text.as_bytes(), &on(31)).unwrap();
        let (input, trace) = (&read.input, &read.trace);
        let (column, unit) = (input.column.as_deref().unwrap(), input.unit.as_deref().unwrap());
        let (first, limit) = (Bytes(trace.value(0, Quantity::Rss).unwrap()), trace.facts.memory_limit.unwrap());
        assert_eq!(format!("{}, {column}: {unit}, {first} of {limit}", input.format), expected);
    }
}

#[test]
fn the_column_with_the_plainest_name_is_judged() {
    for other in ["initial_rss_mb", "children_rss_mb"] {
        let text = format!("step,{other},rss_mb\n0,900,4000\n1,900,4001\n");
        assert_eq!(summary(&text, &on(64)), "csv: MiB 3.91 GiB", "{other}");
    }
    let read = read(&b"time,rss_mb,anonymous_users\n0,8000,512\n1,8001,562\n"[..], &on(64)).unwrap();
    assert_eq!(read.trace.value(0, Quantity::Anon), None);
}

#[test]
fn conventions_come_before_the_size_of_this_machine() {
    for (text, expected) in [
        ("time,VmRSS\n0,47185920\n1,47229610\n", "csv: KiB 45.0 GiB"),
        ("time,ru_maxrss\n0,47185920\n1,47229610\n", "csv: KiB 45.0 GiB"),
        ("time,rss,vsz\n0,47185920,90000000\n1,47229610,90000000\n", "csv: KiB 45.0 GiB"),
        ("pid,rss\n4711,47185920\n4711,47229976\n", "csv: KiB 45.0 GiB"),
        ("pid,rss\n4711,18432\n4711,18448\n", "csv: KiB 18.0 MiB"),
        ("maxrss: 47185920\nmaxrss: 47229610\n", "training log: KiB 45.0 GiB"),
        ("time,rss,vms\n0,18874368,169869312\n1,18890752,170016768\n", "csv: bytes 18.0 MiB"),
        ("pmem(rss=18874368, vms=9)\npmem(rss=18890752, vms=9)\n", "training log: bytes 18.0 MiB"),
        ("# recorded by hand\n# unit: MB\ntime,rss\n0,50000\n1,50001\n", "csv: MiB 48.8 GiB"),
        ("time,rss\ns,MB\n0,50000\n1,50001\n", "csv: MiB 48.8 GiB"),
        (
            "time,rss\n0,47185920\n1,47229976\n",
            "error: column `rss` has no unit: 47229976 may be bytes (45.0 MiB) or KiB (45.0 GiB)",
        ),
        (
            "time,ram\n0,45.00\n1,45.04\n",
            "error: column `ram` has no unit: 45.04 may be MiB (45.0 MiB) or GiB (45.0 GiB)",
        ),
        ("step 0 RAM: 46080\nstep 1 RAM: 46123\n", "training log: MiB 45.0 GiB"),
    ] {
        assert_eq!(summary(text, &on(31)), expected, "{text}");
    }
}

#[test]
fn whole_pages_are_bytes_however_small_the_process() {
    let rows = |step: u64| (0..20).map(|i| format!("{{\"rss\":{}}}\n", 18_874_368 + step * i)).collect::<String>();
    let options = ReadOptions { machine: Some(Bytes(24 * GIB)), ..ReadOptions::default() };
    let small = read(rows(4096).as_bytes(), &options).unwrap();
    assert_eq!(small.trace.value(0, Quantity::Rss), Some(18 * MIB));
    // One value that never changes may as well be KiB.
    let refused = shown_with(rows(0).as_bytes(), &options);
    assert!(refused.contains("may be bytes (18.0 MiB) or KiB (18.0 GiB)"), "{refused}");
    // What is not whole pages is KiB.
    let large = read(rows(4).as_bytes(), &options).unwrap();
    assert_eq!(large.trace.value(0, Quantity::Rss), Some(18 * GIB));
}

#[test]
fn shares_are_never_amounts() {
    for name in ["memory_percent", "ram_util_pct", "mem_usage_%", "memPercent", "memory_ratio", "rss_fraction"] {
        let numbers = || (0..20).map(|at| (10 * at, 41.5 + 0.5 * f64::from(at)));
        let table: String = numbers().map(|(step, share)| format!("{step},{share}\n")).collect();
        let objects: Vec<String> =
            numbers().map(|(step, share)| format!("{{\"step\":{step},\"{name}\":{share}}}")).collect();
        let log: String = numbers().map(|(step, share)| format!("step={step} {name}={share}\n")).collect();
        let state = format!("{{\"global_step\":190,\"log_history\":[{}],\"max_steps\":300}}", objects.join(","));
        for text in [format!("step,{name}\n{table}"), objects.join("\n"), log, state] {
            let options = ReadOptions { column: Some(name.to_string()), ..ReadOptions::default() };
            assert_eq!(
                all_shown_with(text.as_bytes(), &options),
                format!(
                    "error: column `{name}` is a percentage, not an amount of memory\n\
                     hint: select a column of bytes or MiB with `--column NAME`, or leave it out\n"
                )
                .replace("mem_usage_%", if text.starts_with("step=") { "mem_usage" } else { "mem_usage_%" }),
                "{text}"
            );
            assert!(all_shown(&text).starts_with("error:"), "{text}");
        }
    }
    // Beside an amount they are left alone.
    let log: String = (0..5).map(|at| format!("step={at} mem_usage_%=41.{at} rss=40{at}0MB\n")).collect();
    assert_eq!(all(&log)[0].input.column.as_deref(), Some("rss"));
}

#[test]
fn numbers_up_to_one_may_be_shares_and_are_refused() {
    let table = |whole: u32| (0..5).map(|at| format!("{at},{whole}.4{at}\n")).collect::<String>();
    let refused = shown(&format!("step,memory\n{}", table(0)));
    assert!(refused.starts_with("error: column `memory` has no unit, and 0.44 fits none"), "{refused}");
    assert_eq!(all(&format!("step,memory\n{}", table(1)))[0].input.unit.as_deref(), Some("GiB"));
    let options = ReadOptions { unit: Some(Unit::Gib), ..ReadOptions::default() };
    let read = shown_with(format!("step,memory\n{}", table(0)).as_bytes(), &options);
    assert!(read.contains(" step 4 rss=451 MiB"), "{read}");
}
