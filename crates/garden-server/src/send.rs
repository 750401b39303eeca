//! Files of ours as answers, piece by piece: whole, a range of bytes, or several as one archive. Memory holds one piece, whatever the client takes.

use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::Stream;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, Take};

use crate::answer::Answer;
use crate::error::ApiError;

/// Bytes that are read at once. Each download that its client does not take holds three times as much: what was read, what the runtime has read ahead, and what
/// the connection could not write.
const PIECE: usize = 16 << 10;
/// Tar's blocks.
const BLOCK: u64 = 512;

fn gone(error: std::io::Error) -> ApiError {
    match error.kind() {
        // What a command has put in its place is no file, either.
        std::io::ErrorKind::NotFound | std::io::ErrorKind::InvalidInput => ApiError::missing("file", "of this name"),
        _ => ApiError::internal("a file cannot be read", &error),
    }
}

/// Opens a file, and nothing that only looks like one: a pipe would be waited for without an end.
async fn open_file(path: &Path) -> std::io::Result<File> {
    let path = path.to_path_buf();
    let opened = tokio::task::spawn_blocking(move || garden_files::open(&path)).await.map_err(std::io::Error::other)?;
    Ok(File::from_std(opened?.0))
}

/// What a request asks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    All,
    /// From one byte up to another, which is not in it.
    Range(u64, u64),
    /// A range that the file does not have.
    Beyond,
    /// Nothing: the client has it.
    Known,
}

/// A file as an answer. Clients that have it are told so, and those that lost the connection can ask for the rest.
pub(crate) async fn send_file(path: &Path, kind: &'static str, headers: &HeaderMap) -> Answer {
    let mut file = open_file(path).await.map_err(gone)?;
    let found = file.metadata().await.map_err(gone)?;
    let length = found.len();
    let changed = found.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let tag = format!("\"{length:x}-{:x}\"", changed.as_nanos());
    let wanted = wanted(headers, &tag, length);
    let (status, start, end) = match wanted {
        Wanted::All => (StatusCode::OK, 0, length),
        Wanted::Range(start, end) => (StatusCode::PARTIAL_CONTENT, start, end),
        Wanted::Beyond => (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0),
        Wanted::Known => (StatusCode::NOT_MODIFIED, 0, 0),
    };
    file.seek(SeekFrom::Start(start)).await.map_err(gone)?;
    // No more than was promised: a log may grow while it is read.
    let mut answer = match end > start {
        true => Body::from_stream(pieces(file.take(end - start))).into_response(),
        false => Body::empty().into_response(),
    };
    *answer.status_mut() = status;
    let of = match wanted {
        Wanted::Range(start, end) => Some(format!("bytes {start}-{}/{length}", end.saturating_sub(1))),
        Wanted::Beyond => Some(format!("bytes */{length}")),
        Wanted::All | Wanted::Known => None,
    };
    let headers = answer.headers_mut();
    if let Some(of) = of.and_then(|text| HeaderValue::from_str(&text).ok()) {
        headers.insert(header::CONTENT_RANGE, of);
    }
    if wanted != Wanted::Known {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(end - start));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    describe(&mut answer, kind);
    Ok(answer)
}

/// It is what a client has sent or made, and no page of ours.
fn describe(answer: &mut Response, kind: &'static str) {
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
}

fn wanted(headers: &HeaderMap, tag: &str, length: u64) -> Wanted {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let has =
        |list: &str| list.split(',').any(|known| known.trim() == "*" || known.trim().trim_start_matches("W/") == tag);
    if text(header::IF_NONE_MATCH).is_some_and(has) {
        return Wanted::Known;
    }
    // A part of what has changed since is no part of what the client has.
    if text(header::IF_RANGE).is_some_and(|known| known.trim() != tag) {
        return Wanted::All;
    }
    text(header::RANGE).map_or(Wanted::All, |range| range_of(range, length))
}

/// One range of bytes. Several at once, and what is not a range, are answered with all, as the standard allows.
fn range_of(text: &str, length: u64) -> Wanted {
    let Some((first, last)) = text.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Wanted::All;
    };
    let (first, last) = (first.trim(), last.trim());
    let (start, end) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(start), Ok(last)) if start <= last => (start, last.saturating_add(1).min(length)),
        (Ok(start), Err(_)) if last.is_empty() => (start, length),
        // The last so many bytes.
        (Err(_), Ok(count)) if first.is_empty() => (length.saturating_sub(count), length),
        _ => return Wanted::All,
    };
    if start < end { Wanted::Range(start, end) } else { Wanted::Beyond }
}

/// A file in pieces.
fn pieces(file: Take<File>) -> impl Stream<Item = std::io::Result<Vec<u8>>> {
    futures_util::stream::unfold(file, |mut file| async {
        let mut piece = vec![0; PIECE];
        match file.read(&mut piece).await {
            Ok(0) => None,
            Ok(count) => {
                piece.truncate(count);
                Some((Ok(piece), file))
            }
            Err(error) => Some((Err(error), file)),
        }
    })
}

/// A file of an archive.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// What of an archive comes next.
enum Part {
    Head(Member),
    Contents(Take<File>, u64),
    End,
}

/// Several files as one tar archive.
pub(crate) fn send_archive(members: Vec<Member>) -> Answer {
    let padded = |bytes: u64| bytes.div_ceil(BLOCK) * BLOCK;
    let length = members.iter().map(|member| BLOCK + padded(member.bytes)).sum::<u64>() + 2 * BLOCK;
    let mut parts: Vec<Part> = members.into_iter().map(Part::Head).collect();
    parts.push(Part::End);
    parts.reverse();
    let stream = futures_util::stream::unfold(parts, |mut parts| async {
        let piece = match parts.pop()? {
            Part::End => Ok(vec![0; 2 * BLOCK as usize]),
            Part::Head(member) => open(&member).await.map(|(head, contents)| {
                parts.push(Part::Contents(contents, member.bytes));
                head
            }),
            Part::Contents(mut file, bytes) => next_of(&mut file, bytes).await.inspect(|_| {
                if file.limit() > 0 {
                    parts.push(Part::Contents(file, bytes));
                }
            }),
        };
        if piece.is_err() {
            // What was promised cannot be kept: the answer breaks off.
            parts.clear();
        }
        Some((piece, parts))
    });
    let mut answer = Body::from_stream(stream).into_response();
    answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    describe(&mut answer, "application/x-tar");
    Ok(answer)
}

async fn open(member: &Member) -> std::io::Result<(Vec<u8>, Take<File>)> {
    let file = open_file(&member.path).await?;
    let mut header = tar::Header::new_gnu();
    header.set_path(&member.name)?;
    header.set_size(member.bytes);
    header.set_mode(0o644);
    header.set_cksum();
    Ok((header.as_bytes().to_vec(), file.take(member.bytes)))
}

/// The next piece of a file, with what fills its last block.
async fn next_of(file: &mut Take<File>, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut piece = vec![0; PIECE];
    let count = file.read(&mut piece).await?;
    if count == 0 && file.limit() > 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    piece.truncate(count);
    if file.limit() == 0 {
        let padding = bytes.div_ceil(BLOCK) * BLOCK - bytes;
        piece.resize(count + padding as usize, 0);
    }
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_what_the_standard_says() {
        let table = [
            ("bytes=0-3", Wanted::Range(0, 4)),
            ("bytes=4-", Wanted::Range(4, 10)),
            ("bytes=-3", Wanted::Range(7, 10)),
            ("bytes=-30", Wanted::Range(0, 10)),
            ("bytes=8-99", Wanted::Range(8, 10)),
            ("bytes=10-", Wanted::Beyond),
            ("bytes=-0", Wanted::Beyond),
            ("bytes=5-4", Wanted::All),
            ("bytes=0-1,3-4", Wanted::All),
            ("lines=0-1", Wanted::All),
            ("bytes=18446744073709551615-18446744073709551615", Wanted::Beyond),
        ];
        for (text, expected) in table {
            assert_eq!(range_of(text, 10), expected, "{text}");
        }
    }
}
