//! Python behaviour that templates expect: its formatting of JSON, values and dates, errors, methods, and a tag of Hugging Face's.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::bounded;
use super::budget::{self, Text};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The syntax configured by Hugging Face.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// An environment configured like Hugging Face's.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    bounded::set_up(&mut environment);
    environment.set_formatter(|out, _, value| {
        let text = text_of(value)?;
        budget::made(text.len() as u64)?;
        Ok(out.write_str(&text)?)
    });
    environment.add_filter("string", |value: Value| text_of(&value).map(Cow::into_owned));
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| date(format, SystemTime::now()));
    environment
}

/// `{% generation %}` marks answers for training and prints nothing itself; it is replaced by an `if` that is always true.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}").map(|length| length + 2) else { break };
        let (before, tag) = (&rest[..start], &rest[start..start + length]);
        let name = tag.trim_matches(['{', '%', '}', '-', '+', ' ', '\n', '\t']);
        result.push_str(before);
        match name {
            "generation" => result.push_str(&tag.replace(name, "if true")),
            "endgeneration" => result.push_str(&tag.replace(name, "endif")),
            _ => result.push_str(tag),
        }
        rest = &rest[start + length..];
    }
    result + rest
}

/// Maximum characters shown of an error raised by a template.
const LONGEST_MESSAGE: usize = 300;

fn raise_exception(message: String) -> Result<Value, Error> {
    let mut shown: String = message.chars().take(LONGEST_MESSAGE).collect();
    if shown.len() < message.len() {
        shown.push('…');
    }
    Err(Error::new(ErrorKind::InvalidOperation, shown))
}

/// `json.dumps` as templates call it: a blank after commas and colons, non-ASCII letters unescaped.
fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let style = Style {
        indent,
        comma: separators.as_ref().and_then(|pair| pair.first().cloned()),
        colon: separators.as_ref().and_then(|pair| pair.get(1).cloned()),
        is_sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        is_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut text = Text::default();
    style.write(&value, 0, &mut text)?;
    Ok(text.finish())
}

/// JSON formatting options.
struct Style {
    indent: Option<usize>,
    comma: Option<String>,
    colon: Option<String>,
    is_sorted: bool,
    is_ascii: bool,
}

impl Style {
    fn write(&self, value: &Value, depth: usize, text: &mut Text) -> Result<(), Error> {
        budget::too_deep(depth)?;
        match value.kind() {
            ValueKind::None => text.push("null"),
            ValueKind::Bool => text.push(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => text.push(&number(value, ["NaN", "Infinity", "-Infinity"])),
            ValueKind::String => text.push(&self.quoted(value.as_str().unwrap_or_default())),
            ValueKind::Seq | ValueKind::Iterable => {
                self.group(["[", "]"], value, depth, text, |item, text| self.write(&item, depth + 1, text))
            }
            ValueKind::Map => self.group(["{", "}"], value, depth, text, |key, text| {
                text.push(&self.quoted(&text_of(&key)?))?;
                text.push(self.colon.as_deref().unwrap_or(": "))?;
                self.write(&value.get_item(&key)?, depth + 1, text)
            }),
            kind => Err(Error::new(ErrorKind::BadSerialization, format!("{kind} cannot be written as JSON"))),
        }
    }

    fn group(
        &self,
        [open, close]: [&str; 2],
        value: &Value,
        depth: usize,
        text: &mut Text,
        write: impl Fn(Value, &mut Text) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut items = Vec::new();
        for item in value.try_iter()? {
            budget::listed(1)?;
            items.push(item);
        }
        if self.is_sorted && value.kind() == ValueKind::Map {
            items.sort();
        }
        let line = |text: &mut Text, depth: usize| match self.indent {
            Some(indent) => {
                text.push("\n")?;
                text.blanks(indent.saturating_mul(depth))
            }
            None => Ok(()),
        };
        let comma = self.comma.as_deref().unwrap_or(if self.indent.is_some() { "," } else { ", " });
        let is_empty = items.is_empty();
        text.push(open)?;
        for (index, item) in items.into_iter().enumerate() {
            text.push(if index > 0 { comma } else { "" })?;
            line(text, depth + 1)?;
            write(item, text)?;
        }
        if !is_empty {
            line(text, depth)?;
        }
        text.push(close)
    }

    fn quoted(&self, words: &str) -> String {
        let quoted = serde_json::Value::from(words).to_string();
        if !self.is_ascii || quoted.is_ascii() {
            return quoted;
        }
        let mut text = String::new();
        for character in quoted.chars() {
            if character.is_ascii() {
                text.push(character);
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
        text
    }
}

/// Python's `str` of a value.
pub(super) fn text_of(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Cow::Borrowed("")),
        ValueKind::String => Ok(Cow::Borrowed(value.as_str().unwrap_or_default())),
        _ => {
            let mut text = Text::default();
            represent(value, 0, &mut text)?;
            Ok(Cow::Owned(text.finish()))
        }
    }
}

/// Writes Python's `repr` of a value.
fn represent(value: &Value, depth: usize, text: &mut Text) -> Result<(), Error> {
    budget::too_deep(depth)?;
    match value.kind() {
        ValueKind::Bool => text.push(if value.is_true() { "True" } else { "False" }),
        ValueKind::None => text.push("None"),
        ValueKind::Number => text.push(&number(value, ["nan", "inf", "-inf"])),
        ValueKind::String => text.push(&quoted(value.as_str().unwrap_or_default())),
        ValueKind::Seq => {
            text.push("[")?;
            for (index, item) in value.try_iter()?.enumerate() {
                text.push(if index > 0 { ", " } else { "" })?;
                represent(&item, depth + 1, text)?;
            }
            text.push("]")
        }
        ValueKind::Map => {
            text.push("{")?;
            for (index, key) in value.try_iter()?.enumerate() {
                text.push(if index > 0 { ", " } else { "" })?;
                represent(&key, depth + 1, text)?;
                text.push(": ")?;
                represent(&value.get_item(&key)?, depth + 1, text)?;
            }
            text.push("}")
        }
        _ => {
            budget::weigh(value)?;
            text.push(&value.to_string())
        }
    }
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut result = String::from(quote);
    for character in text.chars() {
        match character {
            '\\' => result += "\\\\",
            '\n' => result += "\\n",
            '\r' => result += "\\r",
            '\t' => result += "\\t",
            one if one == quote => result.extend(['\\', one]),
            one if (one as u32) < 0x20 || one as u32 == 0x7f => result += &format!("\\x{:02x}", one as u32),
            one => result.push(one),
        }
    }
    result.push(quote);
    result
}

/// A number as Python prints it: the shortest digits, and an exponent below 1e-4 and from 1e16 on.
fn number(value: &Value, [not_a_number, infinite, negative]: [&str; 3]) -> String {
    let real = match f64::try_from(value.clone()) {
        Ok(real) if !value.is_integer() => real,
        _ => return value.to_string(),
    };
    if !real.is_finite() {
        return if real.is_nan() {
            not_a_number
        } else if real > 0.0 {
            infinite
        } else {
            negative
        }
        .to_string();
    }
    let scientific = format!("{real:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ -4..16 => {
            let text = real.to_string();
            if exponent < 0 || text.contains('.') { text } else { text + ".0" }
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

/// A date formatted as in `strftime`, in UTC; the local time zone is not known here.
fn date(format: &str, now: SystemTime) -> Result<String, Error> {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[((days + 3) % 7) as usize];
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let code = characters.next().unwrap_or('%');
        text += &match code {
            'Y' => year.to_string(),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'B' => month_name.to_string(),
            'b' => month_name[..3].to_string(),
            'A' => day_name.to_string(),
            'a' => day_name[..3].to_string(),
            'H' => format!("{:02}", time / 3600),
            'M' => format!("{:02}", time / 60 % 60),
            'S' => format!("{:02}", time % 60),
            '%' => "%".to_string(),
            other => {
                let problem = format!("strftime_now does not know `%{other}`");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        };
    }
    Ok(text)
}

/// Year, month and day from days since 1970 (Howard Hinnant's `civil_from_days`, for nonnegative days).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn render(source: &str) -> String {
        let compiled = bounded::Compiled::new(&without_generation_tags(source), &syntax().unwrap()).unwrap();
        let rendered = compiled.render(&environment(), Value::from(()));
        rendered.unwrap_or_else(|error| format!("error: {error}"))
    }

    #[test]
    fn templates_see_what_they_see_in_python() {
        let check = |source: &str, expected: &str| assert_eq!(render(source), expected, "{source}");
        check("{{ {'a': [1, 2.5, none, true], 'ä': '<'} | tojson }}", r#"{"a": [1, 2.5, null, true], "ä": "<"}"#);
        check(
            "{{ [1.0, 0.0, -2.5, 1e16, 1.5e-7, 0.0001, 1e15, 123456789.125] | tojson }}",
            "[1.0, 0.0, -2.5, 1e+16, 1.5e-07, 0.0001, 1000000000000000.0, 123456789.125]",
        );
        check(
            "{{ {'b': 1, 'a': 'ä\\n'} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
            r#"{"a":"\u00e4\n","b":1}"#,
        );
        check(
            "{{ {'a': [], 'b': [1, {}]} | tojson(indent=2) }}",
            "{\n  \"a\": [],\n  \"b\": [\n    1,\n    {}\n  ]\n}",
        );
        check(
            "{{ {'a': [1, 2.0, none, true], 'b': \"it's\"} }}{{ 1e22 }}{{ true | string }}",
            "{'a': [1, 2.0, None, True], 'b': \"it's\"}1e+22True",
        );
        check("{{ ' a b '.strip().split(' ')[0] }}{{ 'x'.startswith('x') }}{{ none }}", "aTrueNone");
        check("{%- generation -%} x {%- endgeneration %}y", "xy");
        check("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01");
        check("{{ raise_exception('no tools') }}", "error: invalid operation: no tools (in chat_template:1)");
        check("  {% if true %}\nx\n  {% endif %}\ny", "x\ny");
    }

    #[test]
    fn dates_are_civil() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(
            date("%A %d %B %Y, %b %H:%M:%S %%", at(951_827_696)).unwrap(),
            "Tuesday 29 February 2000, Feb 12:34:56 %"
        );
        assert_eq!(date("%Y-%m-%d %a", at(0)).unwrap(), "1970-01-01 Thu");
        assert!(date("%Q", at(0)).is_err());
    }
}
