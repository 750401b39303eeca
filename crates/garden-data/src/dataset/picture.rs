//! A picture that a row names or contains: its compressed bytes, or only its header.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::conversation::unnumbered;
use super::reach::Reach;
use super::value::{Value, shortened};
use crate::dataset::base64;
use crate::dataset::file::{self, LARGEST_PICTURE, read_picture};
use crate::dataset::record::StoredPicture;
use crate::error::Error;
use crate::example::length::PixelBounds;
use crate::example::outline::PictureOutline;
use crate::image::{Glance, Source, glance};

/// How base64 of JPEG, PNG, GIF, WebP and TIFF starts; rows may contain it without a prefix.
const BEGINNINGS: [&str; 6] = ["/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR", "SUkqA", "TU0AK"];
/// Shorter texts are paths. The smallest pictures have about 35 bytes.
const SHORTEST_BASE64: usize = 44;

/// What a row's paths are relative to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beside<'a> {
    /// The folder of the row's file, and the files that paths may reach.
    Folder { folder: &'a Path, reach: &'a Reach },
    /// The members of the row's group in an archive.
    Archive { file: &'a File, members: &'a [Member] },
}

/// The position of a picture in an archive.
#[derive(Debug)]
pub(crate) struct Member {
    pub name: String,
    pub offset: u64,
    pub size: u64,
}

/// A field that should be a picture.
#[derive(Debug)]
pub(crate) struct PictureField<'a> {
    pub field: String,
    pub value: Value<'a>,
}

/// A picture that was found but not read yet.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    place: &'a str,
    field: &'a str,
    /// Its name in error messages.
    name: String,
    contents: Contents<'a>,
}

#[derive(Debug)]
enum Contents<'a> {
    Bytes(Vec<u8>),
    Base64(&'a str),
    File(PathBuf),
    Member { file: &'a File, offset: u64, size: u64 },
}

impl PictureField<'_> {
    /// Finds the picture and converts it with `make`.
    pub(crate) fn find<P>(
        self,
        place: &str,
        beside: Beside<'_>,
        ignored: &mut Vec<String>,
        make: &impl Fn(Found<'_>) -> Result<P, Error>,
    ) -> Result<P, Error> {
        let field = self.field.as_str();
        let name = format!("{place}: {field}");
        match self.value {
            Value::Bytes(data) => make(Found { place, field, name, contents: Contents::Bytes(data) }),
            Value::Text(text) if text.is_empty() => {
                Err(Error::row_field(place, field, "is empty, and names no picture")
                    .with_hint("write null, or leave the field out, where a row has no picture"))
            }
            Value::Text(text) => match written_here(&text).or_else(|| is_base64_field(field).then_some(Ok(&*text))) {
                Some(base64) => {
                    let base64 = base64.map_err(|problem| Error::row_field(place, field, problem))?;
                    make(Found { place, field, name, contents: Contents::Base64(base64) })
                }
                None => {
                    let contents = named(place, field, &text, beside)?;
                    make(Found { place, field, name: format!("{name} ({text})"), contents })
                }
            },
            Value::Object(mut object) => {
                // Anthropic's `source` says beside the picture how it is given.
                for about in ["type", "media_type"] {
                    drop(object.take(about));
                }
                let Some((inner, value)) =
                    object.take_any(&["bytes", "url", "path", "image_url", "image", "base64", "data", "source"])
                else {
                    let problem = format!("has no picture in it: {}", object.names());
                    return Err(Error::row_field(place, field, problem).with_hint("use `url`, `path` or `bytes`"));
                };
                // Hugging Face stores the file name beside the bytes.
                let left = object.0.iter().filter(|(name, value)| *value != Value::Null && name != "path");
                ignored.extend(left.map(|(name, _)| unnumbered(&format!("{field}.{name}"))));
                PictureField { field: format!("{field}.{inner}"), value }.find(place, beside, ignored, make)
            }
            other => {
                let problem = format!("is {other}, not a picture");
                Err(Error::row_field(place, field, problem)
                    .with_hint("use a path, a data URI or an object with `bytes` or `url`"))
            }
        }
    }
}

impl Found<'_> {
    /// Reads the whole picture.
    pub(crate) fn load(mut self) -> Result<StoredPicture, Error> {
        let data = match &self.contents {
            Contents::Bytes(_) => self.held(),
            Contents::Base64(text) => base64::decode(text).map_err(|problem| self.no_base64(&problem))?,
            Contents::File(path) => read_picture(path).map_err(|error| self.unreadable(&error))?,
            Contents::Member { file, offset, size } => {
                file::fits(*size, LARGEST_PICTURE).map_err(|error| self.unreadable(&error))?;
                let mut data = vec![0; *size as usize];
                file.read_exact_at(&mut data, *offset).map_err(|error| self.unreadable(&error))?;
                data
            }
        };
        self.filled(data.len() as u64)?;
        Ok(StoredPicture { name: self.name, data, ..StoredPicture::default() })
    }

    /// Reads only the header.
    pub(crate) fn outline(self, max_pixels: u64) -> Result<PictureOutline, Error> {
        let opened;
        let source = match &self.contents {
            Contents::Bytes(data) => Source::of_bytes(data),
            Contents::Base64(text) => Source::of_base64(text).map_err(|problem| self.no_base64(&problem))?,
            Contents::File(path) => {
                let (file, length) = file::open(path).map_err(|error| self.unreadable(&error))?;
                opened = file;
                Source::of_file(&opened, 0, length).map_err(|error| self.unreadable(&error))?
            }
            Contents::Member { file, offset, size } => {
                Source::of_file(file, *offset, *size).map_err(|error| self.unreadable(&error))?
            }
        };
        self.filled(source.length())?;
        file::fits(source.length(), LARGEST_PICTURE).map_err(|error| self.unreadable(&error))?;
        let Glance { width, height, is_whole, decoding_bytes, used } = glance(&self.name, &source, max_pixels)?;
        let fingerprint = source.fingerprint().map_err(|error| self.unreadable(&error))?;
        let (bytes, bounds) = (source.length(), PixelBounds::default());
        Ok(PictureOutline {
            name: self.name,
            width,
            height,
            is_whole,
            decoding_bytes,
            bytes,
            fingerprint,
            bounds,
            used,
        })
    }

    fn held(&mut self) -> Vec<u8> {
        if let Contents::Bytes(data) = &mut self.contents { std::mem::take(data) } else { Vec::new() }
    }

    fn filled(&self, length: u64) -> Result<(), Error> {
        match length {
            0 => Err(Error::row_field(self.place, self.field, "is a picture without bytes")),
            _ => Ok(()),
        }
    }

    fn no_base64(&self, problem: &str) -> Error {
        Error::row_field(self.place, self.field, format!("is not usable base64: {problem}"))
    }

    fn unreadable(&self, error: &std::io::Error) -> Error {
        match &self.contents {
            Contents::File(path) => {
                Error::row_field(self.place, self.field, format!("names `{}`: {error}", path.display()))
                    .with_hint("paths are relative to the folder of the file that names them")
            }
            _ => Error::row_field(self.place, self.field, format!("cannot be read: {error}")),
        }
    }
}

/// Whether a field's text is always base64, whatever it starts with.
fn is_base64_field(field: &str) -> bool {
    ["base64", "data"].contains(&field.rsplit('.').next().unwrap_or(field))
}

/// Whether a text contains a picture as base64.
pub(crate) fn is_picture_text(text: &str) -> bool {
    text.starts_with("data:image/") || is_bare_base64(text)
}

fn is_bare_base64(text: &str) -> bool {
    text.len() >= SHORTEST_BASE64 && BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
}

/// The base64 of a picture embedded in the text.
fn written_here(text: &str) -> Option<Result<&str, String>> {
    if let Some(rest) = text.strip_prefix("data:") {
        return Some(match rest.split_once(',') {
            Some((kind, data)) if kind.ends_with(";base64") => Ok(data),
            _ => Err(format!("is a data URI without `;base64,`: `{}`", shortened(text))),
        });
    }
    is_bare_base64(text).then_some(Ok(text))
}

/// The file named by a text.
fn named<'a>(place: &str, field: &str, text: &str, beside: Beside<'a>) -> Result<Contents<'a>, Error> {
    let local = match text.split_once("://") {
        Some(("file", path)) => unescaped(path.strip_prefix("localhost").unwrap_or(path)),
        Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) => {
            let problem = format!("is a remote URL: `{}`", shortened(text));
            return Err(Error::row_field(place, field, problem)
                .with_hint("nothing is downloaded: fetch the pictures first and use their paths"));
        }
        _ => text.to_string(),
    };
    match beside {
        Beside::Folder { folder, reach } => {
            let path = folder.join(PathBuf::from(&local));
            let Some(bound) = reach.left_by(&path) else { return Ok(Contents::File(path)) };
            let problem = format!("names `{}`, which is outside `{}`", shortened(text), bound.display());
            Err(Error::row_field(place, field, problem)
                .with_hint("if you trust the rows, use `--image-paths anywhere` to let them name any file"))
        }
        Beside::Archive { file, members } => {
            let member = members.iter().find(|member| same_member(&member.name, &local));
            let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
            let missing = || {
                Error::row_field(place, field, format!("names `{}`, which is not in the archive", shortened(&local)))
                    .with_hint(format!(
                        "pictures of this row: {}",
                        if names.is_empty() { "none".to_string() } else { names.join(", ") }
                    ))
            };
            let found = |member: &Member| Contents::Member { file, offset: member.offset, size: member.size };
            member.map(found).ok_or_else(missing)
        }
    }
}

/// Whether a text names a member: in full, by its last component, or by its extension as in webdataset (`jpg`).
fn same_member(name: &str, text: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    name == text
        || last == text
        || last.split_once('.').is_some_and(|(_, ending)| ending == text.trim_start_matches('.'))
}

/// Decodes percent escapes of a URL path: `%20` is a blank.
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
