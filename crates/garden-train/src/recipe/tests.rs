//! Tests of `recipe.rs`.

use garden_input::FAMILIES;
use garden_model::{Targets, Training};

use super::*;

fn recipe(pairs: &[(&str, &str)]) -> Result<Recipe, RecipeError> {
    let needed = [("base-model", "m"), ("dataset", "d"), ("output-dir", "o")];
    let pairs = needed.iter().chain(pairs);
    Recipe::from_values(pairs.map(|(name, value)| (name.to_string(), Value::String(value.to_string()))))
}

#[test]
fn every_field_is_a_setting_and_every_setting_a_field() {
    let all = Recipe { debug_leak: Some(Bytes(1)), debug_fail: Some(1), ..Recipe::default() };
    let Ok(Value::Object(map)) = serde_json::to_value(all) else { panic!("a recipe is an object") };
    let mut names: Vec<&str> = map.keys().map(String::as_str).collect();
    let mut fields: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
    names.sort_unstable();
    fields.sort_unstable();
    assert_eq!(names, fields);
}

#[test]
fn names_of_the_hugging_face_trainer_are_understood() {
    let found = recipe(&[
        ("num_train_epochs", "1.5"),
        ("per_device_train_batch_size", "4"),
        ("gradient_accumulation_steps", "1e1"),
        ("lr_scheduler_type", "constant_with_warmup"),
        ("gradient_checkpointing", "False"),
        ("optim", "adamw_bnb_8bit"),
        ("dataloader_num_workers", "3"),
        ("lora_alpha", "32"),
        ("prefetch", "1GB"),
        ("seed", "7"),
    ])
    .unwrap();
    assert_eq!((found.epochs, found.batch_size, found.gradient_accumulation), (1.5, 4, 10));
    assert_eq!((found.lr_scheduler, found.recompute), (Scheduler::ConstantWithWarmup, Recompute::None));
    assert_eq!((found.optim, found.loader_threads, found.seed), (Optim::Adamw8Bit, 3, 7));
    assert_eq!((found.lora_alpha, found.prefetch), (Some(32.0), Bytes(1 << 30)));
    let found =
        recipe(&[("lr_scheduler_type", "cosine_with_min_lr"), ("min_lr", "1e-5"), ("optim", "paged_adamw_8bit")])
            .unwrap();
    assert_eq!((found.lr_scheduler, found.min_learning_rate), (Scheduler::Cosine, 1e-5));
    assert_eq!(found.optim, Optim::Adamw8Bit);
    assert_eq!(recipe(&[("optim", "adamw_torch_fused")]).unwrap().optim, Optim::Adamw);
    let found = recipe(&[
        ("metric_for_best_model", "eval_iou_50"),
        ("greater_is_better", "True"),
        ("eval-split", "0.1"),
        ("full", "true"),
        ("vision_tower_lr", "2e-6"),
        ("mm_projector_lr", "1e-5"),
    ])
    .unwrap();
    assert_eq!((found.metric_for_best_model, found.greater_is_better), (Metric::Iou50, Some(true)));
    let optimizer = Recipe { learning_rate: 1e-5, ..found }.optimizer();
    assert_eq!((optimizer.vision_factor, optimizer.merger_factor), (0.2, 1.0));
    let Training::Lora(lora) = recipe(&[("target_modules", "all-linear")]).unwrap().training(FAMILIES[0]) else {
        panic!("an adapter is trained")
    };
    assert_eq!(lora.targets, Targets::all(FAMILIES[0]));
}

#[test]
fn every_setting_stands_in_the_list_and_its_help_has_its_default() {
    let mut names: Vec<String> = Recipe::default().values().keys().cloned().collect();
    // What is for tests alone is not there unless it is given.
    let mut listed: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
    listed.retain(|name| !name.starts_with("debug-"));
    names.sort_unstable();
    listed.sort_unstable();
    assert_eq!(names, listed);
    let described = |name: &str| fields::find(name).unwrap().described();
    assert_eq!(described("learning-rate"), "Peak learning rate [default: 2e-4]");
    assert_eq!(described("adam-epsilon"), "AdamW's epsilon [default: 1e-8]");
    assert_eq!(described("epochs"), "Passes over the dataset [default: 3]");
    assert_eq!(described("prefetch"), "Memory for prefetched micro-batches [default: 256MB]");
    assert_eq!(described("eval-steps"), "Steps between evaluations [default: an epoch]");
    assert!(!described("full").contains("default"));
}

#[test]
fn a_recipe_survives_its_file() {
    let found = recipe(&[("memory-limit", "28GB"), ("max-steps", "30"), ("lora-targets", "q_proj,v_proj")]).unwrap();
    let again = Recipe::from_values(Recipe::read_file(&found.to_toml()).unwrap()).unwrap();
    assert_eq!(found, again);
    let by_tokens = recipe(&[("batch-tokens", "4096")]).unwrap();
    assert_eq!(Recipe::from_values(Recipe::read_file(&by_tokens.to_toml()).unwrap()).unwrap(), by_tokens);
    let listed =
        Recipe::read_file("base_model = 'm'\ndataset = 'd'\noutput_dir = 'o'\nlora_targets = ['a', 'b']").unwrap();
    assert_eq!(Recipe::from_values(listed).unwrap().lora_targets.as_deref(), Some("a,b"));
}

#[test]
fn lists_are_given_as_one_value_as_several_and_in_files() {
    let of_file =
        |text: &str| Recipe::from_values(Recipe::read_file(&format!("model = 'm'\noutput-dir = 'o'\n{text}")).unwrap());
    let datasets = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<PathBuf>>();
    let one = of_file("dataset = 'a'").unwrap();
    assert_eq!(one.datasets, datasets(&["a"]));
    assert_eq!(serde_json::to_value(&one).unwrap()["dataset"], "a", "as every version wrote it");
    assert_eq!(of_file("dataset = ['a']").unwrap(), one);
    let several = of_file("dataset = ['a', '2']\ndataset-weights = [1, 0.5]\nmax-samples = 1_000").unwrap();
    assert_eq!(several.datasets, datasets(&["a", "2"]));
    assert_eq!(
        (several.dataset_weights.as_deref(), several.max_samples.as_deref()),
        (Some(&[1.0, 0.5][..]), Some(&[1000][..]))
    );
    assert_eq!(Recipe::from_values(Recipe::read_file(&several.to_toml()).unwrap()).unwrap(), several);
    assert_eq!(
        (several.setting("dataset"), several.setting("dataset-weights")),
        ("a,2".to_string(), "1,0.5".to_string())
    );
    assert_eq!(several.setting("max-samples"), "1000");
    // As flags: texts, and lists of texts where a flag was repeated.
    let flags = |weights: Value| {
        let values = [("model", "m".into()), ("dataset", serde_json::json!(["a", "2"])), ("output-dir", "o".into())];
        let more = [("interleave_probs", weights), ("max_train_samples", "1e3".into())];
        Recipe::from_values(values.into_iter().chain(more).map(|(name, value)| (name.to_string(), value)))
    };
    for weights in
        [Value::from("1,0.5"), Value::from("1, .5"), serde_json::json!(["1", "0.5"]), serde_json::json!([1, 0.5])]
    {
        assert_eq!(flags(weights.clone()).unwrap(), several, "{weights}");
    }
    for (text, expected) in [
        ("dataset = []", "`dataset` is missing"),
        ("dataset = ['a', '']", "`dataset` is missing"),
        ("dataset = 3", "`dataset` cannot be 3"),
        ("dataset = 'a'\neval-dataset = ['b', 'c']", "`eval-dataset` takes one dataset"),
        ("dataset = ['a', 'b']\ndataset-weights = 1", "`dataset-weights` has 1 number for 2 datasets"),
        ("dataset = ['a', 'b']\nmax-samples = [1, 2, 3]", "`max-samples` has 3 numbers for 2 datasets"),
        ("dataset = ['a', 'b']\nmax-samples = [1, 0]", "`max-samples` has 0"),
        ("dataset = 'a'\nmax-samples = -1", "`max-samples` cannot be -1"),
        ("dataset = ['a', 'b']\ndataset-weights = [1.0, -0.5]", "`dataset-weights` has -0.5"),
        ("dataset = ['a', 'b']\ndataset-weights = [1.0, inf]", "`dataset-weights`"),
        ("dataset = ['a', 'b']\ndataset-weights = [1, 1]\nbatch-tokens = 9", "cannot be used with `batch-tokens`"),
    ] {
        let error = of_file(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn settings_of_adapters_do_not_go_with_full() {
    for (name, value) in [
        ("lora_r", "16"),
        ("lora-alpha", "8"),
        ("lora-dropout", "0"),
        ("target_modules", "q_proj"),
        ("use-rslora", "True"),
    ] {
        let error = recipe(&[("full", "true"), (name, value)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("`{name}` has no effect with `full`, which trains all weights and no adapter")
        );
        assert!(error.hint.unwrap().contains("omit `full`"));
        assert!(recipe(&[("full", "false"), (name, value)]).is_ok(), "{name}");
    }
    assert!(recipe(&[("full", "true"), ("finetune-vision", "false")]).is_ok());
    // Files of earlier versions have all settings.
    let file = |rank: usize| {
        let text = format!(
            "model = 'm'\ndataset = 'd'\noutput-dir = 'o'\nfull = true\nlora-r = {rank}\nlora-alpha = 16.0\nlora-dropout = 0.0"
        );
        Recipe::from_values(Recipe::read_file(&text).unwrap())
    };
    assert!(file(16).is_ok());
    assert!(file(64).unwrap_err().to_string().starts_with("`lora-r` has no effect"));
    let full = recipe(&[("full", "true")]).unwrap();
    assert!(!full.to_toml().contains("lora"), "{}", full.to_toml());
    assert_eq!(Recipe::from_values(Recipe::read_file(&full.to_toml()).unwrap()).unwrap(), full);
}

#[test]
fn what_cannot_work_is_named() {
    let error = |pairs: &[(&str, &str)]| recipe(pairs).unwrap_err();
    assert_eq!(error(&[("learning-rat", "1")]).hint.unwrap(), "did you mean `learning-rate`?");
    assert_eq!(error(&[("batch-size", "0")]).to_string(), "`batch-size` is 0; it must be at least 1");
    assert!(error(&[("batch-size", "2"), ("batch-tokens", "99")]).to_string().contains("cannot be used with"));
    let least = error(&[("lr-scheduler", "cosine_with_min_lr")]);
    assert_eq!(least.to_string(), "`lr-scheduler` cosine_with_min_lr needs `min-learning-rate`");
    assert!(error(&[("min-learning-rate", "1")]).to_string().contains("more than `learning-rate`"));
    assert!(error(&[("min-learning-rate", "1e-5"), ("lr-scheduler", "linear")]).to_string().contains("`cosine`"));
    assert!(error(&[("batch_size", "two")]).to_string().starts_with("`batch_size` cannot be \"two\""));
    assert!(error(&[("full", "true"), ("load-in-4bit", "true")]).to_string().contains("cannot be used with"));
    assert!(error(&[("eval-split", "1.5")]).to_string().contains("below 1"));
    assert!(error(&[("use-rslora", "maybe")]).hint.unwrap().starts_with("true|false: "));
    assert!(error(&[("early-stopping", "2")]).hint.unwrap().contains("eval-split"));
    assert!(error(&[("vision-lr", "1e-5")]).to_string().contains("which is not trained"));
    assert!(error(&[("metric-for-best-model", "eval_mean_iou")]).hint.unwrap().contains("eval-split"));
    let unknown = error(&[("metric-for-best-model", "f1"), ("eval-split", "0.1")]);
    assert!(unknown.to_string().contains("cannot be \"f1\""), "{unknown}");
    assert!(error(&[("batch-tokens", "100"), ("eval-batch-size", "1")]).to_string().contains("cannot be used with"));
    assert!(error(&[("learning-rate", "-1")]).to_string().contains("at least 0"));
    assert!(Recipe::from_values([]).unwrap_err().to_string().contains("`model` is missing"));
    assert!(Recipe::read_file("epochs = = 3").unwrap_err().to_string().contains("line 1"));
}
