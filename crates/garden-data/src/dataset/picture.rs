//! A picture that a row names or carries: its bytes, still compressed.

use std::path::{Path, PathBuf};

use super::base64;
use super::value::{Value, shortened};
use crate::error::Error;
use crate::record::StoredPicture;

/// How base64 of JPEG, PNG, GIF, WebP and TIFF begins: rows may carry it without saying so.
const BEGINNINGS: [&str; 6] = ["/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR", "SUkqA", "TU0AK"];
/// Shorter texts are paths. The smallest pictures have some 35 bytes.
const SHORTEST_BASE64: usize = 44;

/// What lies beside a row: where its paths lead.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beside<'a> {
    /// The folder of the row's file.
    Folder(&'a Path),
    /// The members of its group in an archive.
    Archive(&'a [Member]),
}

/// A picture in an archive.
#[derive(Debug)]
pub(crate) struct Member {
    pub name: String,
    pub data: Vec<u8>,
}

/// A field that should be a picture.
#[derive(Debug)]
pub(crate) struct PictureField<'a> {
    pub field: String,
    pub value: Value<'a>,
}

impl PictureField<'_> {
    /// Reads the picture.
    pub(crate) fn load(self, place: &str, beside: Beside<'_>) -> Result<StoredPicture, Error> {
        let field = self.field;
        let name = format!("{place}: {field}");
        let (name, data) = match self.value {
            Value::Bytes(data) => (name, data),
            Value::Text(text) => match written_here(&text) {
                Some(base64) => {
                    let failed = |problem| Error::row_field(place, &field, format!("is no usable base64: {problem}"));
                    (
                        name,
                        base64::decode(base64.map_err(|problem| Error::row_field(place, &field, problem))?)
                            .map_err(failed)?,
                    )
                }
                None => (format!("{name} ({text})"), find(place, &field, &text, beside)?),
            },
            Value::Object(mut object) => {
                let Some((inner, value)) = object.take_any(&["bytes", "url", "path", "image_url", "image", "data"])
                else {
                    let problem = format!("has no picture in it: {}", object.names());
                    return Err(
                        Error::row_field(place, &field, problem).with_hint("`url`, `path` or `bytes` would be one")
                    );
                };
                return PictureField { field: format!("{field}.{inner}"), value }.load(place, beside);
            }
            other => {
                let problem = format!("is {other}, not a picture");
                return Err(Error::row_field(place, &field, problem)
                    .with_hint("a path, a data URI or an object with `bytes` or `url` is one"));
            }
        };
        if data.is_empty() {
            return Err(Error::row_field(place, &field, "is a picture without bytes"));
        }
        Ok(StoredPicture { name, data })
    }
}

/// The base64 of a picture that stands in the text itself.
fn written_here(text: &str) -> Option<Result<&str, String>> {
    if let Some(rest) = text.strip_prefix("data:") {
        return Some(match rest.split_once(',') {
            Some((kind, data)) if kind.ends_with(";base64") => Ok(data),
            _ => Err(format!("is a data URI without `;base64,`: `{}`", shortened(text))),
        });
    }
    let bare = text.len() >= SHORTEST_BASE64 && BEGINNINGS.iter().any(|beginning| text.starts_with(beginning));
    bare.then_some(Ok(text))
}

/// The bytes of a file that a text names.
fn find(place: &str, field: &str, text: &str, beside: Beside<'_>) -> Result<Vec<u8>, Error> {
    let local = match text.split_once("://") {
        Some(("file", path)) => unescaped(path.strip_prefix("localhost").unwrap_or(path)),
        Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) => {
            let problem = format!("is a remote address: `{}`", shortened(text));
            return Err(Error::row_field(place, field, problem)
                .with_hint("nothing is downloaded: fetch the pictures first and name their paths"));
        }
        _ => text.to_string(),
    };
    match beside {
        Beside::Folder(folder) => {
            let path = folder.join(PathBuf::from(&local));
            let failed = |error| {
                Error::row_field(place, field, format!("names `{}`: {error}", path.display()))
                    .with_hint("paths are taken from the folder of the file that names them")
            };
            std::fs::read(&path).map_err(failed)
        }
        Beside::Archive(members) => {
            let member = members.iter().find(|member| same_member(&member.name, &local));
            let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
            let missing = || {
                Error::row_field(place, field, format!("names `{}`, which is not in the archive", shortened(&local)))
                    .with_hint(format!(
                        "pictures of this row: {}",
                        if names.is_empty() { "none".to_string() } else { names.join(", ") }
                    ))
            };
            member.map(|member| member.data.clone()).ok_or_else(missing)
        }
    }
}

/// Whether a text names a member: as it is, by its last part, or as webdataset does by its ending (`jpg`).
fn same_member(name: &str, text: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    name == text
        || last == text
        || last.split_once('.').is_some_and(|(_, ending)| ending == text.trim_start_matches('.'))
}

/// A path of a URL: `%20` is a blank.
fn unescaped(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, others @ ..] = rest {
        let code = others.get(..2).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match code {
            Some(code) if *first == b'%' => {
                bytes.push(code);
                rest = &others[2..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{same_member, unescaped};

    #[test]
    fn names() {
        assert_eq!(unescaped("/a%20b/100%.png"), "/a b/100%.png");
        assert!(same_member("shots/0001.jpg", "0001.jpg") && same_member("shots/0001.left.jpg", "left.jpg"));
        assert!(!same_member("0001.jpg", "0002.jpg"));
    }
}
