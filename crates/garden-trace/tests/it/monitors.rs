//! Monitors of machines, containers and GPUs, as they print: a text in, what was read out.

use std::fmt::Write;

use crate::common::{all_shown, check, refusal, series};
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

/// Metrics of a pod with two containers, as an item of a list has them.
fn pod_metrics(name: &str, at: u32) -> String {
    format!(
        "{{\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"ml\"}},\"timestamp\":\"2025-03-01T22:{at:02}:00Z\",\"window\":\"15s\",\
         \"containers\":[{{\"name\":\"main\",\"usage\":{{\"cpu\":\"1023m\",\"memory\":\"{}Ki\"}}}},\
         {{\"name\":\"sidecar\",\"usage\":{{\"cpu\":\"1m\",\"memory\":\"61440Ki\"}}}}]}}\n",
        4_194_304 + 1024 * at
    )
}

#[test]
fn pod_metrics_without_their_kind() {
    let items = |name: &str| (0..6).map(|at| pod_metrics(name, at)).collect::<Vec<_>>();
    let rising: Vec<u64> = (4096..4102).collect();
    let expected = [("main".to_string(), rising.clone()), ("sidecar".to_string(), vec![60; 6])];
    let lines = items("train-0");
    let pretty = lines.concat().replace("\":{", "\": {\n  ").replace(",\"", ",\n  \"");
    for text in [lines.concat(), pretty, format!("[{}]", lines.join(","))] {
        assert_eq!(series(&text), expected, "{text}");
    }
    let both: String =
        lines.iter().zip(items("train-1")).map(|(one, other)| format!("{{\"items\":[{one},{other}]}}\n")).collect();
    assert_eq!(
        series(&both).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["train-0, main", "train-0, sidecar", "train-1, main", "train-1, sidecar"]
    );
    let node: String = (0..6)
        .map(|at| {
            format!(
                "{{\"metadata\":{{\"name\":\"node-a\"}},\"timestamp\":\"2025-03-01T22:{at:02}:00Z\",\
                 \"usage\":{{\"cpu\":\"156340000n\",\"memory\":\"{}Ki\"}}}}\n",
                4_194_304 + 1024 * at
            )
        })
        .collect();
    assert_eq!(series(&node), [(String::new(), rising.clone())]);
    // Without any object around it: the unit of Kubernetes is understood in tables and JSON, too.
    let usage: String =
        (0..6).map(|at| format!("{{\"cpu\":\"1023m\",\"memory\":\"{}Ki\"}}\n", 4_194_304 + 1024 * at)).collect();
    assert_eq!(series(&usage), [(String::new(), rising)]);
    expect![[r#"
        error: YAML of Kubernetes' metrics API is not read
        hint: record it as JSON: `kubectl get --raw /apis/metrics.k8s.io/v1beta1/namespaces/NS/pods/POD`
    "#]]
    .assert_eq(&refusal("apiVersion: metrics.k8s.io/v1beta1\ncontainers:\n- name: main\n  usage:\n    cpu: 1023m\n    memory: 4194304Ki\nkind: PodMetrics\n"));
}

#[test]
fn time_of_processors_in_logs_is_no_memory() {
    let log = "10:00:00 cpu: 250m mem: 4000M\n10:00:01 cpu: 251m mem: 4001M\n";
    assert_eq!(series(log), [(String::new(), vec![4000, 4001])]);
    assert!(refusal("10:00:00 cpu: 250m\n10:00:01 cpu: 251m\n").starts_with("error: not a memory trace"));
}

/// A panel of Grafana with such legends and cells, at five times.
fn panel(header: &str, row: impl Fn(u32) -> String) -> String {
    let rows = (0..5).map(|at| format!("2025-03-01 22:{at:02}:00,{}\n", row(at)));
    format!("{header}\n{}", rows.collect::<String>())
}

#[test]
fn grafana_exports() {
    let first: Vec<u64> = vec![1536, 1546, 1556, 1566, 1576];
    let second: Vec<u64> = (512..517).collect();
    let cells = |at: u32| format!("1.5{at} GiB,{} MiB", 512 + at);
    let labels = panel("\"Time\",\"{pod=\"\"train-0\"\"}\",\"{pod=\"\"train-1\"\"}\"", cells);
    let named = |one: &str, other: &str| [(one.to_string(), first.clone()), (other.to_string(), second.clone())];
    assert_eq!(series(&labels), named("{pod=\"train-0\"}", "{pod=\"train-1\"}"));
    assert_eq!(series(&panel("\"Time\",train-0,train-1", cells)), named("train-0", "train-1"));
    assert_eq!(series(&panel("sep=,\nTime,train-0 RSS,train-1 RSS", cells)), named("train-0 RSS", "train-1 RSS"));
    let shown = all_shown(&labels);
    assert!(shown.contains("subject Container\ngrafana | 5 samples"), "{shown}");
    assert!(shown.contains("note cells are rounded to 10.2 MiB"), "{shown}");
    // Rows of a series where another one has none.
    let joined =
        panel("Time,train-0,train-1", |at| if at < 3 { format!("1.5{at} GiB,") } else { format!(",{} MiB", 512 + at) });
    assert_eq!(series(&joined).iter().map(|(_, values)| values.len()).collect::<Vec<_>>(), [3, 2]);
    let rows: String = ["train-0", "train-1"]
        .iter()
        .flat_map(|name| (0..3).map(move |at| format!("{name};2025-03-01T22:0{at}:00+00:00;{} MiB\n", 512 + at)))
        .collect();
    assert_eq!(series(&format!("Series;Time;Value\n{rows}")).len(), 2);
    // Numbers without a unit: memory where the metric says so.
    let metrics =
        "Time,\"container_memory_rss{pod=\"\"train-0\"\"}\",\"container_cpu_usage_seconds_total{pod=\"\"train-0\"\"}\"";
    let shown = all_shown(&panel(metrics, |at| format!("{},{at}", 4_294_967_296_u64 + 4096 * u64::from(at))));
    assert!(shown.contains("grafana | 5 samples | container_memory_rss{pod=\"train-0\"} | bytes"), "{shown}");
}

#[test]
fn grafana_exports_without_memory() {
    let header = "Time,\"{pod=\"\"train-0\"\"}\"";
    expect![[r#"
        error: no memory column among `Time`, `{pod="train-0"}`
        hint: select the memory column with `--column NAME`
    "#]]
    .assert_eq(&refusal(&panel(header, |at| format!("{}", 4_294_967_296_u64 + u64::from(at)))));
    expect![[r#"
        error: column `{pod="train-0"}` is a percentage, not an amount of memory
        hint: select a column of bytes or MiB with `--column NAME`, or leave it out
    "#]]
    .assert_eq(&refusal(&panel(header, |at| format!("41.{at}%"))));
    let limits = panel("Time,Memory,Memory limit", |at| format!("1.5{at} GiB,4 GiB"));
    assert_eq!(series(&limits).len(), 1);
}

#[test]
fn influx_line_protocol() {
    let rows = |measurement: &str, fields: &dyn Fn(u64) -> String| -> String {
        (0..5)
            .map(|at| format!("{measurement} {} {}\n", fields(at), 1_740_866_400_000_000_000 + 10_000_000_000 * at))
            .collect()
    };
    let process = rows("procstat,host=n1,pid=4711", &|at| {
        format!("memory_rss={}i,memory_vms=9000000000i", 4_194_304_000 + 1_048_576 * at)
    });
    let other = rows("procstat,host=n1,pid=4712", &|at| {
        format!("memory_rss={}i,memory_vms=9000000000i", 2_097_152_000 + 1_048_576 * at)
    });
    assert_eq!(series(&process), [(String::new(), (4000..4005).collect())]);
    let both: String = process.lines().zip(other.lines()).map(|(one, other)| format!("{one}\n{other}\n")).collect();
    let (first, second) = ((4000..4005).collect(), (2000..2005).collect());
    assert_eq!(series(&both), [("pid 4711".to_string(), first), ("pid 4712".to_string(), second)]);
    let shown = all_shown(&process);
    assert!(shown.contains("influx line protocol | 5 samples | procstat_memory_rss | bytes"), "{shown}");
    assert!(shown.contains(" t 1740866440 rss=3.91 GiB"), "{shown}");
    let free = rows("mem,host=n1", &|_| "available_percent=12.5,free=1000000i".to_string());
    assert!(refusal(&free).starts_with("error: no memory column among"), "{}", refusal(&free));
}

#[test]
fn a_page_of_metrics_names_the_way_out() {
    let page = "# HELP process_resident_memory_bytes Resident memory size in bytes.\n\
                # TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 4.2e+09\n";
    let refused = refusal(&page.repeat(3));
    assert!(refused.starts_with("error: a page of metrics for Prometheus has no times\n"), "{refused}");
}
