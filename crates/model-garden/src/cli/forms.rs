//! How answers are printed.

use clap::{Args, ValueEnum};

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For the terminal.
    Text,
    /// For scripts: the stable contract described in docs/json.md.
    Json,
    /// For a bug tracker.
    Markdown,
    /// For a browser: one file with charts that works offline.
    Html,
}

impl Format {
    /// What it is called on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }
}

/// The form of an answer that is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For the terminal.
    Text,
    /// For scripts.
    Json,
}

/// How a command prints its answer.
#[derive(Clone, Copy, Debug, Args)]
pub struct Printed {
    /// Output format.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,

    /// The older way to say `--format json`.
    #[arg(long, hide = true)]
    json: bool,
}

impl Printed {
    pub fn is_json(self) -> bool {
        self.json || self.format == Form::Json
    }
}
