//! The `model-garden` binary: flags in, one command run, one exit code out.

mod cli;
mod commands;
mod demo;
mod failure;
mod guarding;
mod judging;
mod printer;
mod show;
mod traces;
mod view;

use std::process::ExitCode;

use cli::{Cli, Command};
use printer::Printer;

fn main() -> ExitCode {
    let printer = Printer::new();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(problem) if problem.use_stderr() => {
            printer.say(problem.render().to_string().trim_end());
            return ExitCode::from(2);
        }
        // Help, which nothing from outside is in.
        Err(help) => help.exit(),
    };
    let outcome = match &cli.command {
        Command::Audit(arguments) => commands::audit::run(arguments, &printer),
        Command::Compare(arguments) => commands::compare::run(arguments, &printer),
        Command::Diagnose(arguments) => commands::diagnose::run(arguments, &printer),
        Command::Monitor(arguments) => commands::monitor::run(arguments, &printer),
        Command::Report(arguments) => commands::report::run(arguments, &printer),
        Command::Run(arguments) => commands::run::run(arguments, &printer),
        Command::Serve(arguments) => commands::serve::run(arguments),
        Command::ServeJob(arguments) => commands::serve::job::run(arguments, &printer),
        Command::ServeTool(arguments) => commands::serve::tool::run(arguments, &printer),
        Command::Bench(arguments) => commands::bench::run(arguments, &printer),
        Command::Bisect(arguments) => commands::bisect::run(arguments, &printer),
        Command::Devices(arguments) => commands::devices::run(arguments, &printer),
        Command::Doctor(arguments) => commands::doctor::run(arguments, &printer),
        Command::Completions(arguments) => commands::definition::completions(arguments, &printer),
        Command::Man(arguments) => commands::definition::man(arguments, &printer),
        Command::Demo(arguments) => commands::demo::run(arguments, &printer),
        Command::Check(arguments) => commands::check::run(arguments, &printer),
        Command::Plan(arguments) => commands::plan::run(arguments, &printer),
        Command::Chat(arguments) => commands::chat::run(arguments, &printer),
        Command::Generate(arguments) => commands::generate::run(arguments, &printer),
        Command::Preview(arguments) => commands::preview::run(arguments, &printer),
        Command::Quantise(arguments) => commands::quantise::run(arguments, &printer),
        Command::TrainVision(arguments) => commands::train::run(arguments, &printer),
        Command::TrainWorker(arguments) => commands::train::worker::run(arguments, &printer),
        Command::Export(arguments) => commands::export::run(arguments, &printer),
    };
    match outcome {
        Ok(outcome) => ExitCode::from(outcome.code()),
        Err(failure) => {
            printer.failure(&failure);
            ExitCode::from(2)
        }
    }
}
