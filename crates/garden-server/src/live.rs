//! `GET /api/jobs/{id}/live`: samples, events and log lines as server-sent events, from any place again.
//!
//! A viewer has a place in the job's files and its list of events, and that is all that is kept for it: nobody who works on a job knows that somebody looks.
//! Lines of the trace go out as they are in the file.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::IntoResponse as _;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::Server;
use crate::answer::{Answer, Query, UrlPath};
use crate::error::ApiError;
use crate::job::{JobFolder, Status};
use crate::jobs::event_json;
use crate::store::Page;

/// Bytes of a file that a viewer gets at once.
const PIECE: u64 = 64 << 10;
/// Events that a viewer gets at once.
const EVENTS: usize = 100;
/// How often files are looked at for somebody who has seen everything.
const BEAT: Duration = Duration::from_secs(1);
/// How often somebody to whom nothing is said hears that we are there.
const SIGN: Duration = Duration::from_secs(15);
/// How often the store is asked, even if nobody says that something changed.
const ASK: Duration = Duration::from_secs(5);

/// The header with the place that a viewer has reached.
const AGAIN: &str = "last-event-id";

/// A place in everything that is told about a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    trace: u64,
    event: i64,
    log: u64,
}

impl Place {
    fn parse(text: &str) -> Option<Place> {
        let mut parts = text.split('-');
        let place = Place {
            trace: parts.next()?.strip_prefix('t')?.parse().ok()?,
            event: parts.next()?.strip_prefix('e')?.parse().ok()?,
            log: parts.next()?.strip_prefix('l')?.parse().ok()?,
        };
        parts.next().is_none().then_some(place)
    }

    fn text(self) -> String {
        format!("t{}-e{}-l{}", self.trace, self.event, self.log)
    }
}

/// Where a viewer wants to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Now,
    Place(Place),
}

impl From {
    fn parse(name: &str, text: &str) -> Result<From, ApiError> {
        match text {
            "start" => Ok(From::Place(Place::default())),
            "now" => Ok(From::Now),
            text => Place::parse(text).map(From::Place).ok_or_else(|| {
                ApiError::field(name, format!("`{name}` has to be `start`, `now` or the id of an event"))
            }),
        }
    }
}

/// Somebody who looks.
struct Viewer {
    server: Arc<Server>,
    id: String,
    place: Place,
    changes: tokio::sync::watch::Receiver<u64>,
    asked: Option<Instant>,
    said: Instant,
    is_over: bool,
}

pub(crate) async fn live(
    State(server): State<Arc<Server>>,
    UrlPath(id): UrlPath<String>,
    query: Query,
    headers: HeaderMap,
) -> Answer {
    query.only(&["from"])?;
    server.job(id.clone()).await?;
    let from = query.get("from").map(|text| From::parse("from", text)).transpose()?;
    // A browser that connects again sends where it was, with the address that it began with.
    let again = headers.get(AGAIN).map(|value| From::parse(AGAIN, value.to_str().unwrap_or_default())).transpose()?;
    let place = match again.or(from) {
        None => Place::default(),
        Some(From::Now) => now(&server, &id).await?,
        Some(From::Place(place)) => place,
    };
    let changes = server.changes.subscribe();
    let viewer =
        Viewer { server: Arc::clone(&server), id, place, changes, asked: None, said: Instant::now(), is_over: false };
    let stream = futures_util::stream::unfold(viewer, |mut viewer| async {
        let text = viewer.next().await?;
        Some((Ok::<_, std::convert::Infallible>(text), viewer))
    });
    let mut answer = Body::from_stream(stream).into_response();
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(answer)
}

/// The place behind everything that there is.
async fn now(server: &Arc<Server>, id: &str) -> Result<Place, ApiError> {
    let (kept, id) = (Arc::clone(server), id.to_string());
    server
        .blocking(move || {
            let folder = kept.disk.job(&id);
            let length = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
            let last = kept.store.events(&id, &Page { limit: 1, ..Page::default() })?;
            let event = last.rows.first().map_or(0, |event| event.seq);
            Ok(Place { trace: length(&folder.trace()), event, log: length(&folder.work_log()) })
        })
        .await
}

impl Viewer {
    /// The next thing to say; nothing at the end.
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        loop {
            let is_ending = self.server.is_ending();
            let has_changed = self.changes.has_changed().unwrap_or(true);
            let asks = has_changed || self.asked.is_none_or(|asked| asked.elapsed() >= ASK);
            self.changes.mark_unchanged();
            let (server, id, place) = (Arc::clone(&self.server), self.id.clone(), self.place);
            let looked = self.server.blocking(move || look(&server, &id, place, asks)).await;
            let Ok(News { text, place, is_all, is_over }) = looked else {
                self.is_over = true;
                return Some("event: error\ndata: {\"message\": \"the job cannot be read\"}\n\n".to_string());
            };
            self.place = place;
            // Where there was more than was taken, the rest is asked for at once.
            if asks || !is_all {
                self.asked = is_all.then(Instant::now);
            }
            if !text.is_empty() {
                self.said = Instant::now();
                return Some(text);
            }
            if is_over || is_ending {
                self.is_over = true;
                return is_over.then(|| "event: end\ndata: {}\n\n".to_string());
            }
            if self.said.elapsed() >= SIGN {
                self.said = Instant::now();
                return Some(":\n\n".to_string());
            }
            let beat = Instant::now() + BEAT;
            // Whoever changes something wakes all viewers; files are looked at once a beat all the same.
            drop(timeout_at(beat, self.changes.changed()).await);
            if self.changes.has_changed().is_err() {
                sleep_until(beat).await;
            }
        }
    }
}

/// What is new behind a place.
struct News {
    text: String,
    place: Place,
    /// Whether that is all there is.
    is_all: bool,
    /// Whether nothing more will come.
    is_over: bool,
}

fn look(server: &Server, id: &str, mut place: Place, asks: bool) -> Result<News, ApiError> {
    let mut text = String::new();
    let folder: JobFolder = server.disk.job(id);
    // Asked before the files are read: whatever was written before it was over is read then.
    let is_final =
        asks && server.store.job(id)?.is_none_or(|job| job.status.is_final() || job.status == Status::Paused);
    let mut is_all = true;
    if asks {
        let page = Page { after: None, behind: Some(place.event), limit: EVENTS, is_ascending: true };
        let found = server.store.events(id, &page)?;
        is_all &= !found.has_more;
        for event in &found.rows {
            place.event = event.seq;
            say(&mut text, "event", place, &event_json(event).to_string());
        }
    }
    for (line, length) in lines(&folder.trace(), &mut place.trace, false, &mut is_all) {
        place.trace += length;
        say(&mut text, "sample", place, &line);
    }
    for (line, length) in lines(&folder.work_log(), &mut place.log, is_final, &mut is_all) {
        place.log += length;
        say(&mut text, "log", place, &Value::from(line.trim_end()).to_string());
    }
    // Nothing more comes once it is over and all is said.
    let is_over = is_final && is_all && text.is_empty();
    Ok(News { text, place, is_all, is_over })
}

/// Whole lines of a file behind an offset with the bytes that they take there, and its last one without an end once nobody will write that. A file that has become shorter was begun anew.
fn lines(path: &Path, offset: &mut u64, is_final: bool, is_all: &mut bool) -> Vec<(String, u64)> {
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    let length = file.metadata().map_or(0, |found| found.len());
    if length < *offset {
        *offset = 0;
    }
    if length == *offset {
        return Vec::new();
    }
    let mut text = Vec::new();
    if file.seek(SeekFrom::Start(*offset)).and_then(|_| file.take(PIECE).read_to_end(&mut text)).is_err() {
        return Vec::new();
    }
    let end = text.iter().rposition(|byte| *byte == b'\n');
    // A line that is longer than a piece is passed by.
    let Some(end) = end else {
        if is_final && *offset + text.len() as u64 == length {
            return vec![(String::from_utf8_lossy(&text).into_owned(), text.len() as u64)];
        }
        if text.len() as u64 == PIECE {
            *offset += PIECE;
            *is_all = false;
        }
        return Vec::new();
    };
    *is_all &= *offset + end as u64 + 1 >= length;
    let told = |line: &[u8]| (String::from_utf8_lossy(line).into_owned(), line.len() as u64 + 1);
    text[..end].split(|byte| *byte == b'\n').map(told).collect()
}

fn say(text: &mut String, kind: &str, place: Place, data: &str) {
    // A line end in it would end the field.
    let data = data.replace(['\r', '\n'], " ");
    text.push_str(&format!("id: {}\nevent: {kind}\ndata: {data}\n\n", place.text()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_and_read_again() {
        let place = Place { trace: 17, event: 4, log: 99 };
        assert_eq!(Place::parse(&place.text()), Some(place));
        assert!(
            ["", "t1", "t1-e2", "t1-e2-l3-x", "t-1-e2-l3", "e1-t2-l3"].iter().all(|text| Place::parse(text).is_none())
        );
    }

    #[test]
    fn whole_lines_only() {
        let path = std::env::temp_dir().join(format!("garden-live-{}", std::process::id()));
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let (mut offset, mut is_all) = (0, true);
        let line = |text: &str, length: u64| (text.to_string(), length);
        assert_eq!(lines(&path, &mut offset, true, &mut is_all), [line("one", 4), line("two", 4)]);
        assert!(!is_all);
        offset = 8;
        assert!(lines(&path, &mut offset, false, &mut is_all).is_empty());
        assert_eq!(lines(&path, &mut offset, true, &mut is_all), [line("thr", 3)]);
        // It was begun anew.
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(lines(&path, &mut offset, false, &mut is_all), [line("new", 4)]);
        // What is no text takes the bytes that it takes.
        std::fs::write(&path, b"a\xff\n").unwrap();
        offset = 0;
        assert_eq!(lines(&path, &mut offset, false, &mut is_all), [line("a\u{fffd}", 3)]);
        std::fs::remove_file(&path).unwrap();
    }
}
