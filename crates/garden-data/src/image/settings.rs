//! Target size and normalisation of pictures, from `processor_config.json` or `preprocessor_config.json`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use garden_input::{Grid, ImageRules};
use serde_json::Value;

use super::MAX_PIXELS as LARGEST;
use crate::error::Error;

/// The file with the settings of all processors of a model.
const PROCESSOR: &str = "processor_config.json";
/// The file with those of images alone, which older models have.
const PREPROCESSOR: &str = "preprocessor_config.json";
/// Maximum aspect ratio, as in transformers.
const LARGEST_RATIO: f64 = 200.0;
/// Factor of transformers where the file has none.
const RESCALE: f64 = 1.0 / 255.0;
const BICUBIC: u64 = 3;
/// Maximum of patch size, merge size and frames, which are small numbers in all models.
const LARGEST_SIDE: u64 = 1024;

/// How pictures become patches.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageSettings {
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Frames per patch; a still picture is repeated.
    pub frames: usize,
    /// Side of a merged token in patches.
    pub merge: usize,
    /// Minimum pixels; smaller pictures are enlarged.
    pub min_pixels: u64,
    /// Maximum pixels; larger pictures are shrunk.
    pub max_pixels: u64,
    /// Mean of each channel, on a scale from 0 to 1.
    pub mean: [f64; 3],
    /// Standard deviation of each channel.
    pub deviation: [f64; 3],
    /// Factor applied to bytes first.
    pub rescale: f64,
}

impl ImageSettings {
    /// Those of a family, where a model's files say nothing else.
    pub fn of(rules: &ImageRules) -> ImageSettings {
        let &ImageRules { patch, frames, merge, pixels: [min_pixels, max_pixels], mean, deviation, .. } = rules;
        ImageSettings { patch, frames, merge, min_pixels, max_pixels, mean, deviation, rescale: RESCALE }
    }

    /// The settings of a model folder, if it has any, and the file they are in: what `processor_config.json` says of images comes before
    /// `preprocessor_config.json`, as in transformers.
    pub fn find(folder: &Path, rules: &ImageRules) -> Result<Option<(ImageSettings, PathBuf)>, Error> {
        let path = folder.join(PROCESSOR);
        let inside = read_json(&path)?.and_then(|mut value| value.get_mut("image_processor").map(Value::take));
        if let Some(value) = inside.as_ref().filter(|value| !value.is_null()) {
            return Ok(Some((Fields { path: &path, value }.settings(rules)?, path)));
        }
        let path = folder.join(PREPROCESSOR);
        let Some(value) = read_json(&path)? else { return Ok(None) };
        Ok(Some((Fields { path: &path, value: &value }.settings(rules)?, path)))
    }

    /// Writes these pixel bounds into a folder's processor files.
    pub fn bound_files(&self, folder: &Path) -> Result<(), Error> {
        for path in [PREPROCESSOR, PROCESSOR].map(|name| folder.join(name)) {
            let Ok(text) = crate::dataset::file::read(&path, crate::dataset::file::LARGEST_SETTINGS) else { continue };
            let Some(bounded) = Self::with_bounds(&text, self.min_pixels, self.max_pixels) else { continue };
            garden_files::replace(&path, bounded).map_err(|error| Error::file(&path, error))?;
        }
        Ok(())
    }

    /// A processor file with these pixel bounds instead of its own, under all names that transformers uses. `None` if
    /// it has no image settings.
    fn with_bounds(text: &[u8], min_pixels: u64, max_pixels: u64) -> Option<Vec<u8>> {
        let mut value: Value = serde_json::from_slice(text).ok()?;
        let is_nested = value.get("image_processor").is_some();
        let fields = if is_nested { value.get_mut("image_processor")? } else { &mut value }.as_object_mut()?;
        let says_something = |name: &str| fields.contains_key(name);
        if !is_nested && !["patch_size", "size", "max_pixels", "image_processor_type"].into_iter().any(says_something) {
            return None;
        }
        fields.insert("min_pixels".into(), min_pixels.into());
        fields.insert("max_pixels".into(), max_pixels.into());
        if let Some(size) = fields.get_mut("size").and_then(Value::as_object_mut) {
            size.remove("min_pixels");
            size.remove("max_pixels");
            size.insert("shortest_edge".into(), min_pixels.into());
            size.insert("longest_edge".into(), max_pixels.into());
        }
        serde_json::to_vec_pretty(&value).ok()
    }

    /// Values per patch.
    pub fn patch_values(&self) -> usize {
        3 * self.frames * self.patch * self.patch
    }

    /// Tokens per picture.
    pub fn tokens(&self, grid: Grid) -> usize {
        grid.iter().product::<usize>() / (self.merge * self.merge)
    }

    /// The grid of a picture of this size, after resizing.
    pub fn grid(&self, width: usize, height: usize) -> Result<Grid, String> {
        let (high, wide) = self.smart_resize(height, width)?;
        if (high as u64).saturating_mul(wide as u64) > LARGEST {
            return Err(format!(
                "the picture would be enlarged from {width} x {height} to {wide} x {high} pixels by min_pixels, {}; \
                 the maximum is {LARGEST}",
                self.min_pixels
            ));
        }
        let (height, width) = (high, wide);
        Ok([1, height / self.patch, width / self.patch])
    }

    /// Target height and width of a picture: multiples of a merged token's side, within the pixel bounds, with nearly the same
    /// aspect ratio.
    pub fn smart_resize(&self, height: usize, width: usize) -> Result<(usize, usize), String> {
        let factor = (self.patch * self.merge) as f64;
        let (high, wide) = (height as f64, width as f64);
        if high.max(wide) / high.min(wide) > LARGEST_RATIO {
            return Err(format!(
                "the picture has {width} x {height} pixels; its sides may differ by at most a factor of 200"
            ));
        }
        let rounded = |side: f64| (side / factor).round_ties_even() * factor;
        let pixels = rounded(high) * rounded(wide);
        let (new_high, new_wide) = if pixels > self.max_pixels as f64 {
            let beta = (high * wide / self.max_pixels as f64).sqrt();
            let shrunk = |side: f64| ((side / beta / factor).floor() * factor).max(factor);
            (shrunk(high), shrunk(wide))
        } else if pixels < self.min_pixels as f64 {
            let beta = (self.min_pixels as f64 / (high * wide)).sqrt();
            let enlarged = |side: f64| (side * beta / factor).ceil() * factor;
            (enlarged(high), enlarged(wide))
        } else {
            (rounded(high), rounded(wide))
        };
        Ok((new_high as usize, new_wide as usize))
    }

    /// Mean and standard deviation of each channel in byte units, rounded where transformers rounds.
    pub(super) fn scales(&self) -> [(f32, f32); 3] {
        std::array::from_fn(|channel| {
            let scale = (1.0 / self.rescale) as f32;
            (self.mean[channel] as f32 * scale, self.deviation[channel] as f32 * scale)
        })
    }
}

/// The JSON in a file, if the file is there.
fn read_json(path: &Path) -> Result<Option<Value>, Error> {
    let text = match crate::dataset::file::read(path, crate::dataset::file::LARGEST_SETTINGS) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| Error::file(path, error))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| Error::broken(path, format!("not JSON: {error}")))
}

struct Fields<'a> {
    path: &'a Path,
    value: &'a Value,
}

impl Fields<'_> {
    fn settings(&self, rules: &ImageRules) -> Result<ImageSettings, Error> {
        for field in ["do_resize", "do_rescale", "do_normalize", "do_convert_rgb"] {
            if self.value[field].as_bool() == Some(false) {
                return Err(Error::field(self.path, field, "is false, which is not supported"));
            }
        }
        if self.value["do_center_crop"].as_bool() == Some(true) {
            return Err(Error::field(self.path, "do_center_crop", "is true, which is not supported"));
        }
        let (usual, kinds) = (ImageSettings::of(rules), rules.processors);
        let kind = self.value["image_processor_type"].as_str().unwrap_or(kinds[0]);
        if !kinds.iter().any(|known| kind.starts_with(known)) {
            return Err(Error::field(
                self.path,
                "image_processor_type",
                format!("is `{kind}`; only `{}` is supported", kinds[0]),
            ));
        }
        let resample = self.whole("", "resample", BICUBIC)?;
        if resample != BICUBIC {
            return Err(Error::field(
                self.path,
                "resample",
                format!("is {resample}; only {BICUBIC} (bicubic) is supported"),
            ));
        }
        let settings = ImageSettings {
            patch: self.side("patch_size", usual.patch)?,
            frames: self.side("temporal_patch_size", usual.frames)?,
            merge: self.side("merge_size", usual.merge)?,
            min_pixels: self.pixels("min_pixels", "shortest_edge", usual.min_pixels)?,
            max_pixels: self.pixels("max_pixels", "longest_edge", usual.max_pixels)?,
            mean: self.three("image_mean", usual.mean)?,
            deviation: self.three("image_std", usual.deviation)?,
            rescale: self.value["rescale_factor"].as_f64().unwrap_or(RESCALE),
        };
        self.check(&settings)?;
        Ok(settings)
    }

    fn check(&self, settings: &ImageSettings) -> Result<(), Error> {
        let wrong = |field: &str, problem: String| Err(Error::field(self.path, field, problem));
        if settings.min_pixels > settings.max_pixels {
            let problem = format!("is {}, more than max_pixels ({})", settings.min_pixels, settings.max_pixels);
            return wrong("min_pixels", problem);
        }
        let is_number = |value: f64| value.is_finite() && value > 0.0;
        if !settings.deviation.iter().all(|value| is_number(*value)) {
            return wrong("image_std", format!("is {:?}; expected numbers above 0", settings.deviation));
        }
        if !is_number(settings.rescale) {
            return wrong("rescale_factor", format!("is {}; expected a number above 0", settings.rescale));
        }
        Ok(())
    }

    /// The older name takes precedence, as in transformers.
    fn pixels(&self, older: &str, newer: &str, default: u64) -> Result<u64, Error> {
        if self.value[older].is_null() && !self.value["size"][older].is_null() {
            return self.whole("size", older, default);
        }
        if self.value[older].is_null() && self.value["size"].is_object() && self.value["size"][newer].is_null() {
            return Err(Error::field(self.path, "size", format!("has no `{newer}`")));
        }
        let default = self.whole("size", newer, default)?;
        self.whole("", older, default)
    }

    fn side(&self, field: &str, default: usize) -> Result<usize, Error> {
        match self.whole("", field, default as u64)? {
            number if number > LARGEST_SIDE => {
                Err(Error::field(self.path, field, format!("is {number}; the maximum is {LARGEST_SIDE}")))
            }
            number => Ok(number as usize),
        }
    }

    fn whole(&self, object: &str, field: &str, default: u64) -> Result<u64, Error> {
        let value = if object.is_empty() { &self.value[field] } else { &self.value[object][field] };
        if value.is_null() {
            return Ok(default);
        }
        // Far beyond any picture, and small enough that products fit.
        let number = value.as_u64().filter(|number| (1..1 << 40).contains(number));
        number.ok_or_else(|| {
            let name = if object.is_empty() { field.to_string() } else { format!("{object}.{field}") };
            Error::field(self.path, name, format!("is {value}; expected a whole number above 0"))
        })
    }

    fn three(&self, field: &str, default: [f64; 3]) -> Result<[f64; 3], Error> {
        let value = &self.value[field];
        if value.is_null() {
            return Ok(default);
        }
        let numbers: Vec<f64> = value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        numbers.try_into().map_err(|_| Error::field(self.path, field, format!("is {value}; expected three numbers")))
    }
}
