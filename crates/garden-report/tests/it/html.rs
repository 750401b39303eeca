//! The page: what is in it, that nothing foreign becomes markup, and that others can add charts and sections as data.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test that cannot go on must fail")]

use crate::common::{leak, run2};
use garden_memory::{EventKind, ProcessTrack, Quantity, Question, RunFacts, Sample, Trace, diagnose, judged_series};
use garden_report::{
    Axis, Band, Block, Chart, Curve, Entry, Exhibit, Image, Level, Likeness, Mark, Mood, News, Page, Pair, Report,
    Role, Section, Series, Shape, Size, Style, Tone, Unit, html, illustrate, json_text, markdown, text,
};
use serde_json::Value;

const HOSTILE: &str = "</script><script>harm()</script><img src=x onerror=\"harm()\"> `a` & <!-- ' \u{2028}\u{202e}";

/// Every tag that a page may have.
const TAGS: [&str; 46] = [
    "!doctype",
    "a",
    "article",
    "b",
    "body",
    "button",
    "code",
    "dd",
    "details",
    "div",
    "dl",
    "dt",
    "figcaption",
    "figure",
    "h1",
    "h2",
    "head",
    "header",
    "html",
    "img",
    "li",
    "link",
    "main",
    "mark",
    "meta",
    "noscript",
    "ol",
    "p",
    "path",
    "pre",
    "script",
    "section",
    "small",
    "span",
    "strong",
    "style",
    "summary",
    "svg",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "title",
    "tr",
    "ul",
];
/// Tags that nothing closes.
const VOID: [&str; 4] = ["!doctype", "img", "link", "meta"];

/// The page without what is inside its scripts and styles.
fn markup(page: &str) -> String {
    let mut kept = String::new();
    let mut rest = page;
    while let Some(start) = ["<script", "<style"].iter().filter_map(|tag| rest.find(tag)).min() {
        let end = if rest[start..].starts_with("<script") { "</script>" } else { "</style>" };
        let open = start + rest[start..].find('>').unwrap() + 1;
        let close = open + rest[open..].find(end).unwrap();
        kept.push_str(&rest[..open]);
        rest = &rest[close..];
        let after = rest.find('>').unwrap() + 1;
        kept.push_str(&rest[..after]);
        rest = &rest[after..];
    }
    kept + rest
}

/// Checks that a page consists of known tags that close in order, and gives its JSON scripts.
fn check(page: &str) -> Vec<Value> {
    let mut open: Vec<String> = Vec::new();
    for piece in markup(page).split('<').skip(1) {
        let is_end = piece.starts_with('/');
        let name: String =
            piece.trim_start_matches('/').chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '!').collect();
        assert!(TAGS.contains(&name.as_str()), "a tag `{name}` in <{piece}");
        // What stands between quotes is the value of an attribute.
        let bare: String = piece.split('>').next().unwrap().split('"').step_by(2).collect();
        assert!(!bare.contains(" on"), "a handler in <{piece}");
        if is_end {
            assert_eq!(open.pop().as_deref(), Some(name.as_str()), "<{piece}");
        } else if !VOID.contains(&name.as_str()) && !piece.split('>').next().unwrap().ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    let scripts = page.split("<script type=\"application/json\"").skip(1);
    let json = scripts.map(|script| &script[script.find('>').unwrap() + 1..script.find("</script>").unwrap()]);
    json.map(|json| serde_json::from_str(json).unwrap()).collect()
}

/// Addresses that a browser could ask for.
fn addresses(page: &str) -> Vec<&str> {
    let starts = page.match_indices("http").map(|(at, _)| &page[at..]);
    starts.filter(|text| text.starts_with("http:") || text.starts_with("https:")).map(|text| &text[..30]).collect()
}

fn trace_of(samples: u64, sample: impl Fn(u64, &mut Sample)) -> Trace {
    let mut trace = Trace::default();
    for step in 0..samples {
        let mut one = Sample::default();
        (one.step, one.time_s) = (Some(step as f64), Some(step as f64 * 0.5));
        sample(step, &mut one);
        trace.push(&one);
    }
    trace
}

/// The page of a trace, as the binary makes it.
fn page_of(trace: &Trace, facts: RunFacts) -> String {
    let diagnosis = diagnose(trace, &Question { facts: facts.clone(), ..Question::default() });
    let mut report = Report {
        diagnosis: &diagnosis,
        title: "a trace".into(),
        memory: Series { name: "rss".into(), points: judged_series(trace) },
        counts: Vec::new(),
        charts: Vec::new(),
        samples: None,
        sections: Vec::new(),
        origin: &trace.origin,
        facts: &facts,
        command: Some("model-garden diagnose x --format html".into()),
        version: "0.1.0",
    };
    illustrate(&mut report, trace);
    html(&report)
}

fn chart<'a>(scripts: &'a [Value], title: &str) -> &'a Value {
    scripts.iter().find(|chart| chart["title"] == title).unwrap_or_else(|| panic!("no chart `{title}`"))
}

fn names(chart: &Value, list: &str) -> Vec<String> {
    chart[list].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_string()).collect()
}

#[test]
fn the_words_are_there_without_any_script() {
    let page = html(&run2().report());
    check(&page);
    let words = markup(&page);
    for expected in ["<strong>settled</strong>", "<h2>Evidence</h2>", "<h2>Likely causes</h2>", "<h2>What to do</h2>"] {
        assert!(words.contains(expected), "{expected}");
    }
    let order = ["<h2>Evidence", "<h2>Likely causes", "<h2>What to do", "<h2>Forecast", "<h2>Phases"];
    let places: Vec<usize> = order.iter().map(|title| words.find(title).unwrap()).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(words.contains("Made by model-garden 0.1.0"), "{words}");
}

#[test]
fn nothing_is_asked_of_anybody() {
    let page = html(&leak().report());
    let others: Vec<&str> =
        addresses(&page).into_iter().filter(|at| !at.starts_with("http://www.w3.org/2000/svg")).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(
        page.contains("default-src 'none'; style-src 'sha256-") && page.contains("script-src 'sha256-"),
        "no policy"
    );
    for forbidden in ["unsafe-inline", "innerHTML", "insertAdjacentHTML", "document.write", "eval(", "@import", "url("]
    {
        let found = page.matches(forbidden).count();
        // The one address in the script is that of a clip path within the picture.
        let allowed = if forbidden == "url(" { 1 } else { 0 };
        assert!(found <= allowed, "{forbidden}");
    }
}

#[test]
fn a_trace_becomes_charts() {
    let mut trace = trace_of(120, |step, sample| {
        sample.set(Quantity::Rss, (500 + 2 * step) << 20);
        sample.set(Quantity::Anon, (400 + 2 * step) << 20);
        sample.set(Quantity::File, 100 << 20);
        sample.set(Quantity::Swap, 0);
        sample.set(Quantity::Tensors, 6529);
        sample.set(Quantity::Available, 9 << 30);
        sample.set(Quantity::Pressure, 250);
    });
    trace.push_event(EventKind::Checkpoint, Some(119.0), None);
    for pid in 1..=12_u64 {
        let levels = vec![(0, (20 * pid) << 20), (60, (30 * pid) << 20)];
        trace.processes.push(ProcessTrack {
            pid: pid as u32,
            name: "python3".into(),
            role: "worker".into(),
            levels,
            gone: (pid == 12).then_some(100),
            ..ProcessTrack::default()
        });
    }
    let facts = RunFacts {
        steps_per_epoch: Some(50),
        memory_limit: Some(garden_memory::Bytes(1 << 30)),
        ..RunFacts::default()
    };
    let scripts = check(&page_of(&trace, facts));
    let memory = chart(&scripts, "Memory");
    // A kind that was always empty is not drawn.
    assert_eq!(names(memory, "curves"), ["anonymous", "file pages", "judged"]);
    assert_eq!(names(memory, "levels"), ["limit"]);
    assert!(names(memory, "outlooks").contains(&"if it never ends".to_string()), "{}", memory["outlooks"]);
    assert!(names(memory, "bands").contains(&"growth".to_string()), "{}", memory["bands"]);
    assert!(
        names(memory, "marks").contains(&"checkpoint".to_string())
            && names(memory, "marks").contains(&"epoch".to_string())
    );
    assert_eq!(memory["curves"][0]["values"][7], (400 + 14) << 20);
    let processes = chart(&scripts, "Processes");
    let curves = names(processes, "curves");
    assert_eq!((curves.len(), curves.last().map(String::as_str)), (8, Some("5 more")));
    assert!(curves.contains(&"python3 12 worker".to_string()), "{curves:?}");
    let gone = curves.iter().position(|name| name == "python3 12 worker").unwrap();
    let values = &processes["curves"][gone]["values"];
    assert_eq!(
        (&values[59], &values[60], &values[100]),
        (&Value::from(240 << 20), &Value::from(360 << 20), &Value::from(0))
    );
    assert_eq!(chart(&scripts, "Tensors")["unit"], "count");
    assert_eq!(chart(&scripts, "Memory pressure")["curves"][0]["values"][0], 0.025);
}

#[test]
fn restarts_are_gaps_and_attempts() {
    let mut trace = Trace::default();
    for attempt in 0..3_u64 {
        if attempt > 0 {
            trace.push_event(EventKind::Restart, None, None);
        }
        for step in 0..30_u64 {
            let time = (attempt * 40 + step) as f64;
            let mut sample = Sample::default();
            (sample.step, sample.time_s) = (Some(step as f64), Some(time));
            sample.set(Quantity::Rss, (100 + 10 * step) << 20);
            trace.push(&sample);
        }
    }
    let scripts = check(&page_of(&trace, RunFacts::default()));
    // They count the same steps again, so the earlier ones are lines beside the last.
    assert_eq!(names(chart(&scripts, "Memory"), "curves"), ["rss", "attempt 1", "attempt 2"]);
    let attempts = chart(&scripts, "Attempts over time");
    assert_eq!(names(attempts, "curves"), ["attempt 1", "attempt 2", "attempt 3"]);
    assert_eq!(attempts["breaks"], serde_json::json!([30, 60]));
    assert_eq!(names(attempts, "marks"), ["restart", "restart"]);
}

#[test]
fn a_hundred_thousand_samples_stay_small() {
    let trace = trace_of(100_000, |step, sample| {
        let wave = step * 7919 % 65_536;
        for quantity in Quantity::ALL {
            sample.set(quantity, (1 << 30) + step * 1024 + wave * 4096);
        }
    });
    let page = page_of(&trace, RunFacts { steps_per_epoch: Some(1000), ..RunFacts::default() });
    assert!(page.len() < 6 << 20, "{} bytes", page.len());
    println!("{} bytes for 100,000 samples of {} quantities", page.len(), Quantity::ALL.len());
    for chart in check(&page).iter().filter(|script| script["places"].is_array()) {
        assert!(chart["places"].as_array().unwrap().len() <= 2010);
        assert_eq!(chart["samples"], 100_000);
    }
    assert!(page.contains("of 100000 samples"), "the page does not say that it leaves samples out");
}

/// What a training run adds later: its own charts, and examples with what the model made of them.
fn training(report: &mut Report) {
    let curve = |name: &str, role, values: Vec<f64>| Curve { name: name.into(), role, values, tone: Tone::Next };
    report.charts.push(Chart {
        title: format!("Loss {HOSTILE}"),
        unit: Unit::Number,
        axis: Axis { name: "step".into(), ..Axis::default() },
        size: Size::Small,
        places: vec![1.0, 2.0, 3.0, 4.0],
        curves: vec![
            curve("loss", Role::Line, vec![2.5, 1.25, 0.625, 0.5]),
            curve(HOSTILE, Role::Points, vec![f64::NAN, 1.5, f64::NAN, 0.75]),
        ],
        levels: vec![Level { name: "before".into(), value: 2.5, ..Level::default() }],
        marks: vec![Mark { name: HOSTILE.into(), at: 2.0, shape: Shape::Diamond, ..Mark::default() }],
        ..Chart::default()
    });
    let image = |source: &str| {
        Block::Image(Image { source: source.into(), alternative: HOSTILE.into(), caption: HOSTILE.into() })
    };
    let pair = |name: &str, likeness| Pair { name: name.into(), sides: [HOSTILE.into(), "other".into()], likeness };
    let exhibit = Exhibit {
        pictures: vec![Image { source: "https://example.org/track.png".into(), ..Image::default() }],
        word: "wrong".into(),
        news: News::Bad,
        title: HOSTILE.into(),
        question: HOSTILE.into(),
        sides: ["expected".into(), "answer".into()],
        pairs: vec![pair(HOSTILE, Likeness::Same), pair("kind", Likeness::Different)],
    };
    let folded = Block::Folded("All of it".into(), vec![Block::Paragraph("deep inside".into())]);
    let pictures = [image("data:image/png;base64,iVBORw0KGgo="), image("https://example.org/track.png")];
    let body = pictures.into_iter().chain([Block::Exhibits(vec![exhibit]), folded]).collect();
    report.sections.push(Section { title: "Examples".into(), body });
}

#[test]
fn others_add_charts_and_sections_as_data() {
    let case = run2();
    let mut report = case.report();
    training(&mut report);
    let page = html(&report);
    let scripts = check(&page);
    assert_eq!(scripts[0]["curves"][0]["values"], serde_json::json!([2.5, 1.25, 0.625, 0.5]));
    assert_eq!(scripts[0]["curves"][1]["values"][0], Value::Null);
    let words = markup(&page);
    assert!(words.contains("<td>loss</td><td>2.5 at 1</td><td>0.5 at 4</td>"), "{words}");
    assert!(words.contains("<img src=\"data:image/png;base64,iVBORw0KGgo=\" alt=\"&lt;/script&gt;"), "{words}");
    assert_eq!(words.matches("<img").count(), 1, "only embedded pictures are shown");
    assert!(
        !page.contains('\u{202e}') && addresses(&page).iter().all(|at| at.starts_with("http://www.w3.org/2000/svg"))
    );
    assert!(words.contains("<th scope=\"row\">kind</th><td>&lt;/script&gt;"), "{words}");
    assert_eq!(words.matches("<td>≠ <mark>other</mark></td>").count(), 1, "{words}");
    assert!(words.contains("<details><summary>All of it</summary><p>deep inside</p></details>"), "{words}");
    // The other formats tell the same section in words.
    for other in [text(&report, Style::Plain, 100), markdown(&report)] {
        assert!(["Examples", "wrong", "other", "deep inside"].iter().all(|word| other.contains(word)), "{other}");
    }
    assert!(!markdown(&report).contains("<img"));
}

#[test]
fn hostile_words_anywhere_stay_words() {
    let mut case = leak();
    case.diagnosis.summary = HOSTILE.into();
    case.diagnosis.input.notes = vec![HOSTILE.into()];
    case.diagnosis.input.column = Some(HOSTILE.into());
    case.diagnosis.advice = vec![HOSTILE.into()];
    case.origin = vec![(HOSTILE.into(), HOSTILE.into())];
    case.command = Some(HOSTILE);
    let mut report = case.report();
    report.title = HOSTILE.into();
    let page = html(&report);
    let scripts = check(&page);
    assert_eq!(page.matches("harm()</script>").count(), 0);
    // Data is data: the diagnosis is given back as it was.
    assert_eq!(scripts.last().unwrap()["summary"], HOSTILE);
}

/// A page whose every text is the given one.
fn page_saying(words: &str) -> Page {
    let texts = || vec![words.to_string(), words.to_string()];
    let fields = || vec![(words.to_string().into(), words.to_string())];
    let body = vec![
        Block::Paragraph(words.into()),
        Block::Bullets(texts()),
        Block::Numbered(texts()),
        Block::Fields(fields()),
        Block::Table(texts().into_iter().map(Into::into).collect(), vec![texts()]),
        Block::Entries(vec![Entry { title: words.into(), remarks: fields() }]),
        Block::Image(Image { source: words.into(), alternative: words.into(), caption: words.into() }),
    ];
    let chart = Chart {
        title: words.into(),
        note: words.into(),
        axis: Axis { name: words.into(), ..Axis::default() },
        places: vec![1.0, 2.0],
        curves: vec![Curve { name: words.into(), values: vec![1.0, 2.0], ..Curve::default() }],
        bands: vec![Band { name: words.into(), mood: Mood::Rising, from: 1.0, to: 2.0 }],
        ..Chart::default()
    };
    Page {
        subject: words.to_string().into(),
        title: words.into(),
        word: words.into(),
        news: News::Bad,
        summary: words.into(),
        numbers: fields(),
        sections: vec![Section { title: words.to_string().into(), body }],
        charts: vec![chart],
        environment: vec![(words.into(), words.into())],
        notes: texts(),
        json: json_text(&serde_json::json!({ "name": words })),
        command: Some(words.into()),
        version: words.into(),
    }
}

#[test]
fn a_page_of_hostile_words_stays_words() {
    let hostile =
        format!("{HOSTILE}\u{1b}[31mred\u{1b}]0;title\u{7} @you #1 [a](https://example.org) | **b**\n- c\u{9b}2J");
    let page = page_saying(&hostile);
    let written = page.html();
    let scripts = check(&written);
    assert_eq!(written.matches("harm()</script>").count(), 0);
    assert_eq!(scripts.last().unwrap()["name"], hostile.as_str(), "data is data");
    assert!(written.contains("id=\"result\"") && markup(&written).contains("Copy the result as JSON"));
    let told = page.text(Style::Plain, 80);
    assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
    for other in [markup(&written), told, page.markdown()] {
        let is_foul = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{2028}');
        assert!(!other.contains(is_foul), "{other}");
    }
    let painted = page.text(Style::Colour, 80);
    let (all, ends) = (painted.matches('\u{1b}').count(), painted.matches("\u{1b}[0m").count());
    assert!(ends > 0 && all == 2 * ends, "only our own colours: {painted}");
    let tracker = page.markdown();
    for forbidden in ["@you", " #1", "[a](", "<img", "**b**"] {
        // What stands in code is shown and never obeyed.
        let bare: String = tracker.split('`').step_by(2).collect();
        assert!(!bare.contains(forbidden), "{forbidden}: {tracker}");
    }
}

#[test]
fn a_page_needs_nothing_but_its_answer() {
    let page =
        Page { word: "no".into(), summary: "There is nothing.".into(), json: "no JSON".into(), ..Page::default() };
    let written = page.html();
    assert_eq!(check(&written).len(), 0, "text that is no JSON is not passed off as such");
    assert!(!markup(&written).contains("id=\"copy\"") && !markup(&written).contains("<figure"), "{written}");
    assert_eq!(page.text(Style::Plain, 100), "NO  There is nothing.\n");
}
