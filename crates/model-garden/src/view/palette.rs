//! Styles: the sixteen colours of the terminal's theme, which its owner has made readable on its background.
//!
//! Text keeps the terminal's own foreground. Where a word stands on a colour, both sides are given. Without colours,
//! only bold, dim and reversed remain.

use garden_memory::Verdict;
use garden_report::Style as Colours;
use ratatui::style::{Color, Modifier, Style};

/// What dots of the chart are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    /// Anonymous memory, or the total.
    Anon,
    /// Shared memory.
    Shared,
    /// Swapped-out memory.
    Swap,
    /// Pages of files.
    File,
    /// The forecast of a growth that ends.
    Bounded,
    /// The forecast of a growth that never ends.
    Unbounded,
}

impl Ink {
    /// The number of inks.
    pub const COUNT: usize = 6;
    /// All of them, in the order of their numbers.
    pub const ALL: [Ink; Ink::COUNT] = [Ink::Anon, Ink::Shared, Ink::Swap, Ink::File, Ink::Bounded, Ink::Unbounded];
}

/// Gives everything its style.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    colours: Colours,
}

impl Palette {
    /// The styles with or without colours.
    pub fn new(colours: Colours) -> Palette {
        Palette { colours }
    }

    fn coloured(self, style: Style, otherwise: Modifier) -> Style {
        if self.colours == Colours::Colour { style } else { Style::new().add_modifier(otherwise) }
    }

    /// Borders, labels, and whatever else should not be seen first.
    pub fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Headings.
    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The limit, and what comes near it.
    pub fn alarm(self) -> Style {
        self.coloured(Style::new().fg(Color::Red).add_modifier(Modifier::BOLD), Modifier::BOLD)
    }

    /// A verdict's badge.
    pub fn verdict(self, verdict: Verdict) -> Style {
        let (text, ground) = match verdict {
            Verdict::Leak => (Color::White, Color::Red),
            Verdict::Growing => (Color::Black, Color::Yellow),
            Verdict::Flat | Verdict::Sawtooth | Verdict::Settled => (Color::Black, Color::Green),
            Verdict::Insufficient => return Style::new().add_modifier(Modifier::REVERSED),
        };
        let style = Style::new().fg(text).bg(ground).add_modifier(Modifier::BOLD);
        self.coloured(style, Modifier::REVERSED | Modifier::BOLD)
    }

    /// Dots of the chart.
    pub fn ink(self, ink: Ink) -> Style {
        let colour = match ink {
            Ink::Anon => Color::Cyan,
            Ink::Shared => Color::Magenta,
            Ink::Swap => Color::Yellow,
            Ink::File => Color::Blue,
            Ink::Bounded => Color::Green,
            Ink::Unbounded => Color::Red,
        };
        self.coloured(Style::new().fg(colour), Modifier::empty())
    }
}
