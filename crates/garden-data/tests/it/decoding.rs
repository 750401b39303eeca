//! What decoding a picture holds is what its header told: every allocation of a thread is counted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use garden_input::FAMILIES;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use garden_data::{Dataset, ImageSettings, MAX_PIXELS, Patcher};
use serde_json::json;

use crate::survey::{Scratch, testdata};

/// Rows, tables and windows of decoders, of any picture: half of what plans have for the thread.
const ROWS: i64 = 512 << 10;

struct Counting;

thread_local! {
    /// Bytes that are held now, and the most that were.
    static HELD: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

fn add(bytes: i64) {
    // A thread that ends counts no more.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: as asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: as asked for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: as asked for.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size as i64 - layout.size() as i64);
        // SAFETY: as asked for.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most that is held while something is done, beyond what was held before.
fn most(work: impl FnOnce()) -> i64 {
    let (before, _) = HELD.get();
    HELD.set((before, before));
    work();
    HELD.get().1 - before
}

#[test]
fn what_decoding_holds_follows_from_the_header() {
    let settings = ImageSettings { max_pixels: 200_704, ..ImageSettings::of(&FAMILIES[0].images) };
    let mut seen = 0;
    for file in std::fs::read_dir(testdata("data/large")).unwrap() {
        let path = file.unwrap().path().canonicalize().unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let scratch = Scratch::new(&format!("large-{name}"));
        let rows = scratch.rows(&[json!({"prompt": "?", "image": path, "response": "!"})]);
        let outline = Dataset::open(&rows).unwrap().outline(0, MAX_PIXELS).unwrap();
        let (picture, data) = (&outline.pictures[0], std::fs::read(&path).unwrap());
        let grid = settings.grid(picture.width, picture.height).unwrap();
        let mut patches = vec![0.0; grid[1] * grid[2] * settings.patch_values()];
        let mut patcher = Patcher::new(settings.clone());
        // What patches are made with stays with the thread; nothing of a picture does.
        patcher.decode(&name, &data, MAX_PIXELS, grid, &mut patches).unwrap();
        let held = most(|| patcher.decode(&name, &data, MAX_PIXELS, grid, &mut patches).unwrap());
        let told = picture.decoding_bytes as i64;
        assert!(held <= told + ROWS, "{name}: {held} bytes held, {told} told");
        assert!(held >= told - told / 16, "{name}: {held} bytes held, {told} told");
        seen += 1;
    }
    assert!(seen > 10);
}
