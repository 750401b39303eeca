//! Rows that join and leave: whoever is beside a row, it is answered as if it were alone.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use garden_input::FAMILIES;
use garden_model::{
    Adapter, BankLimits, Engine, EngineLimits, Error, Images, NewToken, Order, Prompt, Question, Sampling, Targets,
    read_adapter,
};
use garden_random::SplitMix64;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::case::{Make, is_f32, on_every_device};
use crate::generation::{Agreement, Run, runs};

on_every_device! {
    rows_that_join_and_leave_are_answered_as_alone,
    tokens_flow_while_a_prompt_is_read,
    a_row_without_numbers_ends_alone,
    adapters_share_a_base,
    what_was_read_before_is_not_read_again,
}

/// Places in the engines of these tests: fewer than rows.
const PLACES: usize = 3;

/// A number below `end`.
fn below(random: &mut SplitMix64, end: usize) -> usize {
    (random.unit() * end as f64) as usize
}

/// One of many settings, greedy ones and drawn ones.
fn drawn_sampling(run: &Run, random: &mut SplitMix64) -> Sampling {
    let most = run.greedy().max_new_tokens;
    let mut sampling = Sampling { max_new_tokens: 1 + below(random, most), ..run.greedy() };
    sampling.seed = below(random, 3) as u64;
    sampling.stream = below(random, 3);
    match below(random, 4) {
        0 => (),
        1 => sampling.repetition_penalty = 1.3,
        2 => sampling.temperature = Some(0.7),
        _ => (sampling.temperature, sampling.top_p) = (Some(1.1), Some(0.8)),
    }
    sampling
}

/// What a row gets in an engine of its own.
fn alone(make: Make, run: &Run, prompt: &Prompt, sampling: &Sampling) -> Vec<i32> {
    let device = &mut *make();
    let mut engine = run.build_for(device, EngineLimits { rows: 1, ..run.limits() });
    engine.admit(Question { row: 0, prompt: prompt.clone(), adapter: None, sampling: sampling.clone() }).unwrap();
    while !engine.is_idle() {
        engine.step(device, Order::PromptsFirst, &mut |_| ()).unwrap();
    }
    engine.retire(0).unwrap().tokens
}

fn rows_that_join_and_leave_are_answered_as_alone(make: Make) {
    let mut seen = Agreement::default();
    for (number, run) in runs().into_iter().enumerate() {
        let random = &mut SplitMix64(garden_testing::seed() * 1000 + number as u64);
        let device = &mut *make();
        let mut engine = run.build_for(device, EngineLimits { rows: PLACES, ..run.limits() });
        let mut waiting: Vec<Question> = (0..8)
            .map(|row| {
                let prompt = run.prompts[below(random, run.prompts.len())].clone();
                Question { row: 100 + row, prompt, adapter: None, sampling: drawn_sampling(&run, random) }
            })
            .collect();
        let all = waiting.clone();
        let (mut told, mut ended): (BTreeMap<usize, Vec<i32>>, Vec<usize>) = Default::default();
        let (mut inside, mut gone): (Vec<usize>, Vec<usize>) = Default::default();
        while !waiting.is_empty() || !inside.is_empty() {
            if engine.has_room() && !waiting.is_empty() && below(random, 2) == 0 {
                let question = waiting.remove(0);
                inside.push(question.row);
                engine.admit(question).unwrap();
            } else if !engine.has_room() {
                let question = all[0].clone();
                let refused = engine.admit(Question { row: 999, ..question }).unwrap_err().to_string();
                assert_eq!(refused, "row 999 has no place: the engine was built for 3 at once");
            }
            let order = [Order::PromptsFirst, Order::InTurn][below(random, 2)];
            let mut take = |new: NewToken<'_>| {
                told.entry(new.row).or_default().push(new.token);
                if new.is_last {
                    ended.push(new.row);
                }
            };
            engine.step(device, order, &mut take).unwrap();
            // Finished rows leave late, and now and then somebody goes in the middle of an answer.
            for row in inside.clone() {
                let is_done = ended.contains(&row);
                if below(random, if is_done { 2 } else { 40 }) == 0 {
                    let answer = engine.retire(row).unwrap();
                    assert_eq!(answer.tokens, told.get(&row).cloned().unwrap_or_default());
                    assert!(engine.retire(row).is_none());
                    inside.retain(|other| *other != row);
                    if !is_done {
                        gone.push(row);
                    }
                }
            }
        }
        for question in all {
            let expected = alone(make, &run, &question.prompt, &question.sampling);
            let got = told.remove(&question.row).unwrap_or_default();
            let is_gone = gone.contains(&question.row);
            let expected = if is_gone { &expected[..got.len().min(expected.len())] } else { &expected[..] };
            // What is drawn may be another token as soon as a logit is rounded otherwise.
            if is_f32(make) || question.sampling.temperature.is_none() {
                seen.add(make, &format!("{} {question:?}", run.name()), &got, expected);
            }
        }
        assert!(told.is_empty(), "rows that nobody admitted: {told:?}");
    }
    seen.check();
}

/// A prompt of three pieces of at most 256 tokens.
fn long() -> Prompt {
    Prompt { tokens: (0..700).map(|place| place % 50).collect(), images: Images::default() }
}

fn tokens_flow_while_a_prompt_is_read(make: Make) {
    let run = runs().into_iter().find(|run| run.name() == "images").unwrap();
    let (device, limits) = (&mut *make(), EngineLimits { rows: 2, context: 720, patches: run.limits().patches });
    let mut engine = run.build_for(device, limits);
    let sampling = Sampling { max_new_tokens: 8, ..Sampling::default() };
    let short = |row| Question { row, prompt: run.prompts[0].clone(), adapter: None, sampling: sampling.clone() };
    let long = |row| Question { row, prompt: long(), adapter: None, sampling: sampling.clone() };
    let expected = [short(0), long(1)].map(|question| {
        engine.admit(question).unwrap();
        answered(&mut engine, device)
    });
    for (order, while_read) in [(Order::InTurn, 3), (Order::PromptsFirst, 0)] {
        engine.admit(short(0)).unwrap();
        let mut tokens = Vec::new();
        engine.step(device, Order::PromptsFirst, &mut |new| tokens.push(new.row)).unwrap();
        engine.admit(long(1)).unwrap();
        for _ in 0..3 {
            engine.step(device, order, &mut |new| tokens.push(new.row)).unwrap();
        }
        let of = |row| tokens.iter().filter(|token| **token == row).count();
        assert_eq!(of(0), 1 + while_read, "{order:?}");
        // Read in three pieces; in turn it takes part in the step that has read it.
        assert_eq!(of(1), if order == Order::InTurn { 2 } else { 1 }, "{order:?}");
        while !engine.is_idle() {
            engine.step(device, order, &mut |_| ()).unwrap();
        }
        let got = [0, 1].map(|row| engine.retire(row).unwrap().tokens);
        assert!(!is_f32(make) || got == expected, "{order:?}: {got:?}, {expected:?} expected");
    }
    // Somebody who goes while the prompt is being read leaves nothing to the next one.
    engine.admit(long(5)).unwrap();
    engine.step(device, Order::InTurn, &mut |_| ()).unwrap();
    assert!(engine.retire(5).unwrap().tokens.is_empty());
    engine.admit(short(0)).unwrap();
    assert_eq!(engine.admit(short(0)).unwrap_err().to_string(), "there is a row 0 already");
    assert_eq!(answered(&mut engine, device), expected[0]);
}

/// The answer of the only row.
fn answered(engine: &mut Engine, device: &mut dyn garden_device::Device) -> Vec<i32> {
    let mut row = 0;
    while !engine.is_idle() {
        engine.step(device, Order::PromptsFirst, &mut |new| row = new.row).unwrap();
    }
    engine.retire(row).unwrap().tokens
}

fn a_row_without_numbers_ends_alone(make: Make) {
    let run = runs().into_iter().find(|run| run.name() == "images").unwrap();
    let device = &mut *make();
    let mut engine = run.build_for(device, EngineLimits { rows: PLACES, ..run.limits() });
    let with_image = run.prompts.iter().position(|prompt| !prompt.images.grids.is_empty()).unwrap();
    let mut prompt = run.prompts[with_image].clone();
    prompt.images.pixels.fill(3e38);
    engine.admit(Question { row: 0, prompt: run.prompts[0].clone(), adapter: None, sampling: run.greedy() }).unwrap();
    engine.admit(Question { row: 7, prompt, adapter: None, sampling: run.greedy() }).unwrap();
    let mut errors = Vec::new();
    while !engine.is_idle() {
        if let Err(error) = engine.step(device, Order::InTurn, &mut |_| ()) {
            errors.push(error);
        }
    }
    assert!(matches!(&errors[..], [Error::NotFinite(what)] if what.starts_with("row 7:")), "{errors:?}");
    assert!(engine.retire(7).unwrap().tokens.is_empty());
    let left = engine.retire(0).unwrap().tokens;
    let expected = alone(make, &run, &run.prompts[0], &run.greedy());
    assert!(!is_f32(make) || left == expected, "{left:?}, {expected:?} expected");
}

/// An adapter like a recorded one, of drawn values and another rank, for the linears whose names have one of some words in them.
fn drawn_adapter(like: &Path, name: &str, rank: usize, is_rank_stabilised: bool, words: &[&str]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("garden-engine-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(like.join("adapter_config.json")).unwrap()).unwrap();
    config["r"] = rank.into();
    config["lora_alpha"] = (2 * rank).into();
    config["use_rslora"] = is_rank_stabilised.into();
    config["target_modules"] = format!(r".*\.({})", words.join("|")).into();
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let bytes = fs::read(like.join("adapter_model.safetensors")).unwrap();
    let mut random = SplitMix64(rank as u64);
    let mut made: HashMap<String, (Vec<usize>, Vec<u8>)> = HashMap::new();
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let linear = name.strip_suffix(".lora_A.weight").or(name.strip_suffix(".lora_B.weight")).unwrap();
        if words.iter().any(|word| linear.ends_with(&format!(".{word}"))) {
            let mut shape = tensor.shape().to_vec();
            shape[usize::from(name.contains("lora_B"))] = rank;
            let values = (0..shape.iter().product()).map(|_| (random.unit() as f32 - 0.5) * 0.6);
            made.insert(name, (shape, values.flat_map(f32::to_le_bytes).collect()));
        }
    }
    let views = made
        .iter()
        .map(|(name, (shape, bytes))| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    fs::write(folder.join("adapter_model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    folder
}

/// The tokens of a row in an engine of its own, and the logits of each.
fn in_engine(engine: &mut Engine, device: &mut dyn garden_device::Device, question: Question) -> (Vec<i32>, Vec<f32>) {
    let (row, mut logits) = (question.row, Vec::new());
    engine.admit(question).unwrap();
    while !engine.is_idle() {
        engine.step(device, Order::PromptsFirst, &mut |new| logits.extend_from_slice(new.logits)).unwrap();
    }
    (engine.retire(row).unwrap().tokens, logits)
}

fn adapters_share_a_base(make: Make) {
    let run = runs().into_iter().find(|run| run.name() == "vision_adapter").unwrap();
    let recorded = crate::case::testdata().join("reference/recorded/vision_lora/adapter");
    let attention = drawn_adapter(&recorded, &format!("{}-attention", is_f32(make)), 4, true, &["q_proj", "v_proj"]);
    let tower = drawn_adapter(&recorded, &format!("{}-tower", is_f32(make)), 8, false, &["qkv", "down_proj", "mlp.0"]);
    let read = |folder: &Path| read_adapter(folder, FAMILIES[0]).unwrap();
    let adapters: Vec<Adapter> = [&recorded, &attention, &tower].map(|folder| read(folder)).into_iter().collect();
    let bank = BankLimits { slots: 3, rank: 8, targets: Targets::all(FAMILIES[0]) };
    let limits = EngineLimits { rows: PLACES, ..run.limits() };
    let build = |device: &mut dyn garden_device::Device, adapter: Option<&Adapter>| {
        Engine::build(device, &run.config, &run.checkpoint, adapter, None, limits).unwrap()
    };
    let device = &mut *make();
    let mut engine = Engine::with_bank(device, &run.config, &run.checkpoint, &bank, None, limits).unwrap();
    let question = |row: usize, adapter: Option<usize>| Question {
        row,
        prompt: run.prompts[row % run.prompts.len()].clone(),
        adapter,
        sampling: Sampling { has_logits: true, ..run.greedy() },
    };
    let error = engine.admit(question(0, Some(1))).unwrap_err().to_string();
    assert_eq!(error, "row 0 wants the adapter in place 1, where there is none");
    // What is in which place changes: nothing is left of what was there before.
    let mut seen = Agreement::default();
    for places in [[0, 1, 2], [2, 0, 1], [1, 1, 0]] {
        for (slot, adapter) in places.iter().enumerate() {
            engine.load(device, slot, &adapters[*adapter]).unwrap();
        }
        let rows: Vec<Option<usize>> = vec![Some(0), None, Some(1), Some(2), Some(0), None, Some(2)];
        let (mut waiting, mut logits): (Vec<usize>, Vec<Vec<f32>>) = ((0..rows.len()).rev().collect(), vec![]);
        let mut answers: BTreeMap<usize, Vec<i32>> = BTreeMap::new();
        logits.resize(rows.len(), Vec::new());
        while answers.len() < rows.len() {
            if engine.has_room()
                && let Some(row) = waiting.pop()
            {
                engine.admit(question(row, rows[row])).unwrap();
            }
            let mut ended = Vec::new();
            let mut take = |new: NewToken<'_>| {
                logits[new.row].extend_from_slice(new.logits);
                ended.extend(new.is_last.then_some(new.row));
            };
            engine.step(device, Order::InTurn, &mut take).unwrap();
            for row in ended {
                answers.insert(row, engine.retire(row).unwrap().tokens);
            }
        }
        for (row, slot) in rows.iter().enumerate() {
            let alone = &mut *make();
            let mut engine = build(alone, slot.map(|slot| &adapters[places[slot]]));
            let (tokens, expected) = in_engine(&mut engine, alone, question(row, None));
            let place = format!("row {row} with {slot:?} of {places:?}");
            let same = seen.add(make, &place, &answers[&row], &tokens);
            let vocabulary = run.config.text.vocabulary;
            let until = (same + 1).min(tokens.len()).min(answers[&row].len()) * vocabulary;
            let off = crate::generation::apart(&logits[row][..until], &expected[..until]);
            assert!(off < crate::generation::of_its_own(make), "{place}: logits are off by {off:.1e}");
        }
    }
    seen.check();
    for folder in [attention, tower] {
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn adapters_that_cannot_share_a_base_are_refused() {
    let run = runs().into_iter().find(|run| run.name() == "adapter").unwrap();
    let device = &mut garden_device::Cpu::new(1);
    let folder = |name: &str| crate::case::testdata().join("reference").join(name);
    let adapter = read_adapter(&folder("recorded/decoder_lora/adapter"), FAMILIES[0]).unwrap();
    let attempt = |device: &mut garden_device::Cpu, slots, rank, targets, adapter: &Adapter, slot| {
        let bank = BankLimits { slots, rank, targets };
        let mut engine = Engine::with_bank(device, &run.config, &run.checkpoint, &bank, None, run.limits()).unwrap();
        engine.load(device, slot, adapter).unwrap_err().to_string()
    };
    let all = || Targets::decoder(FAMILIES[0]);
    let narrow = attempt(device, 2, 2, all(), &adapter, 0);
    assert!(narrow.ends_with("layers.0.mlp.down_proj`; there is room for 2"), "{narrow}");
    let fewer = attempt(device, 2, 8, Targets::listed(["q_proj"]), &adapter, 1);
    assert!(fewer.ends_with("mlp.down_proj`, for which there is no room"), "{fewer}");
    assert_eq!(attempt(device, 2, 8, all(), &adapter, 2), "there is no place 2 for an adapter");
    let dora = read_adapter(&folder("recorded_dora/adapter"), FAMILIES[0]).unwrap();
    let refused = attempt(device, 1, 8, all(), &dora, 0);
    assert!(refused.contains("is a DoRA adapter, which changes the base"), "{refused}");
}

/// Steps that an engine needs until a prompt is read.
fn pieces(engine: &mut Engine, device: &mut dyn garden_device::Device, question: Question) -> (usize, usize, Vec<f32>) {
    let (row, mut logits, mut steps) = (question.row, Vec::new(), 0);
    let reused = engine.admit(question).unwrap();
    while logits.is_empty() {
        engine.step(device, Order::PromptsFirst, &mut |new| logits.extend_from_slice(new.logits)).unwrap();
        steps += 1;
    }
    while !engine.is_idle() {
        engine.step(device, Order::PromptsFirst, &mut |new| logits.extend_from_slice(new.logits)).unwrap();
    }
    engine.retire(row).unwrap();
    (reused, steps, logits)
}

fn what_was_read_before_is_not_read_again(make: Make) {
    let run = runs().into_iter().find(|run| run.name() == "vision_adapter").unwrap();
    let with_image = run.prompts.iter().find(|prompt| !prompt.images.grids.is_empty()).unwrap();
    let text = |count: i32, word: i32| (0..count).map(move |place| (place * 7 + word) % 50);
    // A picture, then a conversation that grows.
    let turn = |count: i32, word: i32| Prompt {
        tokens: with_image.tokens.iter().copied().chain(text(count, 1)).chain(text(30, word)).collect(),
        images: with_image.images.clone(),
    };
    let first = with_image.tokens.len();
    let mut other_picture = turn(900, 3);
    other_picture.images.pixels[5] += 0.5;
    // A second picture behind what is shared.
    let mut two_pictures = turn(900, 4);
    two_pictures.tokens.extend(&with_image.tokens);
    two_pictures.images.pixels.extend(&with_image.images.pixels);
    two_pictures.images.grids.extend(&with_image.images.grids);
    let whole = |tokens: usize| tokens / 256 * 256;
    let cases = [
        ("the first turn", turn(300, 2), None, 0),
        ("a longer one", turn(900, 2), None, whole(first + 300)),
        ("the same again", turn(900, 2), None, whole(first + 930 - 1)),
        ("another picture", other_picture, None, 0),
        ("the first picture", turn(900, 9), None, whole(first + 900)),
        ("two pictures", two_pictures, None, whole(first + 900)),
        ("an adapter", turn(900, 2), Some(0), 0),
        ("the adapter again", turn(900, 5), Some(0), whole(first + 900)),
    ];
    let bank = BankLimits { slots: 1, rank: 8, targets: Targets::all(FAMILIES[0]) };
    let recorded = crate::case::testdata().join("reference/recorded/vision_lora/adapter");
    let adapter = read_adapter(&recorded, FAMILIES[0]).unwrap();
    let limits = EngineLimits { rows: 2, context: 1200, patches: 2 * run.limits().patches };
    let build = |device: &mut dyn garden_device::Device| {
        let mut engine = Engine::with_bank(device, &run.config, &run.checkpoint, &bank, None, limits).unwrap();
        engine.load(device, 0, &adapter).unwrap();
        engine
    };
    let sampling = Sampling { max_new_tokens: 3, has_logits: true, ..Sampling::default() };
    let (device, fresh) = (&mut *make(), &mut *make());
    let mut engine = build(device);
    engine.keep_prefixes();
    for (what, prompt, adapter, expected) in cases {
        let question = Question { row: 1, prompt, adapter, sampling: sampling.clone() };
        let tokens = question.prompt.tokens.len();
        let (reused, steps, logits) = pieces(&mut engine, device, question.clone());
        assert_eq!((reused, steps), (expected, (tokens - expected).div_ceil(256)), "{what}");
        let mut without = build(fresh);
        let (nothing, _, same) = pieces(&mut without, fresh, question);
        assert_eq!(nothing, 0);
        assert_eq!(
            logits.iter().map(|logit| logit.to_bits()).collect::<Vec<u32>>(),
            same.iter().map(|logit| logit.to_bits()).collect::<Vec<u32>>(),
            "{what}: not the bits of one that reads everything"
        );
    }
    // Logits of another prompt are computed in the place of the first slot, here the only one.
    let question = Question { row: 1, prompt: turn(900, 2), adapter: None, sampling: sampling.clone() };
    let only = EngineLimits { rows: 1, ..limits };
    let mut single = Engine::with_bank(fresh, &run.config, &run.checkpoint, &bank, None, only).unwrap();
    single.keep_prefixes();
    let (_, _, expected) = pieces(&mut single, fresh, question.clone());
    single.logits(fresh, Prompt { tokens: text(600, 8).collect(), images: Images::default() }).unwrap();
    let (reused, _, logits) = pieces(&mut single, fresh, question);
    assert_eq!((reused, logits), (0, expected));
    // Nothing is left of an adapter that is gone.
    engine.load(device, 0, &adapter).unwrap();
    let question = Question { row: 1, prompt: turn(900, 2), adapter: Some(0), sampling };
    assert_eq!(pieces(&mut engine, device, question).0, 0);
}
