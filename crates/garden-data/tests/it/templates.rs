//! Chat templates are code from outside: none of them may take the machine's memory, its stack or its time, and usual ones must not notice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use garden_data::{Chat, Ending, Message, Processor, TemplateFile};

/// What a rendering may take at most; the budget of templates allows a small part of it.
const LONGEST: Duration = Duration::from_secs(20);
const MOST_BYTES: u64 = 1 << 30;

fn render(source: &str) -> Result<String, String> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny-model");
    let template = TemplateFile { path: PathBuf::from("t.jinja"), source: source.to_string() };
    let processor = Processor::open_with(&model, Some(&template)).map_err(|error| error.to_string())?;
    let messages = [Message::text("user", "Hello"), Message::text("assistant", "Good morning")];
    processor.template.render(Chat::of(&messages), Ending::Nothing).map_err(|error| error.to_string())
}

fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Turns a value `count` times into something larger and then uses it.
fn grown(start: &str, step: &str, count: usize, usage: &str) -> String {
    format!(
        "{{% set n = namespace(x={start}) %}}{{% for i in range({count}) %}}{{% set n.x = {step} %}}{{% endfor %}}{usage}"
    )
}

fn hostile() -> Vec<String> {
    let million = "{% set s = 'ab' * 500000 %}";
    let many = |one: &str, count: usize| one.repeat(count);
    vec![
        // Nested as deep as the text is long.
        format!("{{{{ 1{} }}}}", many("+1", 200_000)),
        format!("{{{{ {}1 }}}}", many("-", 200_000)),
        format!("{{{{ {}1 }}}}", many("not ", 200_000)),
        format!("{{{{ 1{} }}}}", many("|string", 200_000)),
        format!("{{{{ a{} }}}}", many(".b", 200_000)),
        format!("{{{{ 1{} }}}}", many("+1", 16_000)),
        format!("{{{{ {}1 }}}}", many("-", 32_000)),
        format!("{{{{ 1{} }}}}", many("|string", 16_000)),
        format!("{{{{ a{} }}}}", many("[0]", 200_000)),
        format!("{{{{ a{} }}}}", many("()", 200_000)),
        format!("{{{{ {}1{} }}}}", many("[", 100_000), many("]", 100_000)),
        format!("{{{{ 1{} }}}}", many(" if 1 else 1", 100_000)),
        format!("{{% if 1 %}}{}{{% endif %}}", many("{% elif 1 %}", 100_000)),
        format!("{}{}", many("{% if 1 %}", 100_000), many("{% endif %}", 100_000)),
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".into(),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}".into(),
        "{% block a %}{{ self.a() }}{% endblock %}".into(),
        "{% include 'chat_template' %}".into(),
        grown("1", "[n.x]", 100_000, "{{ n.x }}"),
        grown("1", "{'a': n.x}", 100_000, "{{ n.x == 1 }}"),
        grown("1", "namespace(x=n.x)", 100_000, "x"),
        grown("[1]", "n.x[0:]", 100_000, "{{ n.x }}"),
        grown("[1]", "n.x|reverse", 100_000, "{{ n.x }}"),
        "{% set n = namespace() %}{% set n.x = n %}{{ n }}{{ n|tojson }}{{ n == n }}".into(),
        "{% set n = namespace() %}{% set n.x = [n] %}{{ n }}".into(),
        "{% for x in [[[]]] recursive %}{{ loop([[x]]) }}{% endfor %}".into(),
        // Doubling.
        grown("'x'", "n.x ~ n.x", 60, "{{ n.x|length }}"),
        grown("'x'", "n.x + n.x", 60, "{{ n.x|length }}"),
        grown("[1]", "n.x + n.x", 60, "{{ n.x|length }}"),
        grown("[1]", "[n.x, n.x]", 60, "{{ n.x|tojson }}"),
        grown("[1]", "[n.x, n.x]", 60, "{{ n.x == n.x }}"),
        grown("[1]", "[n.x, n.x]", 60, "{{ n.x ~ '' }}"),
        grown("[1]", "n.x|chain(n.x)", 60, "{{ n.x|list|length }}"),
        grown("'x'", "n.x|replace('x', 'xx')", 60, "{{ n.x|length }}"),
        grown("'x'", "n.x.replace('x', 'xx')", 60, "{{ n.x|length }}"),
        grown("'x'", "[n.x, n.x]|join", 60, "{{ n.x|length }}"),
        grown("'x'", "'%s%s'|format(n.x, n.x)", 60, "{{ n.x|length }}"),
        grown("'x'", "'{0}{0}'.format(n.x)", 60, "{{ n.x|length }}"),
        "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}".into(),
        // One operation that makes too much.
        format!("{million}{{{{ s|replace('', s)|length }}}}"),
        format!("{million}{{{{ s.replace('a', s)|length }}}}"),
        format!("{million}{{{{ s|replace(s, s)|replace('a', s)|length }}}}"),
        format!("{million}{{{{ s|join(s)|length }}}}"),
        "{{ [range(100000)]|replace('', messages * 999)|length }}".into(),
        format!("{million}{{{{ s|replace('a', messages * 999)|length }}}}"),
        format!("{million}{{{{ s|join(messages * 99999)|length }}}}"),
        format!("{million}{{{{ s|indent(messages * 999)|length }}}}"),
        format!("{million}{{{{ s.join(s)|length }}}}"),
        format!("{million}{{{{ s|replace('a', '\n')|indent(1000000)|length }}}}"),
        "{{ [[[[[[1]]]]]]|tojson(indent=1000000000) }}".into(),
        "{{ '%1000000000d'|format(1) }}".into(),
        "{{ '%*d'|format(1000000000, 1) }}".into(),
        "{{ '{:>1000000000}'.format(1) }}".into(),
        "{{ '{:{}}'.format(1, 1000000000) }}".into(),
        "{{ 'x' * 1000000000000 }}".into(),
        "{{ [1] * 100000000 }}".into(),
        format!("{million}{{{{ s|replace('a', '\n')|indent(width=1000000)|length }}}}"),
        "{{ [1]|batch(1000000000, 1)|list|length }}".into(),
        "{{ [1]|slice(1000000000)|list|length }}".into(),
        "{{ range(100000000000) }}".into(),
        // Little is made, and it takes for ever.
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}".into(),
        format!("{million}{{% for a in range(100000) %}}{{% if 'c' in s %}}x{{% endif %}}{{% endfor %}}"),
        format!("{million}{{% for a in range(100000) %}}{{% if s == s|replace('c', 'd') %}}x{{% endif %}}{{% endfor %}}"),
        format!("{million}{{% for a in range(100000) %}}{{% if s.find('c') %}}{{% endif %}}{{% endfor %}}"),
        format!("{million}{{% for a in range(100000) %}}{{% if s[900000] %}}{{% endif %}}{{% endfor %}}"),
        format!("{million}{{% for a in range(100000) %}}{{% if s[900000:900001] %}}{{% endif %}}{{% endfor %}}"),
        format!("{million}{{% for a in range(100000) %}}{{% if s|length %}}{{% endif %}}{{% endfor %}}"),
        format!("{million}{{% for a in range(100000) %}}{{% for c in s %}}{{% break %}}{{% endfor %}}{{% endfor %}}"),
        format!("{million}{{% for a in range(100000) %}}{{{{ s|map('upper')|list|length }}}}{{% endfor %}}"),
        format!("{million}{{% for a in range(100000) %}}{{{{ s|select('in', s)|list|length }}}}{{% endfor %}}"),
        format!("{million}{{% for a in range(100000) %}}{{{{ s|sort|length }}}}{{% endfor %}}"),
        format!("{{% for a in range(100000) %}}{}{{% endfor %}}", many("text ", 100_000)),
        "{% macro f() %}{% endmacro %}{% for a in range(100000) %}{{ f(*range(100000)) }}{% endfor %}".into(),
        "{{ raise_exception('a' * 10000000) }}".into(),
    ]
}

#[test]
fn hostile_templates_end_soon_and_stay_small() {
    garden_testing::alone("templates::hostile_templates_end_soon_and_stay_small", || {
        for source in hostile() {
            let start = garden_testing::cpu_time();
            let short: String = source.chars().take(150).collect();
            eprintln!("{short}");
            let answer = render(&source);
            let (took, peak) = (garden_testing::cpu_time() - start, peak_bytes());
            eprintln!("  {took:.1?}, {} MiB so far: {answer:?}", peak >> 20);
            match answer {
                // What was a view of a view of a view is small once it is a list.
                Ok(text) => assert!(text.len() < 100, "{short}: {} bytes", text.len()),
                Err(problem) => assert!(problem.len() < 600 && problem.contains("chat template"), "{short}: {problem}"),
            }
            assert!(took < LONGEST, "{short}: {took:?}");
            assert!(peak < MOST_BYTES, "{short}: {peak} bytes");
        }
    });
}

#[test]
fn what_usual_templates_do_is_as_in_jinja2() {
    let check = |source: &str, expected: &str| assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
    // Expected values are those of Jinja2.
    check("{{ 'abcdef'[1:3] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-2:] }} {{ 'abc'[5:] }}", "bc fedcba ef ");
    check(
        "{{ [1, 2, 3, 4][1:] }} {{ [1, 2, 3][::-1] }} {{ [1, 2, 3, 4][3:0:-2] }} {{ [1][9:] }}",
        "[2, 3, 4] [3, 2, 1] [4, 2] []",
    );
    check(
        "{{ (messages[1:]|first).content }}|{{ messages[-1].role }}|{{ messages[::-1][0]['content'] }}",
        "Good morning|assistant|Good morning",
    );
    check("{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 'a' in 'cat' }} {{ 'x' not in ['x'] }}", "True False True False");
    check(
        "{{ true ~ 1 ~ none ~ [1, 'a'] }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 'ab' * 2 }}",
        "True1None[1, 'a'] ab [1, 2] abab",
    );
    check(
        "{% set held = 1 %}{% set ns = namespace(a=1, l=[]) %}{% set ns.l = ns.l + [held] %}{{ ns.l[0] + ns.a }}",
        "2",
    );
    check(
        "{{ messages|map(attribute='role')|join(',') }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
        "user,assistant 1",
    );
    check(
        "{{ ['b', 'a']|sort|join }} {{ [1, 1]|unique|list }} {{ 'a b'.split(' ')[-1] }} {{ 'x'|upper }}",
        "ab [1] b X",
    );
    check("{% for a in [1, 2] if a == 2 %}{{ a }}{{ loop.last }}{% else %}none{% endfor %}", "2True");
    check("{% macro f(a, b=2) %}{{ a + b }}{% endmacro %}{{ f(1) }}{{ f(1, b=1) }}", "32");
    check(
        "{{ 'a' if messages|length == 2 else 'b' }}{{ messages[0].nothing is defined }}{{ (none or 'x') and 'y' }}",
        "aFalsey",
    );
}

#[test]
fn long_conversations_are_rendered() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny-model");
    let source = "{% for m in messages|reverse %}{{ m.content|trim }}{% endfor %}{% for m in messages|list %}{{ m.role ~ ': ' + m.content }}{% endfor %}\
                  {{ messages|selectattr('role', 'eq', 'user')|list|length }}{{ messages[1:]|length }}{{ messages|map(attribute='content')|join|length }}";
    let template = TemplateFile { path: PathBuf::from("t.jinja"), source: source.to_string() };
    let processor = Processor::open_with(&model, Some(&template)).unwrap();
    let words = "Four words of it. ".repeat(100);
    let messages: Vec<Message> =
        (0..1000).map(|number| Message::text(["user", "assistant"][number % 2], &words)).collect();
    let text = processor.template.render(Chat::of(&messages), Ending::Nothing).unwrap();
    assert_eq!(text.len(), 2 * 1_800_000 - 1000 + 500 * (6 + 11) + "5009991800000".len());
}
