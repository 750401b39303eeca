#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::path::PathBuf;

use serde_json::json;

use rusqlite::params;

use super::migrations::VERSION;
use super::*;
use crate::job::{Hold, JobRecord, Status, Wish};

/// A store in a folder of its own, which goes with it.
struct Fresh {
    folder: PathBuf,
    store: Store,
}

impl Fresh {
    fn new(name: &str) -> Fresh {
        let folder = std::env::temp_dir().join(format!("garden-store-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).unwrap();
        let store = Store::open(&folder.join("garden.db")).unwrap();
        Fresh { folder, store }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("garden.db")
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn file(id: &str, purpose: &str, expires_at: Option<i64>) -> FileRecord {
    let (filename, purpose, extension) = ("a.jsonl".to_string(), purpose.to_string(), "jsonl".to_string());
    FileRecord { id: id.into(), bytes: 10, created_at: 1, filename, purpose, extension, expires_at }
}

fn job(id: &str, status: Status, priority: i64) -> JobRecord {
    let order = json!({"id": id, "work": {"kind": "command", "command": ["true"], "memory_limit": null, "checkpoint_dir": null}, "memory": null});
    serde_json::from_value(json!({
        "order": order, "created_at": 1, "status": status, "priority": priority, "model": "m", "base": "m", "suffix": null, "seed": 1,
        "asked": {"n_epochs": null, "batch_size": null, "learning_rate_multiplier": null}, "training_file": "f", "validation_file": null, "metadata": null,
    }))
    .unwrap()
}

fn page(after: Option<&str>, limit: usize) -> Page {
    Page { after: after.map(str::to_string), behind: None, limit, is_ascending: false }
}

#[test]
fn files_are_listed_page_by_page() {
    let fresh = Fresh::new("files");
    let store = &fresh.store;
    for number in 0..5 {
        store
            .add_file(
                &file(
                    &format!("file-{number}"),
                    if number % 2 == 0 { "fine-tune" } else { "vision" },
                    (number == 1).then_some(50),
                ),
                50,
            )
            .unwrap();
    }
    assert!(store.add_file(&file("file-0", "vision", None), 100).is_err(), "a name is given once");
    assert!(!store.add_file(&file("file-5", "vision", None), 59).unwrap(), "fifty bytes are here, and ten more come");
    let ids =
        |listed: Listed<FileRecord>| (listed.rows.into_iter().map(|file| file.id).collect::<Vec<_>>(), listed.has_more);
    let all = |page: &Page| ids(store.files(page, None, 9).unwrap());
    assert_eq!(all(&page(None, 2)), (vec!["file-4".to_string(), "file-3".into()], true));
    assert_eq!(all(&page(Some("file-3"), 3)), (vec!["file-2".to_string(), "file-1".into(), "file-0".into()], false));
    assert_eq!(all(&Page { is_ascending: true, ..page(Some("file-3"), 3) }), (vec!["file-4".to_string()], false));
    assert!(matches!(store.files(&page(Some("file-none"), 3), None, 9), Err(StoreError::NoSuchPlace)));
    let of_vision = |now| ids(store.files(&page(None, 9), Some("vision"), now).unwrap()).0;
    assert_eq!((of_vision(49), of_vision(50)), (vec!["file-3".to_string(), "file-1".into()], vec!["file-3".into()]));
    assert_eq!(store.bytes().unwrap(), 50);
    // Whatever the clock says, it is deleted once the server has run for the 49 seconds that it was to be kept.
    store.count_time(48).unwrap();
    assert!(store.expired_files().unwrap().is_empty());
    store.count_time(1).unwrap();
    assert_eq!(store.expired_files().unwrap()[0].id, "file-1");
    assert!(store.delete_file("file-1").unwrap() && !store.delete_file("file-1").unwrap());
    assert_eq!(store.file("file-1").unwrap(), None);
    // A client that deletes what it lists goes on behind it, for a while.
    assert_eq!(all(&page(Some("file-1"), 3)), (vec!["file-0".to_string()], false));
    store.count_time(11).unwrap();
    store.forget_requests(11).unwrap();
    assert_eq!(all(&page(Some("file-1"), 3)).0.len(), 1);
    store.forget_requests(10).unwrap();
    assert!(store.files(&page(Some("file-1"), 3), None, 9).is_err());
    // It is all there for the next one.
    let again = Store::open(&fresh.path()).unwrap();
    assert_eq!(again.file("file-4").unwrap(), Some(file("file-4", "fine-tune", None)));
}

#[test]
fn an_upload_ends_once() {
    let fresh = Fresh::new("uploads");
    let store = &fresh.store;
    let upload = UploadRecord {
        id: "upload_1".into(),
        bytes: 6,
        created_at: 1,
        filename: "a".into(),
        purpose: "fine-tune".into(),
        expires_at: 100,
        status: "pending".into(),
        file: None,
        file_expires_after: Some(7),
    };
    store.add_upload(&upload).unwrap();
    let part = |id: &str, upload: &str| PartRecord { id: id.into(), upload: upload.into(), bytes: 3, created_at: 2 };
    let add = |id: &str, upload: &str, quota: u64| store.add_part(&part(id, upload), quota).unwrap();
    assert_eq!(add("part_1", "upload_1", 2), PartAdded::NoSpace);
    assert_eq!(add("part_1", "upload_1", 3), PartAdded::Yes);
    assert_eq!(add("part_2", "upload_none", 9), PartAdded::NotPending, "a part belongs to an upload");
    assert_eq!((store.bytes().unwrap(), store.has_part("part_1").unwrap()), (3, true));
    store.count_time(98).unwrap();
    assert!(store.expired_uploads().unwrap().is_empty());
    store.count_time(1).unwrap();
    assert_eq!(store.expired_uploads().unwrap().len(), 1);
    assert!(store.end_upload("upload_1", "completed", Some(&file("file-u", "fine-tune", None))).unwrap());
    assert!(!store.end_upload("upload_1", "cancelled", None).unwrap(), "it was over");
    assert_eq!(add("part_3", "upload_1", 99), PartAdded::NotPending);
    let ended = store.upload("upload_1").unwrap().unwrap();
    assert_eq!((ended.status.as_str(), ended.file.as_deref()), ("completed", Some("file-u")));
    assert!(store.file("file-u").unwrap().is_some() && store.parts("upload_1").unwrap().is_empty());
}

#[test]
fn jobs_are_found_by_their_turn_and_by_what_is_attached() {
    let fresh = Fresh::new("jobs");
    let store = &fresh.store;
    for (id, status, priority) in
        [("a", Status::Queued, 0), ("b", Status::Queued, 5), ("c", Status::Queued, 5), ("d", Status::Running, 0)]
    {
        let mut job = job(id, status, priority);
        if id != "a" {
            job.metadata = Some([("team".to_string(), id.to_string()), ("all".into(), "yes".into())].into());
        }
        store.add_job(&job, &[], None).unwrap();
    }
    let ids = |jobs: Vec<Entry>| jobs.iter().flatten().map(|job| job.id().to_string()).collect::<Vec<_>>();
    assert_eq!(ids(store.jobs_with(Status::Queued, 9).unwrap()), ["b", "c", "a"], "by priority, then by age");
    assert_eq!(ids(store.jobs_with(Status::Queued, 1).unwrap()), ["b"]);
    let with = |pairs: &[(&str, &str)]| {
        let wanted = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        ids(store.jobs(&page(None, 9), &MetadataFilter::With(wanted)).unwrap().rows)
    };
    assert_eq!(with(&[("all", "yes")]), ["d", "c", "b"]);
    assert_eq!(with(&[("all", "yes"), ("team", "c")]), ["c"]);
    assert!(with(&[("all", "no")]).is_empty() && with(&[("team", "' OR 1=1 --")]).is_empty());
    assert_eq!(ids(store.jobs(&page(None, 9), &MetadataFilter::None).unwrap().rows), ["a"]);
    assert_eq!(ids(store.jobs(&page(Some("c"), 1), &MetadataFilter::All).unwrap().rows), ["b"]);
    assert_eq!(store.job_counts().unwrap(), [("queued".to_string(), 3), ("running".into(), 1)].into());

    let changed = store.change_job("a", 7, |job| {
        (job.status, job.result_model, job.wish) = (Status::Succeeded, Some("ft:m::x:a".into()), Wish::Cancel);
        Some(Vec::new())
    });
    assert_eq!(changed.unwrap().unwrap().status, Status::Succeeded);
    assert_eq!(store.job_of_result("ft:m::x:a").unwrap().unwrap().id(), "a");
    // Without something to change nothing is written.
    store
        .change_job("a", 7, |job| {
            job.status = Status::Failed;
            None
        })
        .unwrap();
    assert_eq!(store.job("a").unwrap().unwrap().status, Status::Succeeded);
    store
        .change_job("a", 7, |job| {
            job.is_result_deleted = true;
            Some(Vec::new())
        })
        .unwrap();
    assert!(
        store.job_of_result("ft:m::x:a").unwrap().is_none() && store.results(&page(None, 9)).unwrap().rows.is_empty()
    );
    assert!(store.change_job("none", 7, |_| Some(Vec::new())).unwrap().is_none());
    assert_eq!(store.jobs_ending("d").unwrap().len(), 1);
    // A folder's bytes count once they were measured.
    assert_eq!((store.not_measured(9).unwrap().len(), store.bytes().unwrap()), (4, 0));
    store.note_disk("a", Some(40)).unwrap();
    assert_eq!((store.not_measured(9).unwrap().len(), store.bytes().unwrap()), (3, 40));
    assert!(!store.add_file(&file("f", "fine-tune", None), 49).unwrap());
    store.delete_job("b").unwrap();
    assert!(store.job("b").unwrap().is_none() && with(&[("team", "b")]).is_empty());
}

#[test]
fn a_request_that_is_sent_twice_makes_one_job() {
    let fresh = Fresh::new("requests");
    let store = &fresh.store;
    let key = |owner: &str, digest: &str| RequestKey { owner: owner.into(), key: "once".into(), digest: digest.into() };
    let add = |id: &str, key: &RequestKey| store.add_job(&job(id, Status::Queued, 0), &[], Some(key)).unwrap();
    assert!(matches!(add("k", &key("one", "a")), Added::New));
    assert!(matches!(add("l", &key("one", "a")), Added::Known(known) if known.id() == "k"));
    assert!(matches!(add("l", &key("one", "b")), Added::OtherBody), "the same key with another body");
    assert!(matches!(add("m", &key("two", "b")), Added::New), "another client's key");
    assert!(store.job("l").unwrap().is_none());
    // It is known for a while, and no longer than its job.
    store.count_time(9).unwrap();
    store.forget_requests(9).unwrap();
    assert!(matches!(add("l", &key("one", "b")), Added::OtherBody));
    store.delete_job("m").unwrap();
    assert!(matches!(add("m", &key("two", "c")), Added::New));
    store.forget_requests(8).unwrap();
    assert!(matches!(add("n", &key("one", "b")), Added::New));
    assert!(matches!(add("o", &key("two", "d")), Added::OtherBody), "that one is newer");
}

#[test]
fn a_record_that_cannot_be_read_spoils_nothing_else() {
    let fresh = Fresh::new("unreadable");
    let store = &fresh.store;
    for id in ["a", "b", "c", "d"] {
        store.add_job(&job(id, Status::Queued, 0), &[NewEvent::of("created", "here")], None).unwrap();
    }
    let spoil = |id: &str, record: &dyn ToSql| {
        store.write().execute("UPDATE jobs SET record = ?1 WHERE id = ?2", rusqlite::params![record, id]).unwrap();
    };
    spoil("b", &"{\"status\": \"dancing\"}");
    spoil("c", &vec![0xff_u8, 0, 3]);
    let listed = store.jobs(&page(None, 9), &MetadataFilter::All).unwrap().rows;
    let names: Vec<Result<&str, &str>> =
        listed.iter().map(|entry| entry.as_ref().map(|job| job.id()).map_err(|one| one.id.as_str())).collect();
    assert_eq!(names, [Ok("d"), Err("c"), Err("b"), Ok("a")]);
    assert_eq!(store.jobs_with(Status::Queued, 9).unwrap().iter().flatten().count(), 2);
    assert!(matches!(store.job("b"), Err(StoreError::Unreadable(one)) if one.id == "b" && one.created_at == 1));
    assert!(store.change_job("c", 1, |_| Some(Vec::new())).is_err() && store.has_job("c").unwrap());
    assert!(store.bytes().is_ok() && store.job_counts().is_ok());
    assert_eq!(store.events("b", &page(None, 9)).unwrap().rows.len(), 1);
    // A record of an earlier version lacks what that did not know.
    spoil(
        "b",
        &"{\"order\": {\"id\": \"b\", \"work\": {\"kind\": \"training\", \"recipe\": {}}}, \"status\": \"queued\"}",
    );
    assert_eq!(store.job("b").unwrap().unwrap().recipe().unwrap().batch_size, 2);
}

#[test]
fn a_long_line_hides_no_other() {
    let fresh = Fresh::new("lines");
    let store = &fresh.store;
    let add = |id: &str, status, owner: &str, hold| {
        let job = JobRecord { owner: owner.into(), hold, ..job(id, status, 0) };
        store.add_job(&job, &[], None).unwrap();
    };
    let ids = |jobs: Vec<Entry>| jobs.iter().flatten().map(|job| job.id().to_string()).collect::<Vec<_>>();
    (0..150).for_each(|number| add(&format!("busy-{number:03}"), Status::ValidatingFiles, "busy", None));
    add("other", Status::ValidatingFiles, "other", None);
    let found = ids(store.first_of_lines(Status::ValidatingFiles, 20, 100).unwrap());
    assert_eq!((found.len(), found[0].as_str(), found[20].as_str()), (21, "busy-000", "other"));
    // One that has begun is looked after, wherever it stands.
    let begin = |job: &mut JobRecord| {
        job.starts = 1;
        Some(Vec::new())
    };
    store.change_job("busy-149", 1, begin).unwrap();
    assert_eq!(ids(store.first_of_lines(Status::ValidatingFiles, 20, 100).unwrap())[20], "busy-149");
    // Those that wait for something that does not come do not keep back those that could start, of the same client, either.
    (0..150).for_each(|number| add(&format!("held-{number:03}"), Status::Queued, "busy", Some(Hold::Files)));
    add("free", Status::Queued, "busy", None);
    assert_eq!(ids(store.first_of_lines(Status::Queued, 20, 100).unwrap()).last().unwrap(), "free");
    // With more lines than places the first of each come first.
    (0..150).for_each(|number| add(&format!("many-{number:03}"), Status::Queued, &format!("owner {number}"), None));
    let found = ids(store.first_of_lines(Status::Queued, 20, 100).unwrap());
    assert_eq!(
        (found.len(), found.contains(&"held-001".to_string()), found.contains(&"many-050".to_string())),
        (100, false, true)
    );
    // All from the index: records are large.
    let plan = "EXPLAIN QUERY PLAN SELECT seq, priority, row_number() OVER (PARTITION BY line ORDER BY priority DESC, seq) FROM jobs WHERE status = 'queued'";
    let connection = store.read();
    let mut statement = connection.prepare(plan).unwrap();
    let steps: Vec<String> = statement.query_map([], |row| row.get(3)).unwrap().collect::<Result<_, _>>().unwrap();
    assert!(steps.iter().any(|step| step.contains("COVERING INDEX jobs_in_line")), "{steps:?}");
}

#[test]
fn jobs_are_old_by_the_time_that_the_server_has_run() {
    let fresh = Fresh::new("ages");
    let store = &fresh.store;
    // By the clock it ended in 1970, and the other one will end in the far future.
    for (id, at) in [("a", 7), ("b", i64::MAX)] {
        store.add_job(&JobRecord { finished_at: Some(at), ..job(id, Status::Succeeded, 0) }, &[], None).unwrap();
    }
    store.add_job(&job("running", Status::Running, 0), &[], None).unwrap();
    assert_eq!(store.count_time(0).unwrap(), 0);
    let month = 30 * 86_400;
    assert_eq!(store.count_time(month).unwrap(), month);
    assert!(store.kept_before(0, 9).unwrap().is_empty(), "nothing is older than the server has seen");
    let kept_before = |limit| -> Vec<String> {
        store.kept_before(1, limit).unwrap().iter().map(|job| job.id().to_string()).collect()
    };
    assert_eq!(kept_before(9), ["a", "b"]);
    // One that cannot be read does not stand before the others for ever.
    store.write().execute("UPDATE jobs SET record = '{' WHERE id = 'a'", []).unwrap();
    assert_eq!(kept_before(1), ["b"]);
}

#[test]
fn tables_of_the_first_version_are_brought_up() {
    let fresh = Fresh::new("migrated");
    let path = fresh.folder.join("old.db");
    let old = Connection::open(&path).unwrap();
    old.execute_batch(migrations::FIRST).unwrap();
    old.pragma_update(None, "user_version", 1).unwrap();
    let mut record = serde_json::to_value(job("a", Status::Succeeded, 0)).unwrap();
    (record["finished_at"], record["idempotency_key"]) = (json!(7), json!("once"));
    let insert = "INSERT INTO jobs (id, status, priority, record) VALUES (?, 'succeeded', 0, ?)";
    old.execute(insert, ["a", &record.to_string()]).unwrap();
    old.execute(insert, ["b", "not JSON"]).unwrap();
    let insert = "INSERT INTO files (id, bytes, created_at, filename, purpose, extension, expires_at)
                  SELECT ?, 1, 1, 'a', 'b', 'c', strftime('%s', 'now') + ?";
    old.execute(insert, params!["old", -7]).unwrap();
    old.execute(insert, params!["young", 3600]).unwrap();
    drop(old);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.changes().unwrap(), 4, "what was added before is counted");
    assert_eq!(store.count_time(0).unwrap(), 0);
    assert_eq!(store.kept_before(1, 9).unwrap()[0].id(), "a", "its time begins with the first start");
    let expired = |seconds| -> Vec<String> {
        store.count_time(seconds).unwrap();
        store.expired_files().unwrap().into_iter().map(|file| file.id).collect()
    };
    assert_eq!(
        (expired(0), expired(3500), expired(101)),
        (vec!["old".to_string()], vec!["old".into()], vec!["old".into(), "young".into()])
    );
    store.forget_requests(3602).unwrap();
    let key = RequestKey { owner: String::new(), key: "once".into(), digest: "any".into() };
    let again = store.add_job(&job("c", Status::Queued, 0), &[], Some(&key)).unwrap();
    assert!(matches!(again, Added::Known(known) if known.id() == "a"));
    assert!(matches!(store.job("b"), Err(StoreError::Unreadable(_))));
    let vacuum: i64 = store.read().pragma_query_value(None, "auto_vacuum", |row| row.get(0)).unwrap();
    assert_eq!(vacuum, 2, "what is deleted goes back to the disk");
    let all: Vec<NewEvent> = (0..5000).map(|number| NewEvent::of(format!("{number}"), "x".repeat(200))).collect();
    store.add_events("a", 1, &all).unwrap();
    store.write().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let length = || std::fs::metadata(&path).unwrap().len();
    let full = length();
    store.delete_events("a").unwrap();
    store.shrink().unwrap();
    assert!(length() < full / 4, "{} of {full} bytes are left", length());
    // A copy has all of it, and is a database of its own.
    assert_eq!(Store::copy(&path, &fresh.folder.join("copy.db")).unwrap().jobs, ["a", "b"]);
    assert!(Store::open(&fresh.folder.join("copy.db")).unwrap().job("a").unwrap().is_some());
}

#[test]
fn every_change_that_nothing_else_tells_of_is_counted() {
    let fresh = Fresh::new("changes");
    let store = &fresh.store;
    let mut last = store.changes().unwrap();
    let mut grows = |what: &str| {
        let now = store.changes().unwrap();
        assert!(now > last, "{what} is not counted");
        last = now;
    };
    store.add_file(&file("a", "vision", None), u64::MAX).unwrap();
    grows("a file");
    let upload = UploadRecord {
        id: "u".into(),
        bytes: 1,
        created_at: 1,
        filename: "a".into(),
        purpose: "vision".into(),
        expires_at: 9,
        status: "pending".into(),
        file: None,
        file_expires_after: None,
    };
    store.add_upload(&upload).unwrap();
    grows("an upload");
    store.add_part(&PartRecord { id: "p".into(), upload: "u".into(), bytes: 1, created_at: 1 }, u64::MAX).unwrap();
    grows("a part");
    store.end_upload("u", "cancelled", None).unwrap();
    grows("an upload's end");
    store.add_job(&job("j", Status::Queued, 0), &[], None).unwrap();
    grows("a job");
    store
        .change_job("j", 1, |job| {
            job.status = Status::Cancelled;
            Some(Vec::new())
        })
        .unwrap();
    grows("a job's end");
    assert!(store.delete_file("a").unwrap());
    grows("a file's deletion");
    assert!(store.delete_job("j").unwrap());
    grows("a job's deletion");
    // What a round of the queue writes changes nothing that would be noted again each time.
    store.add_job(&job("k", Status::Running, 0), &[], None).unwrap();
    let before = store.changes().unwrap();
    store.note_disk("k", Some(7)).unwrap();
    store.count_time(60).unwrap();
    store.add_events("k", 1, &[NewEvent::of("step:1", "x")]).unwrap();
    assert_eq!(store.changes().unwrap(), before);
}

#[test]
fn a_damaged_database_is_refused_and_not_changed() {
    let fresh = Fresh::new("damaged");
    let records: Vec<NewEvent> = (0..2000).map(|number| NewEvent::of(format!("{number}"), "x".repeat(200))).collect();
    fresh.store.add_job(&job("a", Status::Running, 0), &records, None).unwrap();
    fresh.store.write().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let whole = std::fs::read(fresh.path()).unwrap();
    let (length, third) = (whole.len(), whole.len() / 3);
    let zeros = |from: usize| [&whole[..from], &vec![0; length - from]].concat();
    let garbage: Vec<u8> = (0..third).map(|at| (at * 131 + at / 7) as u8).collect();
    let table = [
        ("truncated to pages", whole[..(length / 2 / 4096) * 4096].to_vec()),
        ("truncated", whole[..length / 2 + 77].to_vec()),
        ("its last page is cut", whole[..length - 1000].to_vec()),
        ("its end is zeros", zeros(length / 2)),
        ("all of it is zeros", zeros(0)),
        ("garbage in the middle", [&whole[..third], &garbage, &whole[2 * third..]].concat()),
        ("garbage at the start", [&garbage, &whole[third..]].concat()),
    ];
    for (name, bytes) in table {
        let path = fresh.folder.join("copy.db");
        std::fs::write(&path, &bytes).unwrap();
        let refused = Store::open(&path);
        assert!(matches!(refused, Err(StoreError::Damaged(_))), "{name}: {refused:?}");
        drop(refused);
        assert!(std::fs::read(&path).unwrap() == bytes, "{name}: it was changed");
    }
    std::fs::write(fresh.folder.join("copy.db"), &whole).unwrap();
    assert!(Store::open(&fresh.folder.join("copy.db")).unwrap().job("a").unwrap().is_some());
}

#[test]
fn an_event_is_noted_once() {
    let fresh = Fresh::new("events");
    let store = &fresh.store;
    store.add_job(&job("a", Status::Running, 0), &[], None).unwrap();
    store.add_job(&job("b", Status::Running, 0), &[], None).unwrap();
    let step = |number: usize| NewEvent {
        data: Some(json!({"step": number})),
        ..NewEvent::of(format!("step:{number}"), format!("Step {number}"))
    };
    let steps: Vec<NewEvent> = (0..7).map(step).collect();
    assert_eq!(store.add_events("a", 5, &steps[..4]).unwrap(), 4);
    assert_eq!(store.add_events("a", 6, &steps).unwrap(), 3, "the others are known");
    assert_eq!(store.add_events("none", 6, &steps).unwrap(), 0, "nobody's events are not kept");
    store.add_events("b", 6, &[NewEvent::bad("step:1", "of another job")]).unwrap();
    let newest = store.events("a", &page(None, 3)).unwrap();
    let messages =
        |listed: &Listed<EventRecord>| listed.rows.iter().map(|event| event.message.clone()).collect::<Vec<_>>();
    assert_eq!(
        (messages(&newest), newest.has_more),
        (vec!["Step 6".to_string(), "Step 5".into(), "Step 4".into()], true)
    );
    let rest = store.events("a", &page(Some(&newest.rows[2].seq.to_string()), 9)).unwrap();
    assert_eq!((messages(&rest).len(), rest.has_more), (4, false));
    let oldest = store.events("a", &Page { is_ascending: true, ..page(Some("0"), 2) }).unwrap();
    assert_eq!(messages(&oldest), ["Step 0", "Step 1"]);
    assert_eq!(store.event_data("a", "step:3").unwrap(), Some((5, Some(json!({"step": 3})))));
    assert_eq!(store.events("b", &page(None, 9)).unwrap().rows[0].level, Level::Error);
}

#[test]
fn several_threads_write_at_once() {
    let fresh = Fresh::new("threads");
    let store = &fresh.store;
    store.add_job(&job("a", Status::Running, 0), &[], None).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in 0..25 {
                    store
                        .change_job("a", 7, |job| {
                            job.starts += 1;
                            Some(Vec::new())
                        })
                        .unwrap();
                    store.add_events("a", 1, &[NewEvent::of(format!("{thread}:{number}"), "x")]).unwrap();
                }
            });
        }
    });
    assert_eq!(store.job("a").unwrap().unwrap().starts, 100, "no change is lost");
    assert_eq!(store.events("a", &page(None, 200)).unwrap().rows.len(), 100);
}

#[test]
fn tables_of_a_newer_version_are_left_alone() {
    let fresh = Fresh::new("newer");
    fresh.store.write().pragma_update(None, "user_version", VERSION + 1).unwrap();
    assert!(matches!(Store::open(&fresh.path()), Err(StoreError::Newer(version)) if version == VERSION + 1));
}
