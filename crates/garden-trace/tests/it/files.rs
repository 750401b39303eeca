//! Tables, JSON, mprof, psrecord and our own format: a file's text in, what was read out.

use std::path::Path;

use crate::common::{all, all_shown, mebibytes, shown, shown_with};
use expect_test::{Expect, expect};
use garden_memory::{Activity, Bytes, EventKind, GIB, Libraries, ProcessTrack, Quantity, RunFacts, Sample, Subject};
use garden_trace::{Error, ReadOptions, Unit, Writer, read, read_path};

fn check(text: &str, expected: Expect) {
    expected.assert_eq(&shown(text));
}

fn check_column(text: &str, column: &str, expected: Expect) {
    let options = ReadOptions { column: Some(column.to_string()), ..Default::default() };
    expected.assert_eq(&shown_with(text.as_bytes(), &options));
}

#[test]
fn a_table_with_everything() {
    check(
        "step,time_s,rss_mb,anon_mb,file_mb,shmem_mb,gpu_gb,tensors,tensors_cpu,tensors_gpu,label\n\
         0,0.0229,34.094,20.117,13.977,0.000,1.5,10,4,6,train\n\
         1,0.0409,37.160,23.184,13.977,0.000,1.5,10,4,6,eval\n",
        expect![[r#"
            csv | 2 samples | rss_mb | MiB | 0 skipped
              step 0 t 0.0229 rss=34.1 MiB anon=20.1 MiB file=14.0 MiB shmem=0 B gpu=1.50 GiB tensors=10 tensors_cpu=4 tensors_gpu=6
              step 1 t 0.0409 rss=37.2 MiB anon=23.2 MiB file=14.0 MiB shmem=0 B gpu=1.50 GiB tensors=10 tensors_cpu=4 tensors_gpu=6 Eval
        "#]],
    );
}

#[test]
fn tabs_and_semicolons() {
    check(
        "Step\tTime (ms)\tProcess RAM [GiB]\n1\t500\t1.5\n2\t1000\t1.75\n",
        expect![[r#"
        tsv | 2 samples | Process RAM [GiB] | GiB | 0 skipped
          step 1 t 0.5 rss=1.50 GiB
          step 2 t 1 rss=1.75 GiB
    "#]],
    );
    check(
        "step;rss_mb;phase\n1;543,512;validation\n2;1002,062;save\n",
        expect![[r#"
        csv (semicolons) | 2 samples | rss_mb | MiB | 0 skipped
          step 1 rss=544 MiB Eval
          step 2 rss=1002 MiB Checkpoint
    "#]],
    );
}

#[test]
fn a_markdown_table() {
    check(
        "# Results\n| Step | RAM (MB) |\n|---|---:|\n| 10 | 5,434 |\n| 20 | 7,017 |\n",
        expect![[r#"
        table | 2 samples | RAM (MB) | MiB | 0 skipped
          step 10 rss=5.31 GiB
          step 20 rss=6.85 GiB
    "#]],
    );
}

#[test]
fn cells_with_units_and_separators() {
    check(
        "step,rss\n10,\"7,159 MB\"\n20,900 KiB\n30,1.5 GB\n",
        expect![[r#"
        csv | 3 samples | rss | mixed: KiB, MiB, GiB | 0 skipped
          step 10 rss=6.99 GiB
          step 20 rss=900 KiB
          step 30 rss=1.50 GiB
    "#]],
    );
    check(
        "step,rss_mb\n10,7,159\n20,8000\n",
        expect![[r#"
        csv | 1 samples | rss_mb | MiB | 1 skipped
          step 20 rss=7.81 GiB
        note 1 line skipped: more fields than the header has (line 2, `10,7,159`)
    "#]],
    );
}

#[test]
fn a_unit_that_nobody_states_is_guessed_and_said() {
    check(
        "step,rss\n1,5434\n2,5435\n",
        expect![[r#"
            csv | 2 samples | rss | MiB | 0 skipped
              step 1 rss=5.31 GiB
              step 2 rss=5.31 GiB
            note column `rss` has no unit: read as MiB, since as KiB it would be at most 5.31 MiB; `--unit` overrides
        "#]],
    );
    check(
        "step,rss\n1,5697961984\n2,5697961985\n",
        expect![[r#"
            csv | 2 samples | rss | bytes | 0 skipped
              step 1 rss=5.31 GiB
              step 2 rss=5.31 GiB
            note column `rss` has no unit: read as bytes, since as KiB it would be at least 5.31 TiB; `--unit` overrides
        "#]],
    );
    let options = ReadOptions { unit: Some(Unit::Kib), ..Default::default() };
    expect![[r#"
        csv | 1 samples | rss | KiB | 0 skipped
          step 1 rss=5.31 GiB
    "#]]
    .assert_eq(&shown_with(b"step,rss\n1,5564416\n", &options));
}

#[test]
fn dates_in_a_table() {
    check(
        "timestamp,memory_mb\n2025-01-01T12:00:00Z,10\n2025-01-01T12:00:01.5Z,11\nlater,12\n",
        expect![[r#"
        csv | 3 samples | memory_mb | MiB | 1 skipped
          t 1735732800 rss=10.0 MiB
          t 1735732801.5 rss=11.0 MiB
          rss=12.0 MiB
        note 1 value skipped: value is not a number (line 4, `timestamp` = `later`)
    "#]],
    );
}

#[test]
fn the_main_column_by_precedence_and_by_name() {
    check(
        "step,memory_mb,pss_mb\n1,10,8\n",
        expect![[r#"
        csv | 1 samples | pss_mb | MiB | 0 skipped
          step 1 rss=8.00 MiB pss=8.00 MiB
    "#]],
    );
    let table = "step,rss_mb,Heap Size\n1,10,5000000\n2,11,6000000\n";
    check(
        table,
        expect![[r#"
        csv | 2 samples | rss_mb | MiB | 0 skipped
          step 1 rss=10.0 MiB
          step 2 rss=11.0 MiB
    "#]],
    );
    check_column(
        table,
        "heap size",
        expect![[r#"
            csv | 2 samples | Heap Size | KiB | 0 skipped
              step 1 rss=4.77 GiB
              step 2 rss=5.72 GiB
            note column `rss_mb` ignored: using `Heap Size`
            note column `Heap Size` has no unit: read as KiB, since as bytes it would be at most 5.72 MiB and as MiB at least 4.77 TiB; `--unit` overrides
        "#]],
    );
    check_column(
        table,
        "stack",
        expect![[r#"
        error: no column `stack` among `step`, `rss_mb`, `Heap Size`
        hint: spell the `--column` name as in the file
    "#]],
    );
    check(
        "step,loss\n1,0.5\n2,0.4\n",
        expect![[r#"
        error: no memory column among `step`, `loss`
        hint: select the memory column with `--column NAME`
    "#]],
    );
}

#[test]
fn rows_that_cannot_be_used_are_counted_by_reason() {
    check(
        "step,rss_mb,gpu_mb\n1,10,1\n2,n/a,1\n3,NaN,1\n4,-5,1\n5,inf,1\n6\n7,11\n8,12,1,9\nx,13,oops\n\n10,,1\n11,14,\n",
        expect![[r#"
            csv | 3 samples | rss_mb | MiB | 10 skipped
              step 1 rss=10.0 MiB gpu=1.00 MiB
              rss=13.0 MiB
              step 11 rss=14.0 MiB
            note 1 line skipped: value is not a number (line 3, `rss_mb` = `n/a`)
            note 2 lines skipped: no memory value (first: line 4, `rss_mb` = `NaN`)
            note 1 line skipped: value is negative (line 5, `rss_mb` = `-5`)
            note 1 line skipped: value is infinite or larger than any machine's memory (line 6, `rss_mb` = `inf`)
            note 2 lines skipped: fewer fields than the header has (first: line 7, `6`)
            note 1 line skipped: more fields than the header has (line 9, `8,12,1,9`)
            note 2 values skipped: value is not a number (first: line 10, `step` = `x`)
        "#]],
    );
}

#[test]
fn windows_files_comments_and_a_preamble() {
    check(
        "\u{feff}# made by a script\r\nMemory trace of run 7\r\n\r\nstep,rss_mb\r\n1,10\r\n# pause\r\n2,11\r\n",
        expect![[r#"
            csv | 2 samples | rss_mb | MiB | 0 skipped
              step 1 rss=10.0 MiB
              step 2 rss=11.0 MiB
        "#]],
    );
}

#[test]
fn a_header_in_the_middle_is_another_run_if_steps_go_back() {
    check(
        "step,rss_mb\n1,10\n2,11\nstep,rss_mb\n1,9\nstep,rss_mb\n2,12\n",
        expect![[r#"
            csv | 4 samples | rss_mb | MiB | 0 skipped
              step 1 rss=10.0 MiB
              step 2 rss=11.0 MiB
              * Restart
              step 1 rss=9.00 MiB
              step 2 rss=12.0 MiB
            note the header is repeated 2 times (first: line 4)
        "#]],
    );
    check(
        "step,rss_mb,rss_mb\n1,10,99\n",
        expect![[r#"
            csv | 1 samples | rss_mb | MiB | 0 skipped
              step 1 rss=10.0 MiB
            note column `rss_mb` appears more than once; using the first
        "#]],
    );
}

#[test]
fn a_column_alone_and_a_header_alone() {
    check(
        "rss_mb\n10\n11\n",
        expect![[r#"
        csv | 2 samples | rss_mb | MiB | 0 skipped
          rss=10.0 MiB
          rss=11.0 MiB
    "#]],
    );
    check(
        "step,rss_mb\n",
        expect![[r#"
        csv | 0 samples | rss_mb | - | 0 skipped
    "#]],
    );
}

#[test]
fn psrecord_in_both_forms() {
    check(
        "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n       0.000        0.000        5.293       16.512\n       1.002       99.100       25.750       66.000\n",
        expect![[r#"
            psrecord | 2 samples | Real (MB) | MiB | 0 skipped
              t 0 rss=5.29 MiB
              t 1.002 rss=25.8 MiB
        "#]],
    );
    check(
        "elapsed_time,nproc,cpu,mem_real,mem_virtual\n0.01,1,0.0,5.25,16.5\n",
        expect![[r#"
            csv | 1 samples | mem_real | MiB | 0 skipped
              t 0.01 rss=5.25 MiB
        "#]],
    );
}

#[test]
fn memory_profiler() {
    check(
        "CMDLINE /usr/bin/python3 train.py --epochs 3\n\
         MEM 1.250000 1700000000.1234\n\
         CHLD 4242 10.500000 1700000000.1300\n\
         FUNC __main__.load 5.5000 1700000000.2000 9.0000 1700000000.3000 0\n\
         MEM 12.345678 1700000000.2234\n\
         MEM oops 1700000000.3\n",
        expect![[r#"
            memory_profiler | 2 samples | MEM | MiB | 1 skipped
              t 1700000000.1234 rss=1.25 MiB
              t 1700000000.2234 rss=12.3 MiB
            origin command: /usr/bin/python3 train.py --epochs 3
            note CHLD lines (child processes) ignored: 1; MEM is judged
            note 1 line skipped: value is not a number (line 6, `MEM` = `oops`)
        "#]],
    );
}

#[test]
fn json_lines() {
    check(
        "{\"step\":10,\"rss_mb\":5434,\"loss\":NaN}\n{\"step\":20,\"rss_mb\":\"7,017 MB\"}\nnoise\n{\"step\":30}\n{\"step\":40,\"rss_mb\":87",
        expect![[r#"
            json lines | 2 samples | rss_mb | MiB | 3 skipped
              step 10 rss=5.31 GiB
              step 20 rss=6.85 GiB
            note 2 lines skipped: not a JSON object (first: line 3, `noise`)
            note 1 line skipped: no memory value (line 4, `{"step":30}`)
        "#]],
    );
    check(
        "{\"global_step\":10,\"memory\":{\"rss\":5697961984,\"vms\":9},\"phase\":\"eval\"}\n",
        expect![[r#"
            json lines | 1 samples | memory.rss | bytes | 0 skipped
              step 10 rss=5.31 GiB Eval
            note column `memory.rss` has no unit: read as bytes, since as KiB it would be at least 5.31 TiB; `--unit` overrides
        "#]],
    );
    check(
        "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.4}\n",
        expect![[r#"
        error: no memory column among `step`, `loss`
        hint: select the memory column with `--column NAME`
    "#]],
    );
}

#[test]
fn a_json_list() {
    check(
        "[\n  {\n    \"step\": 1,\n    \"mem_mb\": 10\n  },\n  {\"step\": 2, \"mem_mb\": 11}, {\"step\"",
        expect![[r#"
            json array | 2 samples | mem_mb | MiB | 1 skipped
              step 1 rss=10.0 MiB
              step 2 rss=11.0 MiB
            note 1 line skipped: the last object is incomplete (line 6, `{"step"`)
        "#]],
    );
}

#[test]
fn our_own_format() {
    check(
        "{\"model_garden_trace\":1,\"facts\":{\"examples\":663,\"batch_size\":2,\"memory_limit\":34359738368},\"origin\":{\"host\":\"a\",\"cores\":2},\"later\":1}\n\
         {\"step\":10,\"time_s\":1.5,\"rss\":123456789,\"anon\":1000,\"activity\":\"eval\",\"unknown\":[1]}\n\
         {\"event\":\"epoch_end\",\"step\":83,\"time_s\":2}\n\
         {\"step\":84,\"rss\":-4}\n\
         {\"event\":\"party\"}\n\
         {\"step\":85,\"rss\":1e9}\n\
         {\"step\":86,\"rss\":12",
        expect![[r#"
            model-garden trace | 2 samples | rss | bytes | 3 skipped
              step 10 t 1.5 rss=118 MiB anon=1000 B Eval
              * EpochEnd step 83 t 2
              step 85 rss=954 MiB
            facts examples=663 batch=2 memory_limit=34359738368
            origin host: a
            origin cores: 2
            note 2 lines skipped: neither a sample nor an event (first: line 4, `{"step":84,"rss":-4}`)
            note 1 line skipped: torn; the writer stopped in the middle (line 7, `{"step":86,"rss":12`)
        "#]],
    );
    check(
        "{\"model_garden_trace\":1}\n{\"rss\":1}\n{\"rss\":{\"model_garden_trace\":1,\"facts\":{\"examples\":9}}\n{\"rss\":2}\n",
        expect![[r#"
            model-garden trace | 2 samples | rss | bytes | 1 skipped
              rss=1 B
              * Restart
              rss=2 B
            facts examples=9
            note 1 line skipped: torn; the writer stopped in the middle (line 3, `{"rss":`)
        "#]],
    );
    check(
        "{\"model_garden_trace\":1}\n{\"step\":1,\"pss\":8}\n{\"event\":\"gc\"}\n{\"pss\":9}\n",
        expect![[r#"
            model-garden trace | 2 samples | pss | bytes | 0 skipped
              step 1 rss=8 B pss=8 B
              * Gc
              rss=9 B pss=9 B
        "#]],
    );
    check(
        "{\"model_garden_trace\":7}\n",
        expect![[r#"
        error: the trace has format version 7; this program reads version 1
        hint: read it with the version of model-garden that wrote it
    "#]],
    );
    check(
        "{\"model_garden_trace\":1,\"facts\":{\"examples\":-1}}\n",
        expect![[r#"
        error: cannot parse the trace's header (line 1): invalid value: integer `-1`, expected u64 at line 1 column 46
        hint: the first line should be {"model_garden_trace":1,"facts":{..}}
    "#]],
    );
}

#[test]
fn what_is_written_is_read_back() {
    let facts = RunFacts { examples: Some(663), memory_limit: Some(Bytes(1 << 35)), ..Default::default() };
    let origin = vec![("command".to_string(), "python \"x\".py\n".to_string()), ("a".to_string(), "ü".to_string())];
    let samples: Vec<Sample> = (0..200u64).map(sample).collect();
    let mut writer = Writer::new(Vec::new());
    writer.header(&facts, &origin).unwrap();
    for sample in &samples {
        writer.sample(sample, &[]).unwrap();
    }
    writer.event(EventKind::Restart, None, Some(0.1 + 0.2)).unwrap();
    let (pil, torch) = ("PIL".to_string(), "torch".to_string());
    writer.libraries(Some(&[&torch])).unwrap();
    writer.libraries(Some(&[&pil])).unwrap();
    let read = read(writer.into_inner().as_slice(), &ReadOptions::default()).unwrap();
    assert_eq!((read.trace.facts.clone(), read.trace.origin.clone()), (facts, origin));
    assert_eq!((0..read.trace.len()).map(|index| read.trace.sample(index)).collect::<Vec<_>>(), samples);
    let event = read.trace.events[0];
    assert_eq!((event.kind, event.before_sample, event.time_s), (EventKind::Restart, 200, Some(0.1 + 0.2)));
    assert_eq!((read.input.skipped, read.input.notes.len()), (0, 0));
    assert_eq!(read.trace.libraries, Libraries::Known([pil, torch].into()));
}

#[test]
fn libraries_that_are_not_known_of_all_are_not_known() {
    let text = "{\"model_garden_trace\":1}\n{\"libraries\":[\"libc\"]}\n{\"step\":1,\"rss\":7}\n{\"libraries\":null}\n\
                {\"libraries\":[\"PIL\"]}\n{\"libraries\":7}\n";
    let read = read(text.as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!((read.trace.libraries, read.trace.processes.len()), (Libraries::Incomplete, 0));
    assert_eq!(read.input.skipped, 1);
}

fn sample(index: u64) -> Sample {
    let mut sample = Sample::default();
    sample.step = (!index.is_multiple_of(3)).then_some(index as f64);
    sample.time_s = (!index.is_multiple_of(5)).then_some(index as f64 * 0.1 + 1.7e9);
    sample.activity = [Activity::Train, Activity::Eval, Activity::Checkpoint][index as usize % 3];
    for (place, quantity) in Quantity::ALL.into_iter().enumerate() {
        if (place as u64).is_multiple_of(index % 4 + 1) {
            sample.set(quantity, index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (place + 1));
        }
    }
    sample
}

#[test]
fn each_line_is_written_in_one_piece() {
    struct Pieces(Vec<String>);
    impl std::io::Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut writer = Writer::new(Pieces(Vec::new()));
    writer.header(&RunFacts::default(), &[]).unwrap();
    writer.sample(&sample(5), &[]).unwrap();
    writer.event(EventKind::EpochEnd, Some(83.0), None).unwrap();
    let pieces = writer.into_inner().0;
    assert_eq!(pieces.len(), 3);
    assert!(pieces.iter().all(|piece| piece.ends_with("}\n") && piece.matches('\n').count() == 1));
    expect![[r#"
        {"model_garden_trace":1,"facts":{},"origin":{}}
        {"step":83,"event":"epoch_end"}
    "#]]
    .assert_eq(&(pieces[0].clone() + &pieces[2]));
}

#[test]
fn processes_come_and_go_and_ids_are_used_again() {
    let python = |role: &str| ProcessTrack { pid: 7, name: "python3".into(), role: role.into(), ..Default::default() };
    let mut writer = Writer::new(Vec::new());
    writer.header(&RunFacts::default(), &[]).unwrap();
    writer.process(&python("training")).unwrap();
    for (index, told) in [Some(10), None, Some(12)].into_iter().enumerate() {
        let levels: Vec<(u32, Option<u64>)> = told.map(|bytes| (7, Some(bytes))).into_iter().collect();
        writer.sample(&sample(index as u64 + 1), &levels).unwrap();
    }
    writer.sample(&sample(4), &[(7, None), (8, Some(1))]).unwrap();
    writer.process(&python("worker")).unwrap();
    writer.sample(&sample(5), &[(7, Some(5))]).unwrap();
    // The same process, whose part in the run is known better now.
    writer.process(&python("loader")).unwrap();
    let read = read(&writer.into_inner()[..], &ReadOptions::default()).unwrap();
    assert_eq!((read.input.skipped, read.trace.len()), (0, 5));
    let [first, second] = &read.trace.processes[..] else { panic!("{:?}", read.trace.processes) };
    assert_eq!([0, 1, 2, 3, 4].map(|index| first.at(index)), [10, 10, 12, 0, 0]);
    assert_eq!([0, 1, 2, 3, 4].map(|index| second.at(index)), [0, 0, 0, 0, 5]);
    assert_eq!((first.role.as_str(), second.role.as_str()), ("training", "loader"));
}

#[test]
fn files_that_are_no_traces() {
    check(
        "",
        expect![[r#"
        error: not a memory trace: the file is empty
        hint: has the run written anything yet? Output may still be buffered
    "#]],
    );
    check(
        "\n  \n",
        expect![[r#"
        error: not a memory trace: the file is empty
        hint: has the run written anything yet? Output may still be buffered
    "#]],
    );
    check(
        "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore\n",
        expect![[r#"
            error: not a memory trace: unknown format, beginning with `Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed…`
            hint: known formats: a model-garden trace; `mprofile_*.dat` of memory_profiler; psrecord logs; Prometheus range queries; answers of Kubernetes' metrics API; `aws cloudwatch get-metric-statistics`; `trainer_state.json`; `gpustat --json`; `to_json()` of pandas; one JSON list of objects; JSON lines such as {"step":10,"rss_mb":5434}; InfluxDB's line protocol; CSV exports of Grafana; CSV or TSV with a header such as `step,rss_mb`; `nvidia-smi --query-gpu=timestamp,index,memory.used --format=csv`; one amount per line; training logs with lines such as `Step 10: RAM: 5434 MB`; output of `/proc/PID/status`, `/proc/meminfo`, `/proc/PID/smaps_rollup`, `memory.stat`, `sar`, `free`, `ps`, `top`, `pidstat`, `smem`, `docker stats`, `kubectl top`, `rocm-smi`, `gpustat`, `nvidia-smi`
        "#]],
    );
    check(
        "10,5434\n20,7017\n",
        expect![[r#"
            error: not a memory trace: unknown format, beginning with `10,5434`
            hint: a table needs a header line, such as `step,rss_mb`
        "#]],
    );
    let junk: Vec<u8> = (0..4000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    expect![[r#"
        error: not a memory trace: the content is binary (not text)
        hint: pass the text log with the memory values, not a model, archive or profile
    "#]]
    .assert_eq(&shown_with(&junk, &ReadOptions::default()));
    expect![[r#"
        error: not a memory trace: the content is binary (not text)
        hint: pass the text log with the memory values, not a model, archive or profile
    "#]]
    .assert_eq(&shown_with(&[0; 5000], &ReadOptions::default()));
}

#[test]
fn gzip_is_unpacked() {
    let packed = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut packer, bytes).unwrap();
        packer.finish().unwrap()
    };
    let table: String = (0..20_000).map(|step| format!("{step},{}\n", 1000 + step % 7)).collect();
    let table = format!("step,rss_mb\n{table}");
    // Rotated logs are often several pieces one behind the other.
    let pieces = [packed(&table.as_bytes()[..70_000]), packed(&table.as_bytes()[70_000..])].concat();
    let shown = |bytes: &[u8]| shown_with(bytes, &ReadOptions::default());
    assert!(shown(&pieces) == shown(table.as_bytes()));
    let broken = shown(&pieces[..pieces.len() / 2]);
    assert!(broken.starts_with("error: reading failed at line"), "{broken}");
}

#[test]
fn nul_bytes_and_broken_text_do_not_stop_the_reading() {
    let text = b"\0\0\0\0step,rss_mb,note\n1,10,caf\xe9\n2,1\xff1,x\n\0\0 3,12,ok\n";
    expect![[r#"
        csv | 2 samples | rss_mb | MiB | 1 skipped
          step 1 rss=10.0 MiB
          step 3 rss=12.0 MiB
        note 1 line skipped: value is not a number (line 3, `rss_mb` = `1�1`)
    "#]]
    .assert_eq(&shown_with(text, &ReadOptions::default()));
}

#[test]
fn a_directory_and_a_missing_file() {
    let options = ReadOptions::default();
    assert!(matches!(read_path(Path::new("/"), &options), Err(Error::Directory { .. })));
    let error = read_path(Path::new("/no/such/file.csv"), &options).unwrap_err();
    assert_eq!(error.to_string(), "cannot open `/no/such/file.csv`");
    assert!(error.hint().is_some() && std::error::Error::source(&error).is_some());
}

#[test]
fn the_production_runs_read_the_same_from_table_and_log() {
    let (mut table, mut log) = ("step,rss_mb\n".to_string(), String::new());
    for step in 1..=24 {
        table += &format!("{},{}\n", 10 * step, 5000 + 7 * step);
        log += &format!("Step {}: 6529 tensors (CPU: 330, GPU: 6199), RAM: {} MB\n", 10 * step, 5000 + 7 * step);
    }
    let read = |text: &str| read(text.as_bytes(), &ReadOptions::default()).unwrap().trace;
    let (table, log) = (read(&table), read(&log));
    for index in 0..24 {
        assert_eq!(table.step(index), log.step(index));
        assert_eq!(table.value(index, Quantity::Rss), log.value(index, Quantity::Rss));
    }
}

#[test]
fn a_table_without_memory_is_never_a_list_of_amounts() {
    for header in ["step,loss,lr", "id,count,items", "step,baseline_memory_mb,memory_growth_mb"] {
        let rows: String = (0..50).map(|row| format!("{row},{},{}\n", 900 - row, 100 + row)).collect();
        let seen = shown(&format!("{header}\n{rows}"));
        assert!(seen.starts_with("error: no memory column among"), "{header}: {seen}");
    }
    for header in ["timestamp,available_mb", "timestamp;frei", "timestamp\tvms", "timestamp,memory_percent"] {
        let delimiter = header.chars().find(|c| !c.is_alphanumeric()).unwrap();
        let rows: String = (10..50).map(|row| format!("2025-03-01 22:{row}:00{delimiter}{}\n", 9000 - row)).collect();
        let seen = shown(&format!("{header}\n{rows}"));
        assert!(seen.starts_with("error: no memory column among"), "{header}: {seen}");
    }
    for header in ["loss", "available_mb", "percent", "swap", "tokens", "time free", "# free memory in MB"] {
        let seen = shown(&format!("{header}\n{}", "50000\n50100\n".repeat(10)));
        assert!(seen.starts_with("error: no memory column among"), "{header}: {seen}");
    }
    let asked = ReadOptions { column: Some("arena".to_string()), ..ReadOptions::default() };
    let seen = shown_with(b"arena\n5000\n5001\n", &asked);
    assert!(seen.starts_with("csv | 2 samples | arena | MiB"), "{seen}");
    assert!(shown("0,100,300\n1,101,301\n2,102,302\n").starts_with("error: "));
    assert!(shown("7,100,300\n8,101,301\n9,102,302\n").starts_with("error: "));
    let titled = format!("memory of the trainer\n{}", "4,000\n4,030\n".repeat(10));
    assert!(shown(&titled).starts_with("amounts | 20 samples"));
    let stamped: String = (0..20).map(|second| format!("{},4000\n", 1_700_000_000 + second)).collect();
    assert!(shown(&stamped).starts_with("amounts | 20 samples"), "{}", shown(&stamped));
}

#[test]
fn a_table_with_the_columns_of_free() {
    for (header, limit) in [("time,total,used,free", 62.5), ("time,total_mb,used_mb,free_mb,percent", 62.5)] {
        let columns = header.split(',').count();
        let row = |i: u64| ["0", "64000", &(30_000 + i).to_string(), "1000", "47"][..columns].join(",");
        let text = format!("{header}\n{}\n{}\n", row(0), row(84));
        let read = &all(&text)[0];
        assert_eq!((mebibytes(read), read.trace.subject), (vec![30_000, 30_084], Subject::Machine), "{header}");
        let limit = Bytes::from_f64(limit * GIB as f64);
        assert_eq!(read.trace.facts.memory_limit, Some(limit), "{header}");
    }
    assert!(all_shown("time,used,free\n0,3,4\n1,3,4\n").starts_with("error: no memory column"));
}

#[test]
fn another_table_below_the_first_is_left_out() {
    let rows: String = (0..5).map(|at| format!("{at},{}\n", 4000 + at)).collect();
    for other in ["epoch,val_loss\n0,2.5\n1,2.4\n", "step,loss,rss_mb\n5,2.5,9000\n6,2.4,9000\n"] {
        let read = &all(&format!("step,rss_mb\n{rows}\n{other}"))[0];
        assert_eq!((read.trace.len(), read.input.skipped), (5, 3), "{other}");
        assert!(
            read.input.notes[0].starts_with("3 lines skipped: below another header (first: line 8"),
            "{:?}",
            read.input.notes
        );
    }
    // Its own header again ends the other table.
    let read = &all(&format!("step,rss_mb\n{rows}epoch,val_loss\n0,2.5\nstep,rss_mb\n5,4005\n"))[0];
    assert_eq!((read.trace.len(), read.input.skipped), (6, 2));
}
