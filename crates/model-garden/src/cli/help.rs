//! The first page of the help: commands by what somebody wants to do. And what clap suggests to somebody who mistypes, without what is hidden.

use std::fmt::Write as _;

use clap::Command;
use clap::builder::{StyledStr, Styles};
use clap::error::{ContextKind, ContextValue};

/// Commands by job, in the order in which somebody meets them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Look at the memory of any program", &["monitor", "diagnose", "compare", "bisect", "audit"]),
    ("Guard a run", &["run"]),
    ("Train a vision-language model", &["demo", "check", "preview", "plan", "train-vision", "report", "bench"]),
    ("Use the result", &["generate", "chat", "export", "quantise", "serve"]),
    ("This machine and this program", &["doctor", "devices", "completions", "man"]),
];

const EXAMPLES: &str = "\
Examples:
  model-garden monitor python train.py          # does its memory leak?
  model-garden demo                             # a whole fine-tune in a minute
  model-garden plan --shape qwen2.5-vl-3b --image 1024x1024     # will it fit?

`model-garden COMMAND --help` has the options, the exit codes and more examples.";

/// The command line with its commands in groups.
pub(super) fn grouped(command: Command) -> Command {
    let styles = Styles::styled();
    let (header, literal) = (*styles.get_header(), *styles.get_literal());
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{header}{title}:{header:#}");
        for name in names {
            let found = command.find_subcommand(name);
            let about = found.and_then(Command::get_about).map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{name:<12}{literal:#}  {about}");
        }
        text.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    command.help_template(template).after_help(EXAMPLES)
}

/// An error that suggests nothing that is hidden, neither a command nor an option, and no option that only begins like what was given.
pub(super) fn with_fair_suggestions(mut error: clap::Error, command: &Command) -> clap::Error {
    let hidden = |name: &str| {
        let is_command = |command: &Command| command.is_hide_set() && command.get_name() == name;
        let name = name.trim_start_matches('-');
        let has_option = |command: &Command| {
            command.get_arguments().any(|option| option.is_hide_set() && option.get_long() == Some(name))
        };
        command.get_subcommands().any(|command| is_command(command) || has_option(command))
    };
    let given = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(given)) => given.clone(),
        _ => String::new(),
    };
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
        let names = match error.get(kind) {
            Some(ContextValue::String(name)) => vec![name.clone()],
            Some(ContextValue::Strings(names)) => names.clone(),
            _ => continue,
        };
        let is_near = |name: &str| kind == ContextKind::SuggestedSubcommand || garden_train::is_near(&given, name);
        let kept: Vec<String> = names.iter().filter(|name| !hidden(name) && is_near(name)).cloned().collect();
        if kept.is_empty() {
            error.remove(kind);
            // It has the option that was suggested.
            if let Some(usage) = usage_of_given(command) {
                error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
            }
        } else if kept.len() < names.len() {
            error.insert(kind, ContextValue::Strings(kept));
        }
    }
    error
}

/// The usage of the command on the command line.
fn usage_of_given(command: &Command) -> Option<StyledStr> {
    let mut command = command.clone();
    command.build();
    let mut words = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
    let name = words.find(|word| command.find_subcommand(word).is_some())?;
    Some(command.find_subcommand_mut(name)?.render_usage())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    /// Commands that are shown.
    fn shown(command: &Command) -> impl Iterator<Item = &Command> {
        command.get_subcommands().filter(|command| !command.is_hide_set())
    }

    #[test]
    fn every_command_is_in_one_group_and_has_one_line() {
        let command = Cli::whole();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut names: Vec<&str> = shown(&command).map(Command::get_name).collect();
        grouped.sort_unstable();
        names.sort_unstable();
        assert_eq!(grouped, names);
        for line in command.clone().render_help().to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    /// Lines of the examples in a help text, those that go on in the next line as one.
    fn examples(help: &str) -> Vec<String> {
        let after = help.split("Examples:\n").nth(1).unwrap_or_default();
        let lines = after.lines().take_while(|line| line.starts_with("  "));
        let mut examples: Vec<String> = Vec::new();
        for line in lines {
            match examples.last_mut().filter(|last| last.ends_with('\\')) {
                Some(last) => *last = format!("{} {}", last.trim_end_matches('\\').trim_end(), line.trim()),
                None => examples.push(line.trim().to_string()),
            }
        }
        examples
    }

    /// The words of a command in a shell, without its comment and up to where its output goes.
    fn words(example: &str) -> Vec<String> {
        let (mut words, mut is_quoted) = (vec![String::new()], false);
        for letter in example.chars() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                _ => words.last_mut().unwrap().push(letter),
            }
        }
        words.retain(|word| !word.is_empty());
        words.into_iter().take_while(|word| !["#", ">", "|"].contains(&word.as_str())).collect()
    }

    /// Each example is understood as it is shown, and no terminal of 80 columns breaks it in two.
    #[test]
    fn every_example_can_be_pasted() {
        let command = Cli::whole();
        let mut count = 0;
        for shown in std::iter::once(&command).chain(shown(&command)) {
            let name = shown.get_name();
            let at = |columns: usize| {
                let wide = shown.clone().max_term_width(columns).term_width(columns);
                examples(&wide.clone().render_long_help().to_string())
            };
            let all = at(1000);
            assert!(!all.is_empty() || name == "devices", "{name} has no example");
            // What a terminal breaks in two is pasted as two commands.
            assert!(at(80) == all || name == "serve", "{name}: {:#?}", at(80));
            for example in all {
                let Some((_, ours)) = example.split_once("model-garden ") else { continue };
                let read = Cli::whole().try_get_matches_from(words(&format!("model-garden {ours}")));
                assert!(read.is_ok(), "{name}: `{example}`: {}", read.unwrap_err());
                count += 1;
            }
        }
        assert!(count >= 40, "only {count} examples were found");
    }
}
