//! What `generate` and `chat` have in common: a model, an adapter, and how tokens are chosen.

use std::io::IsTerminal;
use std::path::Path;

use garden_data::{Processor, SpecialTokens};
use garden_device::{Device, Plan, Planner, Profile, Purpose};
use garden_memory::Bytes;
use garden_model::{Adapter, Checkpoint, Config, Engine, EngineLimits, FourBit, Sampling, read_adapter};

use crate::cli::Answering;
use crate::failure::Failure;
use crate::printer::Printer;

/// Loading so much takes long enough that somebody who waits wants to know.
const WORTH_A_WORD: u64 = 1 << 29;

/// What went wrong, and why.
pub fn failure(what: impl Into<String>, why: impl std::fmt::Display) -> Failure {
    Failure { what: what.into(), causes: vec![why.to_string()], hint: None }
}

impl Answering {
    /// The same, with the folder of a model that is named as on the hub.
    pub fn found(&self) -> Result<Answering, Failure> {
        Ok(Answering { model: super::folder_of(&self.model)?, ..self.clone() })
    }

    /// What turns texts and pictures into a prompt.
    pub fn processor(&self) -> Result<Processor, Failure> {
        let template = super::chat_template(self.chat_template.as_deref(), self.adapter.as_deref())?;
        let mut processor = Processor::open_with(&self.model, template.as_ref())
            .map_err(|error| Failure::of(format!("cannot use `{}`", self.model.display()), &error))?;
        // What an adapter was trained with says how large pictures are.
        if let Some(trained) = super::trained_pictures(self.adapter.as_deref(), processor.family)? {
            (processor.images.min_pixels, processor.images.max_pixels) = (trained.min_pixels, trained.max_pixels);
        }
        processor.images.max_pixels = self.max_pixels.unwrap_or(processor.images.max_pixels);
        processor.images.min_pixels = self.min_pixels.unwrap_or(processor.images.min_pixels);
        if processor.images.min_pixels > processor.images.max_pixels {
            let (least, most) = (processor.images.min_pixels, processor.images.max_pixels);
            let why = format!("images would have at least {least} pixels and at most {most}");
            return Err(failure("--min-pixels is above --max-pixels", why));
        }
        Ok(processor)
    }

    /// How tokens are chosen.
    pub fn sampling(&self, max_new_tokens: u32) -> Result<Sampling, Failure> {
        let is_drawn = self.top_k.is_some() || self.top_p.is_some();
        let sampling = Sampling {
            max_new_tokens: max_new_tokens as usize,
            temperature: self.temperature.or(is_drawn.then_some(1.0)),
            top_k: self.top_k,
            top_p: self.top_p,
            repetition_penalty: self.repetition_penalty,
            end_tokens: garden_input::read_end_tokens(&self.model)
                .map_err(|error| failure("cannot read the end tokens", error))?,
            seed: self.seed,
            ..Sampling::default()
        };
        sampling.check().map_err(|error| failure("invalid sampling settings", error))?;
        Ok(sampling)
    }
}

/// What a model asks for and does not get: answers go by the command line.
pub fn unheard(model: &Path) -> Option<String> {
    let settings = garden_input::read_other_generation(model);
    (!settings.is_empty()).then(|| {
        format!(
            "generation_config.json asks for {}: not applied; use --repetition-penalty, --temperature, --top-k or --top-p",
            settings.join(", ")
        )
    })
}

/// A model's files, before anything of them is on a device.
pub struct Loaded {
    /// The model's configuration.
    pub config: Config,
    checkpoint: Checkpoint,
    adapter: Option<Adapter>,
    four_bit: Option<FourBit>,
}

impl Loaded {
    /// Reads them.
    pub fn open(arguments: &Answering) -> Result<Loaded, Failure> {
        let what = || format!("cannot use `{}`", arguments.model.display());
        let config = Config::read(&arguments.model.join("config.json"));
        let config = config.map_err(|error| Failure::of(what(), &error))?;
        let family = config.family;
        Ok(Loaded {
            config,
            checkpoint: Checkpoint::open(&arguments.model).map_err(|error| Failure::of(what(), &error))?,
            adapter: match &arguments.adapter {
                None => None,
                Some(folder) => {
                    Some(read_adapter(folder, family).map_err(|error| {
                        Failure::of(format!("cannot use the adapter `{}`", folder.display()), &error)
                    })?)
                }
            },
            four_bit: arguments.load_in_4bit.then(FourBit::default),
        })
    }

    /// The model on a device.
    pub fn build(&self, device: &mut dyn Device, limits: EngineLimits) -> Result<Engine, Failure> {
        let (adapter, four_bit) = (self.adapter.as_ref(), self.four_bit.as_ref());
        Engine::build(device, &self.config, &self.checkpoint, adapter, four_bit, limits)
            .map_err(|error| Failure::of("cannot load the model", &error))
    }

    /// Refuses a tokenizer, template or image settings of another model.
    pub fn check(&self, processor: &Processor, model: &Path) -> Result<(), Failure> {
        let checked = processor.check(&self.config);
        checked.map_err(|error| failure(format!("the files in `{}` do not match", model.display()), error))
    }

    /// Takes the memory for it, if there is enough.
    pub fn make_room(&self, device: &mut dyn Device, limits: EngineLimits, printer: &Printer) -> Result<(), Failure> {
        let plan = self.plan(device.profile(), limits)?;
        fits(&plan, device)?;
        if std::io::stderr().is_terminal() && plan.total() as u64 >= WORTH_A_WORD {
            printer.say(&format!("model-garden: loading; planned memory: {}", Bytes(plan.total() as u64)));
        }
        device.prepare(plan.total()).map_err(|error| failure("cannot load the model", error))
    }

    /// What it will hold.
    fn plan(&self, profile: &Profile, limits: EngineLimits) -> Result<Plan, Failure> {
        let mut planner = Planner::like(profile);
        self.build(&mut planner, limits)?;
        Ok(planner.plan().clone())
    }
}

/// Refuses what would not fit, before it is tried.
fn fits(plan: &Plan, device: &dyn Device) -> Result<(), Failure> {
    let needed = plan.total() as u64;
    let (room, whose) = match device.own_memory() {
        Some(memory) => (Some(memory.free as u64), " on the GPU"),
        None => (super::headroom(), ""),
    };
    let Some(room) = room.filter(|room| *room < needed) else { return Ok(()) };
    let largest = Purpose::ALL.iter().map(|purpose| (plan.bytes(*purpose), purpose.name())).max().unwrap_or_default();
    Err(Failure {
        what: format!("needs {}, but only {} is free{whose}", Bytes(needed), Bytes(room)),
        causes: vec![format!("most of it is {}: {}", largest.1, Bytes(largest.0 as u64))],
        hint: Some("try --load-in-4bit, a smaller --max-pixels, or fewer --max-new-tokens".into()),
    })
}

/// Text that is printed while it grows: a token may end within a character.
pub struct Stream<'a> {
    processor: &'a Processor,
    waiting: Vec<u8>,
}

impl<'a> Stream<'a> {
    /// Nothing yet.
    pub fn of(processor: &'a Processor) -> Stream<'a> {
        Stream { processor, waiting: Vec::new() }
    }

    /// What can be shown with this token.
    pub fn add(&mut self, token: i32) -> String {
        self.waiting.extend(self.processor.tokenizer.decode_bytes(&[token], SpecialTokens::Skip));
        let bytes = std::mem::take(&mut self.waiting);
        // The last character may be incomplete: it is at most three bytes.
        let complete = match std::str::from_utf8(&bytes) {
            Ok(_) => bytes.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => {
                let tail = (1..=3.min(bytes.len())).find(|tail| is_begun(&bytes[bytes.len() - tail..]));
                bytes.len() - tail.unwrap_or(0)
            }
        };
        let shown = String::from_utf8_lossy(&bytes[..complete]).into_owned();
        self.waiting = bytes[complete..].to_vec();
        shown
    }

    /// What is left at the end.
    pub fn end(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.waiting)).into_owned()
    }
}

/// Whether bytes are the beginning of one character.
fn is_begun(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}
