//! A plan for the terminal: the answer in the first line, then what it is made of, then what a machine needs.

use garden_memory::Bytes;
use garden_model::Training;
use garden_train::{Advice, DeviceKind, Exactness, Fit, LoaderChange, MemoryPlan, Need, Place, PlanLine, Requirements};

use super::{Answer, Available, GpuMemory};

/// Columns of what follows a figure, after which it goes on in a line of its own.
const FLAGS: usize = 44;

pub(super) fn write(answer: &Answer) -> String {
    let mut text = headline(answer) + "\n";
    if let Some(time) = &answer.step_time {
        text += &format!("{}\n", time.sentence());
    }
    text += &crate::commands::datasets_words(&answer.rows.datasets);
    text += "\n";
    text += &table(&answer.plan);
    if let Some(advice) = &answer.advice {
        text += &advised(advice);
    }
    text += &requirements(&answer.plan.requirements);
    text += &format!("disk: {}\n", answer.plan.disk.words());
    text += &loader(&answer.loader);
    text
}

/// The answer, and what was planned.
pub(super) fn headline(answer: &Answer) -> String {
    verdict(answer) + "\n" + &subject(answer)
}

/// Whether it fits.
fn verdict(answer: &Answer) -> String {
    match answer.fits.gpu {
        None => host_headline(answer),
        // What does not fit comes first.
        Some(gpu) if gpu.fits && !answer.fits.host.fits => {
            format!("{}\n{}", host_headline(answer), gpu_headline(&gpu, &answer.gpu))
        }
        Some(gpu) => format!("{}\n{}", gpu_headline(&gpu, &answer.gpu), host_headline(answer)),
    }
}

/// The answer for the GPU's memory.
fn gpu_headline(fit: &Fit, room: &GpuMemory) -> String {
    let (needed, there) = (Bytes(fit.needed_bytes), Bytes(fit.available_bytes));
    let whose = match room {
        GpuMemory::Here(gpu) => format!("free on {}", gpu.name),
        GpuMemory::Imagined(_) => "of --vram".to_string(),
        GpuMemory::Unknown => {
            return format!(
                "needs {needed} of GPU memory; no GPU here could be inspected, so whether it fits is unknown (compare with `--vram 24GB`)"
            );
        }
    };
    match fit.fits {
        true => format!("needs {needed} of GPU memory and fits into the {there} {whose} ({} %)", fit.percent()),
        false => {
            let lacking = Bytes(fit.needed_bytes - fit.available_bytes);
            format!("does not fit: needs {needed} of GPU memory, more than the {there} {whose} ({lacking} short)")
        }
    }
}

/// The answer for host memory.
fn host_headline(answer: &Answer) -> String {
    let (fit, needed) = (&answer.fits.host, Bytes(answer.fits.host.needed_bytes));
    let there = Bytes(fit.available_bytes);
    match (answer.available, fit.fits) {
        (Available::Unknown, _) => format!("needs {needed} of host memory; free memory is unknown"),
        (Available::Free(_), true) => {
            format!("needs {needed} of host memory and fits into the {there} that is free ({} %)", fit.percent())
        }
        (Available::Limit(_), true) => {
            format!("needs {needed} of host memory and fits into the limit of {there} ({} %)", fit.percent())
        }
        (available, false) => {
            let lacking = Bytes(fit.needed_bytes - fit.available_bytes);
            let what = if matches!(available, Available::Free(_)) { "free" } else { "allowed" };
            format!("does not fit: needs {needed} of host memory, but only {there} is {what} ({lacking} short)")
        }
    }
}

/// What it is a plan of.
fn subject(answer: &Answer) -> String {
    let (subject, recipe, rows) = (answer.subject, answer.recipe, &answer.rows);
    let training = match recipe.training(subject.config.family) {
        Training::Full => "all weights".to_string(),
        Training::Lora(lora) => format!("LoRA of rank {}", lora.rank),
    };
    let largest = rows.largest.as_ref().map_or(String::new(), |row| format!("; {row}"));
    format!(
        "{}, {training}; micro-batches of {} rows with {} tokens and {} patches at most{largest}",
        subject.name, rows.rows, rows.tokens, rows.patches
    )
}

fn table(plan: &MemoryPlan) -> String {
    let mut text = format!("{:<6}  {:<22}  {:>9}  {:>6}\n", "place", "purpose", "memory", "share");
    // Memory of two places does not add up.
    let parts = match plan.device {
        DeviceKind::Cpu | DeviceKind::CpuBf16 => {
            vec![("device", [Place::Device, Place::Host].as_slice(), "", plan.total_bytes)]
        }
        DeviceKind::Cuda => vec![
            ("GPU", [Place::Device].as_slice(), "GPU", plan.device_bytes),
            ("GPU", [Place::Host].as_slice(), "host", plan.host_bytes),
        ],
    };
    for (device, places, whose, total) in parts {
        for line in plan.lines.iter().filter(|line| places.contains(&line.place)) {
            text += &row(line, device, total);
        }
        let all = Bytes(total).to_string();
        text += &format!("{whose:<6}  {:<22}  {all:>9}  {:>6}  (~ estimated)\n", "all", "100 %");
    }
    text
}

fn row(line: &PlanLine, device: &str, total: u64) -> String {
    let place = match line.place {
        Place::Device => device,
        Place::Host => "host",
    };
    let sign = if line.exactness == Exactness::Estimated { "~" } else { "" };
    let bytes = format!("{sign}{}", Bytes(line.bytes));
    let share = format!("{:.1} %", 100.0 * line.bytes as f64 / total.max(1) as f64);
    format!("{place:<6}  {:<22}  {bytes:>9}  {share:>6}  {}\n", line.purpose.name(), line.what)
}

/// What would help.
fn advised(advice: &Advice) -> String {
    let mut text = "\nWhat would help, smallest effect on the result first:\n".to_string();
    for saving in &advice.savings {
        let saves = Bytes(saving.saves_bytes);
        text += &format!("  {:<FLAGS$} saves {saves}: {}\n", flags(&saving.settings), saving.effect);
    }
    match &advice.combination {
        None => text += "No known change would.\n",
        Some(found) => {
            let needed = Bytes(found.total_bytes);
            text += &match (found.fits, found.changes) {
                (true, 1) => format!("With this it needs {needed} and fits: {}\n", flags(&found.settings)),
                (true, number) => {
                    format!("With these {number} it needs {needed} and fits: {}\n", flags(&found.settings))
                }
                (false, _) => format!("Not enough even together: it would need {needed}.\n"),
            };
        }
    }
    text
}

/// Settings as one would type them.
fn flags(settings: &[(String, String)]) -> String {
    let flag = |(name, value): &(String, String)| match value.as_str() {
        "true" => format!("--{name}"),
        "false" => format!("--{name}=false"),
        value => format!("--{name} {value}"),
    };
    settings.iter().map(flag).collect::<Vec<_>>().join(" ")
}

fn requirements(requirements: &Requirements) -> String {
    let mut text = format!("\n{:<28}  {:>9}  {:>11}\n", "machine requirements", "minimum", "recommended");
    let mut add = |name: &str, need: &Need| {
        let (least, best) = (Bytes(need.minimum_bytes).to_string(), Bytes(need.recommended_bytes).to_string());
        text += &format!("{name:<28}  {least:>9}  {best:>11}\n");
    };
    add("on the CPU: RAM", &requirements.processor);
    add("on a GPU: GPU memory", &requirements.gpu);
    add("on a GPU: RAM", &requirements.gpu_host);
    text
}

fn loader(changes: &[LoaderChange]) -> String {
    let mut text = String::new();
    for change in changes {
        let flag = flags(std::slice::from_ref(&change.setting));
        let costs = match change.costs_bytes {
            0 => "costs nothing".to_string(),
            bytes => format!("costs {}", Bytes(bytes)),
        };
        text += &format!("\n{flag} {costs}: {}", change.gains);
    }
    if text.is_empty() { text } else { text + "\n" }
}
