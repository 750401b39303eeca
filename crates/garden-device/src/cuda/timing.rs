//! Times of operations and stages, by CUDA events.

use std::collections::HashMap;

use super::blas::Product;
use super::driver::{Driver, Event, Failure, Stream};
use crate::stages::{OperationTime, Stage, StageTimes};

/// The end of each operation; they run one after the other, so each took the time since the previous one.
#[derive(Default)]
pub(super) struct Operations {
    pub(super) names: Vec<Operation>,
    pub(super) events: Vec<Event>,
}

/// A timed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Begin,
    Kernel(&'static str),
    Product { product: Product, rows: usize, n: usize, k: usize },
    Copy,
    Fill,
}

/// The start of each stage: CUDA events, reused once they are read.
#[derive(Default)]
pub(super) struct Timing {
    pub(super) stages: Vec<Stage>,
    pub(super) events: Vec<Event>,
}

impl Operations {
    pub(super) fn note(&mut self, driver: &Driver, operation: Operation) -> Result<(), Failure> {
        if self.events.len() == self.names.len() {
            self.events.push(driver.event()?);
        }
        driver.record(&self.events[self.names.len()], Stream::Work)?;
        self.names.push(operation);
        Ok(())
    }

    pub(super) fn take(&mut self) -> Result<Vec<OperationTime>, Failure> {
        let mut sums: HashMap<Operation, (usize, f64)> = HashMap::new();
        for (index, operation) in self.names.iter().enumerate().skip(1) {
            let sum = sums.entry(*operation).or_default();
            *sum = (sum.0 + 1, sum.1 + self.events[index].seconds_since(&self.events[index - 1])?);
        }
        self.names.clear();
        sums.remove(&Operation::Begin);
        let mut times: Vec<OperationTime> = sums
            .into_iter()
            .map(|(operation, (count, seconds))| OperationTime { name: operation.name(), count, seconds })
            .collect();
        times.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        Ok(times)
    }
}

impl Operation {
    pub(super) fn name(self) -> String {
        match self {
            Operation::Begin => String::new(),
            Operation::Kernel(name) => name.to_string(),
            Operation::Product { product: Product::Forward, rows, n, k } => {
                format!("y [{rows}, {n}] = x W [{n}, {k}]^T")
            }
            Operation::Product { product: Product::Backward, rows, n, k } => {
                format!("dx [{rows}, {k}] = dy W [{n}, {k}]")
            }
            Operation::Product { product: Product::Weight, rows, n, k } => {
                format!("dW [{n}, {k}] = dy^T x, {rows} rows")
            }
            Operation::Copy => "copy".to_string(),
            Operation::Fill => "fill".to_string(),
        }
    }
}

impl Timing {
    /// Records the start of a stage in the stream.
    pub(super) fn mark(&mut self, driver: &Driver, stage: Stage) -> Result<(), Failure> {
        if !stage.counts_after(self.stages.last().copied()) {
            return Ok(());
        }
        if self.events.len() == self.stages.len() {
            self.events.push(driver.event()?);
        }
        driver.record(&self.events[self.stages.len()], Stream::Work)?;
        self.stages.push(stage);
        Ok(())
    }

    /// The times of all finished stages. The last one is still running.
    pub(super) fn take(&mut self) -> Result<StageTimes, Failure> {
        let times = StageTimes::of(&self.stages, |index| self.events[index + 1].seconds_since(&self.events[index]))?;
        if let Some(last) = self.stages.len().checked_sub(1) {
            self.events.swap(0, last);
            self.stages.drain(..last);
        }
        Ok(times)
    }
}
