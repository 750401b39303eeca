//! `model-garden serve-tool`: `diagnose` and `check` for clients of the API. What is refused is told as a type, and all of it in the API's own names.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use clap::Parser as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use garden_report::Style;
use garden_server::{NO_EPOCHS, TRACE_FACTS, ToolRefusal};
use serde_json::Value;

use super::job::hidden::Hidden;
use crate::cli::{self, Cli, Command};
use crate::commands::{Outcome, check, diagnose};
use crate::failure::Failure;
use crate::judging::{judge_series, outcome, render, title};
use crate::printer::{MOST_COLUMNS, Printer};

/// Runs the command.
pub fn run(arguments: &cli::ServeTool, printer: &Printer) -> Result<Outcome, Failure> {
    let words = [OsString::from("model-garden")].into_iter().chain(arguments.words.iter().cloned());
    let told = match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Diagnose(arguments) }) => judge(&arguments),
        Ok(Cli { command: Command::Check(arguments) }) => look(&arguments, printer),
        Ok(_) => Err(ToolRefusal { param: None, message: "this is not asked for others".into() }),
        Err(problem) => Err(wrong_value(&problem)),
    };
    match told {
        Ok((text, outcome)) => {
            printer.out(&text)?;
            Ok(outcome)
        }
        Err(refusal) => {
            let text = serde_json::to_string(&refusal);
            printer.say(&text.map_err(|error| Failure::new("cannot say what is wrong", &error, None))?);
            Ok(Outcome::Program(2))
        }
    }
}

type Told = Result<(String, Outcome), ToolRefusal>;

/// Judges the trace at standard input.
fn judge(arguments: &cli::Diagnose) -> Told {
    let read = garden_trace::read_all(io::stdin().lock(), &diagnose::options(arguments)).map_err(|error| {
        let hint = error.hint().map_or_else(String::new, |hint| format!("; {hint}"));
        let message = in_names_of_api(&format!("the trace cannot be judged: {error}{hint}"));
        ToolRefusal { param: error.setting().map(str::to_string), message }
    })?;
    let Some(judged) = judge_series(read, &diagnose::question(arguments)) else {
        return Ok((String::new(), Outcome::NotEnoughData));
    };
    let text = render(&judged, &title(&arguments.trace), arguments.format, Style::Plain, MOST_COLUMNS, Vec::new());
    let text = match serde_json::from_str(&text) {
        Ok(value) if arguments.format == cli::Format::Json => format!("{:#}\n", told(value, &in_names_of_api)),
        _ => text,
    };
    Ok((text, outcome(&judged)))
}

/// Looks at rows that a client has sent, which have a folder of their own.
fn look(arguments: &cli::Check, printer: &Printer) -> Told {
    let rows = arguments.datasets.first().and_then(|path| path.parent()).unwrap_or(Path::new(""));
    let (rows, base) = (format!("{}/", rows.display()), arguments.model.display().to_string());
    let name = arguments.model.file_name().map(|name| name.display().to_string()).unwrap_or_default();
    let hidden = Hidden::these(vec![(rows, String::new()), (base, name)]);
    let refusal = |param: &str, failure: Failure| {
        let text = [vec![failure.what], failure.causes].concat().join(": ");
        let hint = failure.hint.map_or_else(String::new, |hint| format!("; {hint}"));
        ToolRefusal { param: Some(param.into()), message: hidden.text(&format!("{text}{hint}")) }
    };
    let recipe = check::recipe(arguments).map_err(|error| {
        let hint = error.hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
        ToolRefusal { param: Some(error.name.replace('-', "_")), message: hidden.text(&format!("{error}{hint}")) }
    })?;
    let model = check::open_model(arguments, &recipe).map_err(|failure| refusal("model", failure))?;
    let (text, outcome) =
        check::look(arguments, &recipe, model, printer).map_err(|failure| refusal("training_file", failure))?;
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok((format!("{:#}\n", told(value, &|text| hidden.text(text))), outcome))
}

/// Each text of a value in other words; command lines of others stay what they are.
fn told(value: Value, words: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(words(&text)),
        Value::Array(items) => items.into_iter().map(|item| told(item, words)).collect(),
        Value::Object(fields) => {
            let each = |(name, value): (String, Value)| match name.as_str() {
                "command" => (name, value),
                _ => (name, told(value, words)),
            };
            fields.into_iter().map(each).collect()
        }
        other => other,
    }
}

/// A text in which flags are parameters of a query: `--unit mib` is `unit=mib`.
fn in_names_of_api(text: &str) -> String {
    let names = TRACE_FACTS.iter().map(|(name, _)| *name).chain([NO_EPOCHS]);
    names.fold(text.to_string(), |text, name| {
        let flag = name.replace('_', "-");
        text.replace(&format!("`--{flag} "), &format!("`{name}=")).replace(&format!("--{flag}"), name)
    })
}

/// A parameter that cannot be what it is.
fn wrong_value(problem: &clap::Error) -> ToolRefusal {
    let text = |kind| match problem.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    // Such as `--unit <UNIT>`.
    let parameter = |kind| {
        let flag = text(kind).and_then(|arg| arg.split(' ').next().map(str::to_string));
        flag.map(|flag| flag.trim_start_matches('-').replace('-', "_"))
    };
    let param = parameter(ContextKind::InvalidArg);
    let name = param.as_deref().unwrap_or("a parameter");
    let other = parameter(ContextKind::PriorArg);
    match (problem.kind(), other) {
        (ErrorKind::MissingRequiredArgument, _) => {
            return ToolRefusal { message: format!("`{name}` is missing, which another parameter needs"), param };
        }
        (ErrorKind::ArgumentConflict, Some(other)) => {
            return ToolRefusal { message: format!("`{name}` and `{other}` cannot both be sent"), param };
        }
        _ => {}
    }
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    let why = match (std::error::Error::source(problem), text(ContextKind::ValidValue)) {
        (Some(why), _) => format!(": {why}"),
        (None, Some(known)) => format!(": it has to be one of {known}"),
        (None, None) => String::new(),
    };
    ToolRefusal { message: format!("`{name}` cannot be `{value}`{why}"), param }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_parameters_and_those_of_others_stay() {
        let text = "select it with `--column NAME`, or pass --steps-per-epoch; `nvidia-smi --query-gpu=x`";
        let named = "select it with `column=NAME`, or pass steps_per_epoch; `nvidia-smi --query-gpu=x`";
        assert_eq!(in_names_of_api(text), named);
        let value = serde_json::json!({"note": "`--unit` overrides", "processes": [{"command": "a --unit b"}]});
        let expected = serde_json::json!({"note": "`unit` overrides", "processes": [{"command": "a --unit b"}]});
        assert_eq!(told(value, &in_names_of_api), expected);
    }
}
