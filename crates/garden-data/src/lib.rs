//! Model input: rows of a dataset, tokens, the chat template, pictures as patches, and batches of all of these.

mod choice;
mod dataset;
mod error;
mod example;
mod fingerprint;
mod image;
mod loader;
mod preview;
mod processor;
mod survey;
mod template;
mod tokenizer;

pub use dataset::conversation::{PLACEHOLDER, picture_token};
pub use dataset::field_names::{FieldMeanings, FieldNames, IgnoredFields};
pub use dataset::file::read_picture;
pub use dataset::free::{Json, Real};
pub use dataset::record::{Record, StoredPicture};
pub use dataset::{Ahead, Dataset, ImagePaths, Order, Portion, Prefetch, Source, hub_cache, model_folder};
pub use error::Error;
pub use example::boxes::{BoxFormat, BoxSettings, BoxSource, BoxUnit, Objects, RowBox, TextBoxes, WrittenBox};
pub use example::keys::{COMMON_SHARE, KeyCounter};
pub use example::length::{LengthLimit, PixelBounds, SizedPicture, TooLong};
pub use example::outline::{Outline, PictureOutline};
pub use example::selective::{Level, SCHEMA_KEYS, SCHEMA_TYPES, SelectiveLoss};
pub use example::{Example, ExampleSettings, Labels, Outcome, Said, SystemPrompt};
pub use fingerprint::Fingerprint;
pub use image::{
    ImageSettings, MAX_PIXELS, Patcher, Picture, Thumbnail, UsedPart, drawn_png, picture_size, usual_decoding_bytes,
};
pub use loader::batches::{BatchSize, Batches};
pub use loader::collate::Collator;
pub use loader::mixture::Mixture;
pub use loader::normalisation::Normalisation;
pub use loader::{BadRow, Loader, LoaderBuffers, LoaderSettings, MicroBatch, SkippedRow};
pub use preview::{Paint, Piece, PieceKind, Preview};
pub use processor::{PictureFile, Processor};
pub use survey::tally::Tally;
pub use survey::{
    Bar, Distribution, Duplicate, IgnoredField, KEPT_PROBLEMS, Largest, PartlyUsed, PictureTotals, Problem,
    ProblemKind, RowSize, Survey, SurveySettings, SurveyedPortion,
};
pub use template::{Chat, Content, Ending, Message, Part, Template, TemplateFile, Weight};
pub use tokenizer::{SpecialTokens, Tokenizer};
