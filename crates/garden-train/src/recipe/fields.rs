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
    /// Whether it may have several values.
    pub is_list: bool,
    /// Whether it says where things are on a machine, or how a machine is used, and nothing about the result.
    pub is_local: bool,
    /// Who sets it where a server runs jobs for others.
    pub owner: Owner,
    /// The largest value that a client may set there: it bounds how long a job runs and how much it writes. More is a mistake, or meant to harm.
    pub most_of_client: Option<f64>,
}

/// Who sets a setting where a server runs jobs for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The client that sends the job.
    Client,
    /// The server: it says where things are, or is for tests.
    Server,
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

    const fn at_most(self, most: f64) -> Field {
        Field { most_of_client: Some(most), ..self }
    }

    const fn listed(self) -> Field {
        Field { is_list: true, ..self }
    }

    const fn servers(self) -> Field {
        Field { owner: Owner::Server, ..self }
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
const ADAPTER: &str = "Trainable parameters";
const ROWS: &str = "Rows and images";
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
    Field {
        name,
        value,
        aliases,
        heading,
        help,
        on_resume: OnResume::Told,
        is_list: false,
        is_local: false,
        owner: Owner::Client,
        most_of_client: None,
    }
}

/// All settings, in the order of the help.
pub const FIELDS: &[Field] = &[
    field(
        JOB,
        "model",
        "DIR|HUB_ID",
        &["base-model", "model-name-or-path"],
        "Model folder, or the name of a model in the local Hugging Face cache",
    ).fixed().local().servers(),
    field(
        JOB,
        "dataset",
        "FILE|DIR",
        &["dataset-name", "train-file"],
        "Training data: a file, a folder, or the name of a dataset in the local cache; repeat for more, whose rows are shuffled together",
    ).fixed().local().servers().listed(),
    field(
        JOB,
        "dataset-weights",
        "W,W,...",
        &["interleave-probs", "interleave-prob"],
        "Share of each dataset in the rows of an epoch, such as 0.7,0.3 [default: all rows of all datasets]",
    ).fixed().servers().listed(),
    field(
        JOB,
        "max-samples",
        "N[,N...]",
        &["max-train-samples"],
        "Draw at most N rows of each dataset, by the seed [default: all rows]",
    ).fixed().servers().listed(),
    field(JOB, "eval-dataset", "FILE|DIR", &["validation-file"], "Evaluation data").local().servers(),
    field(JOB, "eval-split", "SHARE", &[], "Hold out this share of the dataset for evaluation instead").fixed(),
    field(JOB, "output-dir", "DIR", &[], "Folder for the adapter, checkpoints, logs and the report").free().local().servers(),
    field(JOB, "adapter", "DIR", &[], "Continue training this adapter instead of a new one; it says rank, alpha and targets").fixed().local().servers(),
    field(STEPS, "epochs", "N", &["num-train-epochs"], "Passes over the dataset").at_most(10_000.0),
    field(STEPS, "max-steps", "N", &[], "Stop after N optimizer steps (overrides --epochs)").at_most(1e9),
    field(
        STEPS,
        "batch-size",
        "N",
        &["per-device-train-batch-size", "train-batch-size"],
        "Rows per micro-batch",
    ).fixed().at_most(65_536.0),
    field(
        STEPS,
        "batch-tokens",
        "N",
        &["max-batch-tokens"],
        "Maximum tokens per micro-batch, instead of a number of rows; rows are grouped once, the same way in every epoch",
    ).fixed(),
    field(
        STEPS,
        "gradient-accumulation",
        "N",
        &["gradient-accumulation-steps"],
        "Micro-batches per optimizer step",
    ).fixed().at_most(65_536.0),
    field(STEPS, "learning-rate", "RATE", &["lr"], "Peak learning rate"),
    field(
        STEPS,
        "vision-learning-rate",
        "RATE",
        &["vision-lr", "vision-tower-lr", "vit-lr"],
        "Learning rate of the vision tower, on the same schedule [default: the learning rate]",
    ),
    field(
        STEPS,
        "merger-learning-rate",
        "RATE",
        &["merger-lr", "mm-projector-lr", "aligner-lr"],
        "Learning rate of the merger between vision tower and decoder [default: the learning rate]",
    ),
    field(
        STEPS,
        "lr-scheduler",
        "NAME",
        &["lr-scheduler-type"],
        "Learning rate schedule: cosine, linear, constant or constant-with-warmup",
    ),
    field(STEPS, "min-learning-rate", "RATE", &["min-lr"], "Final learning rate of the cosine schedule"),
    field(STEPS, "warmup-steps", "N", &[], "Warm-up steps"),
    field(STEPS, "warmup-ratio", "SHARE", &[], "Warm-up as a share of all steps instead"),
    field(STEPS, "optim", "NAME", &["optimizer"], "Optimizer: adamw, or adamw-8bit with a quarter of its memory").fixed(),
    field(STEPS, "weight-decay", "RATE", &[], "Weight decay"),
    field(STEPS, "adam-beta1", "B", &[], "Decay of AdamW's first moment"),
    field(STEPS, "adam-beta2", "B", &[], "Decay of AdamW's second moment"),
    field(STEPS, "adam-epsilon", "E", &[], "AdamW's epsilon"),
    field(STEPS, "max-grad-norm", "NORM", &[], "Clip gradients to this norm; 0 turns clipping off"),
    field(STEPS, "seed", "N", &["data-seed"], "Seed of the row order, the new adapter and dropout").fixed(),
    field(STEPS, "shuffle", "true|false", &[], "Shuffle the rows in every epoch").fixed(),
    field(ADAPTER, "lora-r", "N", &["lora-rank", "r"], "LoRA rank [default: the `adapter`'s, or 16]").fixed().at_most(4096.0),
    field(ADAPTER, "lora-alpha", "A", &[], "LoRA alpha; the adapter is scaled by alpha / rank [default: the `adapter`'s, or 16]").fixed(),
    field(
        ADAPTER,
        "lora-dropout",
        "SHARE",
        &[],
        "LoRA dropout",
    ),
    field(
        ADAPTER,
        "lora-targets",
        "NAMES",
        &["lora-target-modules", "target-modules"],
        "Target modules: comma-separated names, a regular expression, or all-linear for decoder, vision tower and merger [default: all linear layers of the decoder]",
    ).fixed(),
    field(
        ADAPTER,
        "modules-to-save",
        "NAMES",
        &[],
        "Modules trained in full and saved with the adapter, as in PEFT: comma-separated names, such as visual.merger,lm_head",
    ).fixed(),
    field(ADAPTER, "use-rslora", "", &[], "Scale by alpha / sqrt(rank)").fixed(),
    field(
        ADAPTER,
        "finetune-vision",
        "",
        &["finetune-vision-layers"],
        "Add adapters to the vision tower and the merger too",
    ).fixed(),
    field(ADAPTER, "full", "", &[], "Train all weights instead of an adapter").fixed(),
    field(ADAPTER, "load-in-4bit", "", &[], "Pack the decoder's weights into 4 bits (NF4)").fixed(),
    field(
        ADAPTER,
        "recompute",
        "layer|none",
        &["gradient-checkpointing"],
        "Gradient checkpointing: recompute each layer's activations in the backward pass; less memory, a third more work",
    ),
    field(
        ROWS,
        "system-prompt",
        "TEXT",
        &["default-system", "system"],
        "System prompt for rows without one [default: what the chat template says]",
    ),
    field(
        ROWS,
        "chat-template",
        "FILE",
        &["chat-template-path"],
        "Chat template (Jinja) to use instead of the model's own; saved with the result",
    ).local().servers(),
    field(
        ROWS,
        "max-pixels",
        "N",
        &["image-max-pixels"],
        "Maximum pixels; larger images are shrunk [default: what the model's preprocessor_config.json says]",
    ),
    field(ROWS, "min-pixels", "N", &["image-min-pixels"], "Minimum pixels; smaller images are enlarged"),
    field(ROWS, "max-length", "N", &["max-seq-length", "model-max-length"], "Maximum tokens per row [default: no limit]").fixed(),
    field(
        ROWS,
        "image-paths",
        "inside|anywhere",
        &[],
        "Files that rows may name: inside the dataset's folder, or anywhere [default: anywhere; for a dataset of the cache, inside its folder]",
    ).servers(),
    field(
        ROWS,
        "field",
        "MEANING=NAME",
        &[],
        "What a field of the rows means, as in question=query,image=photo; may be repeated",
    ).fixed(),
    field(ROWS, "ignore-field", "NAME", &[], "Fields that the rows are trained without, as in caption,messages[].label; may be repeated").fixed(),
    field(
        ROWS,
        "box-format",
        "plain|tokens",
        &["bbox-format"],
        "How to write the boxes of `objects`: [x1, y1, x2, y2] as models have them, or between <|box_start|> and <|box_end|>",
    ),
    field(
        ROWS,
        "bbox-2d",
        "resized|original",
        &[],
        "Units of \"bbox_2d\" boxes in texts: pixels of the resized image (kept), or of the original image (converted)",
    ),
    field(ROWS, "on-bad-row", "stop|skip", &[], "Stop at a row that cannot be used, or skip it"),
    field(
        ROWS,
        "on-bad-image",
        "stop|skip",
        &[],
        "Stop with a checkpoint at a row that turns out broken while training (damaged image, missing file), or skip it [default: as `on-bad-row`]",
    ),
    field(ROWS, "on-long-row", "refuse|shrink|drop", &[], "Refuse, shrink or drop rows that are too long"),
    field(
        ROWS,
        "loader-threads",
        "N",
        &["dataloader-num-workers"],
        "Threads for reading rows and decoding images",
    ).free().local().at_most(64.0),
    field(ROWS, "prefetch", "SIZE", &[], "Memory for prefetched micro-batches").free().local(),
    field(LOSS, "labels", "WHICH", &[], "Which tokens to train: assistant, completion or all"),
    field(
        LOSS,
        "loss-normalisation",
        "batch|tokens",
        &["loss-normalization"],
        "Average the loss of a step over micro-batches or over tokens",
    ),
    field(
        LOSS,
        "selective-loss",
        "LEVEL",
        &[],
        "Leave the structure of JSON answers out of the loss: off, conservative, moderate or aggressive",
    ),
    field(
        LOSS,
        "selective-loss-start-epoch",
        "N",
        &[],
        "First epoch with selective loss, counted from 0",
    ),
    field(KEEPING, "logging-steps", "N", &[], "Steps between log lines").local(),
    field(KEEPING, "eval-steps", "N", &[], "Steps between evaluations [default: an epoch]"),
    field(
        KEEPING,
        "eval-batch-size",
        "N",
        &["per-device-eval-batch-size"],
        "Rows per micro-batch in evaluations, at most the batch size [default: the batch size]",
    ),
    field(
        KEEPING,
        "eval-answers",
        "N",
        &[],
        "Answers to generate and score in each evaluation",
    ).at_most(100_000.0),
    field(KEEPING, "max-new-tokens", "N", &[], "Maximum tokens per generated answer").at_most(131_072.0),
    field(KEEPING, "save-steps", "N", &[], "Steps between checkpoints"),
    field(KEEPING, "save-total-limit", "N", &[], "Checkpoints to keep, besides the best one").at_most(1000.0),
    field(
        KEEPING,
        "metric-for-best-model",
        "NAME",
        &[],
        "Metric that selects the best checkpoint, which becomes the result: loss, exact_match, field_accuracy, mean_iou or iou_50",
    ),
    field(KEEPING, "greater-is-better", "true|false", &[], "Whether a higher metric is better [default: true, except for loss]"),
    field(
        KEEPING,
        "early-stopping",
        "N",
        &["early-stopping-patience"],
        "Stop after N evaluations without improvement",
    ),
    field(
        KEEPING,
        "resume",
        "auto|CHECKPOINT",
        &["resume-from-checkpoint"],
        "Resume from the newest complete checkpoint in the output folder, or from this one",
    ).free().local().servers(),
    field(
        MACHINE,
        "memory-limit",
        "SIZE",
        &[],
        "Host memory limit [default: what the machine or container has]",
    ).free(),
    field(MACHINE, "memory-steps", "N", &[], "Steps between memory samples").local(),
    field(
        MACHINE,
        "device",
        "auto|cpu|cuda",
        &[],
        "Where to compute; auto uses the GPU if there is one",
    ).free().local().servers(),
    field(MACHINE, "threads", "N", &[], "Threads for computing on the CPU [default: all cores]").free().local().at_most(1024.0),
    field(MACHINE, "debug-leak", "SIZE", &[], "Leak this much memory in each step, to see what the guard does").free().local().servers(),
    field(MACHINE, "debug-fail", "STEP", &[], "Lose the GPU in this step, to see what is left").free().local().servers(),
];

/// Settings of Hugging Face's trainer that mean nothing here, and why: recipes and scripts that have them work all the same.
pub const IGNORED: &[(&str, &str)] = &[
    ("bf16", "the device decides: bf16 with 32-bit sums on a GPU, 32 bits on a CPU"),
    ("fp16", "the device decides: bf16 with 32-bit sums on a GPU, 32 bits on a CPU"),
    ("tf32", "the device decides: bf16 with 32-bit sums on a GPU, 32 bits on a CPU"),
    ("do-train", "this command always trains"),
    ("do-eval", "evaluations run whenever there are rows for them"),
    ("eval-strategy", "use `eval-steps` instead"),
    ("evaluation-strategy", "use `eval-steps` instead"),
    ("save-strategy", "use `save-steps` instead"),
    ("logging-strategy", "use `logging-steps` instead"),
    ("load-best-model-at-end", "with evaluations, the result is always the best checkpoint"),
    ("report-to", "TensorBoard logs are always written"),
    ("logging-dir", "logs are in the output folder"),
    ("overwrite-output-dir", "earlier results are never overwritten: use another `output-dir`, or `resume`"),
    ("remove-unused-columns", "unused fields are listed and ignored"),
    ("save-safetensors", "checkpoints are always safetensors"),
];

/// Why a setting of Hugging Face's trainer means nothing here, if it is one of those.
pub fn ignored(given: &str) -> Option<&'static str> {
    let name = given.replace('_', "-");
    IGNORED.iter().find(|(ignored, _)| *ignored == name).map(|(_, why)| *why)
}

/// The setting of this name, or of this other name.
pub fn find(given: &str) -> Option<&'static Field> {
    let name = given.replace('_', "-");
    FIELDS.iter().find(|field| field.name == name || field.aliases.contains(&name.as_str()))
}

/// The name that a mistyped one is closest to, if any is close: a slip leaves the beginning, or all letters in another order.
pub(super) fn closest(given: &str) -> Option<&'static str> {
    let given = given.replace('_', "-");
    let names = FIELDS.iter().flat_map(|field| std::iter::once(&field.name).chain(field.aliases).copied());
    let sorted = |name: &str| {
        let mut letters: Vec<char> = name.chars().collect();
        letters.sort_unstable();
        letters
    };
    let is_slip =
        |name: &str| name.get(..2).is_some_and(|start| given.starts_with(start)) || sorted(name) == sorted(&given);
    let near = names.filter(|name| is_slip(name)).map(|name| (distance(&given, name), name)).min()?;
    is_near(&given, near.1).then_some(near.1)
}

/// Whether a name is so near to what was given that it may have been meant.
pub fn is_near(given: &str, name: &str) -> bool {
    distance(given, name) <= 1.max(given.len() / 4)
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
