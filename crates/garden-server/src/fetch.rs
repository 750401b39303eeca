//! Pictures that rows name by address: fetched before the rows are looked at, and only from where anybody could fetch them.
//!
//! A client that names `http://169.254.169.254/` wants our machine to ask for it. So every name is resolved here, each connection goes to an address that was
//! checked, and a redirect is a new name. Addresses of a private network are refused unless the operator has allowed them one by one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use garden_files::Allowance;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Bytes of the largest picture.
const LARGEST: u64 = 20 << 20;
/// Bytes of all pictures of a job.
const ALL: u64 = 64 << 30;
/// Pictures that cannot be had before the others are left alone.
const MOST_PROBLEMS: usize = 100;
/// Pictures that are fetched at the same time.
const AT_ONCE: usize = 8;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long all of a job may take.
const ALL_PATIENCE: Duration = Duration::from_secs(3600);
/// Redirects that are followed.
const REDIRECTS: u32 = 3;
/// How pictures begin, and how their files' names end.
const KINDS: [(&[u8], &str); 7] = [
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG", "png"),
    (b"GIF8", "gif"),
    (b"RIFF", "webp"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
];

/// A picture that cannot be had.
#[derive(Debug)]
pub struct FetchProblem {
    /// The line of the row, from 1.
    pub line: usize,
    /// The field.
    pub field: String,
    /// What is wrong.
    pub problem: String,
}

/// What may be fetched.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits<'a> {
    /// Addresses of a private network that are allowed.
    pub allowed: &'a [IpAddr],
    /// What all jobs together may still write, where that is bounded.
    pub allowance: Option<&'a Allowance>,
}

/// What was fetched.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Pictures.
    pub count: usize,
    /// Those that cannot be had, in the order of rows. Their rows are as they were.
    pub problems: Vec<FetchProblem>,
}

/// Why a picture is not there.
enum Missing {
    /// It cannot be had.
    Picture(String),
    /// It cannot be kept, and neither could others.
    Disk(io::Error),
}

/// Fetches what the rows of a file name by address, and replaces the addresses by files in the folder `images` beside it. Whoever is killed in the midst leaves
/// the rows as they were. An error is the disk's.
pub fn fetch_pictures(rows: &Path, limits: &FetchLimits<'_>) -> io::Result<Fetched> {
    let folder = rows.parent().unwrap_or(Path::new(".")).join("images");
    let mut wanted: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (index, line) in lines(rows)?.enumerate() {
        let Some(mut row) = named(&line?) else { continue };
        each_url(&mut row, &mut |field, url| {
            wanted.entry(url.clone()).or_insert_with(|| (index + 1, field.to_string()));
        });
    }
    if wanted.is_empty() {
        return Ok(Fetched::default());
    }
    fs::create_dir_all(&folder)?;
    let (files, fetched) = fetch_all(&wanted, &folder, limits)?;
    let draft = rows.with_extension("draft");
    let mut out = BufWriter::new(File::create(&draft)?);
    for line in lines(rows)? {
        let line = line?;
        match named(&line) {
            Some(mut row) => {
                each_url(&mut row, &mut |_, url| {
                    if let Some(file) = files.get(url.as_str()) {
                        *url = format!("images/{file}");
                    }
                });
                writeln!(out, "{row}")?;
            }
            None => out.write_all(&line).and_then(|()| out.write_all(b"\n"))?,
        }
    }
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&draft, rows)?;
    Ok(fetched)
}

fn lines(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Vec<u8>>>> {
    Ok(BufReader::new(File::open(path)?).split(b'\n'))
}

/// A row that may name something by address, which may be written with escapes; all others are left as they are, to the byte.
fn named(line: &[u8]) -> Option<Value> {
    let has = line.contains(&b'\\') || line.windows(4).any(|part| part == b"http");
    has.then(|| serde_json::from_slice(line).ok()).flatten()
}

/// Every address of a picture in a row, with its field.
fn each_url(row: &mut Value, take: &mut dyn FnMut(&str, &mut String)) {
    let messages = row.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten();
    for (number, message) in messages.enumerate() {
        let parts = message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
        for (part_number, part) in parts.enumerate() {
            let Some(place) = part.get_mut("image_url") else { continue };
            let (place, end) = if place.is_object() { (&mut place["url"], ".url") } else { (place, "") };
            if let Value::String(url) = place
                && (url.starts_with("http://") || url.starts_with("https://"))
            {
                take(&format!("messages[{number}].content[{part_number}].image_url{end}"), url);
            }
        }
    }
}

/// Fetches all of them: the names of their files, and what cannot be had.
fn fetch_all(
    wanted: &BTreeMap<String, (usize, String)>,
    folder: &Path,
    limits: &FetchLimits<'_>,
) -> io::Result<(BTreeMap<String, String>, Fetched)> {
    let agent = agent(limits.allowed);
    let urls: Vec<&String> = wanted.keys().collect();
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let files = Mutex::new(BTreeMap::new());
    let problems: Mutex<Vec<FetchProblem>> = Mutex::new(Vec::new());
    let broken: Mutex<Option<io::Error>> = Mutex::new(None);
    let began = Instant::now();
    let work = || {
        while let Some(url) = urls.get(next.fetch_add(1, Ordering::Relaxed)) {
            let done = match began.elapsed() < ALL_PATIENCE {
                true => fetch(&agent, url, folder, &bytes, limits.allowance),
                false => Err(Missing::Picture("was not fetched: those before it took an hour".to_string())),
            };
            match done {
                Ok(file) => drop(files.lock().map(|mut files| files.insert((*url).clone(), file))),
                Err(Missing::Picture(problem)) => {
                    let (line, field) = wanted[*url].clone();
                    let problem = format!("`{url}` {problem}");
                    drop(problems.lock().map(|mut all| all.push(FetchProblem { line, field, problem })));
                }
                Err(Missing::Disk(error)) => drop(broken.lock().map(|mut broken| broken.replace(error))),
            }
            let is_over = problems.lock().map_or(true, |all| all.len() >= MOST_PROBLEMS);
            if is_over || broken.lock().map_or(true, |broken| broken.is_some()) {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(urls.len()) {
            scope.spawn(work);
        }
    });
    if let Some(error) = broken.into_inner().unwrap_or_default() {
        return Err(error);
    }
    let files = files.into_inner().unwrap_or_default();
    let mut problems = problems.into_inner().unwrap_or_default();
    problems.sort_by_key(|problem| problem.line);
    let fetched = Fetched { count: files.len(), problems };
    Ok((files, fetched))
}

fn agent(allowed: &[IpAddr]) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .max_redirects(REDIRECTS)
        // One in the environment would connect for us, to an address that nobody checked.
        .proxy(None)
        .user_agent("model-garden")
        .build();
    ureq::Agent::with_parts(config, DefaultConnector::default(), Checked { allowed: allowed.to_vec() })
}

fn fetch(
    agent: &ureq::Agent,
    url: &str,
    folder: &Path,
    all: &AtomicU64,
    allowance: Option<&Allowance>,
) -> Result<String, Missing> {
    let name: String = Sha256::digest(url.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let known = KINDS.iter().map(|(_, end)| format!("{name}.{end}")).find(|name| folder.join(name).exists());
    if let Some(known) = known {
        return Ok(known);
    }
    let failed = |error: &dyn fmt::Display| Missing::Picture(format!("cannot be fetched: {error}"));
    let mut answer = agent.get(url).call().map_err(|error| failed(&error))?;
    let mut picture = Vec::new();
    let read = answer.body_mut().as_reader().take(LARGEST + 1).read_to_end(&mut picture);
    read.map_err(|error| failed(&error))?;
    if picture.len() as u64 > LARGEST {
        return Err(Missing::Picture(format!("has more than {} MiB", LARGEST >> 20)));
    }
    let length = picture.len() as u64;
    if all.fetch_add(length, Ordering::Relaxed) + length > ALL {
        return Err(Missing::Picture(format!("would make the pictures of this job larger than {} GiB", ALL >> 30)));
    }
    let kind = KINDS.iter().find(|(begin, _)| picture.starts_with(begin));
    let other = || Missing::Picture("is not a picture: neither JPEG, PNG, GIF, WebP, BMP nor TIFF".to_string());
    let (_, end) = kind.ok_or_else(other)?;
    // Before it is written, since others write, too.
    if let Some(Err(left)) = allowance.map(|allowance| allowance.take(length)) {
        return Err(Missing::Picture(format!("has {length} bytes, and the server's quota has {left} left")));
    }
    let file = format!("{name}.{end}");
    let draft = folder.join(format!("{file}.draft"));
    let written = fs::write(&draft, &picture).and_then(|()| fs::rename(&draft, folder.join(&file)));
    written.map_err(Missing::Disk)?;
    Ok(file)
}

/// Gives only addresses that may be connected to.
#[derive(Debug)]
struct Checked {
    allowed: Vec<IpAddr>,
}

impl Resolver for Checked {
    fn resolve(&self, uri: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let (scheme, authority) = uri.scheme().zip(uri.authority()).ok_or(ureq::Error::HostNotFound)?;
        let place = DefaultResolver::host_and_port(scheme, authority).ok_or(ureq::Error::HostNotFound)?;
        let mut found = self.empty();
        let mut refused = None;
        for address in place.to_socket_addrs().map_err(|_| ureq::Error::HostNotFound)? {
            let ip = address.ip().to_canonical();
            if is_public(ip) || self.allowed.contains(&ip) {
                if found.len() < 16 {
                    found.push(address);
                }
            } else {
                refused = Some(ip);
            }
        }
        match (found.is_empty(), refused) {
            (false, _) => Ok(found),
            (true, Some(ip)) => {
                Err(ureq::Error::Other(format!("its host is {ip}, which is not a public address").into()))
            }
            (true, None) => Err(ureq::Error::HostNotFound),
        }
    }
}

/// Whether an address is one of the internet's, by the registries of special addresses.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_broadcast()
        || ip.is_documentation()
        || a == 0
        // Between a provider and its customers.
        || (a == 100 && (64..128).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99)
        // Benchmarks.
        || (a == 198 && (b == 18 || b == 19))
        || a >= 240;
    !is_special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let parts = ip.segments();
    // Addresses of the older kind inside others: through a translator, and 6to4.
    let inner = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match parts {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => return is_public_v4(inner(high, low)),
        [0x2002, high, low, ..] => return is_public_v4(inner(high, low)),
        _ => {}
    }
    // Of all others only 2000::/3 is in use, and not all of that.
    parts[0] & 0xe000 == 0x2000
        && !(parts[0] == 0x2001 && parts[1] < 0x200)
        && !(parts[0] == 0x2001 && parts[1] == 0xdb8)
        && parts[0] != 0x3fff
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        let public = |text: &str| is_public(text.parse().unwrap());
        for yes in ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808"] {
            assert!(public(yes), "{yes}");
        }
        for no in [
            "127.0.0.1",
            "127.8.8.8",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "192.0.0.8",
            "203.0.113.5",
            "240.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "ff02::1",
        ] {
            assert!(!public(no), "{no}");
        }
    }

    /// A server of pictures on this machine: `/ok` is one, `/away` redirects to another address of this machine, `/text` is none.
    fn pictures() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(20) {
                let mut stream = stream.unwrap();
                let mut request = [0; 2048];
                let count = stream.read(&mut request).unwrap();
                let asked = String::from_utf8_lossy(&request[..count]).into_owned();
                let answer: Vec<u8> = match asked.split(' ').nth(1) {
                    Some("/ok") => b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\n\x89PNG1234".to_vec(),
                    Some("/away") => format!("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2:{port}/ok\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes(),
                    _ => b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ntext".to_vec(),
                };
                drop(stream.write_all(&answer));
            }
        });
        port
    }

    #[test]
    fn pictures_are_fetched_from_where_they_may_be() {
        let folder = std::env::temp_dir().join(format!("garden-fetch-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let rows = folder.join("training_file.jsonl");
        let port = pictures();
        let row = |path: &str| {
            format!(
                r#"{{"messages": [{{"role": "user", "content": [{{"type": "image_url", "image_url": {{"url": "http://127.0.0.1:{port}{path}"}}}}]}}]}}"#
            )
        };
        let here = [IpAddr::from([127, 0, 0, 1])];
        let plain = "{\"a\":  1.50}";
        fs::write(&rows, format!("{plain}\n{}\n{}\n", row("/ok"), row("/ok"))).unwrap();
        let allowance = Allowance::at(&folder.join("allowance"));
        let fetch =
            |allowed: &[IpAddr]| fetch_pictures(&rows, &FetchLimits { allowed, allowance: Some(&allowance) }).unwrap();
        let refused = fetch(&[]).problems.remove(0);
        assert_eq!((refused.line, refused.field.as_str()), (2, "messages[0].content[0].image_url.url"));
        assert!(refused.problem.contains("127.0.0.1, which is not a public address"), "{refused:?}");
        // What is left is for all who fetch at the same time.
        allowance.set(7).unwrap();
        assert!(fetch(&here).problems.remove(0).problem.contains("has 8 bytes, and the server's quota has 7 left"));
        allowance.set(8).unwrap();
        assert_eq!(
            (fetch(&here).count, allowance.take(1), fetch(&here).count),
            (1, Err(0), 0),
            "nothing is left to fetch"
        );
        allowance.set(1000).unwrap();
        let text = fs::read_to_string(&rows).unwrap();
        assert!(text.starts_with(&format!("{plain}\n")), "other rows stay as they are: {text}");
        let row_now: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        let file = row_now["messages"][0]["content"][0]["image_url"]["url"].as_str().unwrap();
        assert_eq!(fs::read(folder.join(file)).unwrap(), b"\x89PNG1234");
        for (path, words) in [("/away", "127.0.0.2, which is not a public address"), ("/text", "is not a picture")] {
            // One that cannot be had does not keep the others away.
            fs::write(&rows, format!("{}\n{}", row(path), row("/ok"))).unwrap();
            let fetched = fetch(&here);
            assert!(fetched.problems.len() == 1 && fetched.problems[0].problem.contains(words), "{fetched:?}");
            assert_eq!((fetched.count, fetched.problems[0].line), (1, 1));
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
