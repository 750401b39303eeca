//! What templates expect of Python: its way to write JSON, values and dates, errors, methods, and a tag of Hugging Face's.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Steps that a template may take, far more than a conversation of a million tokens needs.
const FUEL: u64 = 100_000_000;
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

/// An environment set up as Hugging Face's.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, state, value| match (value.kind(), value.is_true()) {
        (ValueKind::Bool, true) => Ok(out.write_str("True")?),
        (ValueKind::Bool, false) => Ok(out.write_str("False")?),
        (ValueKind::None, _) => Ok(out.write_str("None")?),
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| date(format, SystemTime::now()));
    Ok(environment)
}

/// `{% generation %}` marks answers for training and prints nothing itself; an `if` that is always true is the same.
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

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `json.dumps` as templates call it: a blank behind commas and colons, letters as they are.
fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut text = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut text, Spaced)).map_err(failed)?,
        Some(indent) => {
            let blanks = vec![b' '; indent];
            let formatter = PrettyFormatter::with_indent(&blanks);
            value.serialize(&mut Serializer::with_formatter(&mut text, formatter)).map_err(failed)?;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// A date as `strftime` writes it, in universal time; the machine's zone is not known here.
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

/// Year, month and day, from days since 1970 (Howard Hinnant's `civil_from_days`, for days that are not negative).
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
        let mut environment = environment().unwrap();
        environment.add_template_owned("t", without_generation_tags(source)).unwrap();
        environment.get_template("t").unwrap().render(()).unwrap_or_else(|error| format!("error: {error}"))
    }

    #[test]
    fn templates_see_what_they_see_in_python() {
        let check = |source: &str, expected: &str| assert_eq!(render(source), expected, "{source}");
        check("{{ {'a': [1, 2.5, none, true], 'ä': '<'} | tojson }}", r#"{"a": [1, 2.5, null, true], "ä": "<"}"#);
        check("{{ ' a b '.strip().split(' ')[0] }}{{ 'x'.startswith('x') }}{{ none }}", "aTrueNone");
        check("{%- generation -%} x {%- endgeneration %}y", "xy");
        check("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01");
        check("{{ raise_exception('no tools') }}", "error: invalid operation: no tools (in t:1)");
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
