//! `model-garden quantise`: write a checkpoint anew with weights of 4 bits.

use std::io::IsTerminal;
use std::path::PathBuf;

use garden_memory::Bytes;
use garden_model::{FourBit, pack_checkpoint};
use serde_json::json;

use super::Outcome;
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;

/// Runs the command.
pub fn run(arguments: &cli::Quantise, printer: &Printer) -> Result<Outcome, Failure> {
    let (from, to) = folders(arguments)?;
    super::check_apart(&to, &from, None)?;
    let mut settings = FourBit { is_double: !arguments.single, ..FourBit::default() };
    if !arguments.keep.is_empty() {
        settings.kept = Some(arguments.keep.clone());
    }
    let is_watched = std::io::stderr().is_terminal();
    let mut told = 0;
    let mut progress = |done: usize, total: usize| {
        let percent = 100 * done / total.max(1);
        if is_watched && percent >= told + 5 {
            told = percent;
            printer.say(&format!("model-garden: {percent} % of {total} tensors"));
        }
    };
    let report = pack_checkpoint(&from, &to, &settings, &mut progress)
        .map_err(|error| Failure::of(format!("cannot pack `{}` into 4 bits", from.display()), &error))?;
    let (before, after) = (Bytes(report.bytes_before), Bytes(report.bytes_after));
    let text = match arguments.printed.is_json() {
        true => {
            let told = json!({
                "from": from,
                "to": to,
                "packed_weights": report.packed,
                "bytes_before": report.bytes_before,
                "bytes_after": report.bytes_after,
                "kept": report.kept,
                "has_double_scales": settings.is_double,
            });
            format!("{told:#}\n")
        }
        false => format!(
            "packed {} weights of `{}` into 4 bits: {before} became {after} in `{}`\n",
            report.packed,
            from.display(),
            to.display()
        ),
    };
    printer.out(&text)?;
    Ok(Outcome::Fine)
}

/// The model's folder and the new one, by their options or, as before there were these, one after the other.
fn folders(arguments: &cli::Quantise) -> Result<(PathBuf, PathBuf), Failure> {
    let (from, to) = match (&arguments.model, &arguments.output_dir, arguments.folders.as_slice()) {
        (Some(from), Some(to), _) | (_, _, [from, to, ..]) => (from, to),
        // The command line asks for both.
        _ => return Err(Failure { what: "no folders".into(), causes: Vec::new(), hint: None }),
    };
    Ok((super::folder_of(from)?, to.clone()))
}
