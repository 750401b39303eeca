//! A plan needs no weights: from shapes alone it is the one from the files, buffer by buffer.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use garden_input::FAMILIES;
use std::collections::BTreeSet;

use crate::case::{Case, cases};
use garden_device::{Cpu, Device, Dtype, Plan, Planner, Purpose};
use garden_model::{
    Checkpoint, FourBit, GradientCheckpointing, Limits, LoraConfig, Model, Preset, Storage, Targets, Training,
};

fn plan(case: &Case, checkpoint: &Checkpoint, storage: &Storage, recompute: GradientCheckpointing) -> Plan {
    let mut planner = Planner::for_cpu(3);
    let training = case.training();
    Model::build(&mut planner, &case.config, checkpoint, &training, recompute, storage, case.limits()).unwrap();
    planner.plan().clone()
}

/// What a recorded checkpoint has its embedding in; the recorded ones have one dtype for all.
fn dtype(case: &Case) -> Dtype {
    case.checkpoint.tensor(case.config.family.names.embedding).unwrap().dtype
}

fn is_packed(case: &Case) -> bool {
    case.checkpoint.names().any(|name| name.contains("quant_state"))
}

#[test]
fn a_plan_from_shapes_is_the_one_from_the_files() {
    let mut packed = 0;
    for case in cases().into_iter().filter(|case| !is_packed(case)) {
        let shapes = Checkpoint::of_shapes(&case.config, dtype(&case)).unwrap();
        assert_eq!(
            shapes.names().collect::<BTreeSet<_>>(),
            case.checkpoint
                .names()
                .filter(|name| !(case.config.is_tied && *name == case.config.family.names.head))
                .collect()
        );
        let mut storages = vec![case.storage()];
        if case.adapter().is_some() {
            let kept = vec!["lm_head".to_string()];
            storages.push(Storage { four_bit: Some(FourBit::default()), has_8bit_moments: true });
            storages.push(Storage {
                four_bit: Some(FourBit { is_double: false, kept: Some(kept) }),
                has_8bit_moments: false,
            });
        }
        for storage in storages {
            packed += usize::from(storage.four_bit.is_some());
            for recompute in [GradientCheckpointing::Off, GradientCheckpointing::PerLayer] {
                let expected = plan(&case, &case.checkpoint, &storage, recompute);
                assert_eq!(plan(&case, &shapes, &storage, recompute), expected, "{} {storage:?}", case.name());
            }
        }
    }
    assert!(packed >= 10, "only {packed} plans with weights of 4 bits were compared");
}

#[test]
fn packing_on_load_takes_what_was_planned_from_shapes() {
    for case in cases().into_iter().filter(|case| !is_packed(case) && case.adapter().is_some()) {
        let (mut cpu, storage) = (Cpu::new(3), Storage { four_bit: Some(FourBit::default()), ..Storage::default() });
        let (training, limits) = (case.training(), case.limits());
        Model::build(
            &mut cpu,
            &case.config,
            &case.checkpoint,
            &training,
            GradientCheckpointing::PerLayer,
            &storage,
            limits,
        )
        .unwrap();
        let shapes = Checkpoint::of_shapes(&case.config, dtype(&case)).unwrap();
        assert_eq!(&plan(&case, &shapes, &storage, GradientCheckpointing::PerLayer), cpu.plan(), "{}", case.name());
    }
}

#[test]
fn limits_of_shapes_are_those_of_batches() {
    for case in cases() {
        let names = case.about["batches"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        for (batch, name) in case.batches.iter().zip(names) {
            let (expected, file) = (batch.limits(), case.tensors(name));
            let numbers =
                if file.has("image_grid_thw") { file.whole_numbers("image_grid_thw").unwrap() } else { vec![] };
            let numbers: Vec<usize> = numbers.into_iter().map(|number| number as usize).collect();
            let grids: Vec<[usize; 3]> = numbers.chunks_exact(3).map(|grid| [grid[0], grid[1], grid[2]]).collect();
            // All rows together stand for one, which is longer.
            let found = Limits::of_row(expected.tokens, expected.targets, &grids);
            let longest = found.longest;
            assert_eq!(Limits { rows: expected.rows, longest: expected.longest, ..found }, expected);
            assert!(longest >= expected.longest);
        }
    }
}

#[test]
fn a_device_that_computes_wants_values() {
    let case = &cases()[0];
    let shapes = Checkpoint::of_shapes(&case.config, Dtype::F32).unwrap();
    let built = Model::build(
        &mut Cpu::new(1),
        &case.config,
        &shapes,
        &case.training(),
        GradientCheckpointing::PerLayer,
        &Storage::default(),
        case.limits(),
    );
    let error = built.unwrap_err().to_string();
    assert!(error.contains("no values") && error.contains("patch_embed"), "{error}");
}

fn released(preset: Preset, storage: &Storage, limits: Limits) -> Plan {
    let config = preset.config();
    let checkpoint = Checkpoint::of_shapes(&config, Dtype::Bf16).unwrap();
    assert_eq!(checkpoint.parameters(), preset.parameters);
    let targets = Targets::decoder(FAMILIES[0]);
    let lora = LoraConfig { rank: 16, alpha: 16.0, targets, ..LoraConfig::default() };
    let mut planner = Planner::for_cpu(2);
    Model::build(
        &mut planner,
        &config,
        &checkpoint,
        &Training::Lora(lora),
        GradientCheckpointing::PerLayer,
        storage,
        limits,
    )
    .unwrap();
    planner.plan().clone()
}

/// The released models against arithmetic on paper.
#[test]
fn released_models_take_what_their_numbers_say() {
    for preset in Preset::all() {
        let (plan, config) = (released(preset, &Storage::default(), Limits::default()), preset.config());
        // Two bytes for each parameter; biases and norms have four.
        let weights = plan.bytes(Purpose::Weights) as f64 / (2.0 * preset.parameters as f64);
        assert!((1.0..1.001).contains(&weights), "{}: {weights}", preset.name);
        let (hidden, inner) = (config.text.hidden, config.text.layers[0].mlp.intermediate);
        let keys = config.text.layers[0].attention().key_width();
        let sides = 4 * hidden + 2 * (hidden + keys) + 3 * (hidden + inner);
        let values = 16 * config.text.layers.len() * sides;
        assert_eq!(plan.bytes(Purpose::Adapters), 4 * values, "{}", preset.name);
        assert_eq!(plan.bytes(Purpose::Gradients), 4 * values);
        assert_eq!(plan.bytes(Purpose::Optimizer), 8 * values);
    }
    let adapters = |index: usize| released(Preset::all().nth(index).unwrap(), &Storage::default(), Limits::default());
    assert_eq!(adapters(0).bytes(Purpose::Adapters) / 4, 29_933_568);
    assert_eq!(adapters(1).bytes(Purpose::Adapters) / 4, 40_370_176);
}

/// Decoder linears of 4.127 bits: 1.333 GiB of the 3B model, 3.135 GiB of the 7B model.
#[test]
fn packed_decoders_take_what_their_bits_say() {
    let storage = Storage { four_bit: Some(FourBit::default()), ..Storage::default() };
    for (preset, expected) in Preset::all().zip([1.333, 3.135]) {
        let plan = released(preset, &storage, Limits::default());
        let packed = plan.buffers.iter().filter(|buffer| {
            buffer.purpose == Purpose::Weights
                && buffer.label.contains("_proj.weight")
                && buffer.label.contains("layers")
        });
        let bytes: usize = packed.map(|buffer| buffer.bytes).sum();
        let gibibytes = bytes as f64 / f64::from(1 << 30);
        assert!((gibibytes - expected).abs() < 0.001, "{}: {gibibytes}", preset.name);
    }
}
