//! What a model is given: rows of a dataset, tokens, the chat template, pictures as patches, and all of that as batches.

mod base64;
mod batches;
mod boxes;
mod choice;
mod collate;
mod dataset;
mod error;
mod example;
mod file;
mod fingerprint;
mod free;
mod image;
mod json;
mod keys;
mod length;
mod loader;
mod normalisation;
mod outline;
mod preview;
mod processor;
mod record;
mod selective;
mod survey;
mod tally;
mod template;
mod tokenizer;
mod turns;
mod unused;

pub use batches::{BatchSize, Batches};
pub use boxes::{BoxFormat, BoxSettings, BoxSource, BoxUnit, Objects, RowBox, TextBoxes, WrittenBox};
pub use collate::Collator;
pub use dataset::{Ahead, Dataset, ImagePaths, Order, Prefetch, model_folder};
pub use error::Error;
pub use example::{Example, ExampleSettings, Labels, Outcome, Said, SystemPrompt};
pub use file::read_picture;
pub use fingerprint::Fingerprint;
pub use free::{Json, Real};
pub use image::{
    ImageSettings, MAX_PIXELS, Patcher, Picture, Thumbnail, drawn_png, picture_size, usual_decoding_bytes,
};
pub use keys::{COMMON_SHARE, KeyCounter};
pub use length::{LengthLimit, PixelBounds, SizedPicture, TooLong};
pub use loader::{BadRow, Loader, LoaderRoom, LoaderSettings, MicroBatch};
pub use normalisation::Normalisation;
pub use outline::{Outline, PictureOutline};
pub use preview::{Paint, Piece, PieceKind, Preview};
pub use processor::{PictureFile, Processor};
pub use record::{Record, StoredPicture};
pub use selective::{Level, SCHEMA_KEYS, SCHEMA_TYPES, SelectiveLoss};
pub use survey::{
    Bar, Distribution, Duplicate, IgnoredField, KEPT_PROBLEMS, Largest, PictureTotals, Problem, ProblemKind, RowSize,
    Survey, SurveySettings,
};
pub use tally::Tally;
pub use template::{Chat, Content, Ending, Message, Part, Template, TemplateFile, Weight};
pub use tokenizer::{SpecialTokens, Tokenizer};
