//! Checkpoints as programs leave them on disk: whole ones, and ones that were cut in every place.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up must fail")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use garden_guard::checkpoint::{Checkpoint, Flaw, Newest, State, find};

/// A folder that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("garden-checkpoints-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Some file systems wait for the disk when a file is overwritten, but not when it is new.
        drop(fs::remove_file(&path));
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes these files into a folder.
    fn fill(&self, folder: &str, files: &[(&str, Vec<u8>)]) -> Checkpoint {
        for (name, bytes) in files {
            self.write(&format!("{folder}/{name}"), bytes);
        }
        at(&self.0.join(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn at(path: &Path) -> Checkpoint {
    Checkpoint { path: path.to_path_buf(), step: None, modified: SystemTime::UNIX_EPOCH }
}

fn why(checkpoint: &Checkpoint) -> String {
    match checkpoint.state() {
        State::Complete => "complete".into(),
        State::Flawed(flaw) => flaw.words().into(),
    }
}

fn is_damaged(checkpoint: &Checkpoint) -> bool {
    matches!(checkpoint.state(), State::Flawed(Flaw::Damaged(_)))
}

fn safetensors() -> Vec<u8> {
    let header = br#"{"__metadata__":{"format":"pt","data_offsets":"x"},"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]},"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}}   "#;
    [&(header.len() as u64).to_le_bytes(), &header[..], &[0; 24]].concat()
}

/// Whether an archive has the 64-bit records that PyTorch always writes.
#[derive(Clone, Copy)]
enum Records {
    Small,
    Large,
}

/// A zip archive of one stored file.
fn zip(records: Records, comment: &[u8]) -> Vec<u8> {
    let (name, data) = (b"archive/data.pkl", b"\x80\x02}q\x00.");
    let u16 = |number: usize| (number as u16).to_le_bytes().to_vec();
    let u32 = |number: usize| (number as u32).to_le_bytes().to_vec();
    let u64 = |number: usize| (number as u64).to_le_bytes().to_vec();
    let sizes = [u32(0), u32(data.len()), u32(data.len()), u16(name.len()), u16(0)].concat();
    let local = [b"PK\x03\x04".to_vec(), vec![0; 10], sizes.clone(), name.to_vec(), data.to_vec()].concat();
    let entry = [b"PK\x01\x02".to_vec(), vec![0; 12], sizes, vec![0; 14], name.to_vec()].concat();
    let mut bytes = [local.clone(), entry.clone()].concat();
    if let Records::Large = records {
        let counts = [u64(1), u64(1), u64(entry.len()), u64(local.len())].concat();
        bytes.extend([b"PK\x06\x06".to_vec(), u64(44), vec![0; 12], counts].concat());
        bytes.extend([b"PK\x06\x07".to_vec(), u32(0), u64(local.len() + entry.len()), u32(1)].concat());
    }
    let counts = [u16(0), u16(0), u16(1), u16(1), u32(entry.len()), u32(local.len())].concat();
    bytes.extend([b"PK\x05\x06".to_vec(), counts, u16(comment.len()), comment.to_vec()].concat());
    bytes
}

fn torch() -> Vec<u8> {
    zip(Records::Large, b"")
}

fn trainer_state(step: u64) -> Vec<u8> {
    format!("{{\"global_step\": {step}, \"log_history\": [{{\"loss\": NaN, \"step\": {step}}}]}}").into_bytes()
}

/// What the trainer writes after the weights.
fn rest(step: u64) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("training_args.bin", torch()),
        ("optimizer.pt", torch()),
        ("scheduler.pt", torch()),
        ("rng_state.pth", torch()),
        ("trainer_state.json", trainer_state(step)),
    ]
}

fn full(step: u64) -> Vec<(&'static str, Vec<u8>)> {
    let weights = vec![("config.json", b"{\"layers\": 2}".to_vec()), ("model.safetensors", safetensors())];
    [weights, rest(step)].concat()
}

fn adapter(step: u64) -> Vec<(&'static str, Vec<u8>)> {
    let weights = vec![("adapter_config.json", b"{\"r\": 8}".to_vec()), ("adapter_model.safetensors", safetensors())];
    [weights, rest(step)].concat()
}

fn sharded(step: u64) -> Vec<(&'static str, Vec<u8>)> {
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let weights = vec![
        ("model-00001-of-00002.safetensors", safetensors()),
        ("model-00002-of-00002.safetensors", safetensors()),
        ("model.safetensors.index.json", index.into()),
    ];
    [weights, rest(step)].concat()
}

fn deepspeed(step: u64) -> Vec<(&'static str, Vec<u8>)> {
    let weights = vec![
        ("global_step5/mp_rank_00_model_states.pt", torch()),
        ("global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt", torch()),
        ("latest", b"global_step5\n".to_vec()),
    ];
    let others = rest(step).into_iter().filter(|(name, _)| !["optimizer.pt", "scheduler.pt"].contains(name));
    weights.into_iter().chain(others).collect()
}

fn fsdp(step: u64) -> Vec<(&'static str, Vec<u8>)> {
    let metadata = [&b"\x80\x04\x95"[..], &5_u64.to_le_bytes(), b"}q\x00}."].concat();
    let weights = vec![
        ("pytorch_model_fsdp_0/.metadata", metadata.clone()),
        ("pytorch_model_fsdp_0/__0_0.distcp", [torch(), torch()].concat()),
        ("optimizer_0/.metadata", metadata),
        ("optimizer_0/__0_0.distcp", torch()),
    ];
    let others = rest(step).into_iter().filter(|(name, _)| *name != "optimizer.pt");
    weights.into_iter().chain(others).collect()
}

#[test]
fn whole_checkpoints_of_every_layout_are_complete() {
    let scratch = Scratch::new();
    let layouts = [full(5), adapter(5), sharded(5), deepspeed(5), fsdp(5)];
    for (number, layout) in layouts.iter().enumerate() {
        assert_eq!(why(&scratch.fill(&format!("{number}/checkpoint-5"), layout)), "complete", "layout {number}");
    }
    let only_model: Vec<_> =
        full(5).into_iter().filter(|(name, _)| name.ends_with("json") || name.starts_with('m')).collect();
    assert_eq!(why(&scratch.fill("only_model/checkpoint-5", &only_model)), "complete");
    let accelerate =
        [("model.safetensors", safetensors()), ("optimizer.bin", torch()), ("random_states_0.pkl", torch())];
    assert_eq!(why(&scratch.fill("checkpoint_0", &accelerate)), "complete");
    assert_eq!(why(&scratch.fill("own/checkpoint-5", &[("model.safetensors", safetensors())])), "complete");
    assert_eq!(why(&at(&scratch.write("epoch=1-step=50.ckpt", torch()))), "complete");
    assert_eq!(why(&at(&scratch.write("step_50.pt", zip(Records::Small, b"a comment")))), "complete");
}

#[test]
fn every_cut_of_every_file_is_seen() {
    for layout in [full(5), adapter(5), sharded(5), deepspeed(5), fsdp(5)] {
        let scratch = Scratch::new();
        let checkpoint = scratch.fill("checkpoint-5", &layout);
        for (name, bytes) in &layout {
            for length in 0..bytes.len() {
                // Archives one after another: a cut between two of them leaves a whole one at the end. A line break at the
                // end of a name means nothing.
                let is_hidden =
                    name.ends_with(".distcp") && length == torch().len() || *name == "latest" && length == 12;
                scratch.write(&format!("checkpoint-5/{name}"), &bytes[..length]);
                let why = why(&checkpoint);
                assert_eq!(why == "complete", is_hidden, "{name} at {length}: {why}");
            }
            scratch.write(&format!("checkpoint-5/{name}"), bytes);
        }
        assert_eq!(checkpoint.state(), State::Complete);
    }
}

#[test]
fn every_cut_of_a_zip_file_of_any_kind_is_seen() {
    let scratch = Scratch::new();
    let comment = vec![b'c'; 65_535];
    for bytes in [zip(Records::Small, b""), zip(Records::Small, b"comment"), zip(Records::Large, &comment)] {
        assert_eq!(why(&at(&scratch.write("step_1.pt", &bytes))), "complete");
        for length in (0..bytes.len()).step_by(1 + bytes.len() / 500) {
            assert_ne!(why(&at(&scratch.write("step_1.pt", &bytes[..length]))), "complete", "{length}");
        }
    }
}

#[test]
fn a_cut_in_an_old_pickle_is_not_seen() {
    let scratch = Scratch::new();
    let bytes = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    assert_eq!(why(&at(&scratch.write("step_1.pt", &bytes[..9]))), "complete");
    assert_eq!(why(&at(&scratch.write("step_1.pt", &bytes[..3]))), "`step_1.pt` is truncated: it has 3 bytes");
    assert_eq!(why(&at(&scratch.write("step_1.pt", b""))), "`step_1.pt` is empty");
}

#[test]
fn each_missing_file_is_named() {
    let scratch = Scratch::new();
    let cases = [
        (full(5), "trainer_state.json", "`trainer_state.json` is missing, which the trainer writes last"),
        (full(5), "model.safetensors", "it contains no weights"),
        (full(5), "optimizer.pt", "`optimizer.pt` is missing, although the training state was saved"),
        (full(5), "scheduler.pt", "`scheduler.pt` is missing, although `optimizer.pt` was saved"),
        (adapter(5), "adapter_model.safetensors", "it contains no weights"),
        (
            sharded(5),
            "model-00002-of-00002.safetensors",
            "`model-00002-of-00002.safetensors` is missing, although `model.safetensors.index.json` names it",
        ),
        (deepspeed(5), "latest", "`latest` is missing, which DeepSpeed writes last"),
        (
            fsdp(5),
            "pytorch_model_fsdp_0/.metadata",
            "`pytorch_model_fsdp_0/.metadata` is missing, which is written after the `*.distcp` files",
        ),
    ];
    for (number, (layout, missing, expected)) in cases.into_iter().enumerate() {
        let left: Vec<_> = layout.into_iter().filter(|(name, _)| *name != missing).collect();
        let checkpoint = scratch.fill(&format!("{number}/checkpoint-5"), &left);
        assert_eq!(why(&checkpoint), expected);
        // A writer that was interrupted is no proof of damage; an index that names what is not there is.
        assert_eq!(is_damaged(&checkpoint), missing.starts_with("model-0"), "{missing}");
    }
    let shards =
        [("model-00001-of-00003.safetensors", safetensors()), ("model-00003-of-00003.safetensors", safetensors())];
    let expected = "`model-00002-of-00003.safetensors` is missing, although other shards exist";
    assert_eq!(why(&scratch.fill("step_5", &shards)), expected);
}

#[test]
fn a_layout_of_somebody_s_own_is_good() {
    let scratch = Scratch::new();
    type Files<'a> = &'a [(&'a str, Vec<u8>)];
    let own: [(&str, Files); 5] = [
        ("adapter", &[("adapter_model.safetensors", safetensors()), ("trainer_state.json", trainer_state(5))]),
        ("counts_epochs", &[("model.pt", torch()), ("trainer_state.json", trainer_state(1))]),
        (
            "no_state",
            &[("config.json", b"{}".to_vec()), ("model.safetensors", safetensors()), ("optimizer.pt", torch())],
        ),
        ("no_random_states", &[("model.safetensors", safetensors()), ("optimizer.bin", torch())]),
        (
            "lines",
            &[("adapter.pt", torch()), ("adapter_config.json", b"{}".to_vec()), ("log.json", b"{}\n{}\n".to_vec())],
        ),
    ];
    for (name, files) in own {
        let folder = format!("{name}/checkpoint-5");
        let checkpoint = scratch.fill(&folder, files);
        assert_eq!(why(&checkpoint), "complete", "{name}");
        // A cut is damage in any layout.
        let (file, bytes) = &files[0];
        scratch.write(&format!("{folder}/{file}"), &bytes[..bytes.len() - 1]);
        assert!(is_damaged(&checkpoint), "{name}: {}", why(&checkpoint));
    }
}

#[test]
fn files_that_go_away_are_told_from_files_that_are_written() {
    let scratch = Scratch::new();
    let checkpoint = scratch.fill("checkpoint-5", &full(5));
    let whole = checkpoint.listing();
    fs::remove_file(checkpoint.path.join("optimizer.pt")).unwrap();
    let rest = checkpoint.listing();
    assert!(rest.is_rest_of(&whole) && !whole.is_rest_of(&rest) && !whole.is_rest_of(&whole));
    scratch.write("checkpoint-5/optimizer.pt", "anew");
    assert!(!checkpoint.listing().is_rest_of(&whole));
    // A draft that becomes a file, or is given up, is no removal.
    scratch.write("checkpoint-5/more.tmp", "x");
    let with_draft = checkpoint.listing();
    fs::remove_file(checkpoint.path.join("more.tmp")).unwrap();
    assert!(!checkpoint.listing().is_rest_of(&with_draft));
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let scratch = Scratch::new();
    let longer = [safetensors(), vec![0]].concat();
    let cases = [
        (
            "model.safetensors",
            safetensors()[..190].to_vec(),
            "`model.safetensors` is truncated: it has 190 of 193 bytes",
        ),
        ("model.safetensors", longer, "`model.safetensors` is longer than its header says: it has 194 bytes"),
        ("model.safetensors", vec![0; 193], "`model.safetensors` does not begin with a valid header length: 0"),
        ("optimizer.pt", vec![0; 100], "`optimizer.pt` begins with zeros instead of data"),
        (
            "optimizer.pt",
            torch()[..60].to_vec(),
            "`optimizer.pt` is truncated: the directory at the end of the zip archive is missing",
        ),
        (
            "trainer_state.json",
            b"{\"a\": 1".to_vec(),
            "`trainer_state.json` is not complete JSON: EOF while parsing an object at line 1 column 7",
        ),
        ("trainer_state.json", trainer_state(4), "`trainer_state.json` is from step 4, not 5"),
        ("vocab.txt", Vec::new(), "complete"),
        ("notes.json", b"{} // not what we read".to_vec(), "complete"),
        ("model.safetensors.tmp", vec![1], "`model.safetensors.tmp` is a draft that is still being written"),
        (".tmpAb12", vec![1], "`.tmpAb12` is a draft that is still being written"),
        (".gitkeep", Vec::new(), "complete"),
    ];
    for (number, (name, bytes, expected)) in cases.into_iter().enumerate() {
        let folder = format!("{number}/checkpoint-5");
        let checkpoint = scratch.fill(&folder, &full(5));
        let written = scratch.write(&format!("{folder}/{name}"), bytes);
        // File systems stamp files with a clock that stands still for milliseconds.
        fs::File::open(written).unwrap().set_modified(SystemTime::now() + Duration::from_secs(1)).unwrap();
        assert_eq!(why(&checkpoint), expected);
    }
    fs::create_dir(scratch.0.join("checkpoint-6")).unwrap();
    assert_eq!(why(&at(&scratch.0.join("checkpoint-6"))), "it contains no files");
    assert_eq!(why(&scratch.fill("checkpoint-7", &[("notes.txt", vec![1])])), "it contains no weights or state");
}

#[test]
fn a_draft_left_over_from_an_earlier_try_does_not_count() {
    let scratch = Scratch::new();
    let checkpoint = scratch.fill("checkpoint-5", &full(5));
    let draft = fs::File::create(checkpoint.path.join(".tmpAb12")).unwrap();
    draft.set_modified(SystemTime::now() + Duration::from_secs(1)).unwrap();
    assert_eq!(why(&checkpoint), "`.tmpAb12` is a draft that is still being written");
    draft.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    assert_eq!(why(&checkpoint), "complete");
    fs::remove_file(checkpoint.path.join("trainer_state.json")).unwrap();
    assert_eq!(why(&checkpoint), "`.tmpAb12` is a draft that is still being written");
}

#[test]
fn the_newest_complete_one_is_found_and_flawed_ones_are_told() {
    let scratch = Scratch::new();
    for step in [9, 10, 100, 11] {
        scratch.fill(&format!("checkpoint-{step}"), &full(step));
    }
    scratch.fill("tmp-checkpoint-200", &full(200));
    scratch.fill(".checkpoint-300.tmp", &full(300));
    scratch.write("runs/events", "x");
    scratch.write("checkpoint-400", "a file");
    let steps: Vec<_> = find(&scratch.0).unwrap().into_iter().map(|checkpoint| checkpoint.step).collect();
    assert_eq!(steps, [Some(100), Some(11), Some(10), Some(9)]);
    fs::remove_file(scratch.0.join("checkpoint-100/trainer_state.json")).unwrap();
    scratch.write("checkpoint-11/optimizer.pt", "");
    let Newest { complete, flawed } = Newest::of(find(&scratch.0).unwrap());
    assert_eq!(complete.unwrap().step, Some(10));
    let flawed: Vec<_> = flawed.into_iter().map(|(checkpoint, flaw)| (checkpoint.step.unwrap(), flaw)).collect();
    let last = Flaw::Unfinished("`trainer_state.json` is missing, which the trainer writes last".into());
    assert_eq!(flawed, [(100, last), (11, Flaw::Damaged("`optimizer.pt` is empty".into()))]);
}

#[test]
fn a_folder_without_checkpoints_has_none_and_a_file_is_an_error() {
    let scratch = Scratch::new();
    scratch.write("model.safetensors", safetensors());
    assert_eq!(Newest::of(find(&scratch.0).unwrap()), Newest::default());
    assert_eq!(find(&scratch.0.join("model.safetensors")).unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(find(&scratch.0.join("nowhere")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn links_are_followed_and_loops_end() {
    let scratch = Scratch::new();
    scratch.fill("elsewhere", &full(5));
    symlink(scratch.0.join("elsewhere"), scratch.0.join("checkpoint-5")).unwrap();
    symlink(scratch.0.join("elsewhere"), scratch.0.join("elsewhere/self")).unwrap();
    symlink(scratch.0.join("gone"), scratch.0.join("checkpoint-6")).unwrap();
    symlink(scratch.0.join("checkpoint-7"), scratch.0.join("checkpoint-7")).unwrap();
    let Newest { complete, flawed } = Newest::of(find(&scratch.0).unwrap());
    let newest = complete.unwrap();
    assert_eq!(newest.step, Some(5));
    assert_eq!(newest.size(), full(5).iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
    let whys: Vec<_> = flawed.iter().map(|(_, flaw)| flaw.words()).collect();
    assert!(whys[0].starts_with("`checkpoint-7` cannot be read: "), "{whys:?}");
    assert!(whys[1].starts_with("`checkpoint-6` cannot be read: "), "{whys:?}");
}

#[test]
fn odd_names_pipes_and_forbidden_files_do_no_harm() {
    let scratch = Scratch::new();
    let checkpoint = scratch.fill("checkpoint-5", &full(5));
    fs::write(checkpoint.path.join(OsStr::from_bytes(b"\xff\xfe.json")), "{").unwrap();
    assert!(why(&checkpoint).contains("is not complete JSON"), "{}", why(&checkpoint));
    fs::remove_file(checkpoint.path.join(OsStr::from_bytes(b"\xff\xfe.json"))).unwrap();
    fs::create_dir(scratch.0.join(OsStr::from_bytes(b"step_\xff7"))).unwrap();
    assert_eq!(find(&scratch.0).unwrap().len(), 2);
    let made = std::process::Command::new("mkfifo").arg(checkpoint.path.join("pipe.json")).status();
    assert!(made.unwrap().success());
    assert_eq!(why(&checkpoint), "complete");
    let weights = checkpoint.path.join("model.safetensors");
    fs::set_permissions(&weights, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&weights).is_ok() {
        eprintln!("not tested: forbidden files, since the superuser may read them");
    } else {
        assert_eq!(why(&checkpoint), "`model.safetensors` cannot be read: Permission denied (os error 13)");
        fs::set_permissions(&checkpoint.path, fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(why(&checkpoint), "the folder cannot be read: Permission denied (os error 13)");
        fs::set_permissions(&checkpoint.path, fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn a_listing_changes_with_the_files_and_only_then() {
    let scratch = Scratch::new();
    let checkpoint = scratch.fill("checkpoint-5", &deepspeed(5));
    let before = checkpoint.listing();
    assert_eq!(checkpoint.listing(), before);
    scratch.write("checkpoint-5/global_step5/more.pt", "x");
    let with_more = checkpoint.listing();
    assert_ne!(with_more, before);
    fs::remove_file(checkpoint.path.join("global_step5/more.pt")).unwrap();
    assert_eq!(checkpoint.listing(), before);
    let file = fs::File::options().write(true).open(checkpoint.path.join("latest")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert_ne!(checkpoint.listing(), before);
}

#[test]
fn random_damage_never_panics() {
    let scratch = Scratch::new();
    let layouts =
        [full(5), adapter(5), sharded(5), deepspeed(5), fsdp(5), vec![("a.pt", zip(Records::Small, b"comment"))]];
    let fill = |(number, files): (usize, &Vec<_>)| scratch.fill(&format!("{number}/checkpoint-5"), files);
    let checkpoints: Vec<_> = layouts.iter().enumerate().map(fill).collect();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..10_000 {
        let layout = random(layouts.len());
        let (checkpoint, files) = (&checkpoints[layout], &layouts[layout]);
        let (name, whole) = &files[random(files.len())];
        let mut bytes = whole.clone();
        for _ in 0..1 + random(4) {
            let place = random(bytes.len());
            bytes[place] = if random(2) == 0 { random(256) as u8 } else { [0, 255][random(2)] };
        }
        if random(3) == 0 {
            bytes.truncate(random(bytes.len()));
        }
        scratch.write(&format!("{layout}/checkpoint-5/{name}"), &bytes);
        checkpoint.state();
        scratch.write(&format!("{layout}/checkpoint-5/{name}"), whole);
    }
    assert!(checkpoints.iter().all(|checkpoint| checkpoint.state() == State::Complete));
}
