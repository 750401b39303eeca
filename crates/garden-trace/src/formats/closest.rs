//! The most helpful refusal: which known tool wrote a file without memory in use, or which line comes closest to showing it.

use crate::columns::names::words;
use crate::error::{Closest, Error, Lack, shorten};
use crate::formats::log::has_amount;
use crate::lines::HeadLine;

/// The refusal of a known tool's output that does not show memory in use.
pub(crate) fn known_tool(head: &[HeadLine]) -> Option<Error> {
    let has = |line: &HeadLine, wanted: &[&str]| {
        let words: Vec<&str> = line.text.split_whitespace().collect();
        wanted.iter().all(|word| words.contains(word))
    };
    let any = |wanted: &[&str]| head.iter().any(|line| has(line, wanted));
    let (problem, advice) = match () {
        _ if any(&["swpd", "free", "buff", "cache"]) => (
            "`vmstat` shows free memory, not memory in use",
            "record `free -m -s 1` instead, or one process with `while sleep 1; do ps -p PID -o pid,rss,cmd; done`",
        ),
        _ if any(&["UID", "PID", "PPID", "STIME", "CMD"]) => (
            "`ps -ef` shows no memory",
            "record `ps aux`, or one process with `while sleep 1; do ps -p PID -o pid,rss,cmd; done`",
        ),
        _ if any(&["#", "TYPE", "gauge"]) => (
            "a page of metrics for Prometheus has no times",
            "ask Prometheus for a range: `/api/v1/query_range?query=process_resident_memory_bytes&start=..&end=..&step=15s`",
        ),
        _ if any(&["apiVersion:", "metrics.k8s.io/v1beta1"]) => (
            "YAML of Kubernetes' metrics API is not read",
            "record it as JSON: `kubectl get --raw /apis/metrics.k8s.io/v1beta1/namespaces/NS/pods/POD`",
        ),
        _ if any(&["PID", "%usr", "%system"]) => ("`pidstat` without `-r` shows no memory", "record `pidstat -r 1`"),
        _ => return None,
    };
    Some(Error::NoUsedMemory { problem, advice })
}

/// The line that comes closest to showing memory in use.
pub(crate) fn find(head: &[HeadLine]) -> Option<Closest> {
    let lacks = head.iter().filter_map(|line| Some((lack_of(&line.text)?, line)));
    // A share or a total tells more about what is there than a word without a number.
    let (lack, line) = lacks.min_by_key(|(lack, _)| *lack == Lack::Label)?;
    Some(Closest { line: line.number, text: shorten(&line.text), lack })
}

fn lack_of(line: &str) -> Option<Lack> {
    let words = words(line);
    let any = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
    if !any(&["mem", "memory", "ram", "rss", "vram", "vmsize", "memfree", "memavailable"]) || !has_amount(line) {
        return None;
    }
    Some(match () {
        _ if line.contains('%') || any(&["percent", "pct"]) => Lack::Share,
        _ if any(&["free", "available", "avail", "memfree", "memavailable"]) => Lack::Free,
        _ if any(&["total", "limit", "capacity", "max"]) => Lack::Total,
        _ if any(&["virtual", "vms", "vsz", "vmsize"]) => Lack::Virtual,
        _ => Lack::Label,
    })
}
