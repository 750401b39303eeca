//! Arguments of the commands about this machine and this program: `devices`, `doctor`, `completions` and `man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::Shell;

use super::Printed;

/// Arguments of `model-garden devices`.
#[derive(Debug, Args)]
pub struct Devices {
    #[command(flatten)]
    pub printed: Printed,
}

pub const DOCTOR_HELP: &str = "\
Changes nothing. A problem comes with what would not work because of it, and with the fix. Notes are about what was not asked for, or works less well.
Without a purpose, training and watching must work: a machine without GPU or Python is fine. Python is asked in a process of its own, with a time limit.

Purposes:
  train         fine-tune, on the GPU if there is one, else on the CPU
  gpu           the same, and there must be a GPU
  monitor       watch programs
  python        bisect, audit and the Trainer callback: needs Python with our package

Exit codes: 0 all of that works here; 1 something does not; 2 invalid arguments.

Examples:
  model-garden doctor
  model-garden doctor gpu
  model-garden doctor python --python .venv/bin/python
  model-garden doctor --format json";

/// Arguments of `model-garden doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// What must work here [default: train monitor].
    #[arg(value_enum, value_name = "PURPOSE")]
    pub purposes: Vec<Purpose>,

    /// Python to ask for its packages [default: from $VIRTUAL_ENV, else next to this program, else python3].
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,

    /// Also measure how long a step of that model takes here; takes some seconds.
    #[arg(long)]
    pub step_time: bool,

    #[command(flatten)]
    pub printed: Printed,
}

/// What somebody wants to do here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Purpose {
    Train,
    Gpu,
    Monitor,
    Python,
}

pub const COMPLETIONS_HELP: &str = "\
Bash needs its package bash-completion, or `source` of the file; zsh needs `fpath+=~/.zfunc` before `compinit` in ~/.zshrc. A new shell has them.

Examples:
  mkdir -p ~/.local/share/bash-completion/completions
  model-garden completions bash \\
      > ~/.local/share/bash-completion/completions/model-garden
  mkdir -p ~/.zfunc && model-garden completions zsh > ~/.zfunc/_model-garden
  mkdir -p ~/.config/fish/completions
  model-garden completions fish > ~/.config/fish/completions/model-garden.fish";

/// Arguments of `model-garden completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

pub const MAN_HELP: &str = "\
Examples:
  model-garden man ~/.local/share/man/man1     # then: man model-garden
  model-garden man | man -l -";

/// Arguments of `model-garden man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Folder to write a page for each command to; without it, the page of the whole program goes to standard output.
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}
