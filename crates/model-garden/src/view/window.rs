//! How much of the past the chart shows.

use super::Point;

/// Windows to choose from, in seconds, and their names.
const WINDOWS: [(f64, &str); 7] = [
    (60.0, "1 min"),
    (300.0, "5 min"),
    (900.0, "15 min"),
    (3600.0, "1 h"),
    (21_600.0, "6 h"),
    (86_400.0, "1 d"),
    (604_800.0, "7 d"),
];

/// A stretch of the past that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// Everything.
    All,
    /// The window of this index.
    Last(usize),
}

impl Window {
    /// The next shorter window; from everything, the longest that leaves something out.
    pub fn closer(self, history_s: f64) -> Window {
        match self {
            Window::All => WINDOWS.iter().rposition(|window| window.0 < history_s).map_or(self, Window::Last),
            Window::Last(index) => Window::Last(index.saturating_sub(1)),
        }
    }

    /// The next longer window, up to everything.
    pub fn further(self, history_s: f64) -> Window {
        match self {
            Window::Last(index) if WINDOWS.get(index + 1).is_some_and(|window| window.0 < history_s) => {
                Window::Last(index + 1)
            }
            _ => Window::All,
        }
    }

    /// What a heading says about it; nothing about everything.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Window::All => None,
            Window::Last(index) => WINDOWS.get(index).map(|window| window.1),
        }
    }

    /// The part of a history that it shows.
    pub fn of(self, history: &[Point]) -> &[Point] {
        let (Window::Last(index), Some(last)) = (self, history.last()) else { return history };
        let from = last.time_s - WINDOWS[index].0;
        &history[history.partition_point(|point| point.time_s < from)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_the_length_of_the_history() {
        let half_an_hour = 1800.0;
        let closer = Window::All.closer(half_an_hour);
        assert_eq!(closer.name(), Some("15 min"));
        assert_eq!(closer.further(half_an_hour), Window::All);
        assert_eq!(closer.closer(half_an_hour).closer(half_an_hour).closer(half_an_hour).name(), Some("1 min"));
        assert_eq!(Window::All.closer(10.0), Window::All);
    }

    #[test]
    fn a_window_ends_now() {
        let history: Vec<Point> = (0..100).map(|n| Point { time_s: f64::from(n), ..Point::default() }).collect();
        let shown = Window::Last(0).of(&history);
        assert_eq!((shown.first().unwrap().time_s, shown.len()), (39.0, 61));
        assert!(Window::Last(0).of(&[]).is_empty());
    }
}
