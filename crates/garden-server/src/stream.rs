//! Lists as answers, sent in pieces: memory holds one piece, however long a list is and however many clients ask for it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header;
use axum::response::IntoResponse as _;
use serde::Serialize;

use crate::Server;
use crate::answer::{Answer, text_answer};
use crate::error::ApiError;
use crate::store::{Listed, Page};
use crate::wire::Identified;
use crate::workers::owner;

/// A row of a list, as it goes out.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    id: String,
    json: String,
}

impl Shown {
    pub fn of(one: &(impl Serialize + Identified)) -> Result<Shown, ApiError> {
        let json = serde_json::to_string(one);
        let json = json.map_err(|error| ApiError::internal("the answer cannot be written", &error))?;
        Ok(Shown { id: one.id().to_string(), json })
    }

    /// Rows of a list, each as it goes out.
    pub fn all<R, T: Serialize + Identified>(
        listed: Listed<R>,
        shown: impl Fn(R) -> T,
    ) -> Result<Listed<Shown>, ApiError> {
        let Listed { rows, has_more, last } = listed;
        let rows = rows.into_iter().map(|row| Shown::of(&shown(row))).collect::<Result<_, _>>()?;
        Ok(Listed { rows, has_more, last })
    }
}

/// Bytes of a list that are sent at once, and rows that are read for it.
const PIECE: usize = 12 << 10;
const MOST_AT_ONCE: usize = 200;

/// Reads some rows of a list.
type Reader = Arc<dyn Fn(&Server, &Page) -> Result<Listed<Shown>, ApiError> + Send + Sync>;

/// How a list ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With the places where the next page goes on.
    Page,
    /// With nothing: it is all there is.
    All,
}

/// A list on its way.
struct Sending {
    server: Arc<Server>,
    owner: String,
    read: Reader,
    /// What is left of it.
    page: Page,
    at_once: usize,
    end: End,
    has_begun: bool,
    first: Option<String>,
    last: Option<String>,
    is_over: bool,
}

/// Sends a list, `at_once` rows of it at first.
pub(crate) async fn send_list(
    server: &Arc<Server>,
    page: Page,
    at_once: usize,
    end: End,
    read: impl Fn(&Server, &Page) -> Result<Listed<Shown>, ApiError> + Send + Sync + 'static,
) -> Answer {
    let server = Arc::clone(server);
    let mut sending = Sending {
        server,
        owner: owner(),
        read: Arc::new(read),
        page,
        at_once,
        end,
        has_begun: false,
        first: None,
        last: None,
        is_over: false,
    };
    // Before anything is promised: an error is an answer of its own.
    let beginning = sending.next().await?;
    if sending.is_over {
        return text_answer("application/json", beginning);
    }
    let stream = futures_util::stream::unfold((Some(beginning), sending), |(ready, mut sending)| async move {
        if let Some(piece) = ready {
            return Some((Ok(piece), (None, sending)));
        }
        if sending.is_over {
            return None;
        }
        let piece = sending.next().await.map_err(|error| std::io::Error::other(error.message));
        sending.is_over |= piece.is_err();
        Some((piece, (None, sending)))
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(stream)).into_response())
}

impl Sending {
    /// The next piece of text.
    async fn next(&mut self) -> Result<String, ApiError> {
        let asked = Page { limit: self.page.limit.min(self.at_once), ..self.page.clone() };
        let (server, read) = (Arc::clone(&self.server), Arc::clone(&self.read));
        let Listed { rows, has_more, last } = self.server.long.run(&self.owner, move || read(&server, &asked)).await?;
        let mut text = String::new();
        if !self.has_begun {
            self.has_begun = true;
            text.push_str("{\"object\":\"list\",\"data\":[");
        }
        self.page.limit = self.page.limit.saturating_sub(rows.len());
        (self.page.after, self.page.behind) = (None, last);
        let (count, before) = (rows.len(), text.len());
        for row in rows {
            if self.first.is_some() {
                text.push(',');
            }
            text.push_str(&row.json);
            self.first.get_or_insert_with(|| row.id.clone());
            self.last = Some(row.id);
        }
        // A client that does not take its answer holds one piece of it: large rows come one by one, small ones many at a time.
        let each = (text.len() - before) / count.max(1);
        self.at_once = (PIECE / each.max(1)).clamp(1, MOST_AT_ONCE);
        self.is_over = !has_more || self.page.limit == 0;
        if self.is_over {
            text.push_str(&match self.end {
                End::All => "]}".to_string(),
                End::Page => {
                    let id = |id: &Option<String>| serde_json::to_string(id).unwrap_or_else(|_| "null".into());
                    format!(
                        "],\"first_id\":{},\"last_id\":{},\"has_more\":{has_more}}}",
                        id(&self.first),
                        id(&self.last)
                    )
                }
            });
        }
        Ok(text)
    }
}
