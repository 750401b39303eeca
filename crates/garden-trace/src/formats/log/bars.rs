//! Which of a program's progress bars counts training steps.
//!
//! Trainers draw bars for downloads, preparation and evaluations too, many of them without a name. A name says what the
//! bar counts. Of unnamed bars, the first is followed until it is full: bars drawn in the meantime are nested in it, as
//! evaluations are. A printed loss confirms that it is the training's.

use super::line::{Bar, LogLine};

/// Most totals of nested bars remembered.
const MOST_INNER: usize = 8;

/// The bars so far.
#[derive(Clone, Default)]
pub(super) struct Bars {
    followed: Option<Followed>,
    /// Totals of bars drawn while the followed one was not full.
    inner: Vec<f64>,
}

/// The bar that counts training steps, as far as is known.
#[derive(Clone)]
struct Followed {
    name: Name,
    total: f64,
    step: f64,
    epoch: Option<f64>,
    /// Steps of earlier epochs, for bars that restart with each epoch.
    before: f64,
    has_loss: bool,
}

/// What a bar counts, by the words before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    None,
    Training,
    /// `Epoch 3` or `Epoch 3/10`: the steps of one epoch.
    Epoch,
    Other,
}

/// A training step shown by a bar.
pub(super) struct Told {
    pub(super) step: f64,
    /// The steps of an epoch, if the bar is known to count them.
    pub(super) epoch_steps: Option<f64>,
}

impl Bars {
    /// Takes in a line; returns the step if its bar is the training's. `stated` is the total stated by a banner.
    pub(super) fn take(&mut self, line: &LogLine<'_>, stated: Option<f64>) -> Option<Told> {
        let Some(bar) = line.bar else {
            if let Some(followed) = self.followed.as_mut().filter(|followed| !followed.has_loss) {
                followed.has_loss = tells_loss(line.lower);
            }
            return None;
        };
        let name = Name::of(line);
        if name == Name::Other || (name == Name::None && stated.is_some_and(|stated| stated != bar.total)) {
            return None;
        }
        let has_loss = tells_loss(line.lower);
        // Next to other bars there may be a dictionary with fractions of epochs.
        let epoch = line.epoch.map(|(epoch, _)| epoch).filter(|_| name == Name::Epoch);
        if !self.is_followed(name, bar) {
            if !self.may_follow(name, bar, has_loss) {
                return None;
            }
            self.followed = Some(Followed { name, total: bar.total, step: bar.step, epoch, before: 0.0, has_loss });
        }
        let followed = self.followed.as_mut()?;
        let is_next = followed.epoch.zip(epoch).is_some_and(|(before, now)| now > before);
        if is_next || (bar.step < followed.step && followed.step >= followed.total) {
            followed.before += followed.total;
        }
        (followed.step, followed.epoch) = (bar.step, epoch.or(followed.epoch));
        followed.has_loss |= has_loss;
        let epoch_steps = Some(bar.total).filter(|_| name == Name::Epoch);
        Some(Told { step: followed.before + bar.step, epoch_steps })
    }

    fn is_followed(&self, name: Name, bar: Bar) -> bool {
        self.followed.as_ref().is_some_and(|followed| followed.name == name && followed.total == bar.total)
    }

    /// Whether a bar replaces the followed one as the training's.
    fn may_follow(&mut self, name: Name, bar: Bar, has_loss: bool) -> bool {
        let Some(followed) = &self.followed else { return true };
        if has_loss || (name != Name::None && followed.name == Name::None) {
            return true;
        }
        let is_full = followed.step >= followed.total;
        if !is_full && !self.inner.contains(&bar.total) && self.inner.len() < MOST_INNER {
            self.inner.push(bar.total);
        }
        is_full && !followed.has_loss && !self.inner.contains(&bar.total)
    }
}

/// Whether a line in lower case shows a training loss.
fn tells_loss(line: &str) -> bool {
    line.contains("loss") && !line.contains("eval") && !line.contains("val_")
}

impl Name {
    fn of(line: &LogLine<'_>) -> Name {
        let words = line.lower.split('|').next().unwrap_or_default();
        let words = words.trim_end().trim_end_matches('%').trim_end_matches(|c: char| c.is_ascii_digit());
        let mut words = words.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        match words.next() {
            None => Name::None,
            // A bar of epochs has no number beside the word, and counts no steps.
            Some("epoch") if line.epoch.is_some() => Name::Epoch,
            Some("train" | "training" | "step" | "steps" | "iteration" | "iterations" | "finetuning") => Name::Training,
            Some(_) => Name::Other,
        }
    }
}
