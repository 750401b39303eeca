//! Finds parts of a conversation that a chat template drops.
//!
//! A template reads what it likes and ignores the rest silently: one without tool support renders a tool call as an empty answer. So the
//! conversation is rendered again without the part in question: if the text stays the same, the part is dropped.

use crate::dataset::free::Json;
use crate::dataset::unnumbered;
use crate::error::Error;
use crate::template::{Chat, Content, Ending, Message, TOOL_CALLS, Template};

const OTHER_TEMPLATE: &str =
    "pass a chat template that writes it (`--chat-template FILE`); it becomes part of the result";

/// Refuses a conversation if tools, tool calls or texts in it would be dropped.
pub(crate) fn check_used(template: &Template, place: &str, chat: Chat, rendered: &str) -> Result<(), Error> {
    let lost = |field: String, what: &str| {
        let problem = format!("{what}, which the chat template in `{}` does not write", template.path().display());
        Error::row_field(place, &field, problem).with_hint(OTHER_TEMPLATE)
    };
    let stays = |chat: Chat| template.render(chat, Ending::Nothing).is_ok_and(|other| other == rendered);
    if !chat.tools.is_empty() && stays(Chat { tools: &[], ..chat }) {
        return Err(lost("tools".to_string(), "describes tools"));
    }
    for (number, message) in chat.messages.iter().enumerate() {
        for call in 0..message.calls().len() {
            let without = changed(chat, number, |message| remove_call(message, call));
            if stays(Chat { messages: &without, ..chat }) {
                return Err(lost(format!("{}.{TOOL_CALLS}[{call}]", chat.field(number)), "is a tool call"));
            }
        }
        // A text nearly always appears verbatim in the rendering, which is quick to check.
        let is_written = |text: &str| text.trim().is_empty() || rendered.contains(text.trim());
        if !message.parts().flatten().all(is_written) {
            let without = changed(chat, number, |message| message.content = Content::Text(String::new()));
            if stays(Chat { messages: &without, ..chat }) {
                return Err(lost(format!("{}.content", chat.field(number)), "is text"));
            }
        }
    }
    Ok(())
}

/// Other message fields that change nothing, such as `messages[].name`, once per message.
pub(crate) fn unused_fields(template: &Template, chat: Chat) -> Vec<String> {
    let is_other = |name: &str| name != TOOL_CALLS;
    let has_others = |message: &Message| message.fields.iter().any(|(name, _)| is_other(name));
    let mut unused = Vec::new();
    if !chat.messages.iter().any(has_others) {
        return unused;
    }
    let Ok(rendered) = template.render(chat, Ending::Nothing) else { return unused };
    for (number, message) in chat.messages.iter().enumerate() {
        for (field, _) in message.fields.iter().filter(|(name, _)| is_other(name)) {
            let without = changed(chat, number, |message| message.fields.retain(|(name, _)| name != field));
            let text = template.render(Chat { messages: &without, ..chat }, Ending::Nothing);
            if text.is_ok_and(|text| text == rendered) {
                unused.push(unnumbered(&format!("{}.{field}", chat.field(number))));
            }
        }
    }
    unused
}

/// The messages with one of them changed.
fn changed(chat: Chat, number: usize, change: impl Fn(&mut Message)) -> Vec<Message> {
    let mut messages = chat.messages.to_vec();
    messages.get_mut(number).map(change);
    messages
}

fn remove_call(message: &mut Message, call: usize) {
    for (_, value) in message.fields.iter_mut().filter(|(name, _)| name == TOOL_CALLS) {
        if let Json::List(calls) = value {
            calls.remove(call);
        }
    }
    message.fields.retain(|(_, value)| *value != Json::List(Vec::new()));
}
