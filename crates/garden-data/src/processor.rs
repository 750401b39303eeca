//! The processor of a model folder: chat template, tokenizer and image settings.

use std::path::{Path, PathBuf};

use garden_input::{Config, Family, Grid, Images, Prompt};

use crate::error::Error;
use crate::image::{ImageSettings, MAX_PIXELS, Patcher, picture_size};
use crate::template::{Chat, Ending, Message, Template, TemplateFile};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::settings::TokenizerSettings;

/// A picture file in memory.
#[derive(Clone, Copy, Debug)]
pub struct PictureFile<'a> {
    /// Its name in error messages: a path, or a line and field of a file.
    pub name: &'a str,
    /// Its bytes.
    pub data: &'a [u8],
}

/// The processor of a model.
#[derive(Debug)]
pub struct Processor {
    /// The family of its model.
    pub family: &'static Family,
    /// Text to tokens.
    pub tokenizer: Tokenizer,
    /// Conversations to text.
    pub template: Template,
    /// Pictures to patches; pixel bounds may be changed.
    pub images: ImageSettings,
    /// Maximum pixels of a picture to decode.
    pub max_decoded_pixels: u64,
    images_path: PathBuf,
    image_token: i32,
    vision_tokens: Vec<i32>,
}

impl Processor {
    /// Opens a model folder.
    pub fn open(folder: &Path) -> Result<Processor, Error> {
        Processor::open_with(folder, None)
    }

    /// Opens a model folder, optionally with another chat template.
    pub fn open_with(folder: &Path, template: Option<&TemplateFile>) -> Result<Processor, Error> {
        let tokenizer_path = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::read(&tokenizer_path)?;
        let template = Template::open(folder, template)?;
        TokenizerSettings::read(folder)?.check(&tokenizer)?;
        let family = Family::of_folder(folder);
        let (images, images_path) = ImageSettings::find(folder, &family.images)?.ok_or_else(|| {
            Error::broken(folder, "has no image settings: neither preprocessor_config.json nor processor_config.json")
                .advised("copy preprocessor_config.json of the original model into the folder")
        })?;
        let name = template.token("image_token").unwrap_or(family.tokens.image);
        let image_token = tokenizer.added_token(name).ok_or_else(|| {
            Error::field(&tokenizer_path, "added_tokens", format!("has no `{name}`, the placeholder for images"))
        })?;
        let mut vision_tokens: Vec<i32> =
            family.tokens.vision.iter().filter_map(|name| tokenizer.added_token(name)).collect();
        vision_tokens.push(image_token);
        let max_decoded_pixels = MAX_PIXELS;
        Ok(Processor {
            family,
            tokenizer,
            template,
            images,
            images_path,
            max_decoded_pixels,
            image_token,
            vision_tokens,
        })
    }

    /// Rejects a processor whose patches do not match the model.
    pub fn check(&self, config: &Config) -> Result<(), Error> {
        let (images, vision) = (&self.images, &config.vision);
        let pairs = [
            ("patch_size", images.patch, "patch_size", vision.patch),
            ("temporal_patch_size", images.frames, "temporal_patch_size", vision.frames),
            ("merge_size", images.merge, "spatial_merge_size", vision.merge),
        ];
        if let Some((ours, number, theirs, wanted)) = pairs.into_iter().find(|(_, number, _, wanted)| number != wanted)
        {
            let problem = format!("is {number}; `vision_config.{theirs}` of config.json is {wanted}");
            return Err(Error::field(&self.images_path, ours, problem));
        }
        if self.image_token != config.image_token {
            let (token, wanted) = (self.image_token, config.image_token);
            let problem = format!("is {wanted}; the image token in tokenizer.json is {token}");
            return Err(Error::field(&self.images_path.with_file_name("config.json"), "image_token_id", problem));
        }
        Ok(())
    }

    /// The image placeholder token.
    pub fn image_token(&self) -> i32 {
        self.image_token
    }

    /// Whether a token is an image or video placeholder, or starts or ends one.
    pub fn is_vision(&self, token: i32) -> bool {
        self.vision_tokens.contains(&token)
    }

    /// The grid of a picture, from its header alone.
    pub fn grid(&self, file: PictureFile) -> Result<Grid, Error> {
        let (width, height) = picture_size(file.name, file.data, self.max_decoded_pixels)?;
        self.images.grid(width, height).map_err(|problem| Error::picture(file.name, problem))
    }

    /// The tokens of a conversation with pictures of these grids.
    pub fn tokens(&self, messages: &[Message], grids: &[Grid], ending: Ending) -> Result<Vec<i32>, Error> {
        let text = self.template.render(Chat::of(messages), ending)?;
        let tokens = self.tokenizer.encode(&text);
        let places = tokens.iter().filter(|token| **token == self.image_token).count();
        if places != grids.len() {
            return Err(Error::Conversation(format!(
                "the conversation has {places} image placeholders and {} images",
                grids.len()
            )));
        }
        let more: usize = grids.iter().map(|grid| self.images.tokens(*grid)).sum();
        let mut expanded = Vec::with_capacity(tokens.len() - places + more);
        let mut grids = grids.iter();
        for token in tokens {
            let count = match token == self.image_token {
                true => grids.next().map_or(1, |grid| self.images.tokens(*grid)),
                false => 1,
            };
            expanded.extend(std::iter::repeat_n(token, count));
        }
        Ok(expanded)
    }

    /// The model's input for a conversation, up to the start of its answer.
    pub fn prompt(&self, messages: &[Message], files: &[PictureFile]) -> Result<Prompt, Error> {
        let grids = files.iter().map(|file| self.grid(*file)).collect::<Result<Vec<Grid>, Error>>()?;
        let tokens = self.tokens(messages, &grids, Ending::Answer)?;
        let values = self.images.patch_values();
        let patches: usize = grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
        let mut pixels = vec![0.0; patches * values];
        let mut patcher = Patcher::new(self.images.clone());
        let mut rest = &mut pixels[..];
        for (file, grid) in files.iter().zip(&grids) {
            let (own, after) = rest.split_at_mut(grid.iter().product::<usize>() * values);
            patcher.decode(file.name, file.data, self.max_decoded_pixels, *grid, own)?;
            rest = after;
        }
        Ok(Prompt { tokens, images: Images { pixels, grids } })
    }
}
