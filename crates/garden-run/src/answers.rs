//! Answers of the newest evaluation with their pictures, beside the right ones.

use garden_data::{Dataset, Thumbnail};
use garden_report::{Block, Exhibit, Image, Likeness, News, Pair, Section};
use garden_train::{ComparedField, Prediction, compare_fields};

use crate::record::RunRecord;

/// Answers that are shown, and how many of them are right where there are enough of both.
const SHOWN: usize = 12;
const SHOWN_RIGHT: usize = 4;
/// Pixels of a picture's longer side.
const SIDE: usize = 160;
/// Pictures of a row that are shown.
const PICTURES: usize = 3;
/// Larger pictures are not decoded for the sake of a page.
const MAX_PIXELS: u64 = 64_000_000;
/// Fields of an answer that are shown; those that differ come first where there are more.
const FIELDS: usize = 10;
/// Characters of a question and of a side.
const QUESTION: usize = 240;
const ANSWER: usize = 400;

/// The section, and what could not be shown.
pub fn exhibits(record: &RunRecord) -> (Option<Section>, Vec<String>) {
    let Some(first) = record.predictions.first() else { return (None, Vec::new()) };
    let chosen = choose(&record.predictions);
    let mut album = Album::open(record);
    let exhibits = chosen.iter().map(|prediction| exhibit(prediction, album.pictures(prediction))).collect();
    let (all, right) =
        (record.predictions.len(), record.predictions.iter().filter(|prediction| prediction.is_right).count());
    let words = match chosen.len() < all {
        true => format!("Showing {}, wrong ones first. ", chosen.len()),
        false => String::new(),
    };
    let step = match first.step {
        0 => "Before the first step".to_string(),
        step => format!("After step {step}"),
    };
    let words = format!(
        "{step}, {right} of {all} answers to held-out rows {} fully correct. {words}Differences are marked.",
        if right == 1 { "was" } else { "were" }
    );
    let body = vec![Block::Paragraph(words), Block::Exhibits(exhibits)];
    (Some(Section { title: "Answers".into(), body }), album.problems)
}

/// Wrong ones first, but some of both kinds.
fn choose(predictions: &[Prediction]) -> Vec<&Prediction> {
    let (right, wrong): (Vec<&Prediction>, Vec<&Prediction>) =
        predictions.iter().partition(|prediction| prediction.is_right);
    let rights = right.len().min(SHOWN_RIGHT.max(SHOWN.saturating_sub(wrong.len())));
    let wrongs = wrong.len().min(SHOWN - rights);
    wrong.into_iter().take(wrongs).chain(right.into_iter().take(rights)).collect()
}

fn exhibit(prediction: &Prediction, pictures: Vec<Image>) -> Exhibit {
    let (word, news) = if prediction.is_right { ("right", News::Good) } else { ("wrong", News::Bad) };
    Exhibit {
        pictures,
        word: word.into(),
        news,
        title: short_place(&prediction.place),
        question: cut(&prediction.question, QUESTION),
        sides: ["expected".into(), "answer".into()],
        pairs: pairs(prediction),
    }
}

fn pairs(prediction: &Prediction) -> Vec<Pair> {
    let likeness = |is_right: bool| if is_right { Likeness::Same } else { Likeness::Different };
    let mut fields = compare_fields(&prediction.expected, &prediction.answer);
    if fields.is_empty() {
        let answer = if prediction.answer.is_empty() { "(nothing)" } else { &prediction.answer };
        let sides = [cut(&prediction.expected, ANSWER), cut(answer, ANSWER)];
        return vec![Pair { name: String::new(), sides, likeness: likeness(prediction.is_right) }];
    }
    let count = fields.len();
    if count > FIELDS {
        fields.sort_by_key(|field| field.is_right);
        fields.truncate(FIELDS);
    }
    let side =
        |text: &Option<String>| text.as_ref().map_or_else(|| "(not there)".to_string(), |text| cut(text, ANSWER));
    let pair = |field: &ComparedField| Pair {
        name: field.path.clone(),
        sides: [side(&field.expected), side(&field.answer)],
        likeness: likeness(field.is_right),
    };
    let more = (count > FIELDS).then(|| Pair { name: format!("{} more", count - FIELDS), ..Pair::default() });
    fields.iter().map(pair).chain(more).collect()
}

/// Where a row stands, without the folders: `train.jsonl:17`.
fn short_place(place: &str) -> String {
    place.rsplit('/').next().unwrap_or(place).to_string()
}

/// The beginning of a text.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// Pictures of rows that are evaluated on.
struct Album {
    dataset: Option<Dataset>,
    problems: Vec<String>,
}

impl Album {
    fn open(record: &RunRecord) -> Album {
        let opened = record.job.eval.as_ref().map(|rows| rows.dataset());
        match opened {
            Some(Ok(dataset)) => Album { dataset: Some(dataset), problems: Vec::new() },
            Some(Err(error)) => {
                Album { dataset: None, problems: vec![format!("The pictures of answers are missing: {error}")] }
            }
            None => Album { dataset: None, problems: Vec::new() },
        }
    }

    /// Small copies of the pictures of a row; of what is not there only the words stay.
    fn pictures(&mut self, prediction: &Prediction) -> Vec<Image> {
        let Some(dataset) = self.dataset.as_ref().filter(|dataset| prediction.row < dataset.len()) else {
            return Vec::new();
        };
        // A dataset that was changed since has other rows at these places.
        let read = dataset.read(prediction.row).ok().filter(|record| record.place == prediction.place);
        let Some(record) = read else {
            self.problems
                .push(format!("The pictures of `{}` are missing: the row can no longer be read", prediction.place));
            return Vec::new();
        };
        let mut images = Vec::new();
        for (number, picture) in record.pictures.iter().take(PICTURES).enumerate() {
            match Thumbnail::of(&picture.name, &picture.data, SIDE, MAX_PIXELS) {
                Ok(small) => {
                    let (width, height) = small.original;
                    let place = short_place(&prediction.place);
                    let words = format!("picture {} of {place}, {width} x {height} pixels", number + 1);
                    images.push(Image::embedded(small.kind, &small.data, words, String::new()));
                }
                Err(error) => self.problems.push(format!("A picture is missing: {error}")),
            }
        }
        images
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predictions(right: usize, wrong: usize) -> Vec<Prediction> {
        let prediction = |is_right: bool| Prediction {
            step: 1,
            row: 0,
            place: "a:1".into(),
            question: String::new(),
            expected: r#"{"a": 1, "b": 2}"#.into(),
            answer: if is_right { r#"{"b": 2, "a": 1}"# } else { r#"{"a": 1, "b": 3}"# }.into(),
            is_right,
        };
        std::iter::repeat_n(prediction(true), right).chain(std::iter::repeat_n(prediction(false), wrong)).collect()
    }

    #[test]
    fn both_kinds_are_shown_and_wrong_ones_first() {
        let shown = |right: usize, wrong: usize| {
            let all = predictions(right, wrong);
            let chosen = choose(&all);
            assert!(chosen.is_sorted_by_key(|prediction| prediction.is_right));
            (chosen.iter().filter(|prediction| prediction.is_right).count(), chosen.len())
        };
        assert_eq!(shown(20, 20), (4, 12));
        assert_eq!(shown(20, 2), (10, 12));
        assert_eq!(shown(1, 20), (1, 12));
        assert_eq!((shown(0, 3), shown(5, 0)), ((0, 3), (5, 5)));
    }

    #[test]
    fn fields_that_differ_are_marked() {
        let pairs = pairs(&predictions(0, 1)[0]);
        let told: Vec<(&str, Likeness)> = pairs.iter().map(|pair| (pair.name.as_str(), pair.likeness)).collect();
        assert_eq!(told, [("a", Likeness::Same), ("b", Likeness::Different)]);
    }
}
