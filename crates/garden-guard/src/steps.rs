//! Steps by a pattern of the user's: `--step-pattern 'iter (\d+)'`.

use regex_lite::Regex;

/// Longer lines are not looked at.
const LONGEST_LINE: usize = 1 << 16;

/// Finds the step in what a program prints: the pattern's first group that is a number, or the whole match.
#[derive(Debug)]
pub struct StepPattern {
    pattern: Regex,
    line: Vec<u8>,
}

impl StepPattern {
    /// Looks for this pattern.
    pub fn new(pattern: Regex) -> StepPattern {
        StepPattern { pattern, line: Vec::new() }
    }

    /// Takes in output as it comes; the last step that it tells, if any.
    pub fn hear(&mut self, output: &[u8]) -> Option<f64> {
        let mut step = None;
        for &byte in output {
            if byte == b'\n' || byte == b'\r' {
                step = self.step().or(step);
                self.line.clear();
            } else if self.line.len() < LONGEST_LINE {
                self.line.push(byte);
            }
        }
        step
    }

    fn step(&self) -> Option<f64> {
        let text = String::from_utf8_lossy(&self.line);
        let found = self.pattern.captures(&text)?;
        let number = |text: &str| text.replace([',', '_'], "").parse::<f64>().ok().filter(|step| step.is_finite());
        let groups = (1..found.len()).filter_map(|group| number(found.get(group)?.as_str())).next();
        groups.or_else(|| number(found.get(0)?.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_group_that_is_a_number_is_the_step() {
        let mut pattern = StepPattern::new(Regex::new(r"iter=(\w+?)/(?:\d+)|update (\d[\d,]*)").unwrap());
        assert_eq!(pattern.hear(b"iter=12/500 loss 3\nnothing\nupd"), Some(12.0));
        assert_eq!(pattern.hear(b"ate 1,204 lr 0.1\r"), Some(1204.0));
        assert_eq!(pattern.hear(b"\xff\xfe no step\n"), None);
    }
}
