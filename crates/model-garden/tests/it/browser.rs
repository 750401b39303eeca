//! Reports in a real browser: what is drawn, what the cursor reads, and that nothing from a trace becomes more than text.
//!
//! Skipped, and said so, where no Chromium or Chrome is installed; `make setup-browser` tries to install one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set itself up must fail")]
#![allow(clippy::print_stderr, reason = "what was measured is told")]

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::browser::Browser;
use crate::common::{diagnose, has_python, run, scratch, told};
use garden_report::{Axis, Band, Chart, Curve, Mood, News, Page, Size, Unit, json_text};
use serde_json::{Value, json};

const STORY: [&str; 8] =
    ["--examples", "663", "--batch-size", "2", "--gradient-accumulation", "4", "--memory-limit", "32GB"];
/// Widths and colours in which every report must hold.
const LOOKS: [(u32, &str); 4] = [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")];

/// One browser at a time: several would fight for the cores and run into their timeouts.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The report of a trace, as a file.
fn report(name: &str, trace: &str, flags: &[&str]) -> PathBuf {
    let file = scratch(&format!("report-{name}")).join("report.html");
    let words = [&["diagnose", trace, "--format", "html", "-o", file.to_str().unwrap()], flags].concat();
    let output = run(&words);
    assert!(matches!(output.status.code(), Some(0 | 1 | 3)), "{}", told(&output));
    file
}

/// What must hold for every report, whatever is in it.
fn check_page(browser: &mut Browser, file: &Path, verdict: &str) {
    for (width, scheme) in LOOKS {
        browser.open(file, width, scheme);
        let at = format!("{} at {width} in {scheme}", file.display());
        assert_eq!(browser.troubles(), Vec::<String>::new(), "{at}");
        assert_eq!(browser.text("document.querySelector('.word strong').textContent"), verdict, "{at}");
        let overflow = "document.documentElement.scrollWidth - innerWidth";
        assert!(browser.number(overflow) <= 0.0, "{at} is wider than the window");
        let figures = browser.number("document.querySelectorAll('figure.card').length");
        let drawn = browser.number("document.querySelectorAll('figure.card svg.chart-picture').length");
        assert!(figures >= 1.0 && figures == drawn, "{at}: {figures} charts, {drawn} drawn");
        // Every curve has ink: a line that goes somewhere, or at least a dot.
        let bare = "[...document.querySelectorAll('.curve')].filter((curve) => !curve.querySelector('circle') \
                    && !(curve.querySelector('.line')?.getTotalLength() > 5)).map((curve) => curve.dataset.curve)";
        assert_eq!(browser.ask(bare), json!([]), "{at}");
        // Each chart is also told in words.
        let untold = "[...document.querySelectorAll('figure.card')].filter((figure) => \
                      !figure.querySelector('.alternative tbody tr')).length";
        assert_eq!(browser.number(untold), 0.0, "{at}");
        let ground = browser.text("getComputedStyle(document.body).backgroundColor");
        let is_dark =
            ground.trim_start_matches(|c: char| !c.is_ascii_digit()).split(',').next().unwrap().parse::<u32>().unwrap()
                < 80;
        assert_eq!(is_dark, scheme == "dark", "{at}: {ground}");
    }
}

/// Where a place of the first chart's axis stands in the window, told from its labels alone.
fn place_x(browser: &mut Browser, place: f64) -> f64 {
    let script = format!(
        "(() => {{ const svg = document.querySelector('svg.chart-picture');
            const ticks = [...svg.querySelectorAll('.axis-x text')].filter((t) => /^-?[0-9.]+$/.test(t.textContent));
            const lines = [...svg.querySelectorAll('.axis-x line')].filter((l) => l.getAttribute('x1') === l.getAttribute('x2'));
            const at = (n) => [Number(ticks[n].textContent), Number(lines[n].getAttribute('x1'))];
            const [[a, ax], [b, bx]] = [at(1), at(ticks.length - 1)];
            return svg.getBoundingClientRect().left + ax + ({place} - a) / (b - a) * (bx - ax); }})()"
    );
    browser.number(&script)
}

/// The middle of the first chart's height in the window, after bringing it into view.
fn middle_y(browser: &mut Browser) -> f64 {
    browser.ask("document.querySelector('.chart-stage').scrollIntoView({ block: 'center' })");
    browser.number(
        "(() => { const box = document.querySelector('.chart-stage').getBoundingClientRect(); return box.top + box.height / 2; })()",
    )
}

fn tip(browser: &mut Browser) -> String {
    browser.text("document.querySelector('.chart-tip').hidden ? '' : document.querySelector('.chart-tip').innerText")
}

fn labels(browser: &mut Browser) -> Value {
    browser.ask(
        "[...document.querySelector('svg.chart-picture').querySelectorAll('.axis-x text')].map((t) => t.textContent)",
    )
}

#[test]
fn the_production_runs_are_drawn_as_they_were() {
    let _turn = turn();
    let Some(mut browser) = Browser::start("production") else { return };
    let growing = report("run1", "testdata/production/run1.csv", &STORY);
    check_page(&mut browser, &growing, "growing");
    let outlooks = browser.ask("[...document.querySelectorAll('[data-outlook]')].map((o) => o.dataset.outlook)");
    assert_eq!(outlooks, json!(["if it never ends", "if it ends by itself"]));
    let settled = report("run2", "testdata/production/run2.csv", &STORY);
    check_page(&mut browser, &settled, "settled");

    browser.open(&settled, 1400, "light");
    let sentence = browser.text("document.querySelector('h1').textContent");
    assert!(sentence.contains("bounded by the dataset, not a leak"), "{sentence}");
    let names = browser.ask("[...document.querySelectorAll('.curve')].map((curve) => curve.dataset.curve)");
    assert_eq!(names, json!(["rss_mb", "tensors", "tensors_cpu", "tensors_gpu"]));
    let expected = place_x(&mut browser, 83.0);
    let knee = browser.number("document.querySelector('[data-mark=knee] line').getBoundingClientRect().left");
    assert!((knee - expected).abs() < 1.5, "the knee is drawn at {knee}, step 83 is at {expected}");
    let limit = browser.text("document.querySelector('[data-level=limit] text').textContent");
    assert_eq!(limit, "limit 32.0 GiB");
    let bands = browser.ask("[...document.querySelectorAll('[data-band]')].map((band) => band.dataset.band)");
    assert_eq!(bands, json!(["growth", "fall"]));
}

#[test]
fn the_cursor_reads_exact_values_and_the_chart_can_be_worked() {
    let _turn = turn();
    let Some(mut browser) = Browser::start("cursor") else { return };
    let file = report("cursor", "testdata/production/run2.csv", &STORY);
    browser.open(&file, 1400, "light");
    let y = middle_y(&mut browser);

    // The sample of step 80 is 17412 MiB in the file.
    let exact = "18\u{202f}257\u{202f}805\u{202f}312 B";
    let x = place_x(&mut browser, 80.0) + 3.0;
    browser.mouse("mouseMoved", x, y);
    let told = tip(&mut browser);
    assert!(told.starts_with("step 80") && told.contains("17.0 GiB") && told.contains(exact), "{told}");

    // Charts over the same axis follow.
    let other = browser.text("document.querySelectorAll('.chart-tip')[1].innerText");
    assert!(other.starts_with("step 80") && other.contains("6\u{202f}529"), "{other}");

    // Dragging shows a part of the axis, a double click everything.
    let before = labels(&mut browser);
    let (from, to) = (place_x(&mut browser, 70.0), place_x(&mut browser, 110.0));
    browser.mouse("mousePressed", from, y);
    browser.mouse("mouseMoved", (from + to) / 2.0, y);
    browser.mouse("mouseMoved", to, y);
    browser.mouse("mouseReleased", to, y);
    let zoomed = labels(&mut browser);
    assert!(zoomed.to_string().contains("\"75\"") && !zoomed.to_string().contains("\"200\""), "{zoomed}");
    assert_eq!(browser.ask("document.querySelectorAll('.chart-tools [hidden]').length"), json!(0));
    browser.ask("document.querySelector('.chart-stage').dispatchEvent(new MouseEvent('dblclick', { bubbles: true }))");
    assert_eq!(labels(&mut browser), before);

    // Keys move the cursor from sample to sample, say what is there, and zoom.
    browser.mouse("mouseMoved", 5.0, 5.0);
    browser.ask("document.querySelector('.chart-stage').focus()");
    for _ in 0..8 {
        browser.key("ArrowRight");
    }
    assert!(tip(&mut browser).contains(exact), "{}", tip(&mut browser));
    let spoken = browser.text("document.querySelector('[aria-live]').textContent");
    assert!(spoken.starts_with("step 80, growth") && spoken.contains("rss_mb 17.0 GiB"), "{spoken}");
    browser.key("+");
    assert_ne!(labels(&mut browser), before);
    browser.key("Escape");
    assert_eq!(labels(&mut browser), before);

    // The legend takes a curve away and gives it back.
    let count = "document.querySelectorAll('[data-curve=rss_mb]').length";
    let key = "document.querySelector('[data-key=rss_mb]')";
    browser.ask(&format!("{key}.click()"));
    assert_eq!((browser.ask(count), browser.ask(&format!("{key}.ariaPressed"))), (json!(0), json!("false")));
    browser.ask(&format!("{key}.click()"));
    assert_eq!(browser.ask(count), json!(1));

    // A page that lives draws other data in place of what is there.
    let live = "(() => { const place = document.querySelector('main').appendChild(document.createElement('div'));
        const data = JSON.parse(document.querySelector('figure script').textContent);
        const chart = drawChart(place, data);
        const line = () => place.querySelector('.curve .line').getAttribute('d');
        const before = line();
        chart.update({ ...data, places: data.places.slice(0, 9), curves: data.curves.map((c) => ({ ...c, values: c.values.slice(0, 9) })) });
        const after = line();
        place.remove();
        return [before.split('L').length, after.split('L').length]; })()";
    assert_eq!(browser.ask(live), json!([24, 9]));

    // The other colours by hand, and the diagnosis as it was computed.
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.ask(ground);
    browser.ask("document.getElementById('theme').click()");
    assert_ne!(browser.ask(ground), light);
    let embedded: Value =
        serde_json::from_str(&browser.text("document.getElementById('diagnosis').textContent")).unwrap();
    assert_eq!(embedded, diagnose("testdata/production/run2.csv", &STORY).0);
    browser.ask("document.getElementById('download').click()");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn every_shared_trace_makes_a_page() {
    let _turn = turn();
    let Some(mut browser) = Browser::start("traces") else { return };
    let traces = [
        ("a_python_leak", &["--steps-per-epoch", "50"][..]),
        ("c2_flat_noisy", &[]),
        ("c_flat", &[]),
        ("e_gc_sawtooth", &[]),
        ("f_slow_leak_under_sawtooth", &["--steps-per-epoch", "50"]),
        ("g_mmap_file", &["--steps-per-epoch", "100"]),
        ("i_eval_staircase", &["--steps-per-epoch", "50"]),
        ("k_lru_cache", &["--steps-per-epoch", "83"]),
        ("n_startup_ramp_then_flat", &[]),
        ("pil_lazy", &["--examples", "663", "--batch-size", "2", "--gradient-accumulation", "4"]),
    ];
    for (name, facts) in traces {
        let trace = format!("testdata/traces/{name}.csv");
        let verdict = diagnose(&trace, facts).0["verdict"].as_str().unwrap().to_string();
        let file = report(name, &trace, facts);
        check_page(&mut browser, &file, &verdict);
        let names =
            browser.ask("[...document.querySelectorAll('figure:first-child .curve')].map((c) => c.dataset.curve)");
        assert_eq!(names, json!(["anonymous", "file pages", "judged"]), "{name}");
    }
}

/// A text that would do harm anywhere it is taken for more than text.
const HOSTILE: &str =
    "</script><img src=x onerror=\"window.harm=1\"><svg/onload=window.harm=1>' & <!-- \u{2028}{{7*7}}";

#[test]
fn names_from_a_trace_stay_text() {
    let _turn = turn();
    let Some(mut browser) = Browser::start("hostile") else { return };
    let folder = scratch("hostile");
    let mut lines = vec![json!({
        "model_garden_trace": 1,
        "origin": { "command": HOSTILE, HOSTILE: HOSTILE },
    })];
    for pid in [1, 2] {
        let process = json!({ "pid": pid, "parent": 0, "name": HOSTILE, "role": HOSTILE, "command": HOSTILE });
        lines.push(json!({ "process": process }));
    }
    for step in 1..60_u64 {
        let held = json!({ "1": (100 + step) << 20, "2": 90 << 20 });
        lines.push(json!({ "step": step, "rss": (190 + step) << 20, "anon": (190 + step) << 20, "processes": held }));
    }
    let trace = folder.join("<img src=x onerror='window.harm=1'>.jsonl");
    std::fs::write(&trace, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let verdict = diagnose(trace.to_str().unwrap(), &[]).0["verdict"].as_str().unwrap().to_string();
    let file = report("hostile", trace.to_str().unwrap(), &[]);
    check_page(&mut browser, &file, &verdict);
    assert_eq!(browser.ask("window.harm"), Value::Null);
    let foreign =
        "document.querySelectorAll('img, iframe, object, [onerror], [onload], main script:not([type])').length";
    assert_eq!(browser.ask(foreign), json!(0));
    let name = browser.text("document.querySelectorAll('figure')[1].querySelector('.key').innerText");
    assert!(name.contains("</script><img src=x onerror=\"window.harm=1\">"), "{name}");
    // Even a script that got in could not run: the page's policy knows its own by its digest.
    let script = "(() => { const s = document.createElement('script'); s.textContent = 'window.harm = 1'; document.body.append(s); return window.harm ?? null; })()";
    assert_eq!(browser.ask(script), Value::Null);
    assert!(browser.troubles().iter().any(|trouble| trouble.contains("Content Security Policy")), "it ran unnoticed");
}

#[test]
fn a_guarded_run_shows_each_attempt() {
    let _turn = turn();
    if !has_python() {
        return;
    }
    let Some(mut browser) = Browser::start("guarded") else { return };
    let folder = scratch("guarded-report");
    let place = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let (page, trace, out) = (place("report.html"), place("trace.jsonl"), place("out"));
    let guard = ["run", "--interval", "100ms", "--memory-limit", "400MB", "--on-limit", "restart", "--resume-with"];
    let files = ["--resume_from_checkpoint {checkpoint}", "--report", &page, "-o", &trace, "--", "python3"];
    let program = ["testdata/programs/trainer.py", "--output_dir", &out, "--max_steps", "120", "--base", "100"];
    let output = run(&[&guard[..], &files, &program, &["--grow", "5", "--on_sigterm", "save"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("report: "), "{}", told(&output));
    let verdict = diagnose(&trace, &[]).0;
    check_page(&mut browser, Path::new(&page), verdict["verdict"].as_str().unwrap());
    let attempts = verdict["parts"].as_array().unwrap().len();
    assert!(attempts >= 2, "{verdict}");
    let curves = "[...document.querySelectorAll('[data-curve^=\"attempt \"]')].map((curve) => curve.dataset.curve)";
    let expected: Vec<String> = (1..=attempts).map(|number| format!("attempt {number}")).collect();
    assert_eq!(browser.ask(curves), json!(expected));
    let restarts = browser.number("document.querySelector('figure').querySelectorAll('[data-mark=restart]').length");
    assert_eq!(restarts as usize, attempts - 1);
    let rows = "[...document.querySelectorAll('section.card')].find((s) => s.innerText.startsWith('What the guard did')) \
                .querySelectorAll('tbody tr').length";
    assert_eq!(browser.number(rows) as usize, attempts);
}

#[test]
fn a_watched_tree_shows_its_processes() {
    let _turn = turn();
    if !has_python() {
        return;
    }
    let Some(mut browser) = Browser::start("tree") else { return };
    let folder = scratch("tree-report");
    let place = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let (page, trace) = (place("report.html"), place("trace.jsonl"));
    let words = ["monitor", "--interval", "100ms", "--report", &page, "-o", &trace, "--", "python3"];
    let output = run(&[&words[..], &["testdata/programs/growing_worker.py"]].concat());
    let verdict = diagnose(&trace, &[]).0;
    assert!(Path::new(&page).is_file(), "{}", told(&output));
    check_page(&mut browser, Path::new(&page), verdict["verdict"].as_str().unwrap());
    let figure =
        "[...document.querySelectorAll('figure.card')].find((f) => f.querySelector('h2').textContent === 'Processes')";
    let names = browser.ask(&format!("[...{figure}.querySelectorAll('.curve')].map((c) => c.dataset.curve)"));
    let grown = format!("python3 {} worker", verdict["processes"][0]["pid"]);
    assert!(names.as_array().unwrap().contains(&json!(grown)), "{grown} is not among {names}");
}

#[test]
fn a_report_without_a_folder_is_refused_before_anything_runs() {
    let output = run(&["monitor", "--report", "no/such/folder/report.html", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("there is no folder `no/such/folder`"),
        "{}",
        told(&output)
    );
}

/// What other commands make: a chart over examples instead of steps, whose bands are passes over them.
#[test]
fn a_page_of_passes_over_examples_is_drawn() {
    let _turn = turn();
    let Some(mut browser) = Browser::start("page") else { return };
    let band = |pass: u32, mood| Band {
        name: format!("pass {pass}"),
        mood,
        from: f64::from(50 * (pass - 1)) + 0.5,
        to: f64::from(50 * pass) + 0.5,
    };
    let held = |grows_until: i32| move |example: i32| f64::from(100 + 21 * example.min(grows_until)) * 1_048_576.0;
    let curve = |name: &str, held: &dyn Fn(i32) -> f64| Curve {
        name: name.into(),
        values: (1..=150).map(held).collect(),
        ..Curve::default()
    };
    let page = Page {
        subject: "Bisect".into(),
        title: "pipeline:stages".into(),
        word: "cache".into(),
        news: News::Open,
        summary: "The dataset keeps 21 MiB per example in the first pass.".into(),
        numbers: vec![("per example".into(), "21 MiB".into())],
        charts: vec![Chart {
            title: "Memory over three passes".into(),
            unit: Unit::Bytes,
            axis: Axis { name: "example".into(), from: 1.0, to: 150.0, ..Axis::default() },
            size: Size::Large,
            places: (1..=150).map(f64::from).collect(),
            curves: vec![curve("dataset", &held(50)), curve("collator", &held(0))],
            bands: vec![band(1, Mood::Rising), band(2, Mood::Calm), band(3, Mood::Calm)],
            ..Chart::default()
        }],
        json: json_text(&json!({ "verdict": "cache" })),
        version: "0.1.0".into(),
        ..Page::default()
    };
    let file = scratch("page").join("page.html");
    std::fs::write(&file, page.html()).unwrap();
    check_page(&mut browser, &file, "cache");
    browser.open(&file, 1400, "light");
    let drawn = |attribute: &str| {
        format!("[...document.querySelectorAll('[data-{attribute}]')].map((e) => e.dataset.{attribute})")
    };
    assert_eq!(browser.ask(&drawn("band")), json!(["pass 1", "pass 2", "pass 3"]));
    assert_eq!(browser.ask(&drawn("curve")), json!(["dataset", "collator"]));
    let y = middle_y(&mut browser);
    let x = place_x(&mut browser, 75.0);
    browser.mouse("mouseMoved", x, y);
    let told = tip(&mut browser);
    assert!(told.starts_with("example 75") && told.contains("pass 2") && told.contains("1.12 GiB"), "{told}");
    browser.ask("document.getElementById('download').click()");
    assert_eq!(browser.text("document.getElementById('done').textContent"), "Downloaded as result.json.");

    // A page without an answer for scripts has nothing to copy, and no error for that.
    std::fs::write(&file, Page { json: String::new(), ..page }.html()).unwrap();
    check_page(&mut browser, &file, "cache");
}

/// Records of real experiments, whose findings stand in many words.
#[test]
fn what_bisect_found_is_drawn() {
    let _turn = turn();
    let Some(mut browser) = Browser::start("bisect") else { return };
    let folder = scratch("report-bisect");
    for (name, verdict) in [("photographs", "CACHE"), ("train", "LEAK"), ("rows", "COPIES"), ("failed", "FAILED")] {
        let file = folder.join(format!("{name}.html"));
        let record = format!("testdata/bisect/{name}.json");
        run(&["bisect", &record, "--memory-limit", "32GB", "--format", "html", "-o", file.to_str().unwrap()]);
        check_page(&mut browser, &file, verdict);
    }
    // A straight line to 56 MiB in the first pass, and then nothing: what is free and kept for the next batch is not drawn.
    browser.open(&folder.join("photographs.html"), 1400, "light");
    let y = middle_y(&mut browser);
    for (example, level) in [(16.0, "28.0 MiB"), (32.0, "56.0 MiB"), (96.0, "56.0 MiB")] {
        let x = place_x(&mut browser, example);
        browser.mouse("mouseMoved", x, y);
        let told = tip(&mut browser);
        assert!(told.starts_with(&format!("examples seen {example}")) && told.contains(level), "{told}");
    }
}

/// Numbers as they stand in damaged and in very short files.
#[test]
fn strange_numbers_are_drawn_without_errors() {
    let _turn = turn();
    let Some(mut browser) = Browser::start("strange") else { return };
    let folder = scratch("strange");
    let many = |value: &dyn Fn(i32) -> String| (0..40).map(|n| value(n) + "\n").collect::<String>();
    let files = [
        ("one", "step,rss_mb\n5,100\n".to_string()),
        ("two", "step,rss_mb\n5,100\n6,100\n".to_string()),
        ("zero", "step,rss_mb\n".to_string() + &many(&|n| format!("{n},0"))),
        ("negative", "step,rss_mb\n".to_string() + &many(&|n| format!("{},100", n - 20))),
        (
            "huge",
            "step,rss_mb\n".to_string()
                + &many(&|n| format!("{n},{}", if n == 7 { 9_000_000_000 } else { 5_i64 }))
                + "1e300,5\n",
        ),
        ("still", "time_s,rss_mb\n".to_string() + &many(&|n| format!("1700000000.{n:03},77"))),
        ("again", "step,rss_mb\n".to_string() + &many(&|n| format!("{},{}", n % 10, 100 + 50 * (n % 10)))),
    ];
    for (name, text) in files {
        let trace = folder.join(format!("{name}.csv"));
        std::fs::write(&trace, text).unwrap();
        let verdict = diagnose(trace.to_str().unwrap(), &[]).0["verdict"].as_str().unwrap().to_string();
        let file = report(&format!("strange-{name}"), trace.to_str().unwrap(), &[]);
        browser.open(&file, 390, "dark");
        assert_eq!(browser.troubles(), Vec::<String>::new(), "{name}");
        assert_eq!(browser.text("document.querySelector('.word strong').textContent"), verdict, "{name}");
        assert_eq!(browser.number("document.querySelectorAll('svg.chart-picture').length"), 1.0, "{name}");
        assert_eq!(
            browser.ask("/NaN|Infinity/.test(document.querySelector('svg.chart-picture').outerHTML)"),
            json!(false),
            "{name}"
        );
    }
}

#[test]
fn a_hundred_thousand_samples_open_at_once() {
    let _turn = turn();
    let folder = scratch("many");
    let mut text = String::from("{\"model_garden_trace\":1}\n");
    for step in 0..100_000_u64 {
        let anon = (1 << 30) + step * 40_961 % (1 << 28);
        // One sample stands out: it must be drawn.
        let anon = if step == 54_321 { 3 << 30 } else { anon };
        let line = json!({ "step": step, "time_s": step, "rss": anon + (1 << 28), "anon": anon, "file": 1 << 28, "shmem": step % 4096,
            "gpu": 8_u64 << 30, "available": (20_u64 << 30) + step, "tensors": 6529 + step % 7, "objects": 1_000_000 + step });
        text += &format!("{line}\n");
    }
    let trace = folder.join("many.jsonl");
    std::fs::write(&trace, text).unwrap();
    let file = report("many", trace.to_str().unwrap(), &[]);
    let size = std::fs::metadata(&file).unwrap().len();
    assert!(size < 6 << 20, "{size} bytes");
    let Some(mut browser) = Browser::start("many") else { return };
    browser.open(&file, 1400, "light");
    assert_eq!(browser.troubles(), Vec::<String>::new());
    let drawn = browser.number("performance.getEntriesByName('charts-drawn')[0].startTime");
    eprintln!("100,000 samples: {size} bytes, drawn after {drawn:.0} ms");
    // Generous: the machine may be busy with other tests.
    assert!(drawn < 5000.0, "drawn after {drawn} ms");
    let y = middle_y(&mut browser);
    let x = place_x(&mut browser, 54_321.0);
    browser.mouse("mouseMoved", x, y);
    let told = tip(&mut browser);
    assert!(told.contains("54321") && told.contains("3\u{202f}221\u{202f}225\u{202f}472 B"), "{told}");
}
