//! A row of an engine: a prompt that is read, and its answer so far.

use garden_random::SplitMix64;

use crate::batch::Batch;
use crate::engine::NewToken;
use crate::engine::prefix::Prefix;
use crate::engine::sampling::Sampling;
use crate::error::Error;

/// A row from its admission to its end.
#[derive(Debug)]
pub(super) struct Row {
    pub number: usize,
    /// Its place in the KV cache.
    pub slot: usize,
    pub adapter: Option<usize>,
    pub sampling: Sampling,
    pub random: SplitMix64,
    /// Its prompt, until all of it is in the cache.
    pub unread: Option<Batch>,
    /// Tokens of its prompt in the cache.
    pub cached: usize,
    pub is_embedded: bool,
    pub prefix: Prefix,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Prompt and answer so far.
    pub tokens: Vec<i32>,
    /// The position of the next token.
    pub next: i32,
    pub is_ended: bool,
    /// Its logits were no numbers.
    pub is_broken: bool,
}

impl Row {
    /// Whether its prompt was read, and more tokens are to come.
    pub fn is_open(&self) -> bool {
        self.unread.is_none() && !self.is_finished()
    }

    pub fn is_finished(&self) -> bool {
        self.is_ended || self.is_broken || self.tokens.len() - self.prompt >= self.sampling.max_new_tokens
    }

    /// Adds the chosen token to the answer; an error if there is none.
    pub fn add(
        &mut self,
        chosen: Option<i32>,
        logits: &[f32],
        on_token: &mut dyn FnMut(NewToken<'_>),
    ) -> Result<(), Error> {
        let Some(token) = chosen else {
            self.is_broken = true;
            let (row, after) = (self.number, self.tokens.len() - self.prompt);
            let what = format!("row {row}: the model's logits are not finite after {after} new tokens");
            return Err(Error::NotFinite(what));
        };
        self.tokens.push(token);
        self.next += 1;
        self.is_ended = self.sampling.end_tokens.contains(&token);
        on_token(NewToken { row: self.number, token, is_last: self.is_finished(), logits });
        Ok(())
    }
}
