//! The fields of a question, its answer and earlier turns.

use super::{ANSWERS, CAPTIONS, Draft, HISTORY, LoneText, PROMPTS, both};
use crate::dataset::convert::known_export;
use crate::dataset::suspect::Looks;
use crate::dataset::value::{Object, Value};
use crate::error::Error;
use crate::template::Message;

/// The fields of a question, if there is one, and of its answer.
pub(super) type Pair<'a> = (Option<(&'static str, Value<'a>)>, (&'static str, Value<'a>));

impl<'a> Draft<'_, 'a> {
    pub(super) fn has_no_history(&self, field: &str, object: &mut Object<'a>) -> Result<(), Error> {
        match object.take(HISTORY).filter(|history| !history.is_empty()) {
            None => Ok(()),
            Some(history) => Err(self
                .error(HISTORY, format!("is {history}: earlier turns beside `{field}`"))
                .with_hint(format!("put them into `{field}`, or leave them out with `--ignore-field {HISTORY}`"))),
        }
    }

    /// Earlier turns as pairs of question and answer. Their answers are trained, as in LLaMA-Factory and ms-swift.
    pub(super) fn read_history(&mut self, object: &mut Object<'a>) -> Result<(), Error> {
        let turns = self.list(HISTORY, object.take(HISTORY).filter(|history| !history.is_empty()))?;
        for (number, turn) in turns.into_iter().enumerate() {
            let field = format!("{HISTORY}[{number}]");
            let pair: [Value<'a>; 2] = match self.list(&field, Some(turn))?.try_into() {
                Ok(pair) => pair,
                Err(list) => {
                    let problem = format!("has {} elements, not a question and its answer", list.len());
                    return Err(self.error(&field, problem));
                }
            };
            let [question, answer] = pair;
            let (asked, said) = (format!("{field}[0]"), format!("{field}[1]"));
            let question = self.text(&asked, question)?;
            let content = self.with_placeholders(&asked, &question)?;
            self.push(&asked, Message::new("user", content));
            let answer = self.text(&said, answer)?;
            let answer = self.answer(&said, answer)?;
            self.push(&said, Message::text("assistant", &answer));
        }
        Ok(())
    }

    /// The fields of question and answer; only a picture needs no question.
    pub(super) fn find_pair(
        &self,
        object: &mut Object<'a>,
        lone_text: LoneText,
        has_pictures: bool,
    ) -> Result<Pair<'a>, Error> {
        let names = &self.fields_there;
        let prompt = self.take_one(object, &PROMPTS)?;
        let answer = self.take_one(object, &ANSWERS)?;
        let caption = if answer.is_none() { self.take_caption(object)? } else { None };
        match (prompt, answer.or(caption)) {
            (Some(("text", text)), Some((caption, said))) if CAPTIONS.contains(&caption) => {
                if text == said {
                    return Ok((None, (caption, said)));
                }
                let error = self.error(caption, "and `text` differ, and both could be the caption");
                let hint = format!(
                    "`--field question=text` if it is the question; `--ignore-field {caption}` or `--ignore-field text` leaves one out"
                );
                Err(error.with_hint(hint))
            }
            (None, Some((answer, _))) if !has_pictures => {
                let error =
                    self.error("prompt", format!("is missing: `{answer}` has no question; the row has {names}"));
                let hint = "call the question `prompt`, `text`, `question` or `instruction`";
                Err(error.with_hint(self.with_candidates(hint, object, &[Looks::Question, Looks::Picture])))
            }
            (prompt, Some(answer)) => Ok((prompt, answer)),
            (Some(("text", text)), None) if lone_text == LoneText::Caption && has_pictures => {
                Ok((None, ("text", text)))
            }
            (Some((prompt, _)), None) => {
                let error = self.error("response", format!("is missing: `{prompt}` has no answer"));
                let hint = "call the answer `response`, `output`, `answer` or `completion`";
                let hint = self.with_candidates(hint, object, &[Looks::Answer, Looks::Label]);
                let is_caption = prompt == "text" && has_pictures;
                let caption = if is_caption { "; `--field answer=text` if it says what the picture shows" } else { "" };
                Err(error.with_hint(format!("{hint}{caption}")))
            }
            (None, None) => {
                let error = self.error("", format!("no conversation in this row: it has {names}"));
                let hint = "rows need `messages`, `conversations`, or `prompt` and `response`";
                let looks = [Looks::Conversation, Looks::Question, Looks::Answer, Looks::Label];
                Err(error.with_hint(known_export(object).unwrap_or_else(|| self.with_candidates(hint, object, &looks))))
            }
        }
    }

    /// The only one of several fields with the same meaning.
    fn take_one(
        &self,
        object: &mut Object<'a>,
        fields: &[&'static str],
    ) -> Result<Option<(&'static str, Value<'a>)>, Error> {
        let first = object.take_any(fields);
        match (&first, object.take_any(fields)) {
            (Some((first, _)), Some((second, _))) => Err(both(self.place, first, second)),
            _ => Ok(first),
        }
    }

    /// The caption; two equal ones are one.
    fn take_caption(&self, object: &mut Object<'a>) -> Result<Option<(&'static str, Value<'a>)>, Error> {
        let first = object.take_any(&CAPTIONS);
        match (&first, object.take_any(&CAPTIONS)) {
            (Some((first, one)), Some((second, other))) if *one != other => Err(both(self.place, first, second)),
            _ => Ok(first),
        }
    }
}
