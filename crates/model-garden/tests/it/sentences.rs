//! Sentences that were false once: each report here is held to what is known about its recording.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::fmt::Write;

use crate::common::{diagnose, run_with_input, told};
use serde_json::Value;

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

fn recording(name: &str, flags: &[&str]) -> (Value, i32) {
    diagnose(&format!("testdata/sentences/{name}"), flags)
}

fn judge(input: &[u8], flags: &[&str]) -> (Value, i32) {
    let output = run_with_input(&[&["diagnose", "-", "--format", "json"], flags].concat(), input);
    let text = String::from_utf8_lossy(&output.stdout);
    let found = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", told(&output)));
    (found, output.status.code().unwrap())
}

/// A table of steps and MiB.
fn table(values: impl Iterator<Item = (u64, f64)>) -> String {
    values.fold("step,rss_mb\n".into(), |mut text, (step, level)| {
        writeln!(text, "{step},{level:.1}").unwrap();
        text
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A ripple that stands in for noise, of up to half a MiB either way.
fn ripple(step: u64) -> f64 {
    (step * step * 7919 % 131) as f64 / 131.0 - 0.5
}

#[test]
fn a_bound_contains_the_growth_that_is_there() {
    let (found, _) = recording("calm_leak.csv", &["--steps-per-epoch", "30"]);
    assert_eq!(text(&found["verdict"]), "flat");
    let most = found["sensitivity"]["bytes_per_step"].as_f64().unwrap() / KIB;
    // It has 51.2, and noise of 1 MiB in 301 steps hides little of that.
    assert!((51.2..60.0).contains(&most), "{most} KiB per step");
    assert!(found["evidence"].to_string().contains("Growth of up to 5"), "{}", found["evidence"]);
    // It creeps, so it is not without growth, and stands where it has crept to.
    let summary = text(&found["summary"]);
    assert!(summary.contains("crept up by 14.") && !summary.contains("no growth beyond noise"), "{summary}");
    assert!(found["level"]["bytes"].as_f64().unwrap() > 1013.0 * MIB, "{}", found["level"]);
    assert!(!found["advice"].to_string().contains("Nothing to do for this run"), "{}", found["advice"]);
}

/// A service over so many hours that grows from one level to another with some noise.
fn service(hours: u64, from: f64, to: f64) -> String {
    let samples = hours * 60;
    let level = |i: u64| from + (to - from) * i as f64 / samples as f64 + 2.0 * ripple(i);
    (0..samples).fold("time_s,rss_mb\n".into(), |mut text, i| {
        writeln!(text, "{},{:.2}", 60 * i, level(i)).unwrap();
        text
    })
}

#[test]
fn a_service_that_has_multiplied_is_a_leak_without_a_limit() {
    // Neither steps nor a limit: this machine's is far away.
    for (hours, from, to) in [(10, 100.0, 400.0), (15, 20.0, 900.0), (12, 60.0, 150.0)] {
        let (found, code) = judge(service(hours, from, to).as_bytes(), &[]);
        assert_eq!((text(&found["verdict"]), code), ("leak", 1), "{from} to {to}: {}", found["summary"]);
    }
    // The recording of a Go service, with a limit and without, and words for a service.
    for flags in [&[][..], &["--memory-limit", "512MB"]] {
        let (found, _) = recording("go-service.csv", flags);
        assert_eq!(text(&found["verdict"]), "leak", "{}", found["summary"]);
        let rate = found["growth"]["bytes_per_second"].as_f64().unwrap() * 60.0 / KIB;
        assert!((210.0..270.0).contains(&rate), "{rate} KiB a minute");
        let words = format!("{} {}", found["advice"], found["causes"]);
        for foreign in ["checkpoint", "PIL", "bisect", "Trainer", "epoch of", "cuDNN"] {
            assert!(!words.contains(foreign), "{foreign}: {words}");
        }
    }
}

#[test]
fn growth_without_a_verdict_names_the_option_that_is_missing() {
    let told = |input: &str, flags: &[&str]| {
        let (found, _) = judge(input.as_bytes(), flags);
        assert_eq!(text(&found["verdict"]), "growing", "{}", found["summary"]);
        format!("{} {}", text(&found["summary"]), found["advice"])
    };
    let short = told(&service(3, 100.0, 200.0), &[]);
    assert!(short.contains("until 6 h") && short.contains("--leak-after"), "{short}");
    let small = told(&service(12, 2000.0, 2300.0), &[]);
    assert!(small.contains("--memory-limit"), "{small}");
    let steps = told(&table((0..300).map(|step| (step, 1000.0 + 2.0 * step as f64 + ripple(step)))), &[]);
    assert!(steps.contains("--steps-per-epoch") && steps.contains("--no-epochs"), "{steps}");
}

#[test]
fn a_line_after_a_warm_up_does_not_slow_down() {
    let level = |step: u64| 300.0 + 60.0 * (1.0 - (-(step as f64) / 60.0).exp()) + 0.17 * step as f64 + ripple(step);
    for steps in [450, 600, 746] {
        let input = table((0..steps).map(|step| (step, level(step))));
        let (found, _) = judge(input.as_bytes(), &["--steps-per-epoch", "74"]);
        let summary = text(&found["summary"]);
        assert!(!summary.contains("ever more slowly") && !summary.contains("power of"), "{steps}: {summary}");
    }
}

#[test]
fn what_may_be_shared_memory_is_not_called_harmless() {
    let rows = (0..560)
        .map(|step| format!("{step},{:.1},{:.1}\n", 200.0 + 0.2 * step as f64 + ripple(step), 150.0 + ripple(step)));
    let input = format!("step,rss_mb,anon_mb\n{}", rows.collect::<String>());
    let (found, _) = judge(input.as_bytes(), &["--steps-per-epoch", "56"]);
    assert!(!text(&found["summary"]).contains("harmless"), "{}", found["summary"]);
    assert_eq!(text(&found["verdict"]), "leak", "{}", found["summary"]);
}

#[test]
fn there_is_one_set_of_odds() {
    let rows = [(10, 5552), (20, 7159), (30, 8851), (40, 10515), (50, 12227), (60, 13919), (70, 15736)];
    let input = table(rows.into_iter().map(|(step, level)| (step, f64::from(level))));
    let facts = ["--examples", "663", "--batch-size", "2", "--gradient-accumulation", "4"];
    let (found, _) = judge(input.as_bytes(), &facts);
    let leak = found["likelihood"]["leak"].as_f64().unwrap();
    let score = |id: &str| {
        let causes = found["causes"].as_array().unwrap();
        causes.iter().find(|cause| cause["id"] == id).map_or(0.0, |cause| cause["score"].as_f64().unwrap())
    };
    let never = ["graph_kept", "growing_container", "native_decoder_leak", "logger_process"].map(score);
    assert!(never.iter().sum::<f64>() <= leak + 0.02, "{leak}: {}", found["causes"]);
    assert!(score("decoded_images_kept") <= 1.0 - leak, "{leak}: {}", found["causes"]);
    // The size of each example is that of a picture, which speaks for an end.
    assert!(leak < 0.59, "{leak}");
    assert_eq!(found["causes"][0]["id"], "decoded_images_kept", "{}", found["causes"]);
}

#[test]
fn a_cause_is_named_only_where_a_measurement_speaks_for_it() {
    let line = |step: u64| 1000.0 + 2.0 * step as f64 + ripple(step);
    let facts = ["--steps-per-epoch", "50"];
    let (found, _) = judge(table((0..400).map(|step| (step, line(step)))).as_bytes(), &facts);
    assert_eq!((text(&found["verdict"]), &found["suspect"]), ("leak", &Value::Null), "{}", found["advice"]);
    assert!(!found["advice"].to_string().contains("suspect"), "{}", found["advice"]);
    let rows = (0..400).map(|step| format!("{step},{:.1},{}\n", line(step), 500 + step));
    let counted = format!("step,rss_mb,tensors\n{}", rows.collect::<String>());
    let (found, _) = judge(counted.as_bytes(), &facts);
    assert_eq!(found["suspect"], "graph_kept", "{}", found["causes"]);
    assert_eq!(found["next_command"], "model-garden bisect MODULE:FUNCTION");
}

#[test]
fn what_a_plateau_cannot_exclude_is_not_denied() {
    for (name, flags) in [
        ("trainer-leak-step47.jsonl", &[][..]),
        ("go-service.csv", &["--memory-limit", "512MB"]),
        ("leak-under-teeth.csv", &["--steps-per-epoch", "60"]),
    ] {
        let (found, _) = recording(name, flags);
        let summary = text(&found["summary"]);
        assert!(!summary.contains("not a leak") && !summary.contains("and not since"), "{name}: {summary}");
        if found["verdict"] == "settled" {
            assert!(summary.contains("still possible"), "{name}: {summary}");
        }
    }
    let (found, _) = recording("trainer-leak-step47.jsonl", &[]);
    assert_ne!(found["verdict"], "settled");
    assert!(!found["advice"].to_string().contains("Nothing to do"), "{}", found["advice"]);
}

/// A fill, a plateau, so many MiB more, and a long plateau.
fn two_fills(more: f64) -> Value {
    let level =
        |step: u64| 1000.0 + 2.0 * step.min(100) as f64 + more * step.clamp(200, 240).saturating_sub(200) as f64 / 40.0;
    judge(table((0..500).map(|step| (step, level(step) + ripple(step)))).as_bytes(), &["--steps-per-epoch", "50"]).0
}

#[test]
fn growth_after_a_first_break_is_told_however_small() {
    for more in [18.0, 20.0, 24.0, 28.0, 31.0, 40.0, 100.0] {
        let found = two_fills(more);
        let summary = text(&found["summary"]);
        // A plateau of 260 steps has decided it.
        assert_eq!(text(&found["verdict"]), "settled", "{more}: {summary}");
        let since_the_first = summary.contains("more since");
        let until_the_last = found["knee"]["step"].as_f64().unwrap() > 190.0;
        assert!(since_the_first || until_the_last, "{more}: {summary}");
        assert!(!(since_the_first && summary.contains("and not since")), "{more}: {summary}");
    }
}

#[test]
fn memory_stands_where_its_last_samples_are() {
    let level = |step: u64| if step < 97 { 120.0 + 3.0 * step as f64 } else { 355.0 };
    let (found, _) = judge(table((0..100).map(|step| (step, level(step)))).as_bytes(), &["--steps-per-epoch", "80"]);
    let level = found["level"]["bytes"].as_f64().unwrap() / MIB;
    assert!((354.0..356.0).contains(&level), "{level}: {}", found["summary"]);
    if let Some(step) = found["forecast"]["decided_by_step"].as_f64() {
        assert!(step > 99.0, "{}", found["summary"]);
    }
}

#[test]
fn no_step_of_the_past_decides() {
    // The last twenty steps are an evaluation.
    let rows = (0..98).map(|step| format!("{step},{},{}\n", 500 + 4 * step, if step < 70 { "train" } else { "eval" }));
    let input = format!("step,rss_mb,phase\n{}", rows.collect::<String>());
    for epoch in ["72", "80", "90", "35"] {
        let (found, _) = judge(input.as_bytes(), &["--steps-per-epoch", epoch]);
        let step = found["forecast"]["decided_by_step"].as_f64();
        assert!(step.is_none_or(|step| step > 97.0), "{epoch}: {}", found["summary"]);
    }
}

#[test]
fn few_samples_give_wide_intervals() {
    let rows = [(5, 70.0), (14, 143.0), (23, 210.0), (32, 280.0), (41, 346.0)];
    let plateau = (1..12).map(|k| (41 + 12 * k, 346.0));
    let input = table(rows.into_iter().chain(plateau));
    let (found, _) = judge(input.as_bytes(), &["--examples", "80", "--batch-size", "2"]);
    let [low, high] = ["low", "high"].map(|end| found["growth"][end].as_f64().unwrap() / MIB);
    // Images of 8.24 million bytes a step.
    assert!(low < 7.858 && 7.858 < high && high - low < 4.0, "{low} to {high}: {}", found["evidence"]);
}

#[test]
fn counts_that_stand_in_the_trace_are_not_said_to_be_missing() {
    let row = |step: u64| {
        let tensors = if step == 150 || step == 199 { format!(",\"tensors\":{}", 500 + step) } else { String::new() };
        format!("{{\"step\":{step},\"rss_mb\":{}{tensors}}}\n", 100 + 4 * step)
    };
    let (found, _) = judge((0..200).map(row).collect::<String>().as_bytes(), &[]);
    let causes = found["causes"].to_string();
    assert!(!causes.contains("not measured: the number of live tensors"), "{causes}");
    assert!(causes.contains("counted too seldom during the growth: the number of live tensors"), "{causes}");
}

#[test]
fn many_samples_are_not_too_few() {
    // Growth that paused for long, went on, and pauses again for not as long.
    let level = |step: u64| 500.0 + (step.min(60) + step.clamp(160, 220) - 160) as f64 * 5.0;
    let (found, _) = judge(table((0..298).map(|step| (step, level(step) + ripple(step)))).as_bytes(), &[]);
    assert!(!text(&found["summary"]).contains("too few"), "{}", found["summary"]);
}

#[test]
fn a_leak_grows_now() {
    let (found, code) = recording("pool-by-rounds.log", &["--steps-per-epoch", "50"]);
    assert_ne!(text(&found["verdict"]), "leak", "{}", found["summary"]);
    assert_eq!(code, 0);
    // A ramp over four epochs is a leak while it lasts, as far as anybody can tell, and none once a plateau of a quarter of it shows that
    // it is over.
    let level = |step: u64| 1000.0 + step.min(200) as f64 * 4.0 + ripple(step);
    let at =
        |steps: u64| judge(table((0..steps).map(|step| (step, level(step)))).as_bytes(), &["--steps-per-epoch", "50"]);
    assert_eq!(text(&at(195).0["verdict"]), "leak");
    for steps in [250, 260, 300, 400] {
        assert_ne!(text(&at(steps).0["verdict"]), "leak", "{steps}: {}", at(steps).0["summary"]);
    }
}

#[test]
fn a_gap_is_no_spike() {
    let (found, code) = recording("gap_steps.csv", &["--memory-limit", "4GB"]);
    let spike = found["headroom"]["spike_bytes"].as_f64().unwrap() / MIB;
    assert!(spike < 8.0, "{spike} MiB: {}", found["summary"]);
    assert_eq!(code, 0, "{}", found["summary"]);
}

#[test]
fn a_clock_that_is_set_back_is_no_restart() {
    let time = |i: u64| 1_763_352_000 + 10 * i - if i < 200 { 0 } else { 3600 };
    let rows = (0..400).map(|i| format!("{},{:.1}\n", time(i), 2000.0 + i as f64 + ripple(i)));
    let (found, _) = judge(format!("timestamp,rss_mb\n{}", rows.collect::<String>()).as_bytes(), &[]);
    assert_eq!(found["parts"].as_array().unwrap().len(), 0, "{}", found["summary"]);
    assert!(found["input"]["notes"].to_string().contains("whose clock was set"), "{}", found["input"]);
    let rate = found["growth"]["bytes_per_second"].as_f64().unwrap() / MIB;
    assert!((0.09..0.11).contains(&rate), "{rate}");
}

#[test]
fn shuffled_lines_are_one_run() {
    let order = (0..400_u64).map(|i| i * 149 % 400);
    let (found, _) =
        judge(table(order.map(|step| (step, 800.0 + 2.0 * step as f64))).as_bytes(), &["--steps-per-epoch", "50"]);
    assert_eq!(found["parts"].as_array().unwrap().len(), 0, "{}", found["summary"]);
    assert_eq!(text(&found["verdict"]), "leak", "{}", found["summary"]);
    assert!(found["input"]["notes"].to_string().contains("sorted by step"), "{}", found["input"]);
}

#[test]
fn rows_about_processors_are_not_memory() {
    let (found, _) = recording("pidstat_ru.txt", &[]);
    assert_eq!(text(&found["verdict"]), "growing", "{}", found["summary"]);
    assert_eq!(found["input"]["skipped"], 0, "{}", found["input"]);
    assert!(found["memory"]["first_bytes"].as_f64().unwrap() > 80_000.0 * KIB);
}

#[test]
fn processors_of_kubernetes_are_not_memory() {
    let (found, _) = recording("k8s_metrics_api.jsonl", &[]);
    assert_eq!(text(&found["verdict"]), "growing", "{}", found["summary"]);
    assert_eq!(found["memory"]["first_bytes"], 4_094_378_u64 * 1024);
    assert_eq!(text(&found["input"]["format"]), "kubernetes metrics");
}

#[test]
fn runs_one_below_the_other_are_judged_apart() {
    let (found, _) = recording("two_runs.csv", &[]);
    let series: Vec<(&str, &str)> =
        found["series"].as_array().unwrap().iter().map(|one| (text(&one["name"]), text(&one["verdict"]))).collect();
    assert_eq!(series, [("run a", "growing"), ("run b", "flat")], "{}", found["summary"]);
    // Seeds, too; the same with the time running on.
    let rows = (0..120).map(|i| format!("{},{},{}\n", i / 60 + 7, 1000 + 10 * i, 3000 + (i / 60) * 12 * (i - 60)));
    let (found, _) = judge(format!("seed,time_s,rss_mb\n{}", rows.collect::<String>()).as_bytes(), &[]);
    let series: Vec<&str> = found["series"].as_array().unwrap().iter().map(|one| text(&one["name"])).collect();
    assert_eq!(series, ["seed 7", "seed 8"], "{}", found["summary"]);
}

#[test]
fn a_percentage_is_not_judged_as_memory() {
    let rows: String = (0..60).map(|i| format!("{i},{},{}\n", 4000 + i, 10.0 + 0.1 * f64::from(i))).collect();
    let output = run_with_input(
        &["diagnose", "-", "--column", "mem_percent"],
        format!("step,rss_mb,mem_percent\n{rows}").as_bytes(),
    );
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("is a percentage, not an amount of memory"), "{error}");
}

#[test]
fn sadf_writes_the_columns_of_sar() {
    let row = |i: u64| {
        let used = 4_000_000 + 20_000 * i;
        format!(
            "host;60;2025-11-17 04:{:02}:01 UTC;{};{};{used};25.00;1000;300000;9000000;30.00\n",
            i,
            20_000_000 - used,
            18_000_000 - used
        )
    };
    let header =
        "# hostname;interval;timestamp;kbmemfree;kbavail;kbmemused;%memused;kbbuffers;kbcached;kbcommit;%commit\n";
    let (found, _) = judge((header.to_string() + &(0..60).map(row).collect::<String>()).as_bytes(), &[]);
    assert_eq!(text(&found["verdict"]), "growing", "{}", found["summary"]);
    assert_eq!((text(&found["input"]["format"]), text(&found["clock"])), ("sar", "time"));
    assert_eq!(found["memory"]["first_bytes"], 4_000_000_u64 * 1024);
}

#[test]
fn cloudwatch_is_sorted_and_has_units() {
    let point = |i: u64| {
        format!(
            "{{\"Timestamp\":\"2025-11-17T{:02}:{:02}:00Z\",\"Average\":{},\"Unit\":\"Megabytes\"}}",
            i / 60,
            i % 60,
            2000 + 5 * i
        )
    };
    let points: Vec<String> = (0..90).map(|i| point(i * 37 % 90)).collect();
    let answer = |points: &str| format!("{{\"Label\":\"MemoryUtilized\",\"Datapoints\":[{points}]}}");
    let (found, _) = judge(answer(&points.join(",")).as_bytes(), &[]);
    assert_eq!(text(&found["verdict"]), "growing", "{}", found["summary"]);
    let rate = found["growth"]["bytes_per_second"].as_f64().unwrap() * 60.0 / MIB;
    assert!((4.9..5.1).contains(&rate), "{rate}");
    let percent = answer(&points.join(",").replace("Megabytes", "Percent"));
    let output = run_with_input(&["diagnose", "-"], percent.as_bytes());
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn utf_16_is_text() {
    let plain = table((0..120).map(|step| (step, 1000.0 + 4.0 * step as f64)));
    let wide: Vec<u8> = std::iter::once(0xfeff).chain(plain.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    assert_eq!(judge(&wide, &[]).0["summary"], judge(plain.as_bytes(), &[]).0["summary"]);
}

#[test]
fn the_state_of_a_trainer_knows_its_epochs() {
    let entry = |i: u64| {
        format!(
            "{{\"epoch\":{:.4},\"step\":{},\"loss\":0.5,\"rss_mb\":{}}}",
            (10 * i) as f64 / 83.0,
            10 * i,
            5000 + 20 * i
        )
    };
    let entries: Vec<String> = (1..=40).map(entry).collect();
    let state = format!(
        "{{\"best_metric\":null,\"epoch\":4.82,\"global_step\":400,\"is_hyper_param_search\":false,\"log_history\":[{}],\
         \"max_steps\":415,\"num_train_epochs\":5,\"train_batch_size\":2}}",
        entries.join(",\n")
    );
    let (found, _) = judge(state.as_bytes(), &[]);
    assert_eq!(text(&found["verdict"]), "leak", "{}", found["summary"]);
}

#[test]
fn growth_that_may_have_stopped_has_not_ended() {
    let level = |step: u64| 1000.0 + 4.0 * step.min(200) as f64 + ripple(step);
    let mut pausing = 0;
    for steps in (205..240).step_by(5) {
        let (found, _) = judge(table((0..steps).map(|step| (step, level(step)))).as_bytes(), &[]);
        if found["verdict"] == "growing" && text(&found["summary"]).contains("may have stopped") {
            pausing += 1;
            let evidence = found["evidence"].to_string();
            assert!(evidence.contains("may have ended") && !evidence.contains("Growth ended"), "{steps}: {evidence}");
        }
    }
    assert!(pausing > 0);
}

/// What is said of a growth: its rise, its rate and how long it lasted.
#[test]
fn a_rate_and_a_rise_over_one_stretch_agree() {
    let curve = |step: u64| 800.0 + 300.0 * (1.0 - (-(step as f64) / 60.0).exp());
    let bent = |step: u64| 800.0 + 3.0 * step.min(80) as f64 + 0.8 * step as f64;
    let stairs = |step: u64| 800.0 + 40.0 * (step / 30) as f64;
    for (name, level) in [("curve", &curve as &dyn Fn(u64) -> f64), ("bent", &bent), ("stairs", &stairs)] {
        for steps in [60, 100, 150, 220, 300] {
            let input = table((0..steps).map(|step| (step, level(step) + ripple(step))));
            for flags in [&["--steps-per-epoch", "50"][..], &[]] {
                let (found, _) = judge(input.as_bytes(), flags);
                let claims = found["claims"].as_array().unwrap();
                let of = |quantity: &str| claims.iter().find(|claim| claim["quantity"] == quantity);
                let Some((rate, rise)) =
                    of("rate").zip(of("change")).filter(|(a, b)| a["from"] == b["from"] && a["to"] == b["to"])
                else {
                    continue;
                };
                let number = |claim: &Value, key: &str| claim[key].as_f64().unwrap();
                let by_rate = number(rate, "value") * (number(rate, "to") - number(rate, "from"));
                let apart = (by_rate - number(rise, "value")).abs();
                assert!(
                    apart <= 0.01 * by_rate.abs(),
                    "{name} {steps} {flags:?}: {by_rate} and {rise}: {}",
                    found["evidence"]
                );
            }
        }
    }
}

#[test]
fn no_advice_asks_for_what_was_given() {
    let line = table((0..300).map(|step| (step, 1000.0 + 2.0 * step as f64 + ripple(step))));
    for flags in [&["--no-epochs"][..], &["--no-epochs", "--leak-after", "never"], &["--steps-per-epoch", "400"]] {
        let (found, _) = judge(line.as_bytes(), flags);
        let words = format!("{} {}", found["summary"], found["advice"]);
        assert_eq!(text(&found["verdict"]), "growing", "{words}");
        assert!(!words.contains("--no-epochs") && !words.contains("--steps-per-epoch"), "{flags:?}: {words}");
    }
    // Growth of 300 MiB in twelve hours is little beside 100 GB.
    let (found, _) = judge(service(12, 2000.0, 2300.0).as_bytes(), &["--memory-limit", "100GB"]);
    assert!(!found["advice"].to_string().contains("Pass --memory-limit"), "{}", found["advice"]);
}

/// A service whose load comes and goes each day, over so many days.
fn daily(days: f64, phase: f64, growth: f64) -> String {
    let samples = (days * 288.0) as u64;
    let level = |i: u64| {
        let wave = (std::f64::consts::TAU * (i as f64 / 288.0 + phase)).sin();
        400.0 + 100.0 * wave + growth * i as f64 / samples as f64 + ripple(i)
    };
    (0..samples).fold("time_s,rss_mb\n".into(), |mut text, i| {
        writeln!(text, "{},{:.2}", 300 * i, level(i)).unwrap();
        text
    })
}

#[test]
fn the_level_of_a_daily_wave_is_that_of_whole_days() {
    for days in [3.3, 4.6, 6.2] {
        for phase in [0.0, 0.25, 0.5, 0.75] {
            let (found, _) = judge(daily(days, phase, 0.0).as_bytes(), &[]);
            let level = found["level"]["bytes"].as_f64().unwrap() / MIB;
            let summary = text(&found["summary"]);
            // Three days and a bit may show two lows and one high only.
            if summary.contains("rises and falls by 2") {
                assert!((396.0..404.0).contains(&level), "{days} from {phase}: {level}: {summary}");
            } else {
                assert!(days < 4.0, "{days} from {phase}: {summary}");
            }
            assert!(!summary.contains("fell from"), "{days} from {phase}: {summary}");
            let spike = found["headroom"]["spike_bytes"].as_f64().unwrap() / MIB;
            assert!(spike > 95.0 || days < 4.0, "{spike}: half of the wave lies above its level");
        }
    }
    // Growth under the wave is still growth.
    let (found, _) = judge(daily(6.2, 0.25, 900.0).as_bytes(), &[]);
    assert!(["leak", "growing"].contains(&text(&found["verdict"])), "{}", found["summary"]);
}

#[test]
fn a_service_whose_memory_multiplies_ever_faster_is_a_leak() {
    for (hours, from, to) in [(10, 60.0_f64, 700.0), (13, 100.0, 1500.0), (15, 25.0, 205.0)] {
        let samples = hours * 60;
        let level = |i: u64| from * (to / from).powf(i as f64 / samples as f64) + ripple(i);
        let rows = (0..samples).map(|i| format!("{},{:.2}\n", 60 * i, level(i)));
        let (found, code) = judge(format!("time_s,rss_mb\n{}", rows.collect::<String>()).as_bytes(), &[]);
        assert_eq!((text(&found["verdict"]), code), ("leak", 1), "{from} to {to}: {}", found["summary"]);
    }
}
