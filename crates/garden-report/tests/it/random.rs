//! Properties over random diagnoses: the width is kept, nothing harmful gets through, and nothing panics.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use crate::common::{Case, blank, series};
use garden_memory::*;
use garden_report::{Series, Style, html, illustrate, json, markdown, text};

const CASES: u64 = 1000;

/// SplitMix64 (Steele, Lea and Flood 2014): small, seeded, good enough to draw cases.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.next().is_multiple_of(2).then(|| make(self))
    }

    fn list<T>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }

    /// A number as files have them, and as they should not.
    fn number(&mut self) -> f64 {
        let share = self.next() as f64 / u64::MAX as f64;
        let strange =
            [0.0, -0.0, -1.0, 1e-300, 1e300, -1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 1.7e9, 1e17];
        match self.below(8) {
            0 => self.pick(&strange),
            1 => -share * 1e12,
            2 => share * 1e20,
            3 => share,
            _ => (share * 40.0).exp2(),
        }
    }

    fn bytes(&mut self) -> u64 {
        let shift = self.below(64);
        if self.below(10) == 0 { u64::MAX } else { self.next() >> shift }
    }

    fn words(&mut self) -> String {
        let strange = [
            "漢字のファイル名",
            "👩‍👩‍👧‍👦",
            "\u{1b}[31mred\u{1b}[0m",
            "\u{1b}]0;owned\u{7}",
            "\u{9b}2J",
            "a\tb\r\nc",
            "\u{202e}gnp.exe",
            "```",
            "|",
            "<script>alert(1)</script>",
            "@everyone",
            "[x](javascript:y)",
            "\\",
            "`",
            "e\u{301}\u{301}\u{301}",
            "＼ｗｉｄｅ",
            "\u{fdfd}",
            "\u{7f}",
            "\0",
            "￼",
            "🇩🇪",
            "# heading",
            "- item",
            "1. item",
            "&amp;",
            "$x$",
            "ﷺ",
        ];
        let plain =
            ["memory", "grows", "171 MiB", "per step", "(95 %: 169 to 173)", "`gc.collect()`", "rss_mb", "step 83,"];
        let words = self.list(14, |random| match random.below(12) {
            0 => random.pick(&["x", "漢", "é", "🦀", "-"]).repeat(random.below(300)),
            1..3 => random.pick(&strange).to_string(),
            _ => random.pick(&plain).to_string(),
        });
        words.join(self.pick(&[" ", " ", "", "\n"]))
    }

    fn series(&mut self) -> Series {
        let start = self.number();
        let length = self.pick(&[0, 1, 2, 3, 24, 200, 2000]);
        let orderly = self.next().is_multiple_of(2);
        let level = self.number();
        let points = (0..length).map(|n| match orderly {
            true => (start + f64::from(n), level + level * self.next() as f64 / u64::MAX as f64),
            false => (self.number(), self.number()),
        });
        Series { points: points.collect(), ..series(&self.words(), []) }
    }

    fn phase(&mut self) -> Phase {
        Phase {
            kind: self.pick(&[PhaseKind::Growth, PhaseKind::Plateau, PhaseKind::Fall]),
            from: self.number(),
            to: self.number(),
            start_bytes: self.bytes(),
            end_bytes: self.bytes(),
            rate: self.number(),
            low: self.number(),
            high: self.number(),
        }
    }

    fn cause(&mut self) -> Cause {
        Cause {
            id: "id",
            title: self.pick(&[
                "a cause",
                "a cause with a title that is longer than one would wish for, all in all, and goes on",
            ]),
            score: self.number(),
            supporting: self.list(3, Random::words),
            against: self.list(3, Random::words),
            fix: self.pick(&["", "do something else"]),
        }
    }

    fn part(&mut self) -> Part {
        Part {
            from: self.number(),
            to: self.number(),
            samples: self.bytes() as usize,
            verdict: Verdict::Leak,
            mechanism: Mechanism::Linear,
            summary: self.words(),
            decides: self.maybe(Random::number).is_some(),
        }
    }

    fn forecast(&mut self) -> Forecast {
        Forecast {
            decided_by_step: self.maybe(Random::number),
            if_bounded: self.maybe(|random| Plateau {
                step: random.maybe(Random::number),
                bytes: random.bytes(),
                low: random.bytes(),
                high: random.bytes(),
            }),
            if_unbounded: self.maybe(|random| Exhaustion {
                step: random.maybe(Random::number),
                low: random.number(),
                high: random.maybe(Random::number),
                time_s: random.maybe(Random::number),
            }),
            limit_bytes: self.maybe(Random::bytes),
        }
    }

    fn growth(&mut self) -> Growth {
        Growth {
            bytes_per_step: self.maybe(Random::number),
            low: self.maybe(Random::number),
            high: self.maybe(Random::number),
            bytes_per_second: self.maybe(Random::number),
            bytes_per_example: self.maybe(Random::number),
        }
    }

    fn process(&mut self) -> ProcessChange {
        ProcessChange {
            pid: self.bytes() as u32,
            parent: self.bytes() as u32,
            name: self.words(),
            role: self.words(),
            command: self.words(),
            from_bytes: self.bytes(),
            to_bytes: self.bytes(),
        }
    }

    fn diagnosis(&mut self) -> Diagnosis {
        use Verdict::*;
        Diagnosis {
            verdict: self.pick(&[Flat, Sawtooth, Settled, Growing, Growing, Leak, Leak, Insufficient]),
            mechanism: self.pick(&[Mechanism::None, Mechanism::EpochFill, Mechanism::LateOnset]),
            confidence: self.maybe(Random::number),
            summary: self.words(),
            likelihood: self.maybe(|random| Likelihood { leak: random.number(), bounded: random.number() }),
            growth: self.growth(),
            knee: self.maybe(|random| Knee {
                step: random.maybe(Random::number),
                low: random.number(),
                high: random.number(),
                time_s: random.maybe(Random::number),
            }),
            level: self.maybe(|random| Level { bytes: random.bytes(), low: random.bytes(), high: random.bytes() }),
            forecast: self.forecast(),
            headroom: self.maybe(|random| Headroom {
                left_bytes: random.bytes() as i64,
                spike_bytes: random.bytes(),
                in_reach: random.next().is_multiple_of(2),
            }),
            sensitivity: self.maybe(|random| Sensitivity {
                bytes_per_step: random.maybe(Random::number),
                bytes_per_second: random.maybe(Random::number),
                over: random.number(),
            }),
            clock: self.pick(&[Clock::Step, Clock::Time, Clock::Sample]),
            phases: self.list(15, Random::phase),
            causes: self.list(6, Random::cause),
            ruled_out: self.list(2, |random| RuledOut { id: "id", title: "that", reason: random.words() }),
            suspect: None,
            next_command: None,
            claims: Vec::new(),
            evidence: self.list(3, |random| Evidence::words(random.words())),
            advice: self.list(12, Random::words),
            processes: self.list(10, Random::process),
            parts: self.list(4, Random::part),
            series: self.list(3, |random| SeriesVerdict {
                name: random.words(),
                samples: random.bytes() as usize,
                verdict: Growing,
                mechanism: Mechanism::Linear,
                summary: random.words(),
                decides: random.next().is_multiple_of(2),
            }),
            stability: self.maybe(|random| StabilityCheck {
                passed: random.next().is_multiple_of(2),
                after_step: random.number(),
                until_step: random.maybe(Random::number),
                max_variation_bytes: random.maybe(Random::bytes),
                variation_bytes: random.maybe(Random::bytes),
                max_growth_bytes: random.maybe(Random::bytes),
                growth_bytes: random.maybe(Random::bytes),
                text: random.words(),
            }),
            input: Input {
                format: self.words(),
                samples: self.bytes() as usize,
                column: self.maybe(Random::words),
                judged: None,
                unit: self.maybe(Random::words),
                skipped: self.bytes() as usize,
                notes: self.list(3, Random::words),
            },
        }
    }

    fn case(&mut self) -> (Case, String) {
        let case = Case {
            diagnosis: self.diagnosis(),
            title: "",
            memory: self.series(),
            counts: self.list(3, Random::series),
            origin: self.list(3, |random| (random.words(), random.words())),
            facts: RunFacts { memory_limit: self.maybe(|random| Bytes(random.bytes())), ..RunFacts::default() },
            command: self.maybe(|random| random.pick(&["model-garden diagnose `x|y`", "model-garden diagnose a.csv"])),
        };
        (case, self.words())
    }
}

/// The columns of a line, counted apart from the code under test: what terminals agree to draw wide counts as two.
fn columns(line: &str) -> usize {
    let wide = |c: char| {
        matches!(c as u32, 0x1100..=0x115f | 0x2e80..=0x303e | 0x3041..=0xa4cf | 0xac00..=0xd7a3
        | 0xf900..=0xfaff | 0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1f64f | 0x1f680..=0x1f6ff
        | 0x1f900..=0x1faff | 0x20000..=0x3fffd)
    };
    let combining = |c: char| ('\u{300}'..='\u{36f}').contains(&c);
    line.chars().map(|c| if combining(c) { 0 } else { 1 + usize::from(wide(c)) }).sum()
}

fn harmful(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What Markdown would take for markup once code is set aside.
fn check_markdown(markdown: &str, seed: u64) {
    let fences = markdown.lines().filter(|line| line.starts_with("```")).count();
    assert!(fences == 0 || fences == 2, "seed {seed}: {fences} fences in\n{markdown}");
    let outside_fence: String = markdown.split("```").step_by(2).collect();
    let mut cells = None;
    for line in outside_fence.lines() {
        let pipes = line.matches('|').count();
        cells = line.starts_with('|').then(|| cells.unwrap_or(pipes));
        assert!(cells.is_none_or(|cells| cells == pipes), "seed {seed}: uneven table row {line}");
        let outside_code: String = line.split('`').step_by(2).collect();
        let markup = outside_code.replace("<code>", "").replace("</code>", "").replace("\\]", "");
        assert!(!markup.contains('<') && !markup.contains("]("), "seed {seed}: markup in {line}");
    }
}

fn seeds() -> std::ops::Range<u64> {
    let first = garden_testing::seed();
    first..first + CASES
}

#[test]
fn any_diagnosis_fits_the_width_and_is_harmless() {
    for seed in seeds() {
        let (case, title) = Random(seed).case();
        let mut report = case.report();
        report.title = title;
        let plain = text(&report, Style::Plain, 100);
        for line in plain.lines() {
            assert!(columns(line) <= 100, "seed {seed}: {} columns in {line}", columns(line));
        }
        for output in [plain, markdown(&report), json(&report)] {
            assert!(!output.contains(harmful_outside_json(&output)), "seed {seed}: {output:?}");
            assert!(output.ends_with('\n') && !output.ends_with("\n\n"), "seed {seed}");
        }
        check_markdown(&markdown(&report), seed);
        assert!(serde_json::from_str::<serde_json::Value>(&json(&report)).is_ok(), "seed {seed}");
    }
}

/// A trace as files have them, and as they should not.
fn any_trace(random: &mut Random) -> Trace {
    let mut trace = Trace::default();
    for _ in 0..random.below(40) {
        let mut sample = Sample::default();
        (sample.step, sample.time_s) = (random.maybe(Random::number), random.maybe(Random::number));
        for quantity in Quantity::ALL {
            random.maybe(Random::bytes).into_iter().for_each(|bytes| sample.set(quantity, bytes));
        }
        trace.push(&sample);
        let kinds =
            [EventKind::EpochEnd, EventKind::EvalStart, EventKind::EvalEnd, EventKind::Checkpoint, EventKind::Restart];
        if random.below(6) == 0 {
            trace.push_event(random.pick(&kinds), random.maybe(Random::number), random.maybe(Random::number));
        }
    }
    trace.processes = random.list(12, |random| ProcessTrack {
        name: random.words(),
        role: random.words(),
        levels: random.list(5, |random| (random.below(60), random.bytes())),
        gone: random.maybe(|random| random.below(60)),
        ..ProcessTrack::default()
    });
    trace.processes.iter_mut().for_each(|track| track.levels.sort_unstable());
    trace
}

#[test]
fn any_trace_and_any_diagnosis_make_a_page() {
    for seed in seeds() {
        let mut random = Random(seed);
        let (case, title) = random.case();
        let trace = any_trace(&mut random);
        let mut report = case.report();
        report.title = title;
        illustrate(&mut report, &trace);
        let page = html(&report);
        // The diagnosis at the end is data and gives invisible characters back as they were.
        let words = page.split("id=\"diagnosis\"").next().unwrap();
        assert!(page.ends_with("</html>\n") && !words.contains(harmful), "seed {seed}");
        let scripts = page.split("<script type=\"application/json\"").skip(1);
        for script in scripts {
            let json = &script[script.find('>').unwrap() + 1..script.find("</script>").unwrap()];
            assert!(serde_json::from_str::<serde_json::Value>(json).is_ok(), "seed {seed}: {json}");
        }
        // A title from a file opens no tag: each picture of a chart, heading and script is ours.
        assert_eq!(page.matches("<script").count(), page.matches("</script>").count(), "seed {seed}");
    }
}

/// JSON gives invisible characters back as they were, since it is data; controls it must not contain either.
fn harmful_outside_json(output: &str) -> fn(char) -> bool {
    if output.starts_with('{') { |c| c.is_control() && c != '\n' } else { harmful }
}

#[test]
fn hostile_names_leave_no_trace_of_control() {
    let mut diagnosis = Diagnosis { summary: "fine\u{1b}[2J\u{8}".into(), ..blank() };
    diagnosis.input.column = Some("rss\u{1b}]52;c;ZXZpbA==\u{7}\u{9b}31m_mb".into());
    diagnosis.input.notes = vec!["line 3:\u{0}\u{85}\u{2028}bad".into()];
    let mut case = crate::common::empty();
    case.diagnosis = diagnosis;
    case.memory = series("m\u{1b}[1m", [(1.0, 1e9), (2.0, 2e9)]);
    case.counts = vec![series("t\u{7}ensors", [(1.0, 5.0)])];
    case.origin = vec![("ho\rst".into(), "a\u{1b}cb".into())];
    let mut report = case.report();
    report.title = "\u{1b}]0;title\u{7}run.csv".to_string();
    let plain = text(&report, Style::Plain, 100);
    assert!(
        plain.contains("run.csv") && plain.contains("column rss_mb,") && plain.contains("t ensors: 5, constant"),
        "{plain}"
    );
    assert!(plain.contains("line 3: bad"), "{plain}");
    assert!(!plain.contains(harmful) && !markdown(&report).contains(harmful), "{plain:?}");
}
