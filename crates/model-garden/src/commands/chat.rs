//! `model-garden chat`: a conversation with a model about images.

use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use garden_data::{Message, PictureFile, Processor, SpecialTokens};
use garden_device::Device;
use garden_model::{Engine, EngineLimits, Error, Order, Question, Sampling};
use serde_json::json;
use signal_hook::consts::SIGINT;

use super::answering::{Loaded, Stream, failure, unheard};
use super::{Outcome, devices};
use crate::cli;
use crate::failure::Failure;
use crate::printer::Printer;

/// The exit code after Ctrl-C between answers.
const INTERRUPTED: i32 = 130;

const HELP: &str =
    "/image FILE shows a picture with the next message, /clear begins anew, /quit ends; Ctrl-C stops an answer";

/// A line of the person who asks.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Said(String),
    Image(PathBuf),
    Clear,
    Help,
    Quit,
    /// Begins like a command, and is none.
    Unknown(String),
}

impl Line {
    fn of(text: &str) -> Line {
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match (word, rest.trim()) {
            ("/image", "") => Line::Unknown("/image needs a file: /image sign.jpg".into()),
            ("/image", file) => Line::Image(file.into()),
            ("/clear", "") => Line::Clear,
            ("/help" | "/?", "") => Line::Help,
            ("/quit" | "/exit" | "/bye", "") => Line::Quit,
            // A path or a regular expression may well begin a question.
            (word, _) if is_command(word) => Line::Unknown(format!("{word} is no command; {HELP}")),
            _ => Line::Said(text.to_string()),
        }
    }
}

/// Whether a word is a slash and small letters.
fn is_command(word: &str) -> bool {
    let letters = word.strip_prefix('/').unwrap_or_default();
    !letters.is_empty() && letters.chars().all(|letter| letter.is_ascii_lowercase())
}

/// What was said so far.
#[derive(Debug, Default)]
struct Conversation {
    messages: Vec<Message>,
    /// Pictures of all messages, by name.
    pictures: Vec<(String, Vec<u8>)>,
}

/// An answer, and what it took.
struct Turn {
    text: String,
    prompt_tokens: usize,
    reused_tokens: usize,
    tokens: usize,
    finish: &'static str,
    seconds: f64,
}

/// Who answers.
struct Talker<'a> {
    device: &'a mut dyn Device,
    engine: Engine,
    processor: &'a Processor,
    sampling: Sampling,
    context: usize,
    /// Set by Ctrl-C.
    wants_end: Arc<AtomicBool>,
    /// Turns so far: each draws random numbers of its own.
    turns: usize,
}

/// Runs the command.
pub fn run(arguments: &cli::Chat, printer: &Printer) -> Result<Outcome, Failure> {
    let answering = arguments.answering.found()?;
    let sampling = answering.sampling(arguments.max_new_tokens)?;
    let processor = answering.processor()?;
    let loaded = Loaded::open(&answering)?;
    loaded.check(&processor, &answering.model)?;
    if let Some(note) = unheard(&answering.model) {
        printer.say(&format!("note: {note}"));
    }
    let most = garden_input::read_max_positions(&answering.model).unwrap_or(usize::MAX);
    let context = (arguments.context as usize).min(most);
    // All of it may be pictures.
    let limits = EngineLimits { rows: 1, context, patches: context * loaded.config.vision.merged() };
    let mut asked = Conversation::begun(arguments.system_prompt.as_deref())?;
    let mut shown = Vec::new();
    for image in &arguments.image {
        shown.push(picture(&processor, image)?);
    }
    let mut device = devices::open_here(answering.device, answering.threads, printer)?;
    loaded.make_room(&mut *device, limits, printer)?;
    let mut engine = loaded.build(&mut *device, limits)?;
    engine.keep_prefixes();
    let (wants_end, is_waiting) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    signal_hook::flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&is_waiting))
        .and_then(|_| signal_hook::flag::register(SIGINT, Arc::clone(&wants_end)))
        .map_err(|error| Failure::new("cannot listen for Ctrl-C", &error, None))?;
    let is_person = io::stdin().is_terminal() && io::stderr().is_terminal();
    if is_person {
        printer.say(HELP);
    }
    let device = &mut *device;
    let mut talker = Talker { device, engine, processor: &processor, sampling, context, wants_end, turns: 0 };
    let mut input = io::stdin().lock();
    loop {
        if is_person {
            printer.show("> ");
        }
        let Some(text) = next_line(&mut input)? else { return Ok(Outcome::Fine) };
        match Line::of(text.trim()) {
            Line::Quit => return Ok(Outcome::Fine),
            Line::Help => printer.say(HELP),
            Line::Unknown(why) => printer.say(&why),
            Line::Clear => {
                asked = Conversation::begun(arguments.system_prompt.as_deref())?;
                shown.clear();
                printer.say("a new conversation");
            }
            Line::Image(path) => match picture(&processor, &path) {
                Ok(picture) => shown.push(picture),
                // A mistyped name should not end a conversation.
                Err(error) if is_person => printer.failure(&error),
                Err(error) => return Err(error),
            },
            Line::Said(text) if text.is_empty() => (),
            Line::Said(text) => {
                is_waiting.store(false, Ordering::Relaxed);
                let turn = talker.answer(&mut asked, &mut shown, &text, arguments.printed.is_json(), printer);
                is_waiting.store(true, Ordering::Relaxed);
                match turn {
                    Ok(turn) if arguments.printed.is_json() => printer.out(&turn.told(&text))?,
                    Ok(turn) if turn.finish != "stop" => printer.say(turn.ending()),
                    Ok(_) => (),
                    Err(error) if is_person => printer.failure(&error),
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// The next message, whose lines but the last end with a backslash; nothing at the end of the input.
fn next_line(input: &mut impl BufRead) -> Result<Option<String>, Failure> {
    let mut text = String::new();
    loop {
        let count = input.read_line(&mut text).map_err(|error| Failure::new("cannot read a message", &error, None))?;
        let line = text.trim_end_matches(['\n', '\r']).len();
        text.truncate(line);
        match text.strip_suffix('\\') {
            Some(begun) if count > 0 => text = format!("{begun}\n"),
            _ if count == 0 && text.is_empty() => return Ok(None),
            _ => return Ok(Some(text)),
        }
    }
}

/// A picture's name and bytes; one that cannot be used is refused before it is shown.
fn picture(processor: &Processor, path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let what = || format!("cannot use the image `{}`", path.display());
    let data = garden_data::read_picture(path).map_err(|error| failure(what(), error))?;
    let name = path.display().to_string();
    processor.grid(PictureFile { name: &name, data: &data }).map_err(|error| failure(what(), error))?;
    Ok((name, data))
}

/// Refuses what only the chat template may write.
fn check_text(text: &str) -> Result<(), Failure> {
    match garden_data::picture_token(text) {
        Some(token) => Err(Failure {
            what: "cannot use this text".into(),
            causes: vec![format!("it contains `{token}`, which only the chat template may write")],
            hint: Some("take the token out; /image FILE shows a picture".into()),
        }),
        None => Ok(()),
    }
}

impl Conversation {
    fn begun(system: Option<&str>) -> Result<Conversation, Failure> {
        system.map_or(Ok(()), check_text)?;
        Ok(Conversation {
            messages: system.iter().map(|text| Message::text("system", text)).collect(),
            pictures: Vec::new(),
        })
    }
}

impl Talker<'_> {
    /// Answers a message with the pictures that are shown with it. If it fails, the conversation and the pictures stay as they were.
    fn answer(
        &mut self,
        asked: &mut Conversation,
        shown: &mut Vec<(String, Vec<u8>)>,
        text: &str,
        is_silent: bool,
        printer: &Printer,
    ) -> Result<Turn, Failure> {
        check_text(text)?;
        let begin = Instant::now();
        let (messages, pictures) = (asked.messages.len(), asked.pictures.len());
        asked.messages.push(match shown.len() {
            0 => Message::text("user", text),
            images => Message::with_images("user", images, text),
        });
        asked.pictures.append(shown);
        self.turns += 1;
        self.wants_end.store(false, Ordering::Relaxed);
        let answered = self.stream(asked, is_silent, printer);
        self.engine.retire(self.turns);
        if answered.is_err() {
            asked.messages.truncate(messages);
            shown.extend(asked.pictures.drain(pictures..));
        }
        let mut turn = answered?;
        asked.messages.push(Message::text("assistant", &turn.text));
        turn.seconds = begin.elapsed().as_secs_f64();
        Ok(turn)
    }

    fn stream(&mut self, asked: &Conversation, is_silent: bool, printer: &Printer) -> Result<Turn, Failure> {
        let files: Vec<PictureFile> = asked.pictures.iter().map(|(name, data)| PictureFile { name, data }).collect();
        let prompt = self.processor.prompt(&asked.messages, &files);
        let prompt = prompt.map_err(|error| failure("cannot build the prompt", error))?;
        let (prompt_tokens, context) = (prompt.tokens.len(), self.context);
        if prompt_tokens >= context {
            return Err(Failure {
                what: "the conversation is too long".into(),
                causes: vec![format!("it has {prompt_tokens} tokens with this message; --context is {context}")],
                hint: Some("/clear begins anew; start with a larger --context for longer ones".into()),
            });
        }
        let sampling = Sampling {
            stream: self.turns - 1,
            max_new_tokens: self.sampling.max_new_tokens.min(context - prompt_tokens),
            ..self.sampling.clone()
        };
        let question = Question { row: self.turns, prompt, adapter: None, sampling };
        let reused_tokens = self.engine.admit(question).map_err(|error| failure("cannot answer", error))?;
        let (mut shown, mut tokens, mut trouble) = (Stream::of(self.processor), Vec::new(), None);
        while !self.engine.is_idle() && !self.wants_end.load(Ordering::Relaxed) {
            let stepped = self.engine.step(self.device, Order::PromptsFirst, &mut |new| {
                tokens.push(new.token);
                let text = shown.add(new.token);
                if !is_silent {
                    trouble = printer.out_exactly(&text).err().or(trouble.take());
                }
            });
            stepped.map_err(|error: Error| failure("cannot answer", error))?;
            if let Some(trouble) = trouble.take() {
                return Err(trouble);
            }
        }
        let is_stopped = self.wants_end.load(Ordering::Relaxed) && !self.engine.is_idle();
        let is_ended = tokens.last().is_some_and(|token| self.sampling.end_tokens.contains(token));
        if !is_silent {
            printer.out_exactly(&format!("{}\n", shown.end()))?;
        }
        Ok(Turn {
            text: self.processor.tokenizer.decode(&tokens, SpecialTokens::Skip),
            prompt_tokens,
            reused_tokens,
            tokens: tokens.len(),
            finish: match (is_stopped, is_ended) {
                (true, _) => "stopped",
                (_, true) => "stop",
                (_, false) => "length",
            },
            seconds: 0.0,
        })
    }
}

impl Turn {
    /// What a person should know of an answer that did not end by itself.
    fn ending(&self) -> &'static str {
        match self.finish {
            "stopped" => "(stopped)",
            _ => "(cut off: --max-new-tokens or --context is reached)",
        }
    }

    /// A line of JSON.
    fn told(&self, prompt: &str) -> String {
        let told = json!({
            "prompt": prompt,
            "text": self.text,
            "finish": self.finish,
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "new_tokens": self.tokens,
            "seconds": self.seconds,
        });
        format!("{told}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        let said = |text: &str| Line::Said(text.into());
        for (text, line) in [
            ("What is this?", said("What is this?")),
            ("/clear", Line::Clear),
            ("/image a b.png", Line::Image("a b.png".into())),
            ("/quit", Line::Quit),
            ("/usr/bin is a folder", said("/usr/bin is a folder")),
            ("/", said("/")),
            ("/clear the table", Line::Unknown(format!("/clear is no command; {HELP}"))),
            ("/imgae a.png", Line::Unknown(format!("/imgae is no command; {HELP}"))),
        ] {
            assert_eq!(Line::of(text), line, "{text}");
        }
    }

    #[test]
    fn a_backslash_goes_on_to_the_next_line() {
        let mut input = "one\\\ntwo\r\n\nthree\\".as_bytes();
        let mut next = || next_line(&mut input).unwrap();
        assert_eq!(next().as_deref(), Some("one\ntwo"));
        assert_eq!(next().as_deref(), Some(""));
        assert_eq!(next().as_deref(), Some("three"));
        assert_eq!(next(), None);
    }
}
