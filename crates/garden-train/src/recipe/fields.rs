//! The settings of a recipe by name: what the command line, its help and recipe files know about each.

use super::Recipe;

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name, as a flag without the dashes in front and as a key of a recipe file.
    pub name: &'static str,
    /// What stands for its value in help; empty for a switch.
    pub value: &'static str,
    /// Other names that people know it by, most of them from Hugging Face's trainer.
    pub aliases: &'static [&'static str],
    /// The part of the help that it is in.
    pub heading: &'static str,
    /// What it does. What it is by itself stands here only where that is not a value; [`Field::described`] adds the others.
    pub help: &'static str,
    /// What becomes of a change of it when a run goes on from a checkpoint.
    pub on_resume: OnResume,
    /// Whether it says where things are on a machine, or how a machine is used, and nothing about the result.
    pub is_local: bool,
}

/// What becomes of a setting that has changed when a run goes on from a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResume {
    /// It must be the same: the checkpoint would mean something else.
    Fixed,
    /// It counts from now on, and that is told.
    Told,
    /// It may be anything.
    Free,
}

impl Field {
    const fn fixed(self) -> Field {
        Field { on_resume: OnResume::Fixed, ..self }
    }

    const fn free(self) -> Field {
        Field { on_resume: OnResume::Free, ..self }
    }

    const fn local(self) -> Field {
        Field { is_local: true, ..self }
    }

    /// Its help, with its default.
    pub fn described(&self) -> String {
        let default = Recipe::default().setting(self.name);
        // A switch is off unless it is given.
        match self.value.is_empty() || default.is_empty() || self.help.contains("[default: ") {
            true => self.help.to_string(),
            false => format!("{} [default: {default}]", self.help),
        }
    }
}

const JOB: &str = "The job";
const STEPS: &str = "Steps";
const ADAPTER: &str = "What is trained";
const ROWS: &str = "Rows and pictures";
const LOSS: &str = "Loss";
const KEEPING: &str = "Logging, evaluation, checkpoints";
const MACHINE: &str = "Memory and machine";

const fn field(
    heading: &'static str,
    name: &'static str,
    value: &'static str,
    aliases: &'static [&'static str],
    help: &'static str,
) -> Field {
    Field { name, value, aliases, heading, help, on_resume: OnResume::Told, is_local: false }
}

/// All settings, in the order of the help.
pub const FIELDS: &[Field] = &[
    field(
        JOB,
        "base-model",
        "DIR|HUB_ID",
        &["model-name-or-path", "model"],
        "The folder of a model, or its name in the local Hugging Face cache",
    ).fixed().local(),
    field(
        JOB,
        "dataset",
        "FILE|DIR",
        &["dataset-name", "train-file"],
        "Rows to learn from: a file, a folder, or the name of a dataset in the local cache",
    ).fixed().local(),
    field(JOB, "eval-dataset", "FILE|DIR", &["validation-file"], "Rows to evaluate on").local(),
    field(JOB, "eval-split", "SHARE", &[], "Or this share of the dataset, taken out of training").fixed(),
    field(JOB, "output-dir", "DIR", &[], "Where the adapter, checkpoints, logs and the report go").free().local(),
    field(JOB, "adapter", "DIR", &[], "Begin with this adapter instead of a new one").fixed().local(),
    field(STEPS, "epochs", "N", &["num-train-epochs"], "Passes over the dataset"),
    field(STEPS, "max-steps", "N", &[], "Or so many steps"),
    field(
        STEPS,
        "batch-size",
        "N",
        &["per-device-train-batch-size", "train-batch-size"],
        "Rows of a micro-batch",
    ).fixed(),
    field(
        STEPS,
        "batch-tokens",
        "N",
        &["max-batch-tokens"],
        "Or tokens of a micro-batch at most: as many rows as fit, the same groups of rows in each epoch",
    ).fixed(),
    field(
        STEPS,
        "gradient-accumulation",
        "N",
        &["gradient-accumulation-steps"],
        "Micro-batches of a step",
    ).fixed(),
    field(STEPS, "learning-rate", "RATE", &["lr"], "The highest learning rate"),
    field(
        STEPS,
        "vision-learning-rate",
        "RATE",
        &["vision-lr", "vision-tower-lr", "vit-lr"],
        "That of the vision tower, on the same schedule [default: the learning rate]",
    ),
    field(
        STEPS,
        "merger-learning-rate",
        "RATE",
        &["merger-lr", "mm-projector-lr", "aligner-lr"],
        "That of the merger between vision tower and decoder [default: the learning rate]",
    ),
    field(
        STEPS,
        "lr-scheduler",
        "NAME",
        &["lr-scheduler-type"],
        "cosine, linear, constant or constant-with-warmup",
    ),
    field(STEPS, "min-learning-rate", "RATE", &["min-lr"], "The rate at the end of a cosine"),
    field(STEPS, "warmup-steps", "N", &[], "Steps over which the rate rises"),
    field(STEPS, "warmup-ratio", "SHARE", &[], "Or this share of all steps"),
    field(STEPS, "optim", "NAME", &["optimizer"], "adamw, or adamw-8bit with a quarter of its memory").fixed(),
    field(STEPS, "weight-decay", "RATE", &[], "Weight decay"),
    field(STEPS, "adam-beta1", "B", &[], "Decay of the first moment"),
    field(STEPS, "adam-beta2", "B", &[], "Decay of the second moment"),
    field(STEPS, "adam-epsilon", "E", &[], "Added to the root of the second moment"),
    field(STEPS, "max-grad-norm", "NORM", &[], "Gradients are scaled down to this norm; 0 for no bound"),
    field(STEPS, "seed", "N", &["data-seed"], "The order of rows, the first adapter, what is dropped").fixed(),
    field(STEPS, "shuffle", "true|false", &[], "Whether each epoch has an order of its own").fixed(),
    field(ADAPTER, "lora-r", "N", &["lora-rank", "r"], "Rank of the adapter").fixed(),
    field(ADAPTER, "lora-alpha", "A", &[], "The adapter is scaled by alpha / rank").fixed(),
    field(
        ADAPTER,
        "lora-dropout",
        "SHARE",
        &[],
        "Share of the adapter's inputs that is dropped in training",
    ),
    field(
        ADAPTER,
        "lora-targets",
        "NAMES",
        &["lora-target-modules", "target-modules"],
        "Linears that get one: names with commas between, a regular expression, or all-linear for decoder, vision tower and merger [default: all linears of the decoder]",
    ).fixed(),
    field(
        ADAPTER,
        "modules-to-save",
        "NAMES",
        &[],
        "Modules that are trained as a whole and saved in the adapter, as PEFT does: names with commas between, such as visual.merger,lm_head",
    ).fixed(),
    field(ADAPTER, "use-rslora", "", &[], "Scale by alpha / sqrt(rank)").fixed(),
    field(
        ADAPTER,
        "finetune-vision",
        "",
        &["finetune-vision-layers"],
        "Adapters in the vision tower and the merger too",
    ).fixed(),
    field(ADAPTER, "full", "", &[], "Train all weights instead of an adapter").fixed(),
    field(ADAPTER, "load-in-4bit", "", &[], "Pack the decoder's weights into 4 bits (NF4)").fixed(),
    field(
        ADAPTER,
        "recompute",
        "layer|none",
        &["gradient-checkpointing"],
        "Make activations of layers again in the backward pass: less memory, a third more work",
    ),
    field(
        ROWS,
        "system-prompt",
        "TEXT",
        &["default-system", "system"],
        "Instructions for rows that have none of their own [default: what the chat template says]",
    ),
    field(
        ROWS,
        "chat-template",
        "FILE",
        &["chat-template-path"],
        "A chat template (Jinja) instead of the model's own; it is written into the result",
    ).local(),
    field(
        ROWS,
        "max-pixels",
        "N",
        &["image-max-pixels"],
        "Pictures are shrunk to so many pixels [default: what the model's preprocessor_config.json says]",
    ),
    field(ROWS, "min-pixels", "N", &["image-min-pixels"], "And enlarged to so many"),
    field(ROWS, "max-length", "N", &["max-seq-length", "model-max-length"], "Tokens of a row at most [default: any]").fixed(),
    field(
        ROWS,
        "image-paths",
        "inside|anywhere",
        &[],
        "Files that rows may name: those in the dataset's folder, or any [default: any; for a dataset of the cache, those in its folder]",
    ),
    field(
        ROWS,
        "box-format",
        "plain|tokens",
        &["bbox-format"],
        "How boxes of `objects` are written: [x1, y1, x2, y2] as Qwen2.5-VL does, or between <|box_start|> and <|box_end|>",
    ),
    field(
        ROWS,
        "bbox-2d",
        "resized|original",
        &[],
        "What boxes are in that texts have as \"bbox_2d\": pixels of the resized picture, which stay, or of the original one, which are converted",
    ),
    field(ROWS, "on-bad-row", "stop|skip", &[], "What is done with a row that cannot be used"),
    field(ROWS, "on-long-row", "refuse|shrink|drop", &[], "What is done with a row that is too long"),
    field(
        ROWS,
        "loader-threads",
        "N",
        &["dataloader-num-workers"],
        "Threads that read rows and decode pictures",
    ).free().local(),
    field(ROWS, "prefetch", "SIZE", &[], "Memory for micro-batches that wait").free().local(),
    field(LOSS, "labels", "WHICH", &[], "Which tokens are trained: assistant, completion or all"),
    field(
        LOSS,
        "loss-normalisation",
        "batch|tokens",
        &["loss-normalization"],
        "What the losses of a step are divided by",
    ),
    field(
        LOSS,
        "selective-loss",
        "LEVEL",
        &[],
        "What of JSON answers is not trained: off, conservative, moderate or aggressive",
    ),
    field(
        LOSS,
        "selective-loss-start-epoch",
        "N",
        &[],
        "The first epoch, counted from 0, in which that holds",
    ),
    field(KEEPING, "logging-steps", "N", &[], "Steps between lines of the log").local(),
    field(KEEPING, "eval-steps", "N", &[], "Steps between evaluations [default: an epoch]"),
    field(
        KEEPING,
        "eval-batch-size",
        "N",
        &["per-device-eval-batch-size"],
        "Rows of a micro-batch of an evaluation, at most the batch size [default: the batch size]",
    ),
    field(
        KEEPING,
        "eval-answers",
        "N",
        &[],
        "Rows for which an evaluation generates an answer, to compare it with the right one",
    ),
    field(KEEPING, "max-new-tokens", "N", &[], "Tokens of such an answer at most"),
    field(KEEPING, "save-steps", "N", &[], "Steps between checkpoints"),
    field(KEEPING, "save-total-limit", "N", &[], "Checkpoints that are kept; the best one besides"),
    field(
        KEEPING,
        "metric-for-best-model",
        "NAME",
        &[],
        "What the best checkpoint, which becomes the result, is chosen by: loss, exact_match, field_accuracy, mean_iou or iou_50",
    ),
    field(KEEPING, "greater-is-better", "true|false", &[], "Whether more of it is better [default: true, but of loss]"),
    field(
        KEEPING,
        "early-stopping",
        "N",
        &["early-stopping-patience"],
        "End after so many evaluations without a better one",
    ),
    field(
        KEEPING,
        "resume",
        "auto|CHECKPOINT",
        &["resume-from-checkpoint"],
        "Go on from the newest whole checkpoint of the output folder, or from this one",
    ).free().local(),
    field(
        MACHINE,
        "memory-limit",
        "SIZE",
        &[],
        "Host memory that the run may use [default: what the machine or container has]",
    ).free(),
    field(MACHINE, "memory-steps", "N", &[], "Steps between looks at memory").local(),
    field(
        MACHINE,
        "device",
        "auto|cpu|cuda",
        &[],
        "Where to compute; auto takes the GPU if there is one",
    ).free().local(),
    field(MACHINE, "threads", "N", &[], "Threads, where the processor computes [default: all cores]").free().local(),
    field(MACHINE, "debug-leak", "SIZE", &[], "Leak so much memory in each step, to see what the guard does").free().local(),
    field(MACHINE, "debug-fail", "STEP", &[], "Lose the GPU in this step, to see what is left").free().local(),
];

/// Settings of Hugging Face's trainer that mean nothing here, and why: recipes and scripts that have them work all the same.
pub const IGNORED: &[(&str, &str)] = &[
    ("bf16", "the device decides: bf16 with sums of 32 bits on a GPU, 32 bits on a processor"),
    ("fp16", "the device decides: bf16 with sums of 32 bits on a GPU, 32 bits on a processor"),
    ("tf32", "the device decides: bf16 with sums of 32 bits on a GPU, 32 bits on a processor"),
    ("do-train", "training is what this command does"),
    ("do-eval", "there is an evaluation wherever there are rows for it"),
    ("eval-strategy", "`eval-steps` says when"),
    ("evaluation-strategy", "`eval-steps` says when"),
    ("save-strategy", "`save-steps` says when"),
    ("logging-strategy", "`logging-steps` says when"),
    ("load-best-model-at-end", "the result is the best checkpoint wherever there is an evaluation"),
    ("report-to", "logs for TensorBoard are always written"),
    ("logging-dir", "logs are in the output folder"),
    ("overwrite-output-dir", "earlier results are never written over: name another `output-dir`, or `resume`"),
    ("remove-unused-columns", "fields that are not used are listed and left alone"),
    ("save-safetensors", "it is always safetensors"),
];

/// Why a setting of Hugging Face's trainer means nothing here, if it is one of those.
pub fn ignored(given: &str) -> Option<&'static str> {
    let name = given.replace('_', "-");
    IGNORED.iter().find(|(ignored, _)| *ignored == name).map(|(_, why)| *why)
}

/// The setting of this name, or of this other name.
pub(super) fn find(given: &str) -> Option<&'static Field> {
    let name = given.replace('_', "-");
    FIELDS.iter().find(|field| field.name == name || field.aliases.contains(&name.as_str()))
}

/// The name that a mistyped one is closest to, if any is close.
pub(super) fn closest(given: &str) -> Option<&'static str> {
    let given = given.replace('_', "-");
    let names = FIELDS.iter().flat_map(|field| std::iter::once(&field.name).chain(field.aliases).copied());
    let near = names.map(|name| (distance(&given, name), name)).min()?;
    (near.0 <= 1 + given.len() / 5).then_some(near.1)
}

/// Letters to insert, drop or change (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for place in 0..other.len() {
            let changed = diagonal + usize::from(letter != other[place]);
            diagonal = row[place + 1];
            row[place + 1] = changed.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}
