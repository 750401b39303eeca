//! Why the verdict is what it is and what to do, for terminals with room for it: the beginning of what the report says.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Picture;
use super::palette::Palette;
use super::text::{clean, wrap};

/// Sentences of each kind, and lines of a sentence; the report has all of them.
const MOST: usize = 3;
const MOST_LINES: usize = 4;
/// Columns of what a sentence begins with.
const MARK: usize = 3;

/// What the verdict rests on and then the advice, in lines of at most so many columns.
pub(super) fn lines(picture: &Picture, columns: usize, palette: Palette) -> Vec<Line<'static>> {
    let Some(diagnosis) = picture.diagnosis else { return Vec::new() };
    let reasons =
        diagnosis.evidence.iter().take(MOST).map(|evidence| ("-".to_string(), evidence.text.as_str(), palette.quiet()));
    let numbers = (1..).map(|number: usize| format!("{number}."));
    let advice =
        numbers.zip(diagnosis.advice.iter().take(MOST)).map(|(number, advice)| (number, advice.as_str(), Style::new()));
    let sentence = |(mark, text, style): (String, &str, Style)| {
        let wrapped = wrap(&clean(text), 0, columns.saturating_sub(MARK), MOST_LINES);
        let begin = |index: usize| if index == 0 { format!("{mark:<MARK$}") } else { " ".repeat(MARK) };
        let line =
            |(index, part): (usize, String)| Line::from(vec![Span::raw(begin(index)), Span::styled(part, style)]);
        wrapped.into_iter().enumerate().map(line).collect::<Vec<_>>()
    };
    reasons.chain(advice).flat_map(sentence).collect()
}
