//! Which rank or node wrote a log line: `[rank1]:`, `rank=1`, `[1,1]<stdout>:`, `(RANK 1)`, `[default0]:`, `node0: `.
//!
//! Launchers of several processes put such a mark in front of the lines of each. A word that merely ends in "rank", as
//! in `lora_rank`, is none.

use crate::series::identity::{Identity, Part, Who};

/// How far into a line a mark may stand.
const WITHIN: usize = 120;

/// The identity that a line in lower case states; `mentions_rank` says whether the word is in it at all.
pub(super) fn identity_of(line: &str, mentions_rank: bool) -> Option<Identity> {
    let bytes = line.as_bytes();
    let mut parts = Vec::new();
    // All marks but the word itself open a line.
    match bytes.first()? {
        b'[' => parts.extend(tagged(line)),
        b'n' | b'w' | b'h' | b'i' => parts.extend(host(line)),
        _ => {}
    }
    if mentions_rank && parts.iter().all(|part| part.who == Who::Host) {
        parts.extend(named_rank(line));
    }
    (!parts.is_empty()).then_some(Identity { parts, detail: None })
}

/// The rank in `[default0]:` of torchrun or `[1,2]<stdout>:` of mpirun.
fn tagged(line: &str) -> Option<Part> {
    let tag = &line[1..line.find(']')?];
    let rest = &line[tag.len() + 2..];
    let number = tag.strip_prefix("default");
    let number = number.or_else(|| tag.split_once(',').filter(|_| rest.starts_with("<std")).map(|(_, rank)| rank))?;
    is_number(number).then(|| Part { who: Who::Rank, value: number.to_string() })
}

/// The host in `node0: ` of pdsh or `worker-1: ` of DeepSpeed's launcher.
fn host(line: &str) -> Option<Part> {
    let (name, rest) = line.split_once(": ")?;
    let is_name =
        name.len() < 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    let known = ["node", "worker", "host", "ip-", "nid"].iter().any(|start| name.starts_with(start));
    let ends_in_number = name.ends_with(|c: char| c.is_ascii_digit());
    (is_name && known && ends_in_number && !rest.is_empty()).then(|| Part { who: Who::Host, value: name.to_string() })
}

/// The rank behind the word: `rank=1`, `[rank 1]`, `rank1:`, `local_rank: 0`.
fn named_rank(line: &str) -> Option<Part> {
    let mut from = 0;
    while let Some(at) = line[from..].find("rank").map(|at| from + at).filter(|&at| at < WITHIN) {
        from = at + 4;
        let before = &line[..at];
        let who = if before.ends_with("local_") || before.ends_with("local ") { Who::LocalRank } else { Who::Rank };
        let own = before.trim_end_matches("local_").trim_end_matches("global_");
        if own.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        // `rank-0` and `rank[0]`; a sign behind a space is a number's own.
        from += usize::from(line[from..].starts_with(['-', '[']));
        let behind = line[from..].trim_start_matches([' ', '=', ':', '_', '#', '"', '\'']);
        let skipped = line.len() - from - behind.len();
        let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
        let ends = behind[digits..].chars().next().is_none_or(|c| !c.is_alphanumeric() && c != '.');
        if skipped <= 3 && (1..=6).contains(&digits) && ends {
            return Some(Part { who, value: behind[..digits].to_string() });
        }
    }
    None
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 6 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_launchers() {
        for (line, expected) in [
            ("[rank1]: step 10: ram: 5 gb", Some("rank 1")),
            ("[rank 12] ram 5 gb", Some("rank 12")),
            ("12:00:01 info rank=3 rss=5 gb", Some("rank 3")),
            ("[1,2]<stdout>: ram 5 gb", Some("rank 2")),
            ("(rank 0) ram", Some("rank 0")),
            ("[default7]:ram", Some("rank 7")),
            ("node0: ram: 5 gb", Some("host node0")),
            ("worker-1: [rank3] ram", Some("host worker-1, rank 3")),
            ("local_rank: 2 ram", Some("local rank 2")),
            ("rank-1 ram", Some("rank 1")),
            ("rank[2] ram", Some("rank 2")),
            ("rank: -1 ram", None),
            ("lora_rank=16 ram", None),
            ("rank 1.5 of", None),
            ("step10: ram: 5 gb", None),
            ("[2024-01-15 10:00:00] ram", None),
        ] {
            let found = identity_of(line, line.contains("rank")).map(|identity| identity.name(|_| true));
            assert_eq!(found.as_deref(), expected, "{line}");
        }
    }
}
