//! Models and their files.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Local, Time, True, constant};
use crate::catalogue::Base;
use crate::job::JobRecord;
use crate::store::ResultRecord;

constant!(ModelObject = "model");

/// A base model, an alias of one, or a result.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Model {
    pub id: String,
    pub object: ModelObject,
    pub created: Time,
    pub owned_by: Local,
    /// For results and aliases.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ModelExtension")]
    pub model_garden: Option<ModelExtension>,
}

/// What OpenAI's model has no room for.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ModelExtension {
    pub base_model: String,
    /// The job that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub job: Option<String>,
}

impl Model {
    /// A base model, by any of its names.
    pub fn base(base: &Base, id: String) -> Model {
        Model { id, object: ModelObject, created: Time(base.created), owned_by: Local, model_garden: None }
    }

    /// Another name of a base model, in a list.
    pub fn alias(base: &Base, id: String) -> Model {
        let extension = ModelExtension { base_model: base.name.clone(), job: None };
        Model { model_garden: Some(extension), ..Model::base(base, id) }
    }

    /// The result of a job, or one of its checkpoints.
    pub fn result(job: &JobRecord, id: String) -> Model {
        Model {
            id,
            object: ModelObject,
            created: Time(job.finished_at.unwrap_or(job.created_at)),
            owned_by: Local,
            model_garden: Some(ModelExtension { base_model: job.base.clone(), job: Some(job.id().to_string()) }),
        }
    }
}

impl From<ResultRecord> for Model {
    fn from(result: ResultRecord) -> Model {
        let extension = ModelExtension { base_model: result.base, job: Some(result.job) };
        let (id, created) = (result.model, Time(result.created_at));
        Model { id, object: ModelObject, created, owned_by: Local, model_garden: Some(extension) }
    }
}

/// A model that is deleted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct DeletedModel {
    id: String,
    object: ModelObject,
    deleted: True,
}

impl DeletedModel {
    pub fn of(id: String) -> DeletedModel {
        DeletedModel { id, object: ModelObject, deleted: True }
    }
}

/// A file of a result.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ModelFile {
    pub name: String,
    pub bytes: u64,
}
