//! `model-garden export`: merge an adapter into its base model, and prove that nothing else happened.

use std::fs;
use std::io::{ErrorKind, IsTerminal};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use garden_device::{Dtype, Purpose};
use garden_input::Family;
use garden_memory::Bytes;
use garden_model::{
    Adapter, Checkpoint, Config, Difference, Error, Merge, MergeProof, MergeReport, MergeSettings, PackedBase,
    plan_proof, prove_merge, read_adapter,
};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Outcome;
use crate::cli::{self, ExportType};
use crate::failure::{Advised, Failure};
use crate::printer::Printer;

/// What a shell calls a program that was ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Runs the command.
pub fn run(arguments: &cli::Export, printer: &Printer) -> Result<Outcome, Failure> {
    let arguments = &cli::Export { model: super::folder_of(&arguments.model)?, ..arguments.clone() };
    super::check_apart(&arguments.output_dir, &arguments.model, Some(&arguments.adapter))?;
    let is_stopped = listen()?;
    let draft = draft(&arguments.output_dir)?;
    let base = Checkpoint::open(&arguments.model).map_err(|error| cannot_use(&arguments.model, &error))?;
    let family = Family::of_folder(&arguments.model);
    let adapter = read_adapter(&arguments.adapter, family).map_err(|error| cannot_use(&arguments.adapter, &error))?;
    let mut notes = look_at(arguments, &base, &adapter)?;
    let merge = Merge::plan(&base, &adapter, settings(arguments)).map_err(|error| cannot_merge(arguments, &error))?;
    if !arguments.no_verify {
        fits(arguments, &base, &adapter, merge.bytes())?;
    }

    if let Some(folder) = draft.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|error| cannot_write(arguments, &error_at(folder, error)))?;
    }
    let is_watched = std::io::stderr().is_terminal();
    let mut told = 0;
    let written = merge.write(&draft, &mut |done, total| {
        let percent = 100 * done / total.max(1);
        if is_watched && percent >= told + 5 {
            told = percent;
            printer.say(&format!("model-garden: {percent} % of {total} tensors"));
        }
        if is_stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let report = match written {
        Err(Error::Stopped) => return Ok(stopped(printer)),
        written => written.map_err(|error| cannot_write(arguments, &error))?,
    };

    if let Some(trained) = super::trained_pictures(Some(&arguments.adapter), family)? {
        // Whoever loads the result shall see pictures as large as the adapter did in training.
        let bounded = trained.bound_files(&draft);
        bounded.map_err(|error| Failure::new("cannot write the image size settings", &error, None))?;
    }
    if let Some(template) = super::chat_template(None, Some(&arguments.adapter))? {
        let written = template.write(&draft);
        written.map_err(|error| Failure::of("cannot write the chat template", &error))?;
    }
    let mut proof = None;
    if !arguments.no_verify {
        if is_watched {
            printer.say("model-garden: comparing the merged model with the base and its adapter");
        }
        let made = prove_merge(&merge, &base, &adapter, &draft, arguments.threads);
        let made = made.map_err(|error| unproven(&draft, error.to_string()))?;
        if !made.is_proven() {
            return Err(unproven(&draft, distrust(&made)));
        }
        notes.extend(made.is_drowned().then(|| drowned(&made)));
        proof = Some(made);
    }
    if is_stopped.load(Ordering::Relaxed) {
        // It was new, so nothing of anybody else is in it.
        drop(fs::remove_dir_all(&draft));
        return Ok(stopped(printer));
    }
    fs::rename(&draft, &arguments.output_dir).map_err(|error| {
        let hint = format!("the complete result is in `{}`: move it by hand", draft.display());
        Failure::new(format!("cannot rename the result to `{}`", arguments.output_dir.display()), &error, Some(hint))
    })?;
    for note in &notes {
        printer.say(&format!("note: {note}"));
    }
    printer.out(&match arguments.printed.is_json() {
        true => format!("{:#}\n", told_as_json(arguments, &report, proof.as_ref(), &notes)),
        false => told_as_text(arguments, &report, proof.as_ref()),
    })?;
    Ok(Outcome::Fine)
}

/// Ctrl-C is asked about between tensors; a second one ends the program at once.
fn listen() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|error| Failure::new("cannot listen for Ctrl-C", &error, None))?;
    }
    Ok(flag)
}

fn stopped(printer: &Printer) -> Outcome {
    printer.say("model-garden: stopped; nothing was kept");
    Outcome::Program(INTERRUPTED)
}

/// The name that the result has until all is well; the folder itself must be free.
fn draft(output: &Path) -> Result<PathBuf, Failure> {
    let refused = |why: String, hint: &str| Failure {
        what: format!("cannot write to `{}`", output.display()),
        causes: vec![why],
        hint: Some(hint.into()),
    };
    match fs::read_dir(output).map(|mut entries| entries.next().is_some()) {
        Ok(true) => {
            return Err(refused("the folder is not empty".into(), "choose a new or empty folder with --output-dir"));
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(refused(error.to_string(), "choose a new folder with --output-dir"));
        }
        _ => {}
    }
    let Some(name) = output.file_name() else {
        return Err(refused("it has no name".into(), "choose a new folder with --output-dir"));
    };
    let mut name = name.to_os_string();
    name.push(".partial");
    let draft = output.with_file_name(name);
    if draft.exists() {
        let why = format!("`{}` already exists: another export is running, or was killed", draft.display());
        return Err(refused(why, "remove it if no export is running"));
    }
    Ok(draft)
}

fn settings(arguments: &cli::Export) -> MergeSettings {
    MergeSettings {
        dtype: match arguments.dtype {
            ExportType::Auto => None,
            ExportType::Bfloat16 => Some(Dtype::Bf16),
            ExportType::Float16 => Some(Dtype::F16),
            ExportType::Float32 => Some(Dtype::F32),
        },
        shard_bytes: arguments.shard_size.0,
        packed: if arguments.dequantise { PackedBase::Unpack } else { PackedBase::Refuse },
        threads: arguments.threads,
    }
}

/// Refuses what would be no use, and notes what somebody should know.
fn look_at(arguments: &cli::Export, base: &Checkpoint, adapter: &Adapter) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    let (changed, idle) = adapter.effect().map_err(|error| cannot_use(&arguments.adapter, &error))?;
    if changed == 0 {
        return Err(Failure {
            what: format!("the adapter `{}` changes nothing", arguments.adapter.display()),
            causes: vec![format!("A or B is zero in all {idle} linear layers, as before the first training step")],
            hint: Some(
                "was it saved before training, or from a model without it? The result would equal the base".into(),
            ),
        });
    }
    if idle > 0 {
        notes.push(format!(
            "the adapter changes nothing in {idle} of its {} linear layers: A or B is zero there",
            changed + idle
        ));
    }
    if let (Some(weight), false) = (base.packed_weight(), arguments.dequantise) {
        return Err(Failure {
            what: format!("`{}` has 4-bit weights", arguments.model.display()),
            causes: vec![format!("`{weight}` is packed: merging onto it would make the packing errors permanent")],
            hint: Some(
                "pass the original 16-bit checkpoint as --model, or --dequantise to merge onto the unpacked 4-bit weights".into(),
            ),
        });
    }
    if let Some(made_for) = adapter.base.as_deref().filter(|name| !is_called(&arguments.model, name)) {
        notes.push(format!(
            "the adapter names `{made_for}` as its base, but is merged onto `{}`",
            arguments.model.display()
        ));
    }
    Ok(notes)
}

/// Whether a folder has the name of a model: paths differ from machine to machine, and the hub's cache writes `models--OWNER--NAME`.
fn is_called(folder: &Path, name: &str) -> bool {
    let last = |path: &str| path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_lowercase();
    let name = last(name);
    let whole = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
    let parts =
        whole.components().chain(folder.components()).map(|part| part.as_os_str().to_string_lossy().to_lowercase());
    name.is_empty() || parts.into_iter().any(|part| part == name || part.ends_with(&format!("--{name}")))
}

/// Refuses a proof that memory has no room for, before anything is written.
fn fits(arguments: &cli::Export, base: &Checkpoint, adapter: &Adapter, bytes: u64) -> Result<(), Failure> {
    let config = Config::read(&arguments.model.join("config.json"));
    let config = config.map_err(|error| cannot_use(&arguments.model, &error))?;
    let plan =
        plan_proof(base, &config, adapter, arguments.threads).map_err(|error| cannot_merge(arguments, &error))?;
    // The base is loaded first and then, in its place, what was written.
    let (total, weights) = (plan.total() as u64, plan.bytes(Purpose::Weights) as u64);
    let needed = total.max(total - weights + bytes);
    let Some(room) = super::headroom().filter(|room| *room < needed) else { return Ok(()) };
    Err(Failure {
        what: format!("verification needs {}, but only {} is free", Bytes(needed), Bytes(room)),
        causes: vec!["it loads the base with its adapter and then the merged model".into()],
        hint: Some("--no-verify skips it and needs only a few megabytes".into()),
    })
}

fn cannot_use(path: &Path, error: &dyn Advised) -> Failure {
    Failure::of(format!("cannot use `{}`", path.display()), error)
}

fn cannot_merge(arguments: &cli::Export, error: &Error) -> Failure {
    Failure::of(format!("cannot merge `{}` into `{}`", arguments.adapter.display(), arguments.model.display()), error)
}

fn error_at(path: &Path, source: std::io::Error) -> Error {
    Error::File { path: path.to_path_buf(), source }
}

/// What stood in the way of writing, of which nothing is left.
fn cannot_write(arguments: &cli::Export, error: &Error) -> Failure {
    let hint = match error {
        Error::File { source, .. } => match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some("the disk is full; nothing was kept"),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                Some("choose a writable folder with --output-dir")
            }
            _ => None,
        },
        Error::TooLarge { .. } => Some("try --dtype bfloat16"),
        _ => None,
    };
    let failure = cannot_merge(arguments, error);
    Failure { hint: hint.map(String::from).or(failure.hint), ..failure }
}

fn unproven(draft: &Path, why: String) -> Failure {
    Failure {
        what: "the merged model differs from the base with its adapter".into(),
        causes: vec![why],
        hint: Some(format!("do not use the result in `{}`", draft.display())),
    }
}

/// Why a proof failed.
fn distrust(proof: &MergeProof) -> String {
    match proof.difference.relative <= proof.explained {
        false => format!(
            "logits differ by {:.1e} of their size; rounding explains {:.1e}, and the adapter changes them by {:.1e}",
            proof.difference.relative, proof.explained, proof.change.relative
        ),
        true => format!(
            "a weight of `{}` is off by {:.2} rounding steps; rounding explains half a step",
            proof.roughest, proof.rounding
        ),
    }
}

fn drowned(proof: &MergeProof) -> String {
    format!(
        "the adapter changes logits by {:.1e} of their size, and rounding the merged weights by {:.1e}: --dtype float32 (or float16) would keep more of it",
        proof.change.relative, proof.difference.relative
    )
}

fn told_as_text(arguments: &cli::Export, report: &MergeReport, proof: Option<&MergeProof>) -> String {
    let mut text = format!(
        "`{}` has {} tensors, {} in {} file{}; the adapter was merged into {} of them\n",
        arguments.output_dir.display(),
        report.tensors,
        Bytes(report.bytes),
        report.shards,
        if report.shards == 1 { "" } else { "s" },
        report.merged,
    );
    if report.unpacked > 0 {
        text += &format!("{} 4-bit weights were unpacked\n", report.unpacked);
    }
    let Some(proof) = proof else { return text + "not verified (--no-verify)\n" };
    let (change, difference) = (&proof.change, &proof.difference);
    text += &format!(
        "the adapter changes logits by {:.1e} of their size, and the best token at {} of {} positions\n",
        change.relative,
        change.places - change.same_best,
        change.places
    );
    text + &format!(
        "merged and adapted differ by {:.1e} (at most {:.1e} of the largest logit; rounding explains {:.1e}), best tokens agree in {} of {}\n",
        difference.relative,
        difference.largest_relative(),
        proof.explained,
        difference.same_best,
        difference.places
    )
}

fn told_as_json(arguments: &cli::Export, report: &MergeReport, proof: Option<&MergeProof>, notes: &[String]) -> Value {
    let difference = |difference: &Difference| {
        json!({
            "relative": difference.relative,
            "largest": difference.largest,
            "largest_logit": difference.scale,
            "places": difference.places,
            "same_best_token": difference.same_best,
        })
    };
    json!({
        "base_model": arguments.model,
        "adapter": arguments.adapter,
        "output_dir": arguments.output_dir,
        "tensors": report.tensors,
        "merged_weights": report.merged,
        "unpacked_weights": report.unpacked,
        "shards": report.shards,
        "bytes": report.bytes,
        "notes": notes,
        "proof": proof.map(|proof| json!({
            "adapter_changes_logits_by": difference(&proof.change),
            "merged_differs_by": difference(&proof.difference),
            "rounding_explains": proof.explained,
            "weights_checked": proof.checked,
            "largest_rounding_in_distances": proof.rounding,
        })),
    })
}
