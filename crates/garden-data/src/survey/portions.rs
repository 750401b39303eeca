//! What a survey finds in each of several datasets that were joined.

use super::SurveyedPortion;
use super::largest_batch::LargestBatch;
use super::row::{Fit, ReadRow, RowSurvey};
use crate::dataset::Dataset;
use crate::fingerprint::Fingerprint;

/// Datasets whose rows come one after the other.
#[derive(Default)]
pub(super) struct Portions {
    /// The dataset of the next row, and its rows that were seen.
    now: (usize, usize),
    found: Vec<(SurveyedPortion, LargestBatch)>,
}

impl Portions {
    pub(super) fn of(dataset: &Dataset, batch_size: usize) -> Portions {
        let of = |rows: usize| (SurveyedPortion { rows, ..SurveyedPortion::default() }, LargestBatch::new(batch_size));
        let found = dataset.portions().iter().map(|portion| of(portion.rows)).collect();
        Portions { now: (0, 0), found }
    }

    /// Adds the next row.
    pub(super) fn add(&mut self, surveyed: &RowSurvey) {
        while self.found.get(self.now.0).is_some_and(|(portion, _)| self.now.1 == portion.rows) {
            self.now = (self.now.0 + 1, 0);
        }
        self.now.1 += 1;
        let Some((portion, most)) = self.found.get_mut(self.now.0) else { return };
        match surveyed {
            RowSurvey::Read(ReadRow { fit: Fit::Kept { tally, limits, .. }, .. }) => {
                portion.kept += 1;
                portion.tokens += tally.tokens as u64;
                most.add(*limits);
            }
            RowSurvey::Read(ReadRow { fit: Fit::Dropped, .. }) => {}
            RowSurvey::Read(_) | RowSurvey::Unread(_) => portion.bad += 1,
        }
    }

    /// `fingerprints` has one of each row.
    pub(super) fn finish(self, fingerprints: &[u64]) -> Vec<SurveyedPortion> {
        let mut rest = fingerprints;
        let finished = |(portion, most): (SurveyedPortion, LargestBatch)| {
            let (own, behind) = rest.split_at(portion.rows.min(rest.len()));
            rest = behind;
            SurveyedPortion { fingerprint: Fingerprint::of_numbers(own), largest: most.rows(), ..portion }
        };
        self.found.into_iter().map(finished).collect()
    }
}
