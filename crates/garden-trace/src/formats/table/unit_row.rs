//! Units that a table states outside its header: in a second row, `s,MB`, or in a comment above, `# unit: MB`.
//!
//! They are added to the names of the columns, which then read as if the header had stated them: `rss [MB]`.

use crate::columns::names::{Meaning, understand, words};
use crate::formats::table::split;
use crate::lines::HeadLine;

/// Adds the units of a row below the header to the names; false if it is no such row.
pub(crate) fn state(row: &str, delimiter: u8, names: &mut [String]) -> bool {
    let mut fields = Vec::new();
    split(row.as_bytes(), delimiter, &mut fields);
    let cells: Vec<&str> = fields.into_iter().map(|field| row[field].trim()).collect();
    let is_unit = |cell: &&str| cell.is_empty() || is_memory_unit(cell) || is_other_unit(cell);
    if cells.len() != names.len() || !cells.iter().all(is_unit) || !cells.iter().any(|cell| is_memory_unit(cell)) {
        return false;
    }
    for (name, cell) in names.iter_mut().zip(cells).filter(|(_, cell)| is_memory_unit(cell)) {
        add(name, cell);
    }
    true
}

/// Adds the unit that a comment above the header states to the names of all amounts of memory.
pub(crate) fn state_by_comments(above: &[HeadLine], names: &mut [String]) {
    let comments = above.iter().filter(|line| line.text.starts_with('#'));
    let Some(unit) = comments.filter_map(|line| unit_of(&line.text)).next() else { return };
    for name in names {
        let is_amount = match understand(name).meaning {
            Meaning::Memory => true,
            Meaning::Quantity(quantity) => !quantity.is_count(),
            _ => false,
        };
        if is_amount {
            add(name, &unit);
        }
    }
}

/// The unit behind the word `unit` or `units`.
fn unit_of(comment: &str) -> Option<String> {
    let words = words(comment);
    let at = words.iter().position(|word| matches!(word.as_str(), "unit" | "units"))?;
    words.get(at + 1).filter(|word| is_memory_unit(word)).cloned()
}

fn add(name: &mut String, unit: &str) {
    if understand(name).factor.is_none() {
        *name = format!("{name} [{}]", unit.trim_matches(['[', ']', '(', ')']));
    }
}

fn is_memory_unit(cell: &str) -> bool {
    understand(&format!("rss {cell}")).factor.is_some() && words(cell).len() == 1
}

fn is_other_unit(cell: &str) -> bool {
    let cell = cell.trim_matches(['[', ']', '(', ')']);
    matches!(cell, "s" | "sec" | "seconds" | "ms" | "min" | "h" | "%" | "-" | "#" | "1" | "count" | "W" | "C")
}
