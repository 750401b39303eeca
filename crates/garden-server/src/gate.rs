//! Who may come in: each request passes here first.
//!
//! A page in somebody's browser can send requests to this machine, too. So a request has to name us by an address, `localhost` or a name that the operator
//! allowed (a name of an attacker that resolves to us is none of these), and one that changes something must not come from another site's page.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};

use crate::Server;
use crate::connections::Connection;
use crate::error::ApiError;
use crate::id::new_id;
use crate::workers::on_behalf_of;

/// Addresses whose rates are known at most; behind one that is full of others everybody starts anew.
const ADDRESSES: usize = 4096;
/// Wrong keys that an address may send in a second.
const WRONG_KEYS: f64 = 5.0;
/// Letters of a request's name that a client may choose.
const LONGEST_REQUEST_ID: usize = 128;

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub IpAddr);

/// Who sends a request.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// The beginning of its key's digest, where a key is needed.
    pub key: Option<String>,
    pub address: IpAddr,
}

impl Client {
    /// By what clients take turns: their keys, or where they come from.
    pub fn turns(&self) -> String {
        self.key.clone().unwrap_or_else(|| self.address.to_string())
    }
}

/// The keys that open the server; only their digests are kept.
#[derive(Debug, Default)]
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub fn new(keys: &[String]) -> Keys {
        Keys(keys.iter().map(|key| Sha256::digest(key.as_bytes()).into()).collect())
    }

    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// The beginning of a key's digest, if the key is one of them. Digests of the same length are compared to their ends, all of them, so time tells nothing about a key.
    fn find(&self, key: &str) -> Option<String> {
        let given: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let differs = |known: &[u8; 32]| known.iter().zip(&given).fold(0, |sum, (one, other)| sum | (one ^ other));
        let is_known = self.0.iter().fold(false, |found, known| found | (std::hint::black_box(differs(known)) == 0));
        is_known.then(|| given[..8].iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Requests of each address: a bucket that fills again with time.
#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<HashMap<(IpAddr, Kind), Bucket>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Request,
    WrongKey,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Rates {
    /// Takes one of `rate` a second; two seconds' worth may come at once.
    fn take(&self, who: IpAddr, kind: Kind, rate: f64) -> bool {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= ADDRESSES {
            buckets.clear();
        }
        let now = Instant::now();
        let most = 2.0 * rate;
        let bucket = buckets.entry((who, kind)).or_insert(Bucket { left: most, at: now });
        bucket.left = (bucket.left + rate * now.duration_since(bucket.at).as_secs_f64()).min(most);
        bucket.at = now;
        let may = bucket.left >= 1.0;
        if may {
            bucket.left -= 1.0;
        }
        may
    }
}

/// Lets a request in, or answers why not.
pub(crate) async fn pass(
    State(server): State<Arc<Server>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(connection): Extension<Connection>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let busy = connection.busy();
    let id = request_id(request.headers());
    let mut answer = match check(&server, peer, &request) {
        Ok(key) => {
            let client = Client { key, address: peer };
            let owner = client.turns();
            request.extensions_mut().insert(client);
            on_behalf_of(owner, next.run(request)).await
        }
        Err(error) => error.into_response(),
    };
    server.meter.count(answer.status(), began.elapsed());
    let headers = answer.headers_mut();
    headers.insert(header::HeaderName::from_static("x-request-id"), id);
    // What we answer is never a page of somebody else's making.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(header::HeaderValue::from_static("no-store"));
    // The connection is at work until the last byte of the answer was taken.
    answer.map(|body| busy.until_sent(body))
}

/// The name of a request in logs of both sides: the client's own, or a new one.
fn request_id(headers: &HeaderMap) -> header::HeaderValue {
    let is_plain = |value: &&header::HeaderValue| {
        let text = value.as_bytes();
        (1..=LONGEST_REQUEST_ID).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
    };
    let given = headers.get("x-request-id").filter(is_plain).cloned();
    let new = || header::HeaderValue::from_str(&new_id("req_")).unwrap_or(header::HeaderValue::from_static("req_"));
    given.unwrap_or_else(new)
}

/// The beginning of the key's digest, where one is needed.
fn check(server: &Server, peer: IpAddr, request: &Request) -> Result<Option<String>, ApiError> {
    if !server.rates.take(peer, Kind::Request, f64::from(server.settings.rate)) {
        return Err(ApiError::too_often());
    }
    let headers = request.headers();
    let host = host_of(headers, request);
    if !host.as_deref().is_some_and(|host| is_ours(host, &server.settings.allowed_hosts)) {
        return Err(ApiError::forbidden(
            "this server is not known by that name: use its address, or a name that its operator has allowed",
        )
        .with_code("unknown_host"));
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !is_read && is_foreign(headers) {
        return Err(ApiError::forbidden("pages of other sites may not change anything here").with_code("cross_origin"));
    }
    // Whether it is alive is no secret, and whoever looks may have no key.
    if server.keys.is_open() || request.uri().path() == "/health" {
        return Ok(None);
    }
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    // Azure's clients have a header of their own.
    let azure = headers.get("api-key").and_then(|value| value.to_str().ok());
    let Some(key) = given.map(|(_, key)| key).or(azure) else {
        return Err(ApiError::unauthorised("a key is needed: send it as `Authorization: Bearer KEY`"));
    };
    if let Some(known) = server.keys.find(key.trim()) {
        return Ok(Some(known));
    }
    match server.rates.take(peer, Kind::WrongKey, WRONG_KEYS) {
        true => Err(ApiError::unauthorised("that key is not one of this server's")),
        false => Err(ApiError::too_often()),
    }
}

/// The host that a request is meant for, without its port.
fn host_of(headers: &HeaderMap, request: &Request) -> Option<String> {
    let mut all = headers.get_all(header::HOST).iter();
    let named = match (all.next(), all.next()) {
        (Some(one), None) => Some(one.to_str().ok()?.to_string()),
        (None, _) => None,
        // Two of them are meant to fool somebody.
        _ => return None,
    };
    let asked = request.uri().host().map(str::to_string);
    match (named.as_deref().map(without_port), asked) {
        (Some(named), Some(asked)) if !named.eq_ignore_ascii_case(&asked) => None,
        (Some(named), _) => Some(named.to_ascii_lowercase()),
        (None, asked) => asked.map(|asked| asked.to_ascii_lowercase()),
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of [::1] are not those of a port.
        Some((name, port)) if !port.contains(']') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether a name is ours.
fn is_ours(host: &str, allowed: &[String]) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    bare == "localhost" || bare.parse::<IpAddr>().is_ok() || allowed.iter().any(|name| name.eq_ignore_ascii_case(bare))
}

/// Whether a page of another site sends it, as far as a browser tells.
fn is_foreign(headers: &HeaderMap) -> bool {
    let told = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or("?").to_string());
    let site = told(header::HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| !matches!(site.as_str(), "same-origin" | "none")) {
        return true;
    }
    let Some(origin) = told(header::ORIGIN) else { return false };
    let from = origin.split_once("://").map(|(_, rest)| rest.to_ascii_lowercase());
    // With its port: another server on this machine is another site.
    let own = headers.get(header::HOST).and_then(|value| value.to_str().ok()).map(str::to_ascii_lowercase);
    from.is_none() || from != own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_not_ours() {
        let ours = |host: &str| is_ours(host, &["garden.lan".to_string()]);
        assert!(
            ["localhost", "127.0.0.1", "[::1]", "192.168.1.7", "garden.lan", "GARDEN.lan"]
                .iter()
                .all(|host| ours(host))
        );
        assert!(
            !["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "garden.lan.evil"]
                .iter()
                .any(|host| ours(host))
        );
        assert_eq!(without_port("[::1]:8000"), "[::1]");
        assert_eq!(without_port("[::1]"), "[::1]");
        assert_eq!(without_port("localhost:8000"), "localhost");
    }

    #[test]
    fn a_key_is_one_of_several() {
        let keys = Keys::new(&["one".to_string(), "two".to_string()]);
        let found = |key: &str| keys.find(key).is_some();
        assert!(found("one") && found("two") && !found("three") && !found(""));
        assert_ne!(keys.find("one"), keys.find("two"));
    }

    #[test]
    fn a_bucket_empties_and_fills() {
        let rates = Rates::default();
        let who = IpAddr::from([127, 0, 0, 1]);
        let taken = (0..100).filter(|_| rates.take(who, Kind::Request, 10.0)).count();
        assert!((20..=22).contains(&taken), "{taken}");
        assert!(rates.take(IpAddr::from([127, 0, 0, 2]), Kind::Request, 10.0));
    }

    #[test]
    fn pages_of_other_sites_are_foreign() {
        let foreign = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, header::HeaderValue::from_static("localhost:8000"));
            for (name, value) in pairs {
                headers.insert(*name, header::HeaderValue::from_static(value));
            }
            is_foreign(&headers)
        };
        assert!(!foreign(&[]) && !foreign(&[("origin", "http://localhost:8000")]));
        assert!(!foreign(&[("sec-fetch-site", "same-origin"), ("origin", "http://localhost:8000")]));
        assert!(foreign(&[("origin", "http://localhost:9999")]));
        assert!(foreign(&[("origin", "http://evil.example")]) && foreign(&[("origin", "null")]));
        assert!(foreign(&[("sec-fetch-site", "cross-site")]) && foreign(&[("sec-fetch-site", "same-site")]));
    }
}
