//! Sampling: repetition penalty, temperature, top-k, top-p and the draw, in the order and by the rules of transformers.
//!
//! It runs on the host, on the logits of one row. Probabilities are summed in f64, so results do not depend on the size of the vocabulary.

use std::cmp::Ordering;

use garden_random::{SplitMix64, mix};

use crate::error::Error;

/// Number of best tokens sorted first; doubled as long as top-p needs more.
const SORTED: usize = 64;

/// Sampling settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Maximum tokens of an answer.
    pub max_new_tokens: usize,
    /// Divisor of logits before a token is drawn; `None` takes the best token.
    pub temperature: Option<f32>,
    /// Draw only from this many best tokens, and those tied with the last of them.
    pub top_k: Option<usize>,
    /// Draw only from the best tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Divides positive logits of tokens in the prompt or the answer, and multiplies negative ones; 1 has no effect.
    pub repetition_penalty: f32,
    /// Tokens that end an answer, and are part of it.
    pub end_tokens: Vec<i32>,
    /// Random seed: the same seed gives the same answers.
    pub seed: u64,
    /// Which of several answers with this seed: each draws random numbers of its own.
    pub stream: usize,
    /// Whether `on_token` receives logits. Without them, the best tokens are found on the device.
    pub has_logits: bool,
}

impl Default for Sampling {
    /// The best token at each step, without end tokens.
    fn default() -> Sampling {
        Sampling {
            max_new_tokens: 256,
            temperature: None,
            top_k: None,
            top_p: None,
            repetition_penalty: 1.0,
            end_tokens: Vec::new(),
            seed: 0,
            stream: 0,
            has_logits: false,
        }
    }
}

impl Sampling {
    /// Rejects invalid settings.
    pub fn check(&self) -> Result<(), Error> {
        let refused = |name: &str, given: String, allowed: &str| {
            Err(Error::Sampling(format!("`{name}` is {given}; expected {allowed}")))
        };
        let is_positive = |value: f32| value.is_finite() && value > 0.0;
        if self.max_new_tokens == 0 {
            return refused("max_new_tokens", "0".into(), "1 or more");
        }
        if let Some(temperature) = self.temperature.filter(|temperature| !is_positive(*temperature)) {
            return refused("temperature", temperature.to_string(), "a number above 0, or none for the best token");
        }
        if self.top_k == Some(0) {
            return refused("top_k", "0".into(), "1 or more, or none for all tokens");
        }
        if let Some(top_p) = self.top_p.filter(|top_p| !(is_positive(*top_p) && *top_p <= 1.0)) {
            return refused("top_p", top_p.to_string(), "a number above 0 and at most 1");
        }
        if !is_positive(self.repetition_penalty) {
            return refused("repetition_penalty", self.repetition_penalty.to_string(), "a number above 0");
        }
        Ok(())
    }

    /// Whether the token with the largest logit is taken, and logits are not requested.
    pub(crate) fn is_best(&self) -> bool {
        self.temperature.is_none() && self.repetition_penalty == 1.0 && !self.has_logits
    }

    /// The probability of each token after all filters; `seen` has the tokens of prompt and answer so far.
    ///
    /// Without a temperature the best token has probability 1.
    pub fn probabilities(&self, logits: &[f32], seen: &[i32]) -> Vec<f32> {
        let mut sampler = Sampler::default();
        sampler.filter(self, logits, seen);
        let total: f64 = sampler.weights.iter().sum();
        let mut probabilities = vec![0.0; logits.len()];
        for (token, weight) in sampler.kept.iter().zip(&sampler.weights) {
            probabilities[*token as usize] = (weight / total) as f32;
        }
        probabilities
    }
}

/// Chooses tokens, reusing its buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sampler {
    /// Logits after penalty and temperature.
    scores: Vec<f32>,
    /// Candidate tokens and their unnormalised probabilities.
    kept: Vec<u32>,
    weights: Vec<f64>,
}

impl Sampler {
    /// The next token, or `None` if the best logit is not finite.
    pub fn choose(
        &mut self,
        sampling: &Sampling,
        logits: &[f32],
        seen: &[i32],
        random: &mut SplitMix64,
    ) -> Option<i32> {
        let best = self.filter(sampling, logits, seen);
        if !self.scores[best].is_finite() {
            return None;
        }
        let total: f64 = self.weights.iter().sum();
        let mut left = random.unit() * total;
        let drawn = self.weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        // Rounding may leave a little of the last token's share.
        Some(self.kept[drawn.unwrap_or(self.kept.len() - 1)] as i32)
    }

    /// Computes the candidate tokens and their weights; returns the best one.
    fn filter(&mut self, sampling: &Sampling, logits: &[f32], seen: &[i32]) -> usize {
        self.scores.clear();
        self.scores.extend_from_slice(logits);
        if sampling.repetition_penalty != 1.0 {
            for token in seen.iter().map(|token| *token as usize) {
                // From the logit, so that a token seen twice is penalised once.
                let (logit, penalty) = (logits[token], sampling.repetition_penalty);
                self.scores[token] = if logit < 0.0 { logit * penalty } else { logit / penalty };
            }
        }
        // NaN is never chosen.
        self.scores.iter_mut().filter(|score| score.is_nan()).for_each(|score| *score = f32::NEG_INFINITY);
        let best = best(&self.scores);
        self.kept.clear();
        self.weights.clear();
        let Some(temperature) = sampling.temperature else {
            self.kept.push(best as u32);
            self.weights.push(1.0);
            return best;
        };
        self.scores.iter_mut().for_each(|score| *score /= temperature);
        self.keep_top_k(sampling.top_k);
        let highest = self.scores[best];
        self.weights.extend(self.kept.iter().map(|token| weight(self.scores[*token as usize], highest)));
        if let Some(top_p) = sampling.top_p.filter(|top_p| *top_p < 1.0) {
            self.keep_top_p(f64::from(top_p), highest);
        }
        best
    }

    /// Keeps the best `top_k` tokens, and those tied with the last of them.
    fn keep_top_k(&mut self, top_k: Option<usize>) {
        let scores = &self.scores;
        self.kept.extend(0..scores.len() as u32);
        let Some(top_k) = top_k.filter(|top_k| *top_k < scores.len()) else { return };
        let (_, last, _) = self.kept.select_nth_unstable_by(top_k - 1, |a, b| by_score(scores, *a, *b));
        let least = scores[*last as usize];
        self.kept.clear();
        self.kept.extend((0..scores.len() as u32).filter(|token| scores[*token as usize] >= least));
    }

    /// Keeps the best tokens until their sum reaches `top_p`: a token stays if those before it have less.
    fn keep_top_p(&mut self, top_p: f64, highest: f32) {
        let scores = &self.scores;
        let wanted = top_p * self.weights.iter().sum::<f64>();
        let (mut sorted, mut count, mut before) = (0, 0, 0.0);
        while before < wanted && count < self.kept.len() {
            if count == sorted {
                // Most of a vocabulary is never needed, so only the best tokens are sorted.
                let rest = &mut self.kept[sorted..];
                let more = SORTED.max(sorted).min(rest.len());
                rest.select_nth_unstable_by(more - 1, |a, b| by_score(scores, *a, *b));
                rest[..more].sort_unstable_by(|a, b| by_score(scores, *a, *b));
                sorted += more;
            }
            before += weight(scores[self.kept[count] as usize], highest);
            count += 1;
        }
        self.kept.truncate(count.max(1));
        self.weights.clear();
        self.weights.extend(self.kept.iter().map(|token| weight(scores[*token as usize], highest)));
    }
}

/// The first of the highest scores.
fn best(scores: &[f32]) -> usize {
    (1..scores.len()).fold(0, |best, place| if scores[place] > scores[best] { place } else { best })
}

/// e^(score - highest).
fn weight(score: f32, highest: f32) -> f64 {
    f64::from(score - highest).exp()
}

/// Best first; of equal scores the last, as in a stable ascending sort reversed.
fn by_score(scores: &[f32], a: u32, b: u32) -> Ordering {
    scores[b as usize].total_cmp(&scores[a as usize]).then(b.cmp(&a))
}

/// The random numbers of an answer, independent of others.
pub(crate) fn random_of_row(seed: u64, stream: usize) -> SplitMix64 {
    SplitMix64(mix(seed) ^ (stream as u64).wrapping_mul(0xd134_2543_de82_ef95))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorting_only_the_best_changes_nothing() {
        let mut random = random_of_row(1, 0);
        let logits: Vec<f32> = (0..5000).map(|_| (random.unit() * 4.0) as f32).collect();
        for top_p in [0.01, 0.3, 0.9, 0.999] {
            let sampling = Sampling { temperature: Some(1.0), top_p: Some(top_p), ..Sampling::default() };
            let found = sampling.probabilities(&logits, &[]);
            let mut all: Vec<f64> = logits.iter().map(|logit| f64::from(*logit).exp()).collect();
            all.sort_by(|a, b| b.total_cmp(a));
            let (total, mut before) = (all.iter().sum::<f64>(), 0.0);
            let expected = all.iter().take_while(|one| {
                let stays = before < f64::from(top_p) * total;
                before += **one;
                stays
            });
            assert_eq!(found.iter().filter(|one| **one > 0.0).count(), expected.count(), "{top_p}");
        }
    }

    #[test]
    fn draws_have_the_frequencies_of_their_probabilities() {
        let logits = [0.5, -1.0, 2.0, 1.0, 0.0, 1.5];
        let sampling = Sampling { temperature: Some(1.3), top_k: Some(5), ..Sampling::default() };
        let expected = sampling.probabilities(&logits, &[]);
        let (mut sampler, draws) = (Sampler::default(), 60_000);
        for seed in 0..5 {
            let (mut random, mut counts) = (random_of_row(seed, 3), [0_u32; 6]);
            for _ in 0..draws {
                let token = sampler.choose(&sampling, &logits, &[], &mut random).unwrap();
                counts[token as usize] += 1;
            }
            assert_eq!(counts[1], 0, "the worst of six is not among five");
            let chi_square: f64 = (0..6)
                .filter(|token| *token != 1)
                .map(|token| {
                    let expected = f64::from(expected[token]) * f64::from(draws);
                    (f64::from(counts[token]) - expected).powi(2) / expected
                })
                .sum();
            // Four degrees of freedom: above 23.5 in one of 10,000 runs.
            assert!(chi_square < 23.5, "{chi_square}: {counts:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_never_chosen() {
        let (mut sampler, mut random) = (Sampler::default(), random_of_row(0, 0));
        let mut choose = |logits: &[f32], temperature| {
            let sampling = Sampling { temperature, top_p: Some(0.9), ..Sampling::default() };
            sampler.choose(&sampling, logits, &[], &mut random)
        };
        for temperature in [None, Some(1.0)] {
            assert_eq!(choose(&[f32::NAN, 1.0, f32::NEG_INFINITY], temperature), Some(1));
            assert_eq!(choose(&[f32::NAN, f32::NAN], temperature), None);
            assert_eq!(choose(&[f32::NEG_INFINITY; 3], temperature), None);
        }
        assert_eq!(choose(&[1.0, 3.0, 3.0], None), Some(1), "the first of the best");
    }
}
