//! `model-garden generate`: answer prompts about images.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use garden_data::{Message, PLACEHOLDER, PictureFile, Processor, SpecialTokens};
use garden_device::{Device, Plan, Planner, Profile, Purpose};
use garden_memory::Bytes;
use garden_model::{
    Adapter, Answer, Checkpoint, Config, Engine, EngineLimits, FourBit, Prompt, Sampling, read_adapter,
};
use serde_json::{Value, json};

use super::{Outcome, devices};
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;

/// Loading so much takes long enough that somebody who waits wants to know.
const WORTH_A_WORD: u64 = 1 << 29;

/// A prompt as it was asked.
#[derive(Debug, Default)]
struct Question {
    prompt: String,
    images: Vec<PathBuf>,
    system: Option<String>,
    /// Where it stands: a line of a file, or nothing.
    place: String,
}

/// Runs the command.
pub fn run(arguments: &cli::Generate, printer: &Printer) -> Result<Outcome, Failure> {
    let arguments = &cli::Generate { model: super::folder_of(&arguments.model)?, ..arguments.clone() };
    let model = &arguments.model;
    let begin = Instant::now();
    let questions = questions(arguments)?;
    let sampling = sampling(arguments)?;
    sampling.check().map_err(|error| failure("invalid sampling settings", error))?;
    let template = super::chat_template(arguments.chat_template.as_deref(), arguments.adapter.as_deref())?;
    let mut processor = Processor::open_with(model, template.as_ref())
        .map_err(|error| Failure::of(format!("cannot use `{}`", model.display()), &error))?;
    // What an adapter was trained with says how large pictures are.
    if let Some(trained) = super::trained_pictures(arguments.adapter.as_deref(), processor.family)? {
        (processor.images.min_pixels, processor.images.max_pixels) = (trained.min_pixels, trained.max_pixels);
    }
    processor.images.max_pixels = arguments.max_pixels.unwrap_or(processor.images.max_pixels);
    processor.images.min_pixels = arguments.min_pixels.unwrap_or(processor.images.min_pixels);
    if processor.images.min_pixels > processor.images.max_pixels {
        let (least, most) = (processor.images.min_pixels, processor.images.max_pixels);
        let why = format!("images would have at least {least} pixels and at most {most}");
        return Err(failure("--min-pixels is above --max-pixels", why));
    }
    let loaded = Loaded::open(arguments)?;
    processor
        .check(&loaded.config)
        .map_err(|error| failure(format!("the files in `{}` do not match", model.display()), error))?;
    if let Some(note) = unheard(model) {
        printer.say(&format!("note: {note}"));
    }
    if questions.iter().any(|question| !question.images.is_empty() && question.prompt.contains(PLACEHOLDER)) {
        printer.say(&format!("note: `{PLACEHOLDER}` is text in a prompt: pictures are shown before it"));
    }
    let prompts = questions.iter().map(|question| prompt(&processor, question)).collect::<Result<Vec<_>, _>>()?;
    // Beyond, a model says anything, and attention takes the square of the length to get there.
    let most = garden_input::read_max_positions(model).unwrap_or(usize::MAX);
    if let Some((question, prompt)) = questions.iter().zip(&prompts).find(|(_, prompt)| prompt.tokens.len() > most) {
        let why =
            format!("it has {} tokens; the model supports {most} (`max_position_embeddings`)", prompt.tokens.len());
        return Err(failure(format!("{}the prompt is too long", question.place), why));
    }
    let limits = EngineLimits::of(&prompts, sampling.max_new_tokens);
    let mut device = devices::open_here(arguments.device, arguments.threads, printer)?;
    let plan = loaded.plan(device.profile(), limits)?;
    fits(&plan, &*device)?;
    if std::io::stderr().is_terminal() && plan.total() as u64 >= WORTH_A_WORD {
        printer.say(&format!("model-garden: loading; planned memory: {}", Bytes(plan.total() as u64)));
    }
    device.prepare(plan.total()).map_err(|error| failure("cannot load the model", error))?;
    let mut engine = loaded.build(&mut *device, limits)?;
    let load_seconds = begin.elapsed().as_secs_f64();

    let (counts, begin) = (prompts.iter().map(|prompt| prompt.tokens.len()).collect::<Vec<_>>(), Instant::now());
    let mut first_seconds = None;
    let mut stream = Stream { processor: &processor, waiting: Vec::new() };
    let is_streamed = !arguments.printed.is_json() && questions.len() == 1;
    let mut trouble = None;
    let answers = engine.generate(&mut *device, prompts, &sampling, &mut |new| {
        first_seconds.get_or_insert_with(|| begin.elapsed().as_secs_f64());
        if is_streamed {
            trouble = printer.out_exactly(&stream.add(new.token)).err().or(trouble.take());
        }
    });
    let answers = answers.map_err(|error| failure("cannot answer", error))?;
    if let Some(trouble) = trouble {
        return Err(trouble);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let text = match (arguments.printed.is_json(), is_streamed) {
        (true, _) => {
            let times = [load_seconds, first_seconds.unwrap_or(0.0), seconds];
            told(arguments, &processor, &questions, &counts, &answers, &*device, times)
        }
        (false, true) => stream.end(),
        (false, false) => {
            let each = questions.iter().zip(&answers);
            each.map(|(question, answer)| format!("{}\n{}\n\n", question.prompt, answer_text(&processor, answer)))
                .collect()
        }
    };
    if arguments.printed.is_json() {
        printer.out(&text)?
    } else {
        printer.out_exactly(&text)?
    }
    Ok(Outcome::Fine)
}

fn failure(what: impl Into<String>, why: impl std::fmt::Display) -> Failure {
    Failure { what: what.into(), causes: vec![why.to_string()], hint: None }
}

/// The prompt of the command line, or those of a file.
fn questions(arguments: &cli::Generate) -> Result<Vec<Question>, Failure> {
    let Some(path) = &arguments.prompts else {
        return Ok(vec![Question {
            prompt: arguments.prompt.clone().unwrap_or_default(),
            images: arguments.image.clone(),
            system: arguments.system_prompt.clone(),
            place: String::new(),
        }]);
    };
    let broken = |why: String| failure(format!("cannot read prompts from `{}`", path.display()), why);
    let text = garden_files::read_settings(path).map_err(|error| broken(error.to_string()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let questions: Vec<Question> = lines
        .map(|(index, line)| {
            question(line, folder, index + 1).map_err(|why| broken(format!("line {}: {why}", index + 1)))
        })
        .collect::<Result<_, _>>()?;
    if questions.is_empty() {
        return Err(broken("it has no prompts".into()));
    }
    Ok(questions)
}

/// One line of a file of prompts.
fn question(line: &str, folder: &Path, number: usize) -> Result<Question, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
    let fields = value.as_object().ok_or("not an object: expected `{\"prompt\": ...}`")?;
    if let Some(other) = fields.keys().find(|key| !["prompt", "image", "images", "system"].contains(&key.as_str())) {
        return Err(format!("unknown field `{other}`; expected prompt, image, images or system"));
    }
    let text = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(format!("field `{name}` is {other}; expected a string")),
    };
    let mut images: Vec<PathBuf> = text("image")?.into_iter().map(PathBuf::from).collect();
    match fields.get("images") {
        None | Some(Value::Null) => {}
        Some(Value::Array(all)) => {
            for one in all {
                let path = one.as_str().ok_or_else(|| format!("field `images` has {one}; expected a path"))?;
                images.push(path.into());
            }
        }
        Some(other) => return Err(format!("field `images` is {other}; expected a list of paths")),
    }
    Ok(Question {
        prompt: text("prompt")?.ok_or("field `prompt` is missing")?,
        images: images.into_iter().map(|image| folder.join(image)).collect(),
        system: text("system")?,
        place: format!("line {number}: "),
    })
}

/// What the model is given.
fn prompt(processor: &Processor, question: &Question) -> Result<Prompt, Failure> {
    let mut files = Vec::new();
    for path in &question.images {
        let data = garden_data::read_picture(path)
            .map_err(|error| failure(format!("{}cannot read the image `{}`", question.place, path.display()), error))?;
        files.push((path.display().to_string(), data));
    }
    let mut texts = question.system.iter().chain([&question.prompt]);
    if let Some(token) = texts.find_map(|text| garden_data::picture_token(text)) {
        return Err(Failure {
            what: format!("{}cannot build the prompt", question.place),
            causes: vec![format!("it contains `{token}`, which only the chat template may write")],
            hint: Some("take the token out: pictures are shown before the prompt".into()),
        });
    }
    let mut messages: Vec<Message> = question.system.iter().map(|text| Message::text("system", text)).collect();
    messages.push(match files.len() {
        0 => Message::text("user", &question.prompt),
        images => Message::with_images("user", images, &question.prompt),
    });
    let files: Vec<PictureFile> = files.iter().map(|(name, data)| PictureFile { name, data }).collect();
    processor
        .prompt(&messages, &files)
        .map_err(|error| failure(format!("{}cannot build the prompt", question.place), error))
}

/// What a model asks for and does not get: answers go by the command line.
fn unheard(model: &Path) -> Option<String> {
    let settings = garden_input::read_other_generation(model);
    (!settings.is_empty()).then(|| {
        format!(
            "generation_config.json asks for {}: not applied; use --repetition-penalty, --temperature, --top-k or --top-p",
            settings.join(", ")
        )
    })
}

fn sampling(arguments: &cli::Generate) -> Result<Sampling, Failure> {
    let is_drawn = arguments.top_k.is_some() || arguments.top_p.is_some();
    Ok(Sampling {
        max_new_tokens: arguments.max_new_tokens as usize,
        temperature: arguments.temperature.or(is_drawn.then_some(1.0)),
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        repetition_penalty: arguments.repetition_penalty,
        end_tokens: garden_input::read_end_tokens(&arguments.model)
            .map_err(|error| failure("cannot read the end tokens", error))?,
        seed: arguments.seed,
        stream: 0,
        has_logits: false,
    })
}

/// A model's files, before anything of them is on a device.
struct Loaded {
    config: Config,
    checkpoint: Checkpoint,
    adapter: Option<Adapter>,
    four_bit: Option<FourBit>,
}

impl Loaded {
    fn open(arguments: &cli::Generate) -> Result<Loaded, Failure> {
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

    fn build(&self, device: &mut dyn Device, limits: EngineLimits) -> Result<Engine, Failure> {
        let (adapter, four_bit) = (self.adapter.as_ref(), self.four_bit.as_ref());
        Engine::build(device, &self.config, &self.checkpoint, adapter, four_bit, limits)
            .map_err(|error| Failure::of("cannot load the model", &error))
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
struct Stream<'a> {
    processor: &'a Processor,
    waiting: Vec<u8>,
}

impl Stream<'_> {
    /// What can be shown with this token.
    fn add(&mut self, token: i32) -> String {
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
    fn end(&mut self) -> String {
        format!("{}\n", String::from_utf8_lossy(&std::mem::take(&mut self.waiting)))
    }
}

/// Whether bytes are the beginning of one character.
fn is_begun(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

fn answer_text(processor: &Processor, answer: &Answer) -> String {
    processor.tokenizer.decode(&answer.tokens, SpecialTokens::Skip)
}

/// Everything as JSON. Times are those until the model was there, until the first token, and until the last.
fn told(
    arguments: &cli::Generate,
    processor: &Processor,
    questions: &[Question],
    prompt_tokens: &[usize],
    answers: &[Answer],
    device: &dyn Device,
    [load, first, all]: [f64; 3],
) -> String {
    let one = |((question, tokens), answer): ((&Question, &usize), &Answer)| {
        json!({
            "prompt": question.prompt,
            "images": question.images,
            "prompt_tokens": tokens,
            "text": answer_text(processor, answer),
            "tokens": answer.tokens,
            "finish": if answer.is_ended { "stop" } else { "length" },
        })
    };
    let answered: Vec<Value> = questions.iter().zip(prompt_tokens).zip(answers).map(one).collect();
    let plan = device.plan();
    let bytes: serde_json::Map<String, Value> =
        Purpose::ALL.iter().map(|purpose| (purpose.name().into(), plan.bytes(*purpose).into())).collect();
    let told = json!({
        "model": arguments.model,
        "adapter": arguments.adapter,
        "answers": answered,
        "seconds": {"load": load, "first_token": first, "generate": all},
        "device": if device.own_memory().is_some() { "cuda" } else { "cpu" },
        "threads": device.profile().threads,
        "plan": {"total": plan.total(), "bytes": bytes},
    });
    format!("{told:#}\n")
}
