//! Forms with files in them, as they come: no more than a piece of a file is in memory, and what is no file is short.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::multipart::Field;
use axum::extract::{FromRequest as _, Multipart, Request};
use futures_util::{Stream, StreamExt as _};
use schemars::JsonSchema;

use crate::Server;
use crate::body::Pace;
use crate::error::ApiError;
use crate::openapi::Shape;

/// Bytes of a form that are read and not yet taken.
const AHEAD: u64 = 48 << 10;
/// How often the reader of forms may ask for more than that in vain: what it waits for is then no end of a header.
const PATIENCE: u64 = 16;
/// Letters of a field that is no file.
const LONGEST: usize = 255;

/// A form with the fields of a type.
pub(crate) struct Form {
    shape: Shape,
    parts: Multipart,
    pace: Pace,
    meter: Arc<Meter>,
}

/// A field of it.
pub(crate) struct FormField<'a> {
    field: Field<'a>,
    pace: &'a mut Pace,
    meter: Arc<Meter>,
}

impl Form {
    pub async fn of<T: JsonSchema>(request: Request, server: &Arc<Server>) -> Result<Form, ApiError> {
        let meter = Arc::new(Meter::default());
        let inner = Arc::clone(&meter);
        let request = request.map(|body| Body::from_stream(Metered { body: body.into_data_stream(), meter: inner }));
        let parts = Multipart::from_request(request, server)
            .await
            .map_err(|error| ApiError::invalid(format!("a file is sent as multipart/form-data: {error}")))?;
        Ok(Form { shape: Shape::of::<T>(), parts, pace: Pace::new(), meter })
    }

    /// The next field and its name, which is one that the type has.
    pub async fn next(&mut self) -> Result<Option<(FormField<'_>, String)>, ApiError> {
        let Form { shape, parts, pace, meter } = self;
        let field = pace.wait(parts.next_field()).await?.map_err(unreadable)?;
        meter.went_on(0);
        let Some(field) = field else { return Ok(None) };
        let name = field.name().unwrap_or_default().to_string();
        match shape.has(&name) {
            true => Ok(Some((FormField { field, pace, meter: Arc::clone(meter) }, name))),
            false => Err(unknown(&name)),
        }
    }
}

impl FormField<'_> {
    pub fn file_name(&self) -> Option<&str> {
        self.field.file_name()
    }

    /// The next piece of it; more than `limit` bytes together are too much.
    pub async fn piece(&mut self, limit: u64) -> Result<Option<Bytes>, ApiError> {
        let piece = self.pace.wait(self.field.chunk()).await?.map_err(unreadable)?;
        let length = piece.as_ref().map_or(0, Bytes::len);
        self.meter.went_on(length as u64);
        self.pace.count(length, limit)?;
        Ok(piece)
    }

    /// All of it, which is short.
    pub async fn text(&mut self) -> Result<String, ApiError> {
        let mut text = Vec::new();
        while let Some(piece) = self.piece(u64::MAX).await? {
            text.extend_from_slice(&piece);
            if text.len() > LONGEST {
                return Err(ApiError::invalid("a field that is no file is too long"));
            }
        }
        String::from_utf8(text).map_err(|_| ApiError::invalid("a field is no text"))
    }
}

/// A field that a form does not have.
pub(crate) fn unknown(name: &str) -> ApiError {
    ApiError::field(name, format!("`{name}` is not a parameter here"))
}

fn unreadable(error: axum::extract::multipart::MultipartError) -> ApiError {
    ApiError::invalid(format!("the form cannot be read: {}", error.body_text()))
}

/// How far the reader of forms is ahead of us.
#[derive(Debug, Default)]
struct Meter {
    ahead: AtomicU64,
    /// How often it asked for more although it was too far, since it last gave us something.
    in_vain: AtomicU64,
}

impl Meter {
    /// It gave us something.
    fn went_on(&self, bytes: u64) {
        self.in_vain.store(0, Ordering::Relaxed);
        let _ =
            self.ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |ahead| Some(ahead.saturating_sub(bytes)));
    }
}

/// A body that does not let its reader get too far. The reader of forms takes all that is there before it looks at it, which may be the whole file, and looks for
/// the end of a header for ever.
struct Metered {
    body: BodyDataStream,
    meter: Arc<Meter>,
}

impl Stream for Metered {
    type Item = Result<Bytes, axum::BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.meter.ahead.load(Ordering::Relaxed) >= AHEAD {
            if self.meter.in_vain.fetch_add(1, Ordering::Relaxed) >= PATIENCE {
                return Poll::Ready(Some(Err(format!("more than {AHEAD} bytes without a file in them").into())));
            }
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = self.body.poll_next_unpin(context);
        if let Poll::Ready(Some(Ok(piece))) = &next {
            self.meter.ahead.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        next.map_err(Into::into)
    }
}
