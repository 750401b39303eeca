//! `model-garden completions` and `model-garden man`: what shells and `man` know, made from the command line's own definition.

use std::fs;
use std::io;

use clap_mangen::Man;

use super::Outcome;
use crate::cli::{self, Cli};
use crate::failure::Failure;
use crate::printer::Printer;

/// What shells call this program.
const NAME: &str = "model-garden";

/// Prints the completions for a shell.
pub fn completions(arguments: &cli::Completions, printer: &Printer) -> Result<Outcome, Failure> {
    let mut written = Vec::new();
    clap_complete::generate(arguments.shell, &mut without_hidden_options(&shown(Cli::whole())), NAME, &mut written);
    // For Bash, clap_complete (up to 4.6.11) writes a program's name with a hyphen in two ways, and then finds no command (clap issue 6421).
    let text = String::from_utf8_lossy(&written).replace("model__subcmd__garden", "model__garden");
    printer.out(&text)?;
    Ok(Outcome::Fine)
}

/// Writes a man page for each command to a folder, or that of the whole program to standard output.
pub fn man(arguments: &cli::Man, printer: &Printer) -> Result<Outcome, Failure> {
    let mut whole = shown(Cli::whole()).disable_help_subcommand(true);
    whole.build();
    let page = |command: clap::Command| -> io::Result<String> {
        let mut written = Vec::new();
        Man::new(command).render(&mut written)?;
        Ok(with_kept_lines(&String::from_utf8_lossy(&written)))
    };
    let failed = |error: io::Error| Failure::new("cannot make the man page", &error, None);
    let Some(folder) = &arguments.folder else {
        printer.out(&page(whole).map_err(failed)?)?;
        return Ok(Outcome::Fine);
    };
    fs::create_dir_all(folder)
        .map_err(|error| Failure::new(format!("cannot make the folder `{}`", folder.display()), &error, None))?;
    let commands: Vec<clap::Command> = whole.get_subcommands().cloned().collect();
    let count = commands.len() + 1;
    for command in commands.into_iter().chain([whole]) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_string();
        printer.write_file(&folder.join(format!("{name}.1")), &page(command).map_err(failed)?)?;
    }
    printer.out(&format!("wrote {count} pages to {}\n", folder.display()))?;
    Ok(Outcome::Fine)
}

/// A page whose tables and examples, which are indented, keep their lines: `man` would fill them like prose. They get a title that says what they are.
fn with_kept_lines(page: &str) -> String {
    let (mut text, mut is_kept) = (String::new(), false);
    for line in page.replace(".SH EXTRA\n", ".SH NOTES\n").lines() {
        let keeps = line.starts_with("  ");
        if keeps != is_kept {
            text += if keeps { ".nf\n" } else { ".fi\n" };
        }
        is_kept = keeps;
        text += line;
        text.push('\n');
    }
    text + if is_kept { ".fi\n" } else { "" }
}

/// The command line without what is hidden, which neither completions nor pages leave out by themselves.
fn shown(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_string()).collect();
    let is_hidden = |name: &str| command.find_subcommand(name).is_some_and(clap::Command::is_hide_set);
    let kept: Vec<clap::Command> = names
        .iter()
        .filter(|name| !is_hidden(name))
        .filter_map(|name| command.find_subcommand(name).cloned())
        .collect();
    let about = command.get_about().cloned().unwrap_or_default();
    let after = command.get_after_help().cloned().unwrap_or_default();
    clap::Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .after_help(after)
        .subcommand_required(true)
        .subcommands(kept)
}

/// The commands with the options that are shown. Shells need no more than their names and values: what options have to do with each other may name
/// hidden ones, and is left out.
fn without_hidden_options(command: &clap::Command) -> clap::Command {
    let bare = |option: &clap::Arg| {
        let mut bare = clap::Arg::new(option.get_id().clone())
            .action(option.get_action().clone())
            .value_parser(option.get_value_parser().clone())
            .value_hint(option.get_value_hint())
            .value_names(option.get_value_names().unwrap_or_default().to_vec())
            .help(option.get_help().cloned().unwrap_or_default())
            .visible_aliases(option.get_visible_aliases().unwrap_or_default().into_iter().map(str::to_string));
        if let Some(name) = option.get_long() {
            bare = bare.long(name.to_string());
        }
        if let Some(letter) = option.get_short() {
            bare = bare.short(letter);
        }
        if let Some(count) = option.get_num_args() {
            bare = bare.num_args(count);
        }
        bare
    };
    let commands = command.get_subcommands().map(|one| {
        clap::Command::new(one.get_name().to_string())
            .about(one.get_about().cloned().unwrap_or_default())
            .visible_aliases(one.get_visible_aliases().map(str::to_string))
            .args(one.get_arguments().filter(|option| !option.is_hide_set()).map(bare))
    });
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new(NAME).version(env!("CARGO_PKG_VERSION")).about(about).subcommands(commands)
}
