//! All answers to some prompts at once: an engine's rows from the first step to the last.

use garden_device::Device;
use garden_input::Prompt;

use crate::engine::prefix::Prefix;
use crate::engine::sampling::Sampling;
use crate::engine::{Answer, CHUNK, Engine, NewToken, Order, Question};
use crate::error::Error;

impl Engine {
    /// Answers prompts; `on_token` receives each token as soon as it is chosen.
    pub fn generate(
        &mut self,
        device: &mut dyn Device,
        prompts: Vec<Prompt>,
        sampling: &Sampling,
        on_token: &mut dyn FnMut(NewToken<'_>),
    ) -> Result<Vec<Answer>, Error> {
        self.generate_until(device, prompts, sampling, on_token, &mut || false)
    }

    /// Answers prompts until `wants_end`, which is called before every step, returns true: the result is then [`Error::Stopped`].
    pub fn generate_until(
        &mut self,
        device: &mut dyn Device,
        prompts: Vec<Prompt>,
        sampling: &Sampling,
        on_token: &mut dyn FnMut(NewToken<'_>),
        wants_end: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Answer>, Error> {
        let (count, most) = (prompts.len(), self.limits.rows);
        if count > most {
            return Err(Error::Batch(format!("there are {count} prompts; the engine was built for {most} at once")));
        }
        let done = self.answer_all(device, prompts, sampling, on_token, wants_end);
        // Whatever happened: the next prompts find an empty engine.
        let answers = (0..count).filter_map(|row| self.retire(row)).collect();
        done.map(|()| answers)
    }

    fn answer_all(
        &mut self,
        device: &mut dyn Device,
        prompts: Vec<Prompt>,
        sampling: &Sampling,
        on_token: &mut dyn FnMut(NewToken<'_>),
        wants_end: &mut dyn FnMut() -> bool,
    ) -> Result<(), Error> {
        // All prompts are validated before the first is read.
        for (row, prompt) in prompts.into_iter().enumerate() {
            self.admit(Question {
                row,
                prompt,
                adapter: None,
                sampling: Sampling { stream: row, ..sampling.clone() },
            })?;
        }
        while !self.is_idle() {
            if wants_end() {
                return Err(Error::Stopped);
            }
            self.step(device, Order::PromptsFirst, on_token)?;
        }
        Ok(())
    }

    /// Logits of every token of a prompt `[tokens, vocabulary]`. There must be no rows.
    pub fn logits(&mut self, device: &mut dyn Device, prompt: Prompt) -> Result<Vec<f32>, Error> {
        assert!(self.rows.is_empty(), "a prompt is read where those of rows would be");
        let batch = self.batch(0, prompt, 0)?;
        if let Some((_, left)) = &mut self.prefixes {
            // It is read into the first slot.
            left[0] = Prefix::default();
        }
        let (text, workspace, tokens) = (&self.config.text, &self.workspace, batch.tokens());
        self.embed(device, &batch, None, 0);
        for before in (0..tokens).step_by(CHUNK) {
            self.read_piece(device, 0, None, &batch, before..tokens.min(before + CHUNK));
        }
        let (x, mut all) = (workspace.x.first(tokens * text.hidden), Vec::new());
        let head = &self.network.head;
        head.logits(device, text, x, tokens, &workspace.head, |chunk| all.extend_from_slice(chunk))?;
        Ok(all)
    }
}
