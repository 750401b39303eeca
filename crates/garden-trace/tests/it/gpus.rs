//! Memory of GPUs as `nvidia-smi` and `gpustat` print it.

use std::fmt::Write;

use crate::common::{all, all_shown, check, mebibytes, series};
use expect_test::expect;
use garden_memory::{Bytes, GIB, Subject};

#[test]
fn nvidia_smi_as_a_query() {
    let rows = "2024/01/15 12:00:03.123, 0, 1234 MiB, 24576 MiB\n2024/01/15 12:00:03.125, 1, 4321 MiB, 24576 MiB\n\
                2024/01/15 12:00:04.123, 0, 1235 MiB, 24576 MiB\n2024/01/15 12:00:04.125, 1, 4322 MiB, 24576 MiB\n";
    let header = "timestamp, index, memory.used [MiB], memory.total [MiB]\n";
    let queried = all_shown(&format!("{header}{rows}"));
    expect![[r#"
        == GPU 0
        subject Device
        nvidia-smi | 2 samples | memory.used [MiB] | MiB | 0 skipped
          t 1705320003.123 rss=1.21 GiB
          t 1705320004.123 rss=1.21 GiB
        facts memory_limit=25769803776
        == GPU 1
        subject Device
        nvidia-smi | 2 samples | memory.used [MiB] | MiB | 0 skipped
          t 1705320003.125 rss=4.22 GiB
          t 1705320004.125 rss=4.22 GiB
        facts memory_limit=25769803776
    "#]]
    .assert_eq(&queried);
    assert_eq!(all_shown(rows), queried);
    assert_eq!(all_shown(&format!("{header}{}", rows.replace(" MiB", ""))), queried);
    assert_eq!(all_shown(&rows.replace(" MiB", "")), queried);
}

#[test]
fn nvidia_smi_without_an_index() {
    let mut text = "timestamp, memory.used [MiB]\n".to_string();
    for second in 0..9 {
        for (gpu, used) in [(0, 1000 + second), (1, 9000 + second)] {
            writeln!(text, "2024/01/15 12:00:0{second}.12{gpu}, {used} MiB").unwrap();
        }
    }
    let read = all(&text);
    assert_eq!(read.iter().map(|one| one.name.as_deref().unwrap()).collect::<Vec<_>>(), ["GPU 0", "GPU 1"]);
    assert_eq!(mebibytes(&read[1]), (9000..9009).collect::<Vec<u64>>());
    check(
        "1234 MiB\n1235 MiB\n1236 MiB\n",
        expect![[r#"
        subject Device
        nvidia-smi | 3 samples | value | MiB | 0 skipped
          rss=1.21 GiB
          rss=1.21 GiB
          rss=1.21 GiB
        note read as `memory.used` of one GPU; to tell several apart, query `index,memory.used`
    "#]],
    );
}

#[test]
fn gpus_of_one_name_are_told_apart_by_their_order() {
    let rows =
        |i: u32| format!("name, memory.used [MiB]\nNVIDIA A100, {} MiB\nNVIDIA A100, {} MiB\n", 1000 + i, 9000 + i);
    let read = all(&(0..4).map(rows).collect::<String>());
    assert_eq!(read.iter().map(|one| one.name.as_deref().unwrap()).collect::<Vec<_>>(), ["GPU 0", "GPU 1"]);
    assert_eq!(mebibytes(&read[1]), [9000, 9001, 9002, 9003]);
}

#[test]
fn nvidia_smi_with_columns_that_cannot_be_told() {
    check(
        "0, 1234 MiB, 23000 MiB, 24576 MiB\n0, 1235 MiB, 22999 MiB, 24576 MiB\n",
        expect![[r#"
        error: rows of `nvidia-smi` without a header: the column of memory in use is unclear
        hint: leave out `noheader`, or query `--query-gpu=timestamp,index,memory.used,memory.total`
    "#]],
    );
}

#[test]
fn nvidia_smi_by_process() {
    let rows = "pid, used_gpu_memory [MiB]\n4711, 1234 MiB\n4712, 2000 MiB\n4711, 1235 MiB\n4712, [N/A]\n4711, 1236 MiB\n4712, 2001 MiB\n";
    check(
        rows,
        expect![[r#"
        == pid 4711
        subject Device
        nvidia-smi | 3 samples | used_gpu_memory [MiB] | MiB | 0 skipped
          rss=1.21 GiB
          rss=1.21 GiB
          rss=1.21 GiB
        == pid 4712
        subject Device
        nvidia-smi | 2 samples | used_gpu_memory [MiB] | MiB | 1 skipped
          rss=1.95 GiB
          rss=1.95 GiB
        note 1 line skipped: value is not a number (line 5, `used_gpu_memory [MiB]` = `[N/A]`)
    "#]],
    );
}

#[test]
fn nvidia_smi_as_it_draws_its_table() {
    let table = |first: u32, second: u32| {
        format!(
            "Mon Jan 15 12:00:0{} 2024       \n\
+---------------------------------------------------------------------------------------+\n\
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |\n\
|-----------------------------------------+----------------------+----------------------+\n\
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |\n\
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |\n\
|=========================================+======================+======================|\n\
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |\n\
| N/A   32C    P0              63W / 400W |  {first:>5}MiB / 81920MiB |      0%      Default |\n\
|                                         |                      |             Disabled |\n\
|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:0F:00.0 Off |                    0 |\n\
| N/A   32C    P0              63W / 400W |  {second:>5}MiB / 81920MiB |      0%      Default |\n\
+-----------------------------------------+----------------------+----------------------+\n\
| Processes:                                                                            |\n\
|    0   N/A  N/A      4711      C   python3                                    1230MiB |\n\
+---------------------------------------------------------------------------------------+\n",
            first % 10
        )
    };
    check(
        &(table(1234, 77) + &table(1235, 78)),
        expect![[r#"
        == GPU 0
        subject Device
        nvidia-smi | 2 samples | Memory-Usage | MiB | 0 skipped
          t 1705320004 rss=1.21 GiB
          t 1705320005 rss=1.21 GiB
        facts memory_limit=85899345920
        == GPU 1
        subject Device
        nvidia-smi | 2 samples | Memory-Usage | MiB | 0 skipped
          t 1705320004 rss=77.0 MiB
          t 1705320005 rss=78.0 MiB
        facts memory_limit=85899345920
    "#]],
    );
}

#[test]
fn nvidia_smi_as_a_monitor() {
    check(
        "# gpu     fb   bar1\n# Idx     MB     MB\n    0   1234      5\n    1    900      5\n    0   1235      5\n    1    901      5\n",
        expect![[r#"
            == GPU 0
            subject Device
            nvidia-smi | 2 samples | fb | MiB | 0 skipped
              rss=1.21 GiB
              rss=1.21 GiB
            == GPU 1
            subject Device
            nvidia-smi | 2 samples | fb | MiB | 0 skipped
              rss=900 MiB
              rss=901 MiB
        "#]],
    );
    check(
        "# gpu        pid  type    fb   command\n# Idx          #   C/G    MB   name\n\
         \x20   0       4711     C  1234   python3\n    1          -     -     -   -\n    0       4711     C  1235   python3\n",
        expect![[r#"
            subject Device
            nvidia-smi | 2 samples | fb | MiB | 0 skipped
              rss=1.21 GiB
              rss=1.21 GiB
        "#]],
    );
}

#[test]
fn nvidia_smi_as_a_list() {
    let mut text = String::new();
    for (minute, used) in [(0, 30_000), (1, 30_168), (2, 30_336)] {
        write!(
            text,
            "\n==============NVSMI LOG==============\n\n\
             Timestamp                                 : Sat Mar  1 22:0{minute}:00 2025\n\
             Driver Version                            : 550.54.15\n\
             Attached GPUs                             : 2\n"
        )
        .unwrap();
        for (bus, used) in [("00000000:01:00.0", used), ("00000000:07:00.0", 500)] {
            write!(
                text,
                "GPU {bus}\n    FB Memory Usage\n        Total                             : 81920 MiB\n\
                 \x20       Reserved                          : 600 MiB\n        Used                              : {used} MiB\n\
                 \x20       Free                              : 51320 MiB\n    BAR1 Memory Usage\n\
                 \x20       Total                             : 131072 MiB\n        Used                              : 4 MiB\n"
            )
            .unwrap();
        }
    }
    let read = all(&text);
    assert_eq!(
        series(&text),
        [
            ("GPU 00000000:01:00.0".to_string(), vec![30_000, 30_168, 30_336]),
            ("GPU 00000000:07:00.0".to_string(), vec![500, 500, 500])
        ]
    );
    for one in &read {
        assert_eq!((one.trace.subject, one.input.skipped), (Subject::Device, 0));
        assert_eq!(one.trace.facts.memory_limit, Some(Bytes(80 * GIB)));
        assert_eq!(one.trace.time_s(2).zip(one.trace.time_s(0)).map(|(last, first)| last - first), Some(120.0));
    }
}

#[test]
fn mig_devices_are_series_beside_their_gpu() {
    let snapshot = |whole: u64, first: u64, second: u64| {
        format!(
            "+-----------------------------------------------------------------------------+\n\
             | NVIDIA-SMI 550.54.15              Driver Version: 550.54.15                 |\n\
             |   0  NVIDIA A100-SXM4-80GB     On  |   00000000:01:00.0 Off |            On |\n\
             | N/A   35C    P0        62W /  400W |   {whole}MiB /  81920MiB |   Default |\n\
             | MIG devices:                                                                |\n\
             | GPU  GI  CI  MIG |                     Memory-Usage |        Vol|   Shared  |\n\
             |      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC    |\n\
             |  0    1   0   0  |            {first}MiB / 40192MiB    | 42      0 |  3   0    |\n\
             |                  |                 0MiB / 65535MiB  |           |           |\n\
             |  0    2   0   1  |            {second}MiB / 40192MiB    | 42      0 |  3   0    |\n\
             |                  |                 0MiB / 65535MiB  |           |           |\n\
             | Processes:                                                                  |\n\
             |    0    1    0      4711      C   python3                          9000MiB |\n"
        )
    };
    let text = snapshot(30_000, 10_000, 20_000) + &snapshot(30_500, 10_500, 20_000);
    let expected = [
        ("GPU 0", vec![30_000, 30_500]),
        ("GPU 0, device MIG 0", vec![10_000, 10_500]),
        ("GPU 0, device MIG 1", vec![20_000, 20_000]),
    ];
    assert_eq!(series(&text), expected.map(|(name, values)| (name.to_string(), values)));
}

#[test]
fn gpustat_as_text_and_as_json() {
    let (mut text, mut lines, mut pretty) = (String::new(), String::new(), String::new());
    for minute in 0..3 {
        let used = 30_000 + 100 * minute;
        write!(
            text,
            "trainer-7  Sat Mar  1 22:0{minute}:00 2025  550.54.15\n\
             [0] NVIDIA A100-SXM4-80GB | 35'C,  30 % | {used} / 81920 MB | user(29000M)\n\
             [1] NVIDIA A100-SXM4-80GB | 35'C,   ? % |   500 / 81920 MB |\n"
        )
        .unwrap();
        let object = format!(
            "{{\"hostname\": \"h\", \"query_time\": \"2025-03-01T22:0{minute}:00.123456\", \"gpus\": [\
             {{\"index\": 0, \"memory.used\": {used}, \"memory.total\": 81920, \"processes\": []}}, \
             {{\"index\": 1, \"memory.used\": 500, \"memory.total\": 81920, \"processes\": null}}]}}\n"
        );
        lines += &object;
        pretty += &object.replace(", ", ",\n    ").replace("[{", "[\n  {");
    }
    for form in [&text, &lines, &pretty] {
        let expected = [("GPU 0", vec![30_000, 30_100, 30_200]), ("GPU 1", vec![500, 500, 500])];
        assert_eq!(series(form), expected.map(|(name, values)| (name.to_string(), values)), "{form}");
        for one in all(form) {
            assert_eq!((one.input.format.as_str(), one.trace.subject), ("gpustat", Subject::Device), "{form}");
            assert_eq!(
                one.trace.time_s(2).zip(one.trace.time_s(1)).map(|(b, a)| (b - a).round()),
                Some(60.0),
                "{form}"
            );
            assert_eq!((one.trace.facts.memory_limit, one.input.skipped), (Some(Bytes(80 * GIB)), 0), "{form}");
        }
    }
    let torn = lines[..lines.len() - 20].to_string();
    let read = all(&torn);
    assert_eq!((read[0].trace.len(), read[0].input.skipped), (2, 1));
}

#[test]
fn a_stamp_of_nvidia_smi_tells_the_tool_without_header_and_units() {
    let text = "2025/03/01 22:00:00.123, 30000\n2025/03/01 22:01:00.123, 30100\n2025/03/01 22:02:00.124, 30200\n";
    let read = &all(text)[0];
    assert_eq!((mebibytes(read), read.trace.subject), (vec![30_000, 30_100, 30_200], Subject::Device));
    let of_others = text.replace(".123", "").replace(".124", "");
    assert_eq!(all(&of_others.replace("30", "3"))[0].trace.subject, Subject::Process);
}
