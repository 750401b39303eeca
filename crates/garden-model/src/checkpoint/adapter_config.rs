//! PEFT's `adapter_config.json`. Each field is understood, harmless for a reason, or refused by its name: an adapter that means something else than
//! it seems to would answer wrongly.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::network::lora::{Layers, LoraConfig, Names, Targets};

/// What an adapter's configuration says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdapterConfig {
    pub lora: LoraConfig,
    /// Whether each row of a merged weight is scaled to a learnt length.
    pub is_dora: bool,
    /// Whether PEFT trains its A alone.
    pub keeps_b: bool,
    /// Its base model: a hub name or a path.
    pub base: Option<String>,
}

/// Fields that decide what the adapter means, read below.
const UNDERSTOOD: [&str; 16] = [
    "peft_type",
    "base_model_name_or_path",
    "r",
    "lora_alpha",
    "use_rslora",
    "use_dora",
    "lora_dropout",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "init_lora_weights",
    "bias",
];

/// Fields that change nothing in what a saved adapter means, and why.
const HARMLESS: [(&str, &str); 18] = [
    ("task_type", "it chooses a class of PEFT"),
    ("auto_mapping", "it names the base's class"),
    ("peft_version", "it says who wrote the file"),
    ("revision", "it says which commit of the base was used"),
    ("inference_mode", "it says whether PEFT would train it on"),
    ("fan_in_fan_out", "PEFT takes it for false where the base has linear layers, as all models here have"),
    ("megatron_core", "it has no effect without `megatron_config`"),
    ("qalora_group_size", "it has no effect without `use_qalora`"),
    ("loftq_config", "it is about initial values; `init_lora_weights` says whether they changed the base"),
    ("eva_config", "it is about initial values of A"),
    ("corda_config", "it is about initial values; `init_lora_weights` says whether they changed the base"),
    ("lora_ga_config", "it is about initial values; `init_lora_weights` says whether they changed the base"),
    ("runtime_config", "it is about where PEFT computes"),
    ("ensure_weight_tying", "modules with tied weights are refused by their names"),
    ("lora_dtype", "ms-swift's: the tensors have their dtypes themselves"),
    ("lorap_lr_ratio", "ms-swift's: it is about the optimiser"),
    ("lorap_emb_lr", "ms-swift's: it is about the optimiser"),
    ("merge_weights", "early PEFT's: it says when to merge"),
];

/// Fields that may only be unset, and what they would mean.
const REFUSED: [(&str, &str); 12] = [
    ("lora_bias", "adapters with a bias"),
    ("target_parameters", "adapters of parameters that are no linear layers"),
    ("trainable_token_indices", "single rows of the embedding, trained as a whole"),
    ("layer_replication", "layers that are repeated"),
    ("megatron_config", "layers that are split by Megatron"),
    ("alora_invocation_tokens", "an adapter that begins to act at some tokens"),
    ("use_qalora", "A with inputs in groups"),
    ("use_bdlora", "block-diagonal A or B"),
    ("velora_config", "inputs that are compressed"),
    ("monteclora_config", "matrices that are drawn"),
    ("arrow_config", "several adapters with a router"),
    ("kasa_config", "a base that is decomposed, and a diagonal between A and B"),
];

/// Initial values that leave the base as it is.
const INITS_BESIDE: [&str; 4] = ["gaussian", "eva", "orthogonal", MICA];
/// Minor Component Adaptation: B has values of the base's decomposition, which training keeps.
const MICA: &str = "mica";

/// What to do with an adapter that cannot be read.
const WAY_OUT: &str = "merge it with PEFT's `merge_and_unload`, save the result, and use that as the model";

impl AdapterConfig {
    /// Reads the text of a file. `modules` are the linears that the adapter has tensors for: newer names, and those in the file.
    pub fn parse(path: &Path, text: &str, modules: &BTreeMap<String, String>) -> Result<AdapterConfig, Error> {
        let not_json = |error: serde_json::Error| Error::broken(path, format!("not JSON: {error}"));
        let value: Value = serde_json::from_str(text).map_err(not_json)?;
        let Value::Object(fields) = value else {
            return Err(Error::broken(path, "not a JSON object"));
        };
        let fields = Fields { path, fields };
        let kind = fields.get("peft_type").and_then(Value::as_str).unwrap_or("");
        if kind != "LORA" {
            return Err(fields.wrong("peft_type", format!("is `{kind}`; only `LORA` is supported: {WAY_OUT}")));
        }
        fields.check_known()?;
        fields.check_init()?;
        let patterns: Patterns = serde_json::from_str(text)
            .map_err(|error| fields.wrong("rank_pattern` or `alpha_pattern", format!("is no mapping: {error}")))?;
        let names = fields
            .names("target_modules")?
            .ok_or_else(|| fields.wrong("target_modules", "is neither a string nor a list of names"))?;
        let lora = LoraConfig {
            rank: fields.rank("r", fields.get("r"))?,
            alpha: fields.number("lora_alpha", fields.get("lora_alpha"))?,
            is_rank_stabilised: fields.is_set("use_rslora")?,
            dropout: fields.get("lora_dropout").map_or(Ok(0.0), |rate| fields.number("lora_dropout", Some(rate)))?,
            targets: Targets { layers: fields.layers(&names)?, excluded: fields.names("exclude_modules")?, names },
            modules_to_save: match fields.names("modules_to_save")? {
                None => Vec::new(),
                Some(Names::Listed(names)) => names,
                Some(Names::Pattern(_)) => return Err(fields.wrong("modules_to_save", "is not a list of names")),
            },
            ranks: patterns.ranks(&fields)?,
            alphas: patterns.alphas(&fields)?,
        };
        Ok(AdapterConfig {
            lora: settled(&fields, lora, modules)?,
            is_dora: fields.is_set("use_dora")?,
            keeps_b: fields
                .get("init_lora_weights")
                .and_then(Value::as_str)
                .is_some_and(|name| name.to_lowercase() == MICA),
            base: fields.get("base_model_name_or_path").and_then(Value::as_str).map(String::from),
        })
    }
}

/// A configuration that finds the linears by the names that this program uses.
///
/// Where that cannot be told from the patterns, the tensors tell it: PEFT wrote one for each linear that it found. So it is with patterns that look
/// around, as ms-swift and LLaMA-Factory write them, and with patterns for the names of older models.
fn settled(fields: &Fields<'_>, mut lora: LoraConfig, modules: &BTreeMap<String, String>) -> Result<LoraConfig, Error> {
    let all = Names::Pattern("all-linear".to_string());
    let targets = LoraConfig { targets: lora.targets.clone(), ..LoraConfig::default() };
    if lora.targets.names == all || targets.modules().is_err() {
        lora.targets = Targets::listed(modules.keys());
    }
    let known = lora.modules().map_err(|error| {
        let field = if lora.ranks.is_empty() { "alpha_pattern" } else { "rank_pattern" };
        fields.wrong(field, format!("has a pattern that cannot be read: {error}"))
    })?;
    let is_older = modules.iter().any(|(newer, stored)| newer != stored);
    if is_older && modules.values().all(|stored| known.contain(stored)) {
        let each = |(newer, stored): (&String, &String)| (regex_lite::escape(newer), stored.clone());
        let each: Vec<(String, String)> = modules.iter().map(each).collect();
        if !lora.ranks.is_empty() {
            lora.ranks = each.iter().map(|(newer, stored)| (newer.clone(), known.rank(stored))).collect();
        }
        if !lora.alphas.is_empty() {
            lora.alphas = each.iter().map(|(newer, stored)| (newer.clone(), known.alpha(stored))).collect();
        }
        if !modules.keys().all(|newer| known.contain(newer)) {
            lora.targets = Targets::listed(modules.keys());
        }
    }
    Ok(lora)
}

struct Fields<'a> {
    path: &'a Path,
    fields: Map<String, Value>,
}

impl Fields<'_> {
    /// A field that is there and not null.
    fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, field: &str, problem: impl Into<String>) -> Error {
        Error::field(self.path, field, problem)
    }

    /// Refuses what would change the adapter's meaning, and what is unknown.
    fn check_known(&self) -> Result<(), Error> {
        for (name, value) in &self.fields {
            let name = name.as_str();
            if UNDERSTOOD.contains(&name) || HARMLESS.iter().any(|(one, _)| *one == name) || is_unset(value) {
                continue;
            }
            let why = match REFUSED.iter().find(|(one, _)| *one == name) {
                Some((_, meaning)) => format!("which means {meaning} and is not supported"),
                None => "which is unknown here and may change what the adapter means".to_string(),
            };
            return Err(self.wrong(name, format!("is {}, {why}: {WAY_OUT}", short(value))));
        }
        match self.get("bias").and_then(Value::as_str) {
            None | Some("none") => Ok(()),
            Some(other) => {
                Err(self.wrong("bias", format!("is `{other}`: trained biases are not supported: {WAY_OUT}")))
            }
        }
    }

    /// Refuses initial values that changed the base: without that base the adapter means something else.
    fn check_init(&self) -> Result<(), Error> {
        let given = match self.get("init_lora_weights") {
            None | Some(Value::Bool(_)) => return Ok(()),
            Some(Value::String(given)) => given,
            Some(_) => return Err(self.wrong("init_lora_weights", "is neither a name nor true or false")),
        };
        let name = given.to_lowercase();
        if INITS_BESIDE.contains(&name.as_str()) {
            return Ok(());
        }
        let problem = match name.as_str() {
            "loftq" => format!(
                "is `{given}`: the adapter belongs to weights that LoftQ rounded, not to the base as it was released. {}",
                sentence(WAY_OUT)
            ),
            other if ["pissa", "olora", "corda", "lora_ga"].iter().any(|one| other.starts_with(one)) => format!(
                "is `{given}`: the adapter belongs to a base from which its first values were taken away. Convert it with PEFT, where it was trained: \
                 `model.save_pretrained(folder, path_initial_model_for_weight_conversion=folder_of_the_first_values)`; or {WAY_OUT}"
            ),
            _ => format!("is `{given}`, which is unknown here and may have changed the base: {WAY_OUT}"),
        };
        Err(self.wrong("init_lora_weights", problem))
    }

    fn is_set(&self, name: &str) -> Result<bool, Error> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(is_set)) => Ok(*is_set),
            Some(other) => Err(self.wrong(name, format!("is {}; expected true or false", short(other)))),
        }
    }

    fn number(&self, name: &str, value: Option<&Value>) -> Result<f32, Error> {
        value.and_then(Value::as_f64).map(|number| number as f32).ok_or_else(|| match value {
            Some(other) => self.wrong(name, format!("has {}; expected a number", short(other))),
            None => self.wrong(name, "is missing"),
        })
    }

    fn rank(&self, name: &str, value: Option<&Value>) -> Result<usize, Error> {
        let whole = value.and_then(Value::as_u64).filter(|rank| (1..=1 << 20).contains(rank));
        whole.map(|rank| rank as usize).ok_or_else(|| match value {
            Some(other) => self.wrong(name, format!("has {}; expected a rank of at least 1", short(other))),
            None => self.wrong(name, "is missing"),
        })
    }

    /// A pattern, or a list of names; `None` for null and for an empty list.
    fn names(&self, name: &str) -> Result<Option<Names>, Error> {
        let wrong = |value: &Value| self.wrong(name, format!("has {}; expected a name", short(value)));
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(pattern)) => Ok(Some(Names::Pattern(pattern.clone()))),
            Some(Value::Array(names)) if names.is_empty() => Ok(None),
            Some(Value::Array(names)) => {
                let names = names.iter().map(|one| one.as_str().map(String::from).ok_or_else(|| wrong(one)));
                Ok(Some(Names::Listed(names.collect::<Result<_, Error>>()?)))
            }
            Some(other) => Err(wrong(other)),
        }
    }

    /// Chosen layers, which PEFT has beside listed names alone.
    fn layers(&self, targets: &Names) -> Result<Option<Layers>, Error> {
        let name = "layers_to_transform";
        for field in [name, "layers_pattern"] {
            if let (Names::Pattern(_), Some(given)) = (targets, self.get(field)) {
                let problem = format!(
                    "is {} beside a `target_modules` that is one string: PEFT reads no such file",
                    short(given)
                );
                return Err(self.wrong(field, problem));
            }
        }
        let number = |value: &Value| {
            value.as_u64().map(|number| number as usize).ok_or_else(|| {
                self.wrong(name, format!("has {}; expected the number of a layer, or a list of them", short(value)))
            })
        };
        let numbers = match self.get(name) {
            None => return Ok(None),
            Some(Value::Array(all)) if all.is_empty() => return Ok(None),
            Some(Value::Array(all)) => all.iter().map(number).collect::<Result<_, Error>>()?,
            Some(one) => vec![number(one)?],
        };
        let before = match self.names("layers_pattern")? {
            None => Vec::new(),
            Some(Names::Pattern(one)) => vec![one],
            Some(Names::Listed(all)) => all,
        };
        Ok(Some(Layers { numbers, before }))
    }
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// A value in a message.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Patterns in the order of the file: the first that matches counts.
#[derive(Default, Deserialize)]
struct Patterns {
    #[serde(default)]
    rank_pattern: Ordered,
    #[serde(default)]
    alpha_pattern: Ordered,
}

#[derive(Default)]
struct Ordered(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ordered, D::Error> {
        deserializer.deserialize_any(OrderedVisitor)
    }
}

struct OrderedVisitor;

impl<'de> Visitor<'de> for OrderedVisitor {
    type Value = Ordered;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping from patterns to numbers")
    }

    fn visit_unit<E>(self) -> Result<Ordered, E> {
        Ok(Ordered::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered, A::Error> {
        let mut all = Vec::new();
        while let Some(entry) = map.next_entry()? {
            all.push(entry);
        }
        Ok(Ordered(all))
    }
}

impl Patterns {
    fn ranks(&self, fields: &Fields<'_>) -> Result<Vec<(String, usize)>, Error> {
        let of = |(pattern, rank): &(String, Value)| Ok((pattern.clone(), fields.rank("rank_pattern", Some(rank))?));
        self.rank_pattern.0.iter().map(of).collect()
    }

    fn alphas(&self, fields: &Fields<'_>) -> Result<Vec<(String, f32)>, Error> {
        let of =
            |(pattern, alpha): &(String, Value)| Ok((pattern.clone(), fields.number("alpha_pattern", Some(alpha))?));
        self.alpha_pattern.0.iter().map(of).collect()
    }
}

/// The text of a file for an adapter. `base` becomes PEFT's `base_model_name_or_path`.
pub(crate) fn config_text(config: &LoraConfig, base: Option<&str>) -> String {
    let names = |names: &Names| match names {
        Names::Pattern(pattern) => json!(pattern),
        Names::Listed(names) => json!(names),
    };
    let targets = &config.targets;
    let layers = targets.layers.as_ref();
    // All fields that PEFT 0.15 and later write for such an adapter; PEFT fills in defaults for missing ones.
    let fields = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "auto_mapping": null,
        "base_model_name_or_path": base,
        "revision": null,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "use_rslora": config.is_rank_stabilised,
        "target_modules": names(&targets.names),
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": (!config.modules_to_save.is_empty()).then_some(&config.modules_to_save),
        "exclude_modules": targets.excluded.as_ref().map(names),
        "layers_to_transform": layers.map(|layers| &layers.numbers),
        "layers_pattern": layers.filter(|layers| !layers.before.is_empty()).map(|layers| &layers.before),
        "layer_replication": null,
        "loftq_config": {},
        "eva_config": null,
        "corda_config": null,
        "lora_bias": false,
        "megatron_config": null,
        "megatron_core": "megatron.core",
        "trainable_token_indices": null,
        "use_dora": false,
    });
    let file = File { fields, rank_pattern: InOrder(&config.ranks), alpha_pattern: InOrder(&config.alphas) };
    serde_json::to_string_pretty(&file).unwrap_or_default()
}

#[derive(Serialize)]
struct File<'a> {
    #[serde(flatten)]
    fields: Value,
    rank_pattern: InOrder<'a, usize>,
    alpha_pattern: InOrder<'a, f32>,
}

/// A JSON object with its keys in order, which is part of the patterns' meaning; a `Value` would sort them.
struct InOrder<'a, T>(&'a [(String, T)]);

impl<T: Serialize> Serialize for InOrder<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(pattern, value)| (pattern, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES: [&str; 3] = [
        "model.language_model.layers.0.self_attn.q_proj",
        "model.language_model.layers.1.mlp.down_proj",
        "model.language_model.layers.1.self_attn.q_proj",
    ];

    fn parse_for(modules: &[(&str, &str)], change: impl FnOnce(&mut Value)) -> Result<AdapterConfig, String> {
        let mut value =
            json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]});
        change(&mut value);
        let modules = modules.iter().map(|(newer, stored)| (newer.to_string(), stored.to_string())).collect();
        AdapterConfig::parse(Path::new("a"), &value.to_string(), &modules).map_err(|error| error.to_string())
    }

    fn parse(change: impl FnOnce(&mut Value)) -> Result<AdapterConfig, String> {
        parse_for(&MODULES.map(|module| (module, module)), change)
    }

    #[test]
    fn each_field_is_in_one_list() {
        let mut names: Vec<&str> = UNDERSTOOD.to_vec();
        names.extend(HARMLESS.iter().chain(&REFUSED).map(|(name, _)| *name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn initial_values_that_changed_the_base_are_refused() {
        for name in ["pissa", "pissa_niter_16", "olora", "corda", "lora_ga", "PiSSA"] {
            let told = parse(|value| value["init_lora_weights"] = json!(name)).unwrap_err();
            assert!(told.contains(name) && told.contains("path_initial_model_for_weight_conversion"), "{told}");
        }
        assert!(parse(|value| value["init_lora_weights"] = json!("loftq")).unwrap_err().contains("LoftQ rounded"));
        assert!(parse(|value| value["init_lora_weights"] = json!("magic")).unwrap_err().contains("unknown here"));
        for harmless in [json!(true), json!(false), json!("gaussian"), json!("eva"), json!("orthogonal"), json!(null)] {
            parse(|value| value["init_lora_weights"] = harmless).unwrap();
        }
    }

    #[test]
    fn fields_that_change_the_meaning_are_refused_by_name() {
        for (field, set) in [
            ("lora_bias", json!(true)),
            ("bias", json!("lora_only")),
            ("layer_replication", json!([[0, 4], [2, 5]])),
            ("trainable_token_indices", json!([1, 2])),
            ("use_bdlora", json!({"nblocks": 2})),
            ("something_of_tomorrow", json!(0.5)),
            ("r", json!(0)),
            ("r", json!("16")),
            ("lora_alpha", json!(null)),
            ("target_modules", json!([1])),
            ("layers_to_transform", json!("all")),
            ("use_rslora", json!("yes")),
        ] {
            let told = parse(|value| value[field] = set).unwrap_err();
            assert!(told.starts_with(&format!("`a`: field `{field}` ")), "{told}");
        }
        for (field, unset) in
            [("lora_bias", json!(false)), ("something_of_tomorrow", json!({})), ("bias", json!("none"))]
        {
            parse(|value| value[field] = unset).unwrap();
        }
    }

    #[test]
    fn patterns_choose_ranks_and_alphas_in_their_order() {
        let text = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": true, "target_modules": ["q_proj", "down_proj"],
            "rank_pattern": {"layers.1.self_attn.q_proj": 16, "q_proj": 2}, "alpha_pattern": {"mlp\\..*": 3}}"#;
        let modules = MODULES.map(|module| (module.to_string(), module.to_string())).into();
        let config = AdapterConfig::parse(Path::new("a"), text, &modules).unwrap().lora;
        let found = config.modules().unwrap();
        assert_eq!(MODULES.map(|module| found.rank(module)), [2, 4, 16]);
        assert_eq!(MODULES.map(|module| found.scale(module)), [8.0 / 2.0_f32.sqrt(), 3.0 / 2.0, 8.0 / 4.0]);
        // What is written means the same.
        let again = AdapterConfig::parse(Path::new("a"), &config_text(&config, None), &modules).unwrap().lora;
        assert_eq!(again, config);
    }

    #[test]
    fn layers_and_exclusions_choose_modules() {
        let found = |change: &dyn Fn(&mut Value)| {
            let modules = parse(change).unwrap().lora.modules().unwrap();
            MODULES.map(|module| modules.contain(module))
        };
        assert_eq!(found(&|value| value["layers_to_transform"] = json!(1)), [false, true, true]);
        assert_eq!(found(&|value| value["layers_to_transform"] = json!([0])), [true, false, false]);
        for (field, given) in [
            ("layers_to_transform", json!([0])),
            ("layers_to_transform", json!([])),
            ("layers_pattern", json!("layers")),
        ] {
            let told = parse(|value| {
                value["target_modules"] = json!(".*_proj");
                value[field] = given;
            });
            assert!(told.unwrap_err().contains("PEFT reads no such file"), "{field}");
        }
        assert_eq!(found(&|value| value["exclude_modules"] = json!(["down_proj"])), [true, false, true]);
        assert_eq!(found(&|value| value["exclude_modules"] = json!(r".*\.1\..*")), [true, false, false]);
    }

    #[test]
    fn tensors_tell_the_targets_where_patterns_cannot() {
        for pattern in [r"^(?!.*visual)(?=.*layers).*(q_proj|down_proj)$", "all-linear"] {
            let found = parse(|value| value["target_modules"] = json!(pattern)).unwrap().lora;
            assert_eq!(found.targets, Targets::listed(MODULES));
        }
        // Names of older models.
        let older = [(MODULES[0], "model.layers.0.self_attn.q_proj"), (MODULES[1], "model.layers.1.mlp.down_proj")];
        let found = parse_for(&older, |value| {
            value["target_modules"] = json!(r"model\.layers\.\d+\.(self_attn|mlp)\..*");
            value["alpha_pattern"] = json!({"^model.layers.0.self_attn.q_proj": 1});
        });
        let found = found.unwrap().lora;
        assert_eq!(found.targets, Targets::listed([MODULES[0], MODULES[1]]));
        let modules = found.modules().unwrap();
        assert_eq!([modules.scale(MODULES[0]), modules.scale(MODULES[1])], [1.0 / 4.0, 2.0]);
        // Suffixes fit both.
        let found = parse_for(&older, |_| ()).unwrap().lora;
        assert_eq!(found.targets, Targets::listed(["q_proj", "down_proj"]));
    }
}
