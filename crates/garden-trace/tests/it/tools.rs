//! The output of system tools, as they print it: a text in, what was read out.

use std::fmt::Write;

use crate::common::{all, all_shown_with, check, mebibytes, refusal, series};
use expect_test::expect;
use garden_memory::{Bytes, GIB, MIB, Quantity, Subject};
use garden_trace::{ReadOptions, Unit, read, read_all};

#[test]
fn free_in_a_loop_without_headers() {
    let mut text = String::new();
    for i in 1..=99 {
        writeln!(text, "Mem: 64000 {} 9 9 9 9", 4000 + 30 * i).unwrap();
    }
    let read = read(text.as_bytes(), &ReadOptions::default()).unwrap();
    let expected: Vec<u64> = (1..=99).map(|i| 4000 + 30 * i).collect();
    assert_eq!(mebibytes(&read), expected);
    assert_eq!((read.trace.subject, read.name.as_deref()), (Subject::Machine, None));
    assert_eq!(read.trace.facts.memory_limit, Some(Bytes(64000 * MIB)));
    assert_eq!((read.input.format.as_str(), read.input.column.as_deref()), ("free", Some("used")));
}

#[test]
fn free_in_all_its_units() {
    let header = "               total        used        free      shared  buff/cache   available\n";
    let swap = "Swap:              0           0           0\n";
    for (line, used) in [
        ("Mem:        24684112     1249184    17071896       12756     6777072    23434928\n", 1249184 * 1024),
        ("Mem:           24105        1219       16671          12        6618       22885\n", 1219 * MIB),
        ("Mem:     25276530688  1412177920 17346555904    13062144  6941769728 23864352768\n", 1412177920),
        ("Mem:              23           1          16           0           6          22\n", GIB),
        ("Mem:            23Gi       1.5Gi        16Gi        12Mi       6.5Gi        22Gi\n", 3 * GIB / 2),
        ("Mem:             23G        1.5G         16G         12M        6.5G         22G\n", 3 * GIB / 2),
        (
            "Mem:        24684112     1249036    17072044       12756       69816     6707256    23435076\n",
            1249036 * 1024,
        ),
    ] {
        let text = format!("{header}{line}{swap}\n{header}{line}{swap}\n");
        let read = &all(&text)[0];
        assert_eq!(read.trace.value(1, Quantity::Rss), Some(used), "{line}");
        assert_eq!(read.input.skipped, 0, "{line}");
    }
}

#[test]
fn free_for_people_with_dates() {
    check(
        "Mon Nov 16 15:22:44 UTC 2026\n\
         \x20              total        used        free      shared  buff/cache   available\n\
         Mem:            23Gi       1.2Gi        16Gi        12Mi       6.5Gi        22Gi\n\
         Swap:             0B          0B          0B\n\
         Mon Nov 16 15:22:45 UTC 2026\n\
         \x20              total        used        free      shared  buff/cache   available\n\
         Mem:            23Gi       1.3Gi        16Gi        12Mi       6.5Gi        22Gi\n\
         Swap:             0B          0B          0B\n",
        expect![[r#"
            subject Machine
            free | 2 samples | used | GiB | 0 skipped
              t 1794842564 rss=1.20 GiB
              t 1794842565 rss=1.30 GiB
            facts memory_limit=24696061952
            note `free -h` rounds to 0.1 GiB: small changes do not show
        "#]],
    );
}

#[test]
fn one_process_of_ps_under_a_header_that_repeats() {
    check(
        "  PID   RSS    VSZ CMD\n27459 416000 500400 python3 train.py --epochs 3\n\
         \x20 PID   RSS    VSZ CMD\n27459 426000 500400 python3 train.py --epochs 3\n",
        expect![[r#"
            ps | 2 samples | RSS | KiB | 0 skipped
              rss=406 MiB
              rss=416 MiB
        "#]],
    );
    check(
        "  RSS\n416000\n  RSS\n416400\n",
        expect![[r#"
        ps | 2 samples | RSS | KiB | 0 skipped
          rss=406 MiB
          rss=407 MiB
    "#]],
    );
}

const AUX: &str = "\
root     27512  101  4.2 9876540 416000 pts/0   Rl+  15:11   5:39 python3 train-vision --model m
root     27513  0.0  0.0   6520  2280 pts/0    S+   15:22   0:00 grep train-vision
";

#[test]
fn rows_of_ps_aux_that_a_grep_left() {
    let later = AUX.replace("416000", "426000");
    check(
        &format!("{AUX}{later}"),
        expect![[r#"
            ps | 2 samples | RSS | KiB | 0 skipped
              rss=406 MiB
              rss=416 MiB
            note left out: 2 rows of `grep` and `ps` themselves
        "#]],
    );
}

#[test]
fn free_and_ps_in_one_file() {
    let free = "               total        used        free      shared  buff/cache   available\n\
                Mem:            23Gi       1.2Gi        16Gi        12Mi       6.5Gi        22Gi\n\
                Swap:             0B          0B          0B\n";
    let later = AUX.replace("416000", "426000");
    check(
        &format!("{free}{AUX}{free}{later}"),
        expect![[r#"
            == machine
            subject Machine
            free | 2 samples | used | GiB | 0 skipped
              rss=1.20 GiB
              rss=1.20 GiB
            facts memory_limit=24696061952
            note left out: 2 rows of `grep` and `ps` themselves
            note `free -h` rounds to 0.1 GiB: small changes do not show
            == pid 27512 (python3 train-vision --model m)
            ps | 2 samples | RSS | KiB | 0 skipped
              rss=406 MiB
              rss=416 MiB
            note left out: 2 rows of `grep` and `ps` themselves
        "#]],
    );
}

#[test]
fn several_processes_of_ps_aux() {
    let snapshot = |main: u64, worker: u64| {
        format!(
            "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\n\
             root           1  0.5  0.0  42928 13776 ?        SLl  Nov15   5:16 /sbin/init\n\
             me          4711 99.0  9.0 942928 {main} ?        Rl   Nov15   5:16 python3 train.py\n\
             me          4712  9.0  1.0 942928 {worker} ?        Sl   Nov15   5:16 python3 train.py\n\
             me          4713  0.0  0.0   1000   900 ?        R    Nov15   0:00 ps aux\n"
        )
    };
    let text: String = (0..6).map(|i| snapshot(416_000 + 1000 * i, 100_000)).collect();
    let read = all(&text);
    let names: Vec<&str> = read.iter().map(|one| one.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["pid 1 (/sbin/init)", "pid 4711 (python3 train.py)", "pid 4712 (python3 train.py)"]);
    assert_eq!(read[1].trace.len(), 6);
    assert!(read[0].input.notes.contains(&"left out: 6 rows of `grep` and `ps` themselves".to_string()));
    let select = ReadOptions { select: Some("4712".to_string()), ..ReadOptions::default() };
    assert_eq!(
        garden_trace::read(text.as_bytes(), &select).unwrap().name.as_deref(),
        Some("pid 4712 (python3 train.py)")
    );
}

#[test]
fn a_new_process_id_is_a_restart() {
    let row = |pid: u32, rss: u64| format!("  PID   RSS CMD\n{pid} {rss} python3 train.py\n");
    let text: String = (0..12).map(|i| row(if i < 6 { 7 } else { 9 }, 400_000 + 10_000 * (i % 6))).collect();
    let read = read(text.as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!(read.trace.len(), 12);
    assert_eq!(read.trace.events.iter().map(|event| event.before_sample).collect::<Vec<_>>(), [6]);
}

#[test]
fn top_in_batch_mode() {
    let snapshot = |second: u32, memory: &str| {
        format!(
            "top - 15:22:{second} up 16:09,  0 user,  load average: 4.02, 4.06, 3.24\n\
             Tasks:  90 total,   5 running,  85 sleeping,   0 stopped,   0 zombie\n\
             %Cpu(s): 75.0 us,  0.0 sy, 25.0 ni,  0.0 id,  0.0 wa,  0.0 hi,  0.0 si,  0.0 st \n\
             MiB Mem :  24105.6 total,  16608.9 free,   1282.5 used,   6618.7 buff/cache     \n\
             MiB Swap:      0.0 total,      0.0 free,      0.0 used.  22823.1 avail Mem \n\n\
             \x20 PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND\n\
             26946 root      20   0    2592   1732   1628 R  64.7   0.0   5:39.05 sh\n\
             16148 root      30  10  667412 {memory} 136144 S  58.8   1.2   0:04.93 python3\n\n"
        )
    };
    check(
        &(snapshot(44, "301144") + &snapshot(45, "1.2g")),
        expect![[r#"
        == machine
        subject Machine
        top | 2 samples | used | MiB | 0 skipped
          t 55364 rss=1.25 GiB
          t 55365 rss=1.25 GiB
        facts memory_limit=25276553626
        note left out: 1 process that never takes more than 50.0 MiB
        == pid 16148 (python3)
        top | 2 samples | RES | mixed: KiB, GiB | 0 skipped
          t 55364 rss=294 MiB
          t 55365 rss=1.20 GiB
        note left out: 1 process that never takes more than 50.0 MiB
    "#]],
    );
}

#[test]
fn pidstat_with_and_without_a_clock_of_twelve_hours() {
    check(
        "Linux 5.15.0-91-generic (host) \t01/15/24 \t_x86_64_\t(8 CPU)\n\n\
         10:00:00 AM   UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command\n\
         10:00:01 AM  1000      4711    120.00      0.00 1234567  456789   2.85  python3\n\n\
         10:00:01 AM   UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command\n\
         10:00:02 AM  1000      4711    120.00      0.00 1234567  456999   2.85  python3\n\n\
         Average:      UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command\n\
         Average:     1000      4711    120.00      0.00 1234567  456894   2.85  python3\n",
        expect![[r#"
            pidstat | 2 samples | RSS | KiB | 0 skipped
              t 36001 rss=446 MiB
              t 36002 rss=446 MiB
        "#]],
    );
    check(
        "Linux 5.15.0-91-generic (host) \t01/15/24 \t_x86_64_\t(8 CPU)\n\n\
         # Time        UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command\n\
         1705312801     1000      4711    120.00      0.00 1234567  456789   2.85  python3\n\n\
         # Time        UID       PID  minflt/s  majflt/s     VSZ     RSS   %MEM  Command\n\
         1705312802     1000      4711    120.00      0.00 1234567  456999   2.85  python3\n",
        expect![[r#"
            pidstat | 2 samples | RSS | KiB | 0 skipped
              t 1705312801 rss=446 MiB
              t 1705312802 rss=446 MiB
        "#]],
    );
}

#[test]
fn docker_stats_streaming_and_formatted() {
    let header =
        "CONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %     NET I/O           BLOCK I/O         PIDS\n";
    let rows = |gib: &str| {
        format!(
            "\x1b[2J\x1b[H{header}a1b2c3d4e5f6   train     101.25%   {gib}GiB / 31GiB        4.84%     1.2kB / 0B        0B / 0B           23\n\
             b1b2c3d4e5f6   web       0.10%     150MiB / 31GiB        0.47%     1.2kB / 0B        0B / 0B           3\n"
        )
    };
    check(
        &(rows("1.5") + &rows("1.6")),
        expect![[r#"
        == train
        subject Container
        docker stats | 2 samples | MEM USAGE | GiB | 0 skipped
          rss=1.50 GiB
          rss=1.60 GiB
        facts memory_limit=33285996544
        == web
        subject Container
        docker stats | 2 samples | MEM USAGE | MiB | 0 skipped
          rss=150 MiB
          rss=150 MiB
        facts memory_limit=33285996544
    "#]],
    );
    check(
        "train 1.5GiB / 31GiB\ntrain 1.6GiB / 31GiB\n",
        expect![[r#"
        subject Container
        docker stats | 2 samples | MEM USAGE | GiB | 0 skipped
          rss=1.50 GiB
          rss=1.60 GiB
        facts memory_limit=33285996544
    "#]],
    );
}

#[test]
fn docker_stats_as_json() {
    let row = |name: &str, used: &str| {
        format!("{{\"MemPerc\":\"4.8%\",\"MemUsage\":\"{used} / 31GiB\",\"Name\":\"{name}\"}}\n")
    };
    let text = row("train", "1.5GiB") + &row("web", "150MiB") + &row("train", "1.6GiB") + &row("web", "151MiB");
    check(
        &text,
        expect![[r#"
        == train
        subject Container
        json lines | 2 samples | MemUsage | GiB | 0 skipped
          rss=1.50 GiB
          rss=1.60 GiB
        facts memory_limit=33285996544
        == web
        subject Container
        json lines | 2 samples | MemUsage | MiB | 0 skipped
          rss=150 MiB
          rss=151 MiB
        facts memory_limit=33285996544
    "#]],
    );
}

#[test]
fn kubectl_top() {
    check(
        "NAME       CPU(cores)   MEMORY(bytes)   \ntrain-0    250m         1234Mi          \n\
         NAME       CPU(cores)   MEMORY(bytes)   \ntrain-0    251m         1240Mi          \n",
        expect![[r#"
            subject Container
            kubectl top | 2 samples | MEMORY(bytes) | MiB | 0 skipped
              rss=1.21 GiB
              rss=1.21 GiB
        "#]],
    );
    let names = |text: &str| all(text).into_iter().map(|one| one.name.unwrap()).collect::<Vec<_>>();
    let containers = "POD       NAME      CPU(cores)   MEMORY(bytes)\ntrain-0   main      250m         1234Mi\ntrain-0   sidecar   1m           60Mi\n";
    assert_eq!(names(&containers.repeat(3)), ["main", "sidecar"]);
    let nodes = "NAME     CPU(cores)   CPU%   MEMORY(bytes)   MEMORY%\nnode-a   250m         12%    9234Mi          58%\nnode-b   250m         12%    8234Mi          51%\n";
    assert_eq!(names(&nodes.repeat(3)), ["node-a", "node-b"]);
    assert_eq!(all(&nodes.repeat(3))[0].trace.subject, Subject::Machine);
}

#[test]
fn prometheus_range_queries() {
    check(
        r#"{"status":"success","data":{"resultType":"matrix","result":[
        {"metric":{"__name__":"container_memory_working_set_bytes","pod":"train-0","namespace":"ml"},"values":[[1700000000,"4.2e9"],[1700000015.5,"4300000000"],[1700000030,"NaN"]]},
        {"metric":{"__name__":"container_memory_working_set_bytes","pod":"train-1","namespace":"ml"},"values":[[1700000000,"5.2e9"]]}]}}"#,
        expect![[r#"
            == pod=train-0
            subject Container
            prometheus | 2 samples | container_memory_working_set_bytes | bytes | 1 skipped
              t 1700000000 rss=3.91 GiB
              t 1700000015.5 rss=4.00 GiB
            note 1 value skipped: no memory value (line 1, `NaN`)
            == pod=train-1
            subject Container
            prometheus | 1 samples | container_memory_working_set_bytes | bytes | 0 skipped
              t 1700000000 rss=4.84 GiB
        "#]],
    );
    check(
        r#"[[1700000000,"4.2e9"],[1700000015,"4.3e9"]]"#,
        expect![[r#"
        prometheus | 2 samples | value | bytes | 0 skipped
          t 1700000000 rss=3.91 GiB
          t 1700000015 rss=4.00 GiB
        note column `value` has no unit: read as bytes, since as KiB it would be at least 3.91 TiB; `--unit` overrides
    "#]],
    );
    check(
        r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1700000000,"4.2e9"]}]}}"#,
        expect![[r#"
            error: an instant query of Prometheus has one value per series
            hint: use a range query: `/api/v1/query_range?query=..&start=..&end=..&step=15s`
        "#]],
    );
}

#[test]
fn files_of_proc_written_again_and_again() {
    let status = |rss: u64| {
        format!(
            "Name:\tpython3\nUmask:\t0022\nState:\tR (running)\nTgid:\t4711\nPid:\t4711\nPPid:\t1\nVmPeak:\t 1005004 kB\n\
             VmSize:\t 1005004 kB\nVmHWM:\t  426572 kB\nVmRSS:\t  {rss} kB\nRssAnon:\t  400000 kB\nRssFile:\t   10000 kB\n\
             RssShmem:\t       0 kB\nVmSwap:\t       0 kB\nThreads:\t1\n"
        )
    };
    check(
        &(status(410_000) + &status(411_000)),
        expect![[r#"
            /proc/PID/status | 2 samples | VmRSS | KiB | 0 skipped
              rss=400 MiB anon=391 MiB file=9.77 MiB shmem=0 B swap=0 B peak=417 MiB
              rss=401 MiB anon=391 MiB file=9.77 MiB shmem=0 B swap=0 B peak=417 MiB
        "#]],
    );
    check(
        "VmRSS:\t  126572 kB\nVmRSS:\t  126576 kB\n",
        expect![[r#"
        /proc/PID/status | 2 samples | VmRSS | KiB | 0 skipped
          rss=124 MiB
          rss=124 MiB
    "#]],
    );
    check(
        "10:00:00\nMemTotal:       24684112 kB\nMemFree:        17071896 kB\nMemAvailable:   23434928 kB\nBuffers:           69816 kB\nCached:          6707256 kB\nSwapTotal:             0 kB\n\
         10:00:01\nMemTotal:       24684112 kB\nMemFree:        17071896 kB\nMemAvailable:   23334928 kB\nBuffers:           69816 kB\nCached:          6707256 kB\nSwapTotal:             0 kB\n",
        expect![[r#"
            subject Machine
            /proc/meminfo | 2 samples | MemTotal - MemAvailable | KiB | 0 skipped
              t 36000 rss=1.19 GiB available=22.3 GiB
              t 36001 rss=1.29 GiB available=22.3 GiB
            facts memory_limit=25276530688
        "#]],
    );
    let rollup = "55d0c0a00000-7ffee0000000 ---p 00000000 00:00 0                          [rollup]\nRss:              412345 kB\nPss:              402345 kB\nShared_Clean:       5000 kB\nShared_Dirty:          0 kB\nPrivate_Clean:      1000 kB\nPrivate_Dirty:    400000 kB\nAnonymous:        400000 kB\nSwap:                  0 kB\n";
    check(
        &rollup.repeat(2),
        expect![[r#"
            /proc/PID/smaps_rollup | 2 samples | Rss | KiB | 0 skipped
              rss=403 MiB anon=391 MiB pss=393 MiB swap=0 B private=392 MiB shared=4.88 MiB
              rss=403 MiB anon=391 MiB pss=393 MiB swap=0 B private=392 MiB shared=4.88 MiB
        "#]],
    );
}

#[test]
fn tools_without_memory_in_use_name_the_way_out() {
    check(
        "procs -----------memory---------- ---swap-- -----io---- -system-- ------cpu-----\n r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st\n 6  0      0 16975816  69976 6707616    0    0   720  2734  393  763 74  7 19  0  0\n 5  0      0 16975816  69976 6707616    0    0     0    24  806 1436 93  7  0  0  1\n",
        expect![[r#"
            error: `vmstat` shows free memory, not memory in use
            hint: record `free -m -s 1` instead, or one process with `while sleep 1; do ps -p PID -o pid,rss,cmd; done`
        "#]],
    );
    check(
        "UID        PID  PPID  C STIME TTY          TIME CMD\nroot         1     0  0 Nov15 ?        00:05:16 /sbin/init\n",
        expect![[r#"
            error: `ps -ef` shows no memory
            hint: record `ps aux`, or one process with `while sleep 1; do ps -p PID -o pid,rss,cmd; done`
        "#]],
    );
    check(
        "10:00:00 system memory: 45%\n10:00:01 system memory: 46%\n",
        expect![[r#"
            error: no memory in use found; closest is line 1, `10:00:00 system memory: 45%`: it shows a percentage
            hint: record memory in use instead: `model-garden monitor --pid PID`, `ps -p PID -o pid,rss,cmd` or `free -m`
        "#]],
    );
    check(
        "RAM available: 20 GB\n",
        expect![[r#"
            error: no memory in use found; closest is line 1, `RAM available: 20 GB`: it shows free memory
            hint: record memory in use instead: `model-garden monitor --pid PID`, `ps -p PID -o pid,rss,cmd` or `free -m`
        "#]],
    );
}

#[test]
fn the_unit_of_a_tool_is_not_asked_for() {
    let options = ReadOptions { unit: Some(Unit::Mib), ..ReadOptions::default() };
    let shown = all_shown_with(b"  PID   RSS CMD\n7 416000 x\n  PID   RSS CMD\n7 416001 x\n", &options);
    assert!(shown.contains("note `--unit` is ignored: the unit of `ps` is known"), "{shown}");
}

#[test]
fn free_of_small_machines_and_of_old_versions() {
    let small = |unit: f64| {
        let row = |used: u64| {
            let figure = |kib: u64| (kib as f64 * 1024.0 / unit) as u64;
            let figures = [983_040, used, 600_000, 4_000, 983_040 - used - 600_000, 700_000].map(figure);
            format!("Mem: {}\n", figures.map(|figure| figure.to_string()).join(" "))
        };
        (0..5).map(|i| row(200_000 + 4 * i)).collect::<String>()
    };
    for unit in [1.0, 1024.0] {
        let read = &all(&small(unit))[0];
        assert_eq!(read.trace.value(4, Quantity::Rss), Some(200_016 * 1024), "{unit}");
        assert_eq!(read.trace.facts.memory_limit, Some(Bytes(960 * MIB)), "{unit}");
    }
    expect![[r#"
        error: column `total` has no unit: 960 may be MiB (960 MiB) or GiB (960 GiB)
        hint: pass `--unit mib` (960 MiB at most) or `--unit gib` (960 GiB at most)
    "#]]
    .assert_eq(&refusal(&small(MIB as f64)));
    let options = ReadOptions { machine: Some(Bytes(GIB)), ..ReadOptions::default() };
    let read = read_all(small(MIB as f64).as_bytes(), &options).unwrap();
    assert_eq!(mebibytes(&read[0])[0], 195);

    let header = "             total       used       free     shared    buffers     cached\n";
    let row = "Mem:         64000      62000       2000        100       1000      40000\n";
    let below = "-/+ buffers/cache:      21000      43000\nSwap:         8000          0       8000\n";
    for text in [format!("{header}{row}{below}").repeat(3), row.repeat(3)] {
        let read = &all(&text)[0];
        assert_eq!((mebibytes(read), read.input.skipped), (vec![21_000; 3], 0), "{text}");
        assert_eq!(read.input.column.as_deref(), Some("used - buffers - cached"));
    }
}

#[test]
fn processes_that_grep_or_a_name_tells_apart() {
    let mut grepped = String::new();
    let mut named = String::new();
    for i in 0..4 {
        writeln!(grepped, "/proc/4711/status:VmRSS:\t {} kB", 8_192_000 + 1024 * i).unwrap();
        writeln!(grepped, "/proc/12/status:VmRSS:\t  204800 kB").unwrap();
        write!(named, "  RSS COMMAND\n{} python\n204800 ps\n409600 redis\n", 8_192_000 + 1024 * i).unwrap();
    }
    let rising = vec![8_000, 8_001, 8_002, 8_003];
    assert_eq!(series(&grepped), [("pid 4711".to_string(), rising.clone()), ("pid 12".to_string(), vec![200; 4])]);
    assert_eq!(series(&named), [("python".to_string(), rising), ("redis".to_string(), vec![400; 4])]);
    expect![[r#"
        error: several processes of `ps` have one name, and their rows have no pid
        hint: record the pid too: `while sleep 1; do ps -p PID -o pid,rss,cmd; done`
    "#]]
    .assert_eq(&refusal(&named.replace("redis", "python")));
}

#[test]
fn metrics_of_prometheus_that_are_not_resident_memory() {
    let answer =
        |name: &str| format!("[{{\"metric\":{{\"__name__\":\"{name}\"}},\"values\":[[1,\"30\"],[2,\"31\"]]}}]");
    for (name, expected) in [
        ("container_memory_usage_percent", "is a share of memory"),
        ("node_memory_utilization", "is a share of memory"),
        ("instance:memory_utilisation:ratio", "is a share of memory"),
        ("process_virtual_memory_bytes", "is virtual memory"),
        ("node_memory_MemAvailable_bytes", "is not memory in use"),
        ("process_cpu_seconds_total", "is a counter or a time"),
        ("go_memstats_alloc_bytes_total", "is a counter or a time"),
    ] {
        assert!(refusal(&answer(name)).contains(expected), "{name}");
    }
}

#[test]
fn the_age_of_a_process_is_a_clock() {
    let times = |rows: [&str; 3]| {
        let text: String = rows.map(|row| format!("  PID     ELAPSED   RSS\n {row}\n")).concat();
        let read = all(&text).remove(0);
        (0..3).map(|at| read.trace.time_s(at).expect("every sample has it")).collect::<Vec<_>>()
    };
    assert_eq!(times(["4711 95 416000", "4711 100 416000", "4711 105 416000"]), [95.0, 100.0, 105.0]);
    assert_eq!(times(["4711 01:35 416000", "4711 59:59 416000", "4711 01:00:00 416000"]), [95.0, 3599.0, 3600.0]);
    assert_eq!(
        times(["4711 23:59:59 416000", "4711 1-00:00:00 416000", "4711 10-00:00:01 416000"]),
        [86_399.0, 86_400.0, 864_001.0]
    );
}

#[test]
fn rows_of_top_that_a_grep_left() {
    let rows: String = (100..104)
        .map(|at| format!("  16148 me   20   0 9667412   4.{at}g 136144 S  58.8   1.2   0:04.93 python3 train.py\n"))
        .collect();
    let read = all(&rows).remove(0);
    assert_eq!((read.input.format.as_str(), mebibytes(&read)), ("top", vec![4198, 4199, 4200, 4201]));
}

#[test]
fn stamps_in_a_frame() {
    for frame in ["== {} ==", "--- {} ---", "*** {} ***", "# {}"] {
        let text: String = (0..3)
            .map(|at| {
                format!("{}\nVmRSS:\t  {} kB\n", frame.replace("{}", &format!("2025-03-01 22:00:0{at}")), 416_000 + at)
            })
            .collect();
        let read = all(&text).remove(0);
        assert_eq!((read.trace.time_s(2), read.input.skipped), (Some(1_740_866_402.0), 0), "{frame}");
    }
}

#[test]
fn the_machine_is_told_by_the_columns_beside_used() {
    let psutil = "time_s,mem_total,mem_used,mem_free\n1,67418587136,5368709120,1\n2,67418587136,5372805120,1\n";
    assert_eq!(all(psutil)[0].trace.subject, Subject::Machine);
    // dstat has a title above the names.
    let dstat = "\"Dstat 0.7.4 CSV output\"\n\"Host:\",\"node1\",,,\"User:\",\"me\"\n\"memory usage\",,,\n\
                 \"used\",\"buff\",\"cach\",\"free\"\n5368709120.0,7e7,6e9,5e10\n5372805120.0,7e7,6e9,5e10\n";
    let read = all(dstat).remove(0);
    assert_eq!((read.trace.subject, read.input.column.as_deref()), (Subject::Machine, Some("used")));
    assert_eq!((mebibytes(&read), read.input.skipped), (vec![5120, 5123], 0));
}
