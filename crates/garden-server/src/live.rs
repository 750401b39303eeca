//! `GET /api/jobs/{id}/live`: samples, events and log lines as server-sent events, from any place again.
//!
//! A viewer has a place in the job's files and its list of events, and that is all that is kept for it: nobody who works on a job knows that somebody looks.
//! Lines of the trace go out as they are in the file.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, KeepAlive, Sse};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::Server;
use crate::answer::{Answer, Query, UrlPath};
use crate::error::ApiError;
use crate::job::{JobFolder, Status};
use crate::store::Page;
use crate::wire::{self, LiveKind};
use crate::workers::owner;

/// Bytes of a file that a viewer gets at once, which are held while it does not take them.
const PIECE: u64 = 8 << 10;
/// Bytes of a line: a longer one is passed by.
const LONGEST_LINE: u64 = 64 << 10;
/// Viewers at the same time: they stay for hours, and leave connections for everybody else.
pub(crate) const VIEWERS: usize = 300;
/// Events that a viewer gets at once.
const EVENTS: usize = 20;
/// How often files are looked at for somebody who has seen everything.
const BEAT: Duration = Duration::from_secs(1);
/// How often somebody to whom nothing is said hears that we are there.
const SIGN: Duration = Duration::from_secs(15);
/// How often the store is asked, even if nobody says that something changed.
const ASK: Duration = Duration::from_secs(5);

/// The header with the place that a viewer has reached.
const AGAIN: &str = "last-event-id";
/// The header that asks proxies to pass on what comes as it comes.
const UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");

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
    owner: String,
    id: String,
    place: Place,
    changes: tokio::sync::watch::Receiver<u64>,
    asked: Option<Instant>,
    /// What was found and not yet said.
    found: VecDeque<Event>,
    is_over: bool,
    _place: OwnedSemaphorePermit,
}

pub(crate) async fn live(
    State(server): State<Arc<Server>>,
    UrlPath(id): UrlPath<String>,
    query: Query,
    headers: HeaderMap,
) -> Answer {
    server.job(id.clone()).await?;
    let from = query.get("from").map(|text| From::parse("from", text)).transpose()?;
    // A browser that connects again sends where it was, with the address that it began with.
    let again = headers.get(AGAIN).map(|value| From::parse(AGAIN, value.to_str().unwrap_or_default())).transpose()?;
    let place = match again.or(from) {
        None => Place::default(),
        Some(From::Now) => now(&server, &id).await?,
        Some(From::Place(place)) => place,
    };
    let room = Arc::clone(&server.viewers).try_acquire_owned().map_err(|_| ApiError::busy())?;
    let changes = server.changes.subscribe();
    let (kept, found) = (Arc::clone(&server), VecDeque::new());
    let viewer =
        Viewer { server: kept, owner: owner(), id, place, changes, asked: None, found, is_over: false, _place: room };
    let stream = futures_util::stream::unfold(viewer, |mut viewer| async {
        let event = viewer.next().await?;
        Some((Ok::<_, Infallible>(event), viewer))
    });
    let mut answer = Sse::new(stream).keep_alive(KeepAlive::new().interval(SIGN)).into_response();
    let headers = answer.headers_mut();
    headers.insert(UNBUFFERED, HeaderValue::from_static("no"));
    // As all other answers: what was said about a job is nothing for a cache.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
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
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.found.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            self.look().await;
            if self.found.is_empty() && !self.is_over {
                self.rest().await;
            }
        }
    }

    /// Looks for more.
    async fn look(&mut self) {
        let is_ending = self.server.is_ending();
        let has_changed = self.changes.has_changed().unwrap_or(true);
        let asks = has_changed || self.asked.is_none_or(|asked| asked.elapsed() >= ASK);
        self.changes.mark_unchanged();
        let (server, id, place) = (Arc::clone(&self.server), self.id.clone(), self.place);
        let Ok(news) = self.server.long.run(&self.owner, move || look(&server, &id, place, asks)).await else {
            self.is_over = true;
            let words = "{\"message\": \"the job cannot be read\"}";
            self.found.push_back(Event::default().event(LiveKind::Error.name()).data(words));
            return;
        };
        self.place = news.place;
        self.found.extend(news.events);
        // Where there was more than was taken, the rest is asked for at once.
        if asks || !news.is_all {
            self.asked = news.is_all.then(Instant::now);
        }
        if news.is_over {
            self.found.push_back(Event::default().event(LiveKind::End.name()).data("{}"));
        }
        self.is_over = news.is_over || (is_ending && self.found.is_empty());
    }

    /// Waits until it is worth looking again.
    async fn rest(&mut self) {
        let beat = Instant::now() + BEAT;
        // Whoever changes something wakes all viewers; files are looked at once a beat all the same.
        drop(timeout_at(beat, self.changes.changed()).await);
        if self.changes.has_changed().is_err() {
            sleep_until(beat).await;
        }
    }
}

/// What is new behind a place.
struct News {
    events: Vec<Event>,
    place: Place,
    /// Whether that is all there is.
    is_all: bool,
    /// Whether nothing more will come.
    is_over: bool,
}

fn look(server: &Server, id: &str, mut place: Place, asks: bool) -> Result<News, ApiError> {
    let mut events = Vec::new();
    let folder: JobFolder = server.disk.job(id);
    // Asked before the files are read: whatever was written before it was over is read then.
    let is_final =
        asks && server.store.job(id)?.is_none_or(|job| job.status.is_final() || job.status == Status::Paused);
    let mut is_all = true;
    if asks {
        let page = Page { after: None, behind: Some(place.event), limit: EVENTS, is_ascending: true };
        let found = server.store.events(id, &page)?;
        is_all &= !found.has_more;
        for record in &found.rows {
            place.event = record.seq;
            let text = serde_json::to_string(&wire::Event::from(record));
            let text = text.map_err(|error| ApiError::internal("an event cannot be written", &error))?;
            events.push(at(place).event(LiveKind::Event.name()).data(text));
        }
    }
    for (line, length) in lines(&folder.trace(), &mut place.trace, false, &mut is_all) {
        place.trace += length;
        events.push(at(place).event(LiveKind::Sample.name()).data(line));
    }
    for (line, length) in lines(&folder.work_log(), &mut place.log, is_final, &mut is_all) {
        place.log += length;
        events.push(at(place).event(LiveKind::Log.name()).data(Value::from(line.trim_end()).to_string()));
    }
    Ok(News { events, place, is_all, is_over: is_final && is_all })
}

/// An event that a viewer can go on behind.
fn at(place: Place) -> Event {
    Event::default().id(place.text())
}

/// Whole lines of a file behind an offset with the bytes that they take there, and its last one without an end once nobody will write that. A file that has become shorter was begun anew.
fn lines(path: &Path, offset: &mut u64, is_final: bool, is_all: &mut bool) -> Vec<(String, u64)> {
    let Ok((mut file, _)) = garden_files::open(path) else { return Vec::new() };
    let length = file.metadata().map_or(0, |found| found.len());
    if length < *offset {
        *offset = 0;
    }
    if length == *offset {
        return Vec::new();
    }
    let mut text = Vec::new();
    if file.seek(SeekFrom::Start(*offset)).is_err() || file.by_ref().take(PIECE).read_to_end(&mut text).is_err() {
        return Vec::new();
    }
    let mut end = text.iter().rposition(|byte| *byte == b'\n');
    if end.is_none() && text.len() as u64 == PIECE {
        // A long line: up to its end, and no further.
        let mut rest = BufReader::new(file.take(LONGEST_LINE - PIECE));
        if rest.read_until(b'\n', &mut text).is_err() {
            return Vec::new();
        }
        end = text.last().filter(|byte| **byte == b'\n').map(|_| text.len() - 1);
    }
    let Some(end) = end else {
        if is_final && *offset + text.len() as u64 == length {
            return vec![(String::from_utf8_lossy(&text).into_owned(), text.len() as u64)];
        }
        if text.len() as u64 == LONGEST_LINE {
            *offset += LONGEST_LINE;
            *is_all = false;
        }
        return Vec::new();
    };
    *is_all &= *offset + end as u64 + 1 >= length;
    let told = |line: &[u8]| (String::from_utf8_lossy(line).into_owned(), line.len() as u64 + 1);
    text[..end].split(|byte| *byte == b'\n').map(told).collect()
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
