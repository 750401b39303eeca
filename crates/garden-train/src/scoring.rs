//! Whether an answer is right: as a whole, and field by field where the right one is JSON.

use std::collections::BTreeMap;

use serde_json::Value;

/// How many answers and fields were right.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Score {
    answers: usize,
    exact: usize,
    /// How often each field was there, and how often it was right.
    fields: BTreeMap<String, (usize, usize)>,
    /// The overlap of each right box with the answer's, and 0 for each box too many.
    overlaps: Vec<f64>,
}

impl Score {
    /// Takes an answer; returns whether it is right as a whole.
    pub fn add(&mut self, expected: &str, answer: &str) -> bool {
        let wanted =
            serde_json::from_str::<Value>(expected.trim()).ok().filter(|value| value.is_object() || value.is_array());
        let given = wanted.as_ref().and_then(|_| json_in(answer));
        let is_exact = match (&wanted, &given) {
            (Some(wanted), Some(given)) => same(wanted, given),
            _ => expected.trim() == answer.trim(),
        };
        self.answers += 1;
        self.exact += usize::from(is_exact);
        if let Some(wanted) = &wanted {
            self.compare(String::new(), wanted, given.as_ref());
        }
        is_exact
    }

    /// Every value that is no object or list is a field; places of lists count as one field together.
    fn compare(&mut self, path: String, wanted: &Value, given: Option<&Value>) {
        match wanted {
            Value::Object(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    self.compare(path, value, given.and_then(|given| given.get(name)));
                }
            }
            Value::Array(values) if !values.is_empty() => {
                for (place, value) in values.iter().enumerate() {
                    self.compare(format!("{path}[]"), value, given.and_then(|given| given.get(place)));
                }
            }
            value => {
                let count = self.fields.entry(path).or_default();
                count.0 += 1;
                count.1 += usize::from(given.is_some_and(|given| same(value, given)));
            }
        }
    }

    /// Takes the boxes of an answer whose right one has some.
    pub fn add_boxes(&mut self, expected: &str, answer: &str) {
        self.overlaps.extend(overlaps(&boxes_in(expected), &boxes_in(answer)));
    }

    pub fn mean_iou(&self) -> Option<f64> {
        (!self.overlaps.is_empty()).then(|| self.overlaps.iter().sum::<f64>() / self.overlaps.len() as f64)
    }

    pub fn iou_50(&self) -> Option<f64> {
        let half = self.overlaps.iter().filter(|overlap| **overlap >= 0.5).count();
        (!self.overlaps.is_empty()).then(|| half as f64 / self.overlaps.len() as f64)
    }

    pub fn exact_match(&self) -> Option<f64> {
        (self.answers > 0).then(|| self.exact as f64 / self.answers as f64)
    }

    pub fn field_accuracy(&self) -> Option<f64> {
        let (all, right) = self.fields.values().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
        (all > 0).then(|| right as f64 / all as f64)
    }

    pub fn fields(&self) -> BTreeMap<String, f64> {
        self.fields.iter().map(|(name, (all, right))| (name.clone(), *right as f64 / (*all).max(1) as f64)).collect()
    }
}

/// A box of an answer.
#[derive(Clone, Debug, PartialEq)]
struct AnsweredBox {
    /// x1, y1, x2, y2.
    corners: [f64; 4],
    /// What it is a box of, where JSON says that.
    label: Option<String>,
}

/// Boxes of an answer: those that JSON calls `bbox_2d`, with their labels; where there are none, every list of four numbers, and every pair of
/// points as in `(12,40),(300,500)`, in a text that may be cut off.
fn boxes_in(answer: &str) -> Vec<AnsweredBox> {
    let mut found = Vec::new();
    if let Some(value) = json_in(answer) {
        labelled(&value, &mut found);
    }
    if found.is_empty() {
        found = corners_in(answer).into_iter().map(|corners| AnsweredBox { corners, label: None }).collect();
    }
    found
}

fn labelled(value: &Value, found: &mut Vec<AnsweredBox>) {
    match value {
        Value::Object(fields) => {
            let numbers = fields.get("bbox_2d").and_then(Value::as_array);
            let numbers: Option<Vec<f64>> = numbers.and_then(|list| list.iter().map(Value::as_f64).collect());
            if let Some(corners) = numbers.and_then(|numbers| numbers.try_into().ok()) {
                let label = fields.get("label").and_then(Value::as_str).map(str::to_string);
                found.push(AnsweredBox { corners, label });
            }
            fields.values().for_each(|value| labelled(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| labelled(value, found)),
        _ => {}
    }
}

/// Four numbers in brackets, and pairs of points.
fn corners_in(text: &str) -> Vec<[f64; 4]> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(['[', '(']) {
        let inside = &rest[start + 1..];
        let read = match rest.as_bytes()[start] {
            b'[' => inside.split_once(']').and_then(|(list, behind)| Some((numbers_of(list)?, behind))),
            _ => inside.split_once("),(").and_then(|(first, behind)| {
                let (second, behind) = behind.split_once(')')?;
                Some((numbers_of(&format!("{first},{second}"))?, behind))
            }),
        };
        rest = inside;
        if let Some((corners, behind)) = read {
            found.push(corners);
            rest = behind;
        }
    }
    found
}

fn numbers_of(list: &str) -> Option<[f64; 4]> {
    let numbers: Option<Vec<f64>> = list.split(',').map(|number| number.trim().parse().ok()).collect();
    numbers?.try_into().ok()
}

/// The overlap of each right box with the box of the answer that is its own: the pairs that overlap most are taken first, and boxes with different labels
/// are no pair. Boxes of the answer that are left over count as 0, so that many guesses do not help.
fn overlaps(wanted: &[AnsweredBox], given: &[AnsweredBox]) -> Vec<f64> {
    let mut pairs = Vec::new();
    for (number, one) in wanted.iter().enumerate() {
        for (place, other) in given.iter().enumerate() {
            let is_pair = one.label.is_none() || other.label.is_none() || one.label == other.label;
            let overlap = iou(&one.corners, &other.corners);
            if is_pair && overlap > 0.0 {
                pairs.push((overlap, number, place));
            }
        }
    }
    pairs.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mut found = vec![0.0; wanted.len().max(given.len())];
    let (mut has_pair, mut is_taken) = (vec![false; wanted.len()], vec![false; given.len()]);
    for (overlap, number, place) in pairs {
        if !has_pair[number] && !is_taken[place] {
            (has_pair[number], is_taken[place]) = (true, true);
            found[number] = overlap;
        }
    }
    found
}

/// Intersection over union of two boxes; 0 where one of them is none.
fn iou(one: &[f64; 4], other: &[f64; 4]) -> f64 {
    // Also of a box that is a line once its picture is small.
    if one == other {
        return 1.0;
    }
    let area = |corners: &[f64; 4]| (corners[2] - corners[0]).max(0.0) * (corners[3] - corners[1]).max(0.0);
    let both = [one[0].max(other[0]), one[1].max(other[1]), one[2].min(other[2]), one[3].min(other[3])];
    let (both, one, other) = (area(&both), area(one), area(other));
    if one > 0.0 && other > 0.0 { both / (one + other - both) } else { 0.0 }
}

/// A field of a right answer beside that of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedField {
    /// Where it is, such as `size.wide` or `tags[1]`.
    pub path: String,
    /// What is right, as JSON; nothing where the answer has a field too many.
    pub expected: Option<String>,
    /// What was answered.
    pub answer: Option<String>,
    /// Whether it is right.
    pub is_right: bool,
}

/// The fields of both answers where both are JSON, those of the right one first; empty where one of them is not.
pub fn compare_fields(expected: &str, answer: &str) -> Vec<ComparedField> {
    let is_structure = |value: &Value| value.is_object() || value.is_array();
    let wanted = serde_json::from_str::<Value>(expected.trim()).ok().filter(is_structure);
    let (Some(wanted), Some(given)) = (wanted, json_in(answer).filter(is_structure)) else { return Vec::new() };
    let (mut left, mut right) = (Vec::new(), Vec::new());
    leaves(String::new(), &wanted, &mut left);
    leaves(String::new(), &given, &mut right);
    let mut compared: Vec<ComparedField> = left
        .iter()
        .map(|(path, value)| {
            let answer = right.iter().find(|(other, _)| other == path).map(|(_, answer)| *answer);
            ComparedField {
                path: path.clone(),
                expected: Some(value.to_string()),
                answer: answer.map(ToString::to_string),
                is_right: answer.is_some_and(|answer| same(value, answer)),
            }
        })
        .collect();
    let is_new = |path: &String| left.iter().all(|(other, _)| other != path);
    compared.extend(right.iter().filter(|(path, _)| is_new(path)).map(|(path, value)| ComparedField {
        path: path.clone(),
        expected: None,
        answer: Some(value.to_string()),
        is_right: false,
    }));
    compared
}

/// Values that hold no others, with where they are.
fn leaves<'a>(path: String, value: &'a Value, found: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                leaves(if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, value, found);
            }
        }
        Value::Array(values) if !values.is_empty() => {
            for (place, value) in values.iter().enumerate() {
                leaves(format!("{path}[{place}]"), value, found);
            }
        }
        value => found.push((path, value)),
    }
}

/// The JSON of an answer, which may stand in a fence of Markdown.
fn json_in(answer: &str) -> Option<Value> {
    let text = answer.trim();
    let fenced =
        text.strip_prefix("```json").or_else(|| text.strip_prefix("```")).and_then(|rest| rest.strip_suffix("```"));
    serde_json::from_str(fenced.unwrap_or(text).trim()).ok()
}

/// Equal values; 3 and 3.0 are the same number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| other.get(name).is_some_and(|other| same(value, other)))
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_compared_by_value_and_texts_as_they_are() {
        let mut score = Score::default();
        assert!(score.add(r#"{"a": 1, "b": [1, 2]}"#, "{\"b\":[1.0,2],\"a\":1}"));
        assert!(score.add(r#"{"a": 1}"#, "```json\n{\"a\": 1}\n```"));
        assert!(!score.add(r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#));
        assert!(score.add("a red circle", " a red circle\n"));
        assert!(!score.add("3", "4"));
        assert_eq!(score.exact_match(), Some(0.6));
    }

    #[test]
    fn fields_stand_beside_each_other() {
        let found = compare_fields(r#"{"a": 3, "tags": ["x", "y"]}"#, r#"{"a": 3.0, "tags": ["x"], "more": null}"#);
        let told: Vec<String> = found
            .iter()
            .map(|field| {
                let side = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
                format!("{} {} {} {}", field.path, side(&field.expected), side(&field.answer), field.is_right)
            })
            .collect();
        assert_eq!(told, ["a 3 3.0 true", "tags[0] \"x\" \"x\" true", "tags[1] \"y\" - false", "more - null false"]);
        assert!(compare_fields("a circle", "a circle").is_empty() && compare_fields("{}", "no JSON").is_empty());
    }

    #[test]
    fn boxes_are_scored_by_their_overlap() {
        let score = |expected: &str, answer: &str| {
            let mut score = Score::default();
            score.add_boxes(expected, answer);
            (score.mean_iou().unwrap(), score.iou_50().unwrap())
        };
        let one = r#"[{"bbox_2d": [0, 0, 10, 10], "label": "dog"}]"#;
        assert_eq!(score(one, one), (1.0, 1.0));
        assert_eq!(
            score(
                one,
                r#"```json
[{"bbox_2d": [0, 5, 10, 15], "label": "dog"}]
```"#
            ),
            (1.0 / 3.0, 0.0)
        );
        // Another thing, no box at all, a box that ends before it begins, and an answer that is cut off.
        assert_eq!(score(one, r#"[{"bbox_2d": [0, 0, 10, 10], "label": "cat"}]"#), (0.0, 0.0));
        assert_eq!(score(one, "I see none."), (0.0, 0.0));
        assert_eq!(score(one, "[10, 10, 0, 0]"), (0.0, 0.0));
        assert_eq!(score(one, r#"[{"bbox_2d": [0, 0, 10, 10], "label": "do"#), (1.0, 1.0));
        // A box too many counts as one that was missed.
        assert_eq!(score("at [0, 0, 10, 10]", "at [0, 0, 10, 10] and [50, 50, 60, 60]"), (0.5, 0.5));
        // What is a line once its picture is small is right if it is that line.
        assert_eq!(score("[33, 82, 33, 108]", "[33, 82, 33, 108]"), (1.0, 1.0));
        assert_eq!(score("[33, 82, 33, 108]", "[33, 82, 33, 107]"), (0.0, 0.0));
        // Each box has one partner, whatever their order.
        assert_eq!(score("[0,0,10,10][20,0,30,10]", "[20,0,30,10][0,0,10,10]"), (1.0, 1.0));
        assert_eq!(score("[0,0,10,10][0,0,10,10]", "[0,0,10,10]"), (0.5, 0.5));
        assert_eq!(score("(0,0),(10,10) and (20,0),(30,10)", "(0,0),(10,10)"), (0.5, 0.5));
        assert_eq!(Score::default().mean_iou(), None);
    }

    #[test]
    fn fields_are_counted_one_by_one() {
        let mut score = Score::default();
        score.add(
            r#"{"shape": "circle", "size": {"wide": 3}, "tags": ["x", "y"]}"#,
            r#"{"shape": "circle", "size": {"wide": 4}, "tags": ["x"]}"#,
        );
        score.add(r#"{"shape": "square", "size": {"wide": 3}, "tags": []}"#, "no JSON at all");
        let fields: Vec<(String, f64)> = score.fields().into_iter().collect();
        let expected = [("shape", 0.5), ("size.wide", 0.0), ("tags", 0.0), ("tags[]", 0.5)];
        assert_eq!(fields, expected.map(|(name, share)| (name.to_string(), share)));
        assert_eq!(score.field_accuracy(), Some(2.0 / 7.0));
        assert_eq!(Score::default().field_accuracy(), None);
    }
}
