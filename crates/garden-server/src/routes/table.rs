//! The table of all paths.

use super::Route;
use crate::answer::PAGE;
use crate::openapi::Refusal::{Busy, Invalid, Missing, NoSpace, OtherBody};
use crate::openapi::{Operation, Parameter};
use crate::tools::{NO_EPOCHS, TRACE_FACTS};
use crate::wire::{
    All, Check, Checkpoint, DeletedFile, DeletedJob, DeletedModel, Diagnosis, Document, Event, EventAfter, File,
    Health, IdempotencyKey, Job, Live, MetadataQuery, Model, ModelFile, NewCheck, NewCommand, NewFile, NewJob, NewPart,
    NewUpload, Nothing, Order, Page, Part, Place, Plan, PlanAnswer, System, Text, Upload, UploadEnd,
};
use crate::{files, jobs, live, models, ours, retention};

/// All paths.
pub(crate) fn table() -> Vec<Route> {
    [files(), uploads(), jobs(), models(), own_jobs(), tools(), about()].into_iter().flatten().collect()
}

fn after() -> Parameter {
    Parameter::query::<Text>("after", "The id of the last one of the page before.")
}

fn files() -> Vec<Route> {
    let order = Parameter::query::<Order>("order", "By age; the newest first by default.");
    let purpose = Parameter::query::<Text>("purpose", "Only files for this.");
    vec![
        Route::at("/v1/files")
            .get(
                files::all,
                Operation::of("listFiles", "List files").gives::<Page<File>>("A page of files.").with([
                    after(),
                    Parameter::limit(10_000, 10_000),
                    order,
                    purpose,
                ]),
            )
            .post(
                files::create,
                Operation::of("createFile", "Send a file")
                    .gives::<File>("The file.")
                    .takes_form::<NewFile>()
                    .may(&[NoSpace]),
            ),
        Route::at("/v1/files/{file_id}")
            .get(files::one, Operation::of("getFile", "One file").gives::<File>("The file."))
            .delete(
                files::delete,
                Operation::of("deleteFile", "Delete a file; jobs that use it keep theirs")
                    .gives::<DeletedFile>("It is deleted."),
            ),
        Route::at("/v1/files/{file_id}/content").get(
            files::content,
            Operation::of("getFileContent", "The content of a file")
                .gives_file(&["text/csv", "application/octet-stream"], "The bytes of the file."),
        ),
    ]
}

fn uploads() -> Vec<Route> {
    vec![
        Route::at("/v1/uploads").post(
            files::begin_upload,
            Operation::of("createUpload", "Begin to send a file in parts")
                .gives::<Upload>("The upload.")
                .takes::<NewUpload>(),
        ),
        Route::at("/v1/uploads/{upload_id}/parts").post(
            files::add_part,
            Operation::of("addUploadPart", "Send a part")
                .gives::<Part>("The part.")
                .takes_form::<NewPart>()
                .may(&[Invalid, NoSpace]),
        ),
        Route::at("/v1/uploads/{upload_id}/complete").post(
            files::complete_upload,
            Operation::of("completeUpload", "Make a file of the parts")
                .gives::<Upload>("The upload, with its file.")
                .takes::<UploadEnd>()
                .may(&[Invalid, NoSpace]),
        ),
        Route::at("/v1/uploads/{upload_id}/cancel").post(
            files::cancel_upload,
            Operation::of("cancelUpload", "Give an upload up")
                .gives::<Upload>("The upload.")
                .may_take::<Nothing>()
                .may(&[Invalid]),
        ),
    ]
}

fn idempotency_key() -> Parameter {
    Parameter::header::<IdempotencyKey>(
        "Idempotency-Key",
        "The same request with the same key, sent again within a day, makes no second job: the first one is the answer.",
    )
}

/// Something that is wanted of a job.
fn wish(id: &'static str, summary: &'static str) -> Operation {
    Operation::of(id, summary).gives::<Job>("The job.").may_take::<Nothing>().may(&[Invalid])
}

fn jobs() -> Vec<Route> {
    let metadata =
        Parameter::pairs::<MetadataQuery>("metadata", "Jobs with all of these; `metadata=null` for jobs without any.");
    let event = Parameter::query::<EventAfter>("after", "The id of the last one of the page before.");
    vec![
        Route::at("/v1/fine_tuning/jobs")
            .get(
                jobs::all,
                Operation::of("listJobs", "List jobs, the newest first")
                    .gives::<Page<Job>>("A page of jobs.")
                    .with([after(), Parameter::limit(100, PAGE), metadata]),
            )
            .post(
                jobs::create,
                Operation::of("createJob", "Fine-tune a model")
                    .gives::<Job>(
                        "The job. It was looked at for up to ten seconds, so a mistake in its files is usually in `error`.",
                    )
                    .with([idempotency_key()])
                    .takes::<NewJob>()
                    .may(&[Missing, OtherBody, NoSpace]),
            ),
        Route::at("/v1/fine_tuning/jobs/{job_id}")
            .get(jobs::one, Operation::of("getJob", "One job").gives::<Job>("The job.")),
        Route::at("/v1/fine_tuning/jobs/{job_id}/cancel")
            .post(jobs::cancel, wish("cancelJob", "Save and end a job; sent again, end it at once")),
        Route::at("/v1/fine_tuning/jobs/{job_id}/pause").post(jobs::pause, wish("pauseJob", "Save and pause a job")),
        Route::at("/v1/fine_tuning/jobs/{job_id}/resume")
            .post(jobs::resume, wish("resumeJob", "Let a paused job go on")),
        Route::at("/v1/fine_tuning/jobs/{job_id}/events").get(
            jobs::events,
            Operation::of("listJobEvents", "Events of a job, the newest first")
                .gives::<Page<Event>>("A page of events.")
                .with([event, Parameter::limit(1000, PAGE)]),
        ),
        Route::at("/v1/fine_tuning/jobs/{job_id}/checkpoints").get(
            jobs::all_checkpoints,
            Operation::of("listJobCheckpoints", "Checkpoints of a job, the newest first")
                .gives::<Page<Checkpoint>>("A page of checkpoints.")
                .with([after(), Parameter::limit(100, PAGE)]),
        ),
    ]
}

fn models() -> Vec<Route> {
    vec![
        Route::at("/v1/models").get(
            models::all,
            Operation::of("listModels", "List base models, aliases and results")
                .gives::<All<Model>>("All models.")
                .may(&[Invalid]),
        ),
        Route::at("/v1/models/{model}")
            .get(models::one, Operation::of("getModel", "One model").gives::<Model>("The model."))
            .delete(
                models::delete,
                Operation::of("deleteModel", "Delete a result: its weights and checkpoints")
                    .gives::<DeletedModel>("It is deleted."),
            ),
        Route::at("/api/models/{model}/files").get(
            models::files,
            Operation::of("listModelFiles", "Files of a result").gives::<All<ModelFile>>("Names and sizes."),
        ),
        Route::at("/api/models/{model}/archive").get(
            models::archive,
            Operation::of("getModelArchive", "All files of a result as one archive")
                .gives_archive("application/x-tar", "A tar archive."),
        ),
        Route::at("/api/models/{model}/files/{name}").get(
            models::file,
            Operation::of("getModelFile", "A file of a result")
                .gives_file(&["application/octet-stream"], "The bytes of the file."),
        ),
    ]
}

fn own_jobs() -> Vec<Route> {
    let from = Parameter::query::<Place>("from", "Where to begin; the start by default.");
    let again = Parameter::header::<Place>("Last-Event-ID", "The same, as browsers send it; it comes before `from`.");
    vec![
        Route::at("/api/jobs").post(
            ours::command,
            Operation::of("createCommand", "Run any command as a job, where the operator allows it")
                .gives::<Job>("The job.")
                .with([idempotency_key()])
                .takes::<NewCommand>()
                .may(&[OtherBody, NoSpace]),
        ),
        Route::at("/api/jobs/{job_id}").delete(
            retention::delete_job,
            Operation::of("deleteJob", "Delete a job that is over: its events, log, trace, checkpoints and model")
                .gives::<DeletedJob>("It is deleted."),
        ),
        Route::at("/api/jobs/{job_id}/finish")
            .post(jobs::finish, wish("finishJob", "End a job where it is, and keep what it has learnt as its result")),
        Route::at("/api/jobs/{job_id}/trace").get(
            ours::trace,
            Operation::of("getJobTrace", "The trace of a job's memory")
                .gives_file(&["application/x-ndjson"], "A JSON object a line (`docs/formats.md`).")
                .may(&[Invalid]),
        ),
        Route::at("/api/jobs/{job_id}/diagnosis").get(
            ours::diagnosis,
            Operation::of("getJobDiagnosis", "The verdict on a job's memory so far")
                .gives::<Diagnosis>("The verdict.")
                .may(&[Invalid, Busy]),
        ),
        Route::at("/api/jobs/{job_id}/plan").get(
            ours::plan,
            Operation::of("getJobPlan", "The memory that a job was planned to need")
                .gives::<Plan>("The plan.")
                .may(&[Invalid]),
        ),
        Route::at("/api/jobs/{job_id}/log").get(
            ours::log,
            Operation::of("getJobLog", "What a job has printed")
                .gives_file(&["text/plain"], "The log.")
                .may(&[Invalid]),
        ),
        Route::at("/api/jobs/{job_id}/report.html").get(
            ours::report,
            Operation::of("getJobReport", "A page about a job: its run at its end, its memory before")
                .gives_text("text/html", "The page.")
                .may(&[Invalid, Busy]),
        ),
        Route::at("/api/jobs/{job_id}/live").get(
            live::live,
            Operation::of("followJob", "Samples, events and log lines of a job as they come")
                .gives_events::<Live>("Server-sent events.")
                .with([from, again])
                .may(&[Busy]),
        ),
    ]
}

fn tools() -> Vec<Route> {
    let facts = TRACE_FACTS.map(|(name, about)| Parameter::query::<Text>(name, about));
    let no_epochs = Parameter::query::<bool>(NO_EPOCHS, "Whether its data never comes again.");
    vec![
        Route::at("/api/diagnose").post(
            ours::diagnose,
            Operation::of("diagnose", "Judge a trace of memory")
                .gives::<Diagnosis>("The verdict.")
                .with(facts)
                .with([no_epochs])
                .takes_text("step,rss_mib\n1,5012\n2,5020\n3,5021\n4,5021\n5,5022\n")
                .may(&[Busy, NoSpace]),
        ),
        Route::at("/api/check").post(
            ours::check,
            Operation::of("check", "Check whether rows are fit for training a model")
                .gives::<Check>("What is in the rows.")
                .takes::<NewCheck>()
                .may(&[Missing, Busy, NoSpace]),
        ),
        Route::at("/api/plan").post(
            ours::plan_for,
            Operation::of("plan", "Plan the memory of a job without submitting it")
                .gives::<PlanAnswer>("What it would need, or why it cannot run.")
                .takes::<NewJob>()
                .may(&[Missing, Busy, NoSpace]),
        ),
    ]
}

fn about() -> Vec<Route> {
    vec![
        Route::at("/api/system").get(
            ours::system,
            Operation::of("getSystem", "Memory, GPU, slots and jobs of the server")
                .gives::<System>("How the server is."),
        ),
        Route::at("/metrics").get(
            ours::metrics,
            Operation::of("getMetrics", "Metrics for Prometheus").gives_text("text/plain", "Its text format."),
        ),
        Route::at("/health").get(
            ours::health,
            Operation::of("getHealth", "Whether database, queue and disk do their work")
                .gives::<Health>("They do.")
                .or(503, "One of them does not.")
                .open(),
        ),
        Route::at("/openapi.json").get(
            ours::openapi,
            Operation::of("getDescription", "This description").gives::<Document>("An OpenAPI document."),
        ),
    ]
}
