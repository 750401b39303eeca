//! The keeper of a growth: the inspection of all live objects, checked against the measurements.

use crate::experiment::{Cache, Holders, Run};
use crate::finding::{Cause, GivenBack, Kind};

/// A container, or images, with at least this share of the growth keep it. The share is low, since other memory comes with them: some decoders
/// keep a picture several times over (WebP: pixels are 4 of the 10 bytes), and Python rounds small objects up.
const MOST_OF_IT: f64 = 0.3;
/// Objects, images and tensors that make up this share of a growth explain it.
const EXPLAINED: f64 = 0.5;
/// An `lru_cache` with new entries for this share of the examples, or at its limit, may keep a growth; caches of libraries gain only a few.
const OF_EXAMPLES: f64 = 0.25;
/// If dropping a piece gives back this share of a growth, the piece kept it.
const GIVEN_BACK: f64 = 0.5;

/// The keeper of a growth, as far as known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Keeper {
    pub cause: Option<Cause>,
    /// The piece, or `module NAME`.
    pub name: Option<String>,
    /// The path to the growing object.
    pub held_at: Option<String>,
    /// The object at that path.
    pub holds: Option<String>,
    /// The share of the growth accounted for.
    pub explained: Option<f64>,
    /// Bytes known to be held beyond the earlier pieces' holdings.
    pub known: i64,
    /// Entries that an `lru_cache` gained, and the most it may hold (`limit`).
    pub entries: Option<u64>,
    pub limit: Option<u64>,
    /// Whether it is at its limit.
    pub is_full: bool,
}

/// Finds the keeper of a growth over the passes of the look: `grown` bytes in all, `added` of them by the last piece. `earlier` is the look
/// at the chain without that piece.
pub(crate) fn keeper(kind: Kind, look: Option<&Holders>, earlier: Option<&Holders>, grown: i64, added: i64) -> Keeper {
    let fixed = match kind {
        Kind::Garbage => Some(Cause::GarbageCycles),
        Kind::Copies => Some(Cause::WorkerCopyOnWrite),
        Kind::FilePages => Some(Cause::MappedFilePages),
        Kind::WarmUp => return Keeper::default(),
        _ => None,
    };
    let Some(look) = look.filter(|_| grown > 0) else { return Keeper { cause: fixed, ..Keeper::default() } };
    let is_new =
        |path: &str| earlier.is_none_or(|earlier| earlier.containers.iter().all(|container| container.path != path));
    // Memory held by the earlier pieces is theirs.
    let of = if earlier.is_some() { added } else { grown }.max(1) as f64;
    let beyond = |of: fn(&Holders) -> i64| (of(look) - earlier.map_or(0, of).max(0)).max(0) as f64;
    let images = beyond(Holders::images_bytes);
    let known = beyond(Holders::known_bytes);
    let explained = (known / of).clamp(0.0, 1.0);
    let container = look
        .containers
        .iter()
        .filter(|container| is_new(&container.path))
        .max_by_key(|container| (container.graphs > 0, container.bytes));
    // Memory held by an autograd graph is invisible to Python, so its container weighs next to nothing there.
    let container =
        container.filter(|container| container.bytes as f64 >= MOST_OF_IT * added as f64 || container.graphs > 0);
    let mut keeper = Keeper { cause: fixed, explained: Some(explained), known: known as i64, ..Keeper::default() };
    if fixed.is_some() {
        return keeper;
    }
    let is_once = matches!(kind, Kind::Cache | Kind::FullCache);
    if is_once && images >= MOST_OF_IT * of {
        keeper.cause = Some(Cause::DecodedImagesKept);
        if let Some(most) = look.images.iter().max_by_key(|images| images.bytes) {
            keeper.name = Some(root(&most.path));
            keeper.held_at = Some(most.path.clone());
            keeper.holds = Some(format!("{} images with decoded pixels", most.count));
        }
        return keeper;
    }
    if let Some(container) = container {
        keeper.name = Some(root(&container.path));
        keeper.held_at = Some(container.path.clone());
        let of = container.of.as_deref().map(|of| format!(" of {of}")).unwrap_or_default();
        let graphs = if container.graphs > 0 { " with their autograd graphs" } else { "" };
        keeper.holds = Some(format!("{}{of}{graphs}, {} → {}", container.kind, container.before, container.after));
    } else if let Some(cache) = grown_cache(look) {
        keeper.limit = cache.limit;
        keeper.is_full = cache.limit == Some(cache.after);
        keeper.entries = Some(cache.after - cache.before);
        let limit = cache.limit.map_or("without a limit".to_string(), |limit| format!("of at most {limit}"));
        keeper.held_at = Some(cache.name.clone());
        keeper.holds = Some(format!("functools.lru_cache {limit}, {} → {}", cache.before, cache.after));
    }
    let is_python = explained >= EXPLAINED || container.is_some();
    keeper.cause = Some(match (is_once, is_python) {
        (true, true) => Cause::ExampleCache,
        (true, false) => Cause::NativeCache,
        (false, true) if container.is_some_and(|container| container.graphs > 0) => Cause::GraphKept,
        (false, true) if container.is_some() => Cause::GrowingContainer,
        (false, true) => Cause::ObjectsKept,
        (false, false) => Cause::NativeLeak,
    });
    keeper
}

/// The `lru_cache` with the most new entries, if they are as many as the examples would make.
fn grown_cache(look: &Holders) -> Option<&Cache> {
    let is_filled = |cache: &&Cache| {
        cache.limit == Some(cache.after)
            || (cache.after - cache.before) as f64 >= OF_EXAMPLES * look.examples.unwrap_or(1) as f64
    };
    look.caches
        .iter()
        .filter(|cache| cache.after > cache.before)
        .filter(is_filled)
        .max_by_key(|cache| cache.after - cache.before)
}

/// The piece or module that a path begins with.
fn root(path: &str) -> String {
    if let Some(rest) = path.strip_prefix("module ") {
        // Module names contain dots; the variable is the last part before any index or call.
        let end = rest.find(['[', '(']).unwrap_or(rest.len());
        let module = rest[..end].rsplit_once('.').map_or(&rest[..end], |(module, _)| module);
        return format!("module {module}");
    }
    path.split(['.', '[', '(']).next().unwrap_or(path).to_string()
}

/// Bytes given back by each attempt.
pub(crate) fn given_back(run: &Run) -> Vec<GivenBack> {
    let Some(last) = run.passes.last() else { return Vec::new() };
    let mut before = last.end.held;
    let mut given = Vec::new();
    for after in &run.after {
        given.push(GivenBack { what: after.what.clone(), bytes: before - after.held });
        before = after.held;
    }
    given
}

/// The piece whose dropping gave back most of the `grown` bytes that the last piece added. Bytes that dropping it gave back in the run without
/// the last piece were its own before.
pub(crate) fn dropped(run: &Run, earlier: Option<&Run>, grown: i64) -> Option<String> {
    let earlier = earlier.map(given_back).unwrap_or_default();
    let own = |what: &str| earlier.iter().find(|other| other.what == what).map_or(0, |other| other.bytes.max(0));
    let beyond = given_back(run).into_iter().filter_map(|given| {
        let piece = given.what.strip_prefix("dropping the ")?.to_string();
        Some((piece, given.bytes - own(&given.what)))
    });
    let (piece, bytes) = beyond.max_by_key(|(_, bytes)| *bytes)?;
    (grown > 0 && bytes as f64 >= GIVEN_BACK * grown as f64).then_some(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_begin_with_a_piece_or_a_module() {
        assert_eq!(root("dataset[..]"), "dataset");
        assert_eq!(root("collator.kept"), "collator");
        assert_eq!(root("processor(seen)"), "processor");
        assert_eq!(root("module train.LOG"), "module train");
        assert_eq!(root("module package.train.LOG['a'].b"), "module package.train");
    }
}
