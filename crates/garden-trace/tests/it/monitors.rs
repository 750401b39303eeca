//! Monitors of machines, containers and GPUs, as they print: a text in, what was read out.

use std::fmt::Write;

use crate::common::{check, refusal, series};
use expect_test::expect;

#[test]
fn sar_with_and_without_caches_in_used_memory() {
    let head = "Linux 5.15.0-1 (host) \t11/16/26 \t_x86_64_\t(8 CPU)\n\n";
    check(
        &format!(
            "{head}12:00:01    kbmemfree   kbavail kbmemused  %memused kbbuffers  kbcached  kbcommit   %commit  kbactive   kbinact   kbdirty\n\
             12:00:02     50000000  57000000   6400000     10.00    100000   7000000   3000000      5.00   1000000   1000000       100\n\
             12:00:03     49900000  56900000   6500000     10.16    100000   7000000   3000000      5.00   1000000   1000000       100\n\n\
             12:00:04    kbmemfree   kbavail kbmemused  %memused kbbuffers  kbcached  kbcommit   %commit  kbactive   kbinact   kbdirty\n\
             12:00:04     49800000  56800000   6600000     10.31    100000   7000000   3000000      5.00   1000000   1000000       100\n\
             Average:     49900000  56900000   6500000     10.16    100000   7000000   3000000      5.00   1000000   1000000       100\n"
        ),
        expect![[r#"
            subject Machine
            sar | 3 samples | kbmemused | KiB | 0 skipped
              t 43202 rss=6.10 GiB
              t 43203 rss=6.20 GiB
              t 43204 rss=6.29 GiB
        "#]],
    );
    check(
        &format!(
            "{head}11:59:59 PM kbmemfree kbmemused  %memused kbbuffers  kbcached  kbcommit   %commit\n\
             11:59:59 PM  50000000  14000000     21.88    100000   7000000   3000000      5.00\n\
             12:00:00 AM  49000000  15000000     23.44    100000   7000000   3000000      5.00\n"
        ),
        expect![[r#"
            subject Machine
            sar | 2 samples | kbmemused - kbbuffers - kbcached | KiB | 0 skipped
              t 86399 rss=6.58 GiB
              t 86400 rss=7.53 GiB
        "#]],
    );
}

#[test]
fn memory_stat_of_a_cgroup_in_a_loop() {
    let dump = |anon: u64| {
        format!(
            "anon {anon}\nfile 104857600\nkernel 1048576\nkernel_stack 49152\nshmem 4194304\nfile_mapped 0\n\
             inactive_anon 4096\npgfault 1000\nworkingset_refault_anon 0\n"
        )
    };
    check(
        &(dump(524288000) + &dump(629145600)),
        expect![[r#"
        subject Container
        memory.stat | 2 samples | anon + file | bytes | 0 skipped
          rss=600 MiB anon=500 MiB file=96.0 MiB shmem=4.00 MiB
          rss=700 MiB anon=600 MiB file=96.0 MiB shmem=4.00 MiB
    "#]],
    );
    let dated = format!("2026-11-16 10:00:00\n{}2026-11-16 10:00:30\n{}", dump(524288000), dump(629145600));
    check(
        &dated,
        expect![[r#"
        subject Container
        memory.stat | 2 samples | anon + file | bytes | 0 skipped
          t 1794823200 rss=600 MiB anon=500 MiB file=96.0 MiB shmem=4.00 MiB
          t 1794823230 rss=700 MiB anon=600 MiB file=96.0 MiB shmem=4.00 MiB
    "#]],
    );
    check(
        "cache 104857600\nrss 524288000\nshmem 0\ncache 104857600\nrss 629145600\nshmem 0\n",
        expect![[r#"
        subject Container
        memory.stat | 2 samples | anon + file | bytes | 0 skipped
          rss=600 MiB anon=500 MiB file=100 MiB shmem=0 B
          rss=700 MiB anon=600 MiB file=100 MiB shmem=0 B
    "#]],
    );
    // `cat memory.current memory.stat`.
    let both = format!("734003200\n{}838860800\n{}", dump(524288000), dump(629145600));
    assert_eq!(series(&both)[0].1, [600, 700]);
    // And `memory.current` alone.
    assert_eq!(series("734003200\n838860800\n943718400\n")[0].1, [700, 800, 900]);
}

#[test]
fn containers_without_names_are_not_mixed() {
    let mut two = String::new();
    for row in 0..20 {
        writeln!(two, "{}MiB / 62.7GiB\n512MiB / 62.7GiB", 4000 + 30 * row).unwrap();
    }
    let expected = "`docker stats` shows several containers without their names";
    assert!(refusal(&two).contains(expected), "{}", refusal(&two));
    let headed = "MEM USAGE / LIMIT\n400MiB / 62.7GiB\n512MiB / 62.7GiB\n".repeat(2);
    assert!(refusal(&headed).contains(expected), "{}", refusal(&headed));
    let one: String = (0..20).fold(String::new(), |text, row| text + &format!("{}MiB / 62.7GiB\n", 4000 + 30 * row));
    let rising: Vec<u64> = (0..20).map(|row| 4000 + 30 * row).collect();
    assert_eq!(series(&one), [(String::new(), rising)]);
    // One container with a sawtooth is one container.
    let teeth: String =
        (0..40).fold(String::new(), |text, row| text + &format!("{}MiB / 62.7GiB\n", 4000 + 300 * (row % 5)));
    assert_eq!(series(&teeth).len(), 1);
}

#[test]
fn nvidia_smi_dmon_with_dates() {
    check(
        "#Date       Time        gpu     fb   bar1   ccpm\n#YYYYMMDD   HH:MM:SS    Idx     MB     MB     MB\n\
         \x2020261116   23:59:59      0   4000      5      0\n 20261116   23:59:59      1    500      5      0\n\
         \x2020261117   00:00:00      0   4030      5      0\n 20261117   00:00:00      1    500      5      0\n",
        expect![[r#"
            == GPU 0
            subject Device
            nvidia-smi | 2 samples | fb | MiB | 0 skipped
              t 1794873599 rss=3.91 GiB
              t 1794873600 rss=3.94 GiB
            == GPU 1
            subject Device
            nvidia-smi | 2 samples | fb | MiB | 0 skipped
              t 1794873599 rss=500 MiB
              t 1794873600 rss=500 MiB
        "#]],
    );
}

#[test]
fn rocm_smi_as_text_and_as_a_table() {
    let text = |used: u64| {
        format!(
            "\n============================ ROCm System Management Interface ============================\n\
             ================================== Memory Usage (Bytes) ==================================\n\
             GPU[0]\t\t: VRAM Total Memory (B): 68702699520\nGPU[0]\t\t: VRAM Total Used Memory (B): {used}\n\
             GPU[1]\t\t: VRAM Total Memory (B): 68702699520\nGPU[1]\t\t: VRAM Total Used Memory (B): 10883072\n\
             ==========================================================================================\n\
             ================================== End of ROCm SMI Log ===================================\n"
        )
    };
    let table = |used: u64| {
        format!(
            "device,VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard0,68702699520,{used}\ncard1,68702699520,10883072\n\n"
        )
    };
    for input in [text(1 << 30) + &text(1 << 31), table(1 << 30) + &table(1 << 31)] {
        check(
            &input,
            expect![[r#"
        == GPU 0
        subject Device
        rocm-smi | 2 samples | VRAM Total Used Memory (B) | bytes | 0 skipped
          rss=1.00 GiB
          rss=2.00 GiB
        facts memory_limit=68702699520
        == GPU 1
        subject Device
        rocm-smi | 2 samples | VRAM Total Used Memory (B) | bytes | 0 skipped
          rss=10.4 MiB
          rss=10.4 MiB
        facts memory_limit=68702699520
    "#]],
        );
    }
}
