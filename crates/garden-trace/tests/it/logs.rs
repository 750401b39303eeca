//! Training logs as people have them: a text in, what was read out.

use crate::common::{all, all_shown, mebibytes, series, shown, shown_with};
use expect_test::{Expect, expect};
use garden_memory::{Bytes, Quantity};
use garden_trace::{ReadOptions, Unit, read};

fn check(log: &str, expected: Expect) {
    expected.assert_eq(&shown(log));
}

#[test]
fn the_callback_of_the_story() {
    check(
        "Step 10: 6529 tensors (CPU: 330, GPU: 6199), Process RAM: 5552 MB\n\
         Step 20: 6529 tensors (CPU: 330, GPU: 6199), RAM: 7017 MB\n",
        expect![[r#"
            training log | 2 samples | Process RAM | MiB | 0 skipped
              step 10 rss=5.42 GiB tensors=6529 tensors_cpu=330 tensors_gpu=6199
              step 20 rss=6.85 GiB tensors=6529 tensors_cpu=330 tensors_gpu=6199
        "#]],
    );
}

#[test]
fn the_change_in_brackets_is_not_the_memory() {
    check(
        "Step 10: 5,552 MB\n\
         Step 20: 7,159 MB  (+1,607 MB)\n\
         Step 80: 17,412 MB  (-3 MB)\n\
         Step 90: 17,658 MB  (+246 MB)   WARMUP COMPLETE\n",
        expect![[r#"
            training log | 4 samples | value after the step | MiB | 0 skipped
              step 10 rss=5.42 GiB
              step 20 rss=6.99 GiB
              step 80 rss=17.0 GiB
              step 90 rss=17.2 GiB
        "#]],
    );
}

#[test]
fn a_restart_splits_the_trace() {
    check(
        "Step 10: 5552 MB\nStep 20: 7159 MB\n[Process restarted]\nStep 10: 5434 MB\n",
        expect![[r#"
            training log | 3 samples | value after the step | MiB | 0 skipped
              step 10 rss=5.42 GiB
              step 20 rss=6.99 GiB
              * Restart step 20
              step 10 rss=5.31 GiB
        "#]],
    );
}

#[test]
fn dates_and_colours_in_front() {
    check(
        "2025-01-01 12:00:03,123 - INFO - Step 10: RAM: 5434 MB\n\
         \x1b[32m2025-01-01 12:00:04,000\x1b[0m - INFO - \x1b[1mRAM: 5500 MB\x1b[0m\n",
        expect![[r#"
            training log | 2 samples | RAM | MiB | 0 skipped
              step 10 t 1735732803.123 rss=5.31 GiB
              step 10 t 1735732804 rss=5.37 GiB
        "#]],
    );
}

#[test]
fn times_of_day_go_on_after_midnight() {
    check(
        "[23:59:58] step 1 rss 100 MB\n[00:00:03] step 2 rss 101 MB\n",
        expect![[r#"
        training log | 2 samples | rss | MiB | 0 skipped
          step 1 t 86398 rss=100 MiB
          step 2 t 86403 rss=101 MiB
    "#]],
    );
}

#[test]
fn key_value_pairs() {
    check(
        "step=10 rss=5.4GB loss=1.25\nstep=20 rss=5600MB loss=nan\n",
        expect![[r#"
        training log | 2 samples | rss | mixed: MiB, GiB | 0 skipped
          step 10 rss=5.40 GiB
          step 20 rss=5.47 GiB
    "#]],
    );
}

#[test]
fn a_total_behind_the_step() {
    check(
        "[step 10/249] mem 5.4 GiB\n[step 20/249] mem 5.5 GiB\n",
        expect![[r#"
        training log | 2 samples | mem | GiB | 0 skipped
          step 10 rss=5.40 GiB
          step 20 rss=5.50 GiB
        facts total_steps=249
    "#]],
    );
}

#[test]
fn global_step_and_other_numbers_on_the_line() {
    check(
        "global_step 10 lr 1e-4 loss 2.31 took 350ms RSS 5434MiB grad_norm 0.3\n",
        expect![[r#"
        training log | 1 samples | RSS | MiB | 0 skipped
          step 10 rss=5.31 GiB
    "#]],
    );
}

#[test]
fn progress_bars_redrawn_in_place() {
    check(
        "  5%|▍         | 12/249 [00:31<10:12,  2.58s/it, ram=5434MB]\r  5%|▌         | 13/249 [00:34<10:09,  2.58s/it, ram=5600MB]\r",
        expect![[r#"
            training log | 2 samples | ram | MiB | 0 skipped
              step 12 t 31 rss=5.31 GiB
              step 13 t 34 rss=5.47 GiB
            facts total_steps=249
        "#]],
    );
}

#[test]
fn epochs_of_dictionary_logs_give_the_epoch_length() {
    let mut log = String::new();
    for step in (10..=240).step_by(10) {
        let epoch = f64::from(step) / 83.0;
        log += &format!("Step {step}: RAM: 5434 MB\n{{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': {epoch:.2}}}\n");
    }
    let read = read(log.as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!(read.trace.facts.steps_per_epoch, Some(83));
    assert_eq!(read.trace.len(), 24);
}

#[test]
fn graphics_memory_is_not_host_memory() {
    check(
        "Step 1: GPU: 10 GB, RAM: 5 GB\n\
         Step 2: RAM 5.1 GB | VRAM 10.2 GB\n\
         Step 3: RAM: 5.2 GB, cuda allocated: 10.3 GB, reserved: 12 GB\n\
         Step 4: GPU 0: 10.5 GB / 24 GB, CPU: 5.3 GB\n\
         Step 5: max memory allocated: 9 GB\n\
         Step 6: RAM: 5.4 GB, GPU: 97%\n",
        expect![[r#"
            training log | 5 samples | RAM | GiB | 0 skipped
              step 1 rss=5.00 GiB gpu=10.0 GiB
              step 2 rss=5.10 GiB gpu=10.2 GiB
              step 3 rss=5.20 GiB gpu=10.3 GiB
              step 4 rss=5.30 GiB gpu=10.5 GiB
              step 6 rss=5.40 GiB
        "#]],
    );
}

#[test]
fn what_the_machine_has_is_not_what_the_process_uses() {
    check(
        "RAM available: 20 GB\n\
         Step 1: RAM: 5.0 GB (available RAM: 26 GB)\n\
         Step 2: RAM: 5.1 GB / 32 GB\n\
         Step 3: RAM: 5.2/32 GB\n\
         Step 4: RAM used: 5.3 GB, 26 GB free, 32 GB total\n\
         Step 5: RAM usage: 45% (5.4 GB)\n\
         Step 6: peak RSS: 7 GB\n\
         Step 7: memory limit: 28 GB\n\
         Step 8: using 5.5 GB of RAM\n\
         Total RAM: 32 GB, System RAM: 14 GB\n\
         Downloading: 3.9 GB at 160MB/s\n\
         The model used memory efficiently and loaded 3 shards\n",
        expect![[r#"
            training log | 6 samples | RAM | GiB | 0 skipped
              step 1 rss=5.00 GiB
              step 2 rss=5.10 GiB
              step 3 rss=5.20 GiB
              step 4 rss=5.30 GiB
              step 5 rss=5.40 GiB
              step 8 rss=5.50 GiB
        "#]],
    );
}

#[test]
fn what_stands_before_the_step_names_the_value_behind_it() {
    check(
        "Memory usage at step 10: 5434 MB\n\
         GPU memory at step 20: 9000 MB, RAM: 5500 MB\n\
         Peak memory at step 30: 9999 MB\n\
         Saved model at step 40: 500 MB\n\
         INFO:root:Step 50: 5600 MB\n\
         RAM at step 60: 5700\n",
        expect![[r#"
            training log | 4 samples | Memory usage | MiB | 0 skipped
              step 10 rss=5.31 GiB
              step 20 rss=5.37 GiB gpu=8.79 GiB
              step 50 rss=5.47 GiB
              step 60 rss=5.57 GiB
            note values without a unit are read as MiB (1 of them, first: line 6); `--unit` overrides
        "#]],
    );
}

#[test]
fn evaluations_and_checkpoints() {
    check(
        "Step 10: RAM: 5000 MB\n\
         ***** Running Evaluation *****\n  Num examples = 100\n  Batch size = 8\n\
         RAM: 6000 MB\n\
         {'eval_loss': 0.5, 'epoch': 0.12}\n\
         Saving model checkpoint to out/checkpoint-10\n\
         Step 20: RAM: 5100 MB\n\
         Evaluation started\n\
         RAM: 6100 MB\n\
         Evaluation finished in 12s\n\
         [eval] RAM: 6050 MB\n\
         Step 30: RAM: 5200 MB\n\
         Epoch 1 finished\n",
        expect![[r#"
            training log | 6 samples | RAM | MiB | 0 skipped
              step 10 rss=4.88 GiB
              * EvalStart step 10
              step 10 rss=5.86 GiB Eval
              * EvalEnd step 10
              * Checkpoint step 10
              step 20 rss=4.98 GiB
              * EvalStart step 20
              step 20 rss=5.96 GiB Eval
              * EvalEnd step 20
              step 20 rss=5.91 GiB Eval
              step 30 rss=5.08 GiB
              * EpochEnd step 30
        "#]],
    );
}

#[test]
fn the_banner_of_hugging_face() {
    check(
        "***** Running training *****\n\
         \x20 Num examples = 10,663\n\
         \x20 Num Epochs = 3\n\
         \x20 Instantaneous batch size per device = 2\n\
         \x20 Total train batch size (w. parallel, distributed & accumulation) = 8\n\
         \x20 Gradient Accumulation steps = 4\n\
         \x20 Total optimization steps = 3,999\n\
         \x20 Number of trainable parameters = 41,084,928\n\
         Step 10: RAM: 5000 MB\n",
        expect![[r#"
            training log | 1 samples | RAM | MiB | 0 skipped
              step 10 rss=4.88 GiB
            facts examples=10663 batch=2 accumulation=4 total_steps=3999
        "#]],
    );
}

#[test]
fn the_banner_of_unsloth() {
    check(
        "==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1\n\
         \x20  \\\\   /|    Num examples = 663 | Num Epochs = 3 | Total steps = 249\n\
         O^O/ \\_/ \\    Batch size per device = 2 | Gradient accumulation steps = 4\n\
         \\        /    Data Parallel GPUs = 1 | Total batch size (2 x 4 x 1) = 8\n\
         \x20\"-____-\"     Trainable parameters = 41,084,928 of 3,795,707,904 (1.08% trained)\n\
         Step 10: RAM: 5000 MB\n",
        expect![[r#"
            training log | 1 samples | RAM | MiB | 0 skipped
              step 10 rss=4.88 GiB
            facts examples=663 batch=2 accumulation=4 total_steps=249
        "#]],
    );
}

#[test]
fn steps_that_begin_anew_with_each_epoch() {
    check(
        "Epoch 1/3 Step 40/83 mem 5 GB\nEpoch 1/3 Step 80/83 mem 6 GB\nEpoch 2/3 Step 40/83 mem 7 GB\nEpoch 3/3 Step 1/83 mem 8 GB\n",
        expect![[r#"
            training log | 4 samples | mem | GiB | 0 skipped
              step 40 rss=5.00 GiB
              step 80 rss=6.00 GiB
              step 123 rss=7.00 GiB
              step 167 rss=8.00 GiB
            facts steps_per_epoch=83 total_steps=249
        "#]],
    );
}

#[test]
fn values_without_a_unit_are_mebibytes_unless_told() {
    check(
        "step 1 mem 5434\nstep 2 mem: 5435\n",
        expect![[r#"
            training log | 2 samples | mem | MiB | 0 skipped
              step 1 rss=5.31 GiB
              step 2 rss=5.31 GiB
            note values without a unit are read as MiB (2 of them, first: line 1); `--unit` overrides
        "#]],
    );
    let options = ReadOptions { unit: Some(Unit::Kib), ..Default::default() };
    expect![[r#"
        training log | 2 samples | VmRSS | KiB | 0 skipped
          rss=5.31 GiB
          rss=5.31 GiB
        note values without a unit are read as KiB (1 of them, first: line 1)
    "#]]
    .assert_eq(&shown_with(b"VmRSS: 5564416\nVmRSS: 5564418 kB\n", &options));
}

#[test]
fn resident_memory_is_preferred_to_a_vaguer_label() {
    check(
        "Step 1: RSS 5 GB\nMemory: 14 GB\nStep 2: RSS 6 GB, memory 15 GB\n",
        expect![[r#"
            training log | 2 samples | RSS | GiB | 1 skipped
              step 1 rss=5.00 GiB
              step 2 rss=6.00 GiB
            note 1 line skipped: a different kind of memory than the one judged (line 2, `Memory: 14 GB`)
        "#]],
    );
}

#[test]
fn a_label_can_be_asked_for() {
    let log = b"Step 1: System RAM: 14 GB, RAM: 5 GB\nStep 2: System RAM: 15 GB, RAM: 6 GB\n";
    let ask = |label: &str| ReadOptions { column: Some(label.to_string()), ..Default::default() };
    expect![[r#"
        training log | 2 samples | System RAM | GiB | 0 skipped
          step 1 rss=14.0 GiB
          step 2 rss=15.0 GiB
    "#]]
    .assert_eq(&shown_with(log, &ask("System RAM")));
    expect![[r#"
        error: no column `heap` among `Step`, `System RAM`, `RAM`
        hint: spell the `--column` name as in the file
    "#]]
    .assert_eq(&shown_with(log, &ask("heap")));
}

#[test]
fn impossible_values_are_counted() {
    check(
        "Step 1: RAM: -5 MB\nStep 2: RAM: 99999999999999 TB\nStep 3: RAM: 5 MB\n",
        expect![[r#"
            training log | 1 samples | RAM | MiB | 2 skipped
              step 3 rss=5.00 MiB
            note 1 line skipped: value is negative (line 1, `Step 1: RAM: -5 MB`)
            note 1 line skipped: value is infinite or larger than any machine's memory (line 2, `Step 2: RAM: 99999999999999 TB`)
        "#]],
    );
}

#[test]
fn log_lines_inside_json() {
    check(
        "{\"level\":\"info\",\"message\":\"Step 10: RAM: 5434 MB\",\"time\":\"2025-01-01T12:00:03Z\"}\n",
        expect![[r#"
            training log | 1 samples | RAM | MiB | 0 skipped
              step 10 t 1735732803 rss=5.31 GiB
        "#]],
    );
}

#[test]
fn memory_on_a_line_of_its_own_has_the_step_told_before_it() {
    let steps = |log: &str| -> Vec<Option<f64>> {
        let trace = read(log.as_bytes(), &ReadOptions::default()).unwrap().trace;
        (0..trace.len()).map(|index| trace.step(index)).collect()
    };
    let lines = "Step 10: loss 1.2\n  RAM: 5552 MB\nStep 20: loss 1.1\n  RAM: 7159 MB\n";
    assert_eq!(steps(lines), [Some(10.0), Some(20.0)]);
    let bars = "  4%|#  | 10/249 [00:30<10:12, 3.00s/it]\nRAM: 5552 MB\n  8%|#  | 20/249 [01:00<10:12, 3.00s/it]\nRAM: 7159 MB\n";
    assert_eq!(steps(bars), [Some(10.0), Some(20.0)]);
    let other = "Map: 100%|###| 663/663 [00:30<00:00, 22.1 examples/s]\nRAM: 5552 MB\nRAM: 5553 MB\n";
    assert_eq!(steps(other), [None, None]);
}

/// The judged label and its first value, with or without a requested label.
fn judged(text: &str, column: Option<&str>) -> String {
    let options = ReadOptions { column: column.map(str::to_string), ..ReadOptions::default() };
    let read = read(text.as_bytes(), &options).expect("memory is shown");
    let first = Bytes(read.trace.value(0, Quantity::Rss).expect("memory is judged"));
    format!("{} {first}, {} samples", read.input.column.expect("a label is judged"), read.trace.len())
}

#[test]
fn the_label_that_fits_best_is_judged() {
    let peaks = "step 0 peak_rss=9000MB rss=4000MB\nstep 1 peak_rss=9000MB rss=4001MB\n";
    assert_eq!(judged(peaks, Some("rss")), "rss 3.91 GiB, 2 samples");
    assert_eq!(judged(peaks, Some("peak_rss")), "peak_rss 8.79 GiB, 2 samples");
    assert_eq!(judged(&format!("peak_rss=9000MB\n{peaks}"), Some("rss")), "rss 3.91 GiB, 2 samples");
    let deepspeed = "MA 10.00 GB         Max_MA 20.0 GB         CA 22.0 GB         Max_CA 23 GB\n".repeat(2);
    assert_eq!(judged(&deepspeed, Some("MA")), "MA 10.0 GiB, 2 samples");
    assert_eq!(judged(&deepspeed, Some("Max_MA")), "Max_MA 20.0 GiB, 2 samples");
    let parts = "step 0 data_mem=200MB model_mem=300MB mem=4000MB\nstep 1 data_mem=200MB model_mem=300MB mem=4001MB\n";
    assert_eq!(judged(parts, None), "mem 3.91 GiB, 2 samples");
    let total = "step 0 params memory 300MB, activation memory 500MB, total memory 4000MB\n".repeat(2);
    assert_eq!(judged(&total, None), "total memory 3.91 GiB, 2 samples");
    assert!(read(&b"step 0 unused memory 41.0GB\nstep 1 unused memory 40.9GB\n"[..], &ReadOptions::default()).is_err());
}

#[test]
fn a_bare_number_before_the_key_of_the_next_value() {
    for line in ["rss=4000 batch=4", "rss=4000 k=5", "rss: 4000 lr: 0.1", "rss=4000 m/s=3", "loss=2 rss=4000 MFU=40%"] {
        let read = all(&format!("{line}\n").repeat(3)).remove(0);
        assert_eq!(mebibytes(&read), [4000; 3], "{line}");
    }
    // A word that may be the number's own unit is not passed over.
    for line in ["rss=4000 pages", "memory 12 percent of 30"] {
        assert!(all_shown(&format!("{line}\n").repeat(3)).starts_with("error:"), "{line}");
    }
}

#[test]
fn lines_with_bars_between_their_parts_are_no_table() {
    let log: String = (0..10)
        .map(|at| format!("step {at} | loss 2.1 | allocated 20.{at}0 GB | reserved 25.00 GB | host 5.{at}0 GB\n"))
        .collect();
    let read = &all(&log)[0];
    assert_eq!((read.input.format.as_str(), read.input.column.as_deref()), ("training log", Some("host")));
    assert_eq!((read.trace.len(), read.trace.step(9)), (10, Some(9.0)));
}

#[test]
fn logs_of_keys_and_values() {
    // The time may have a key, and another key may tell whose line it is.
    let log: String = (0..10)
        .flat_map(|at| {
            [0, 1].map(|worker| format!("ts={} worker={worker} rss_mb={}\n", 1_740_866_400 + at, 4000 + 1000 * worker))
        })
        .collect();
    assert_eq!(series(&log), [("worker 0".to_string(), vec![4000; 10]), ("worker 1".to_string(), vec![5000; 10])]);
    assert_eq!(all(&log)[0].trace.time_s(9), Some(1_740_866_409.0));
    // One value for all lines tells nothing apart.
    assert_eq!(series(&log.replace("worker=1", "worker=0")).len(), 1);
}

#[test]
fn a_word_behind_another_key_is_no_part_of_a_label() {
    let log: String = (0..10).map(|at| format!("step={at} mode=free rss_mb={}\n", 4000 + at)).collect();
    let read = &all(&log)[0];
    assert_eq!((read.trace.len(), read.input.column.as_deref()), (10, Some("rss_mb")));
}
