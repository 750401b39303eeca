//! `model-garden generate`: answer prompts about images.

use std::path::{Path, PathBuf};
use std::time::Instant;

use garden_data::{Message, PLACEHOLDER, PictureFile, Processor, SpecialTokens};
use garden_device::{Device, Purpose};
use garden_model::{Answer, EngineLimits, Prompt};
use serde_json::{Value, json};

use super::answering::{Loaded, Stream, failure, unheard};
use super::{Outcome, devices};
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;

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
    let arguments = &cli::Generate { answering: arguments.answering.found()?, ..arguments.clone() };
    let model = &arguments.answering.model;
    let begin = Instant::now();
    let questions = questions(arguments)?;
    let sampling = arguments.answering.sampling(arguments.max_new_tokens)?;
    let processor = arguments.answering.processor()?;
    let loaded = Loaded::open(&arguments.answering)?;
    loaded.check(&processor, model)?;
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
    let mut device = devices::open_here(arguments.answering.device, arguments.answering.threads, printer)?;
    loaded.make_room(&mut *device, limits, printer)?;
    let mut engine = loaded.build(&mut *device, limits)?;
    let load_seconds = begin.elapsed().as_secs_f64();

    let (counts, begin) = (prompts.iter().map(|prompt| prompt.tokens.len()).collect::<Vec<_>>(), Instant::now());
    let mut first_seconds = None;
    let mut stream = Stream::of(&processor);
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
        (false, true) => stream.end() + "\n",
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
        "model": arguments.answering.model,
        "adapter": arguments.answering.adapter,
        "answers": answered,
        "seconds": {"load": load, "first_token": first, "generate": all},
        "device": if device.own_memory().is_some() { "cuda" } else { "cpu" },
        "threads": device.profile().threads,
        "plan": {"total": plan.total(), "bytes": bytes},
    });
    format!("{told:#}\n")
}
