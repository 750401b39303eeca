//! Locates the answers in a rendered conversation.
//!
//! A template only returns a text, so the conversation is rendered up to each answer and once more including it: the difference is the
//! answer. That requires that a conversation starts with the rendering of its first messages alone, which is checked; templates that
//! change earlier turns (by removing their reasoning, say) are reported instead of being trained at the wrong positions.

use std::ops::Range;

use crate::error::Error;
use crate::template::{Chat, Ending, Template};

/// The assistant role in chat templates.
pub(crate) const ASSISTANT: &str = "assistant";

/// An answer in the rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Index of its message.
    pub message: usize,
    /// Its byte range.
    pub bytes: Range<usize>,
}

/// Each answer in the rendered conversation: all that the template writes after the header of the turn, to the end of the turn.
pub(crate) fn turns(template: &Template, chat: Chat, rendered: &str) -> Result<Vec<Turn>, Error> {
    let mut turns = Vec::new();
    for (number, _) in chat.messages.iter().enumerate().filter(|(_, message)| message.role == ASSISTANT) {
        if number == 0 {
            let problem = format!("`{}` is an answer without a question", chat.field(0));
            return Err(Error::Conversation(problem));
        }
        let start = beginning(template, chat, number, Ending::Answer, rendered)?;
        let end = beginning(template, chat, number + 1, Ending::Nothing, rendered)?;
        if end < start {
            let problem =
                format!("the chat template ends `{}` before it begins; its answer cannot be found", chat.field(number));
            return Err(Error::Conversation(problem));
        }
        turns.push(Turn { message: number, bytes: start..end });
    }
    Ok(turns)
}

/// The length of the first messages in the rendered conversation.
fn beginning(template: &Template, chat: Chat, count: usize, ending: Ending, rendered: &str) -> Result<usize, Error> {
    if count == chat.messages.len() && ending == Ending::Nothing {
        return Ok(rendered.len());
    }
    let part = template.render(Chat { messages: &chat.messages[..count], ..chat }, ending)?;
    if rendered.starts_with(&part) {
        return Ok(part.len());
    }
    let same = rendered.char_indices().zip(part.chars()).take_while(|((_, one), other)| one == other).last();
    let place = same.map_or(0, |((place, one), _)| place + one.len_utf8());
    let what = match ending {
        Ending::Answer => format!("the beginning of the answer `{}`", chat.field(count)),
        Ending::Nothing => format!("`{}` and everything before it", chat.field(count - 1)),
    };
    Err(Error::Conversation(format!(
        "the chat template writes {what} differently when the conversation continues: {:?} becomes {:?}; answers cannot be found in such texts. \
         Use rows with one answer each, or labels on all tokens",
        excerpt(&part[place..]),
        excerpt(&rendered[place..]),
    )))
}

fn excerpt(text: &str) -> String {
    text.chars().take(30).collect()
}
