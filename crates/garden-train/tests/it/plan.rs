//! Plans of the released models, and what would make them smaller.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use garden_data::{ImageSettings, LoaderBuffers};
use garden_device::{Dtype, Purpose};
use garden_input::FAMILIES;
use garden_memory::Bytes;
use garden_model::{Checkpoint, Config, EngineLimits, Preset};
use garden_train::{
    AvailableMemory, DeviceKind, Error, MemoryPlan, Optim, Place, PlanInput, PlanItem, Recipe, Recompute, RowShape,
    advise, loader_changes,
};

struct Case {
    config: Config,
    checkpoint: Checkpoint,
    row: RowShape,
    device: DeviceKind,
}

impl Case {
    fn of(name: &str) -> Case {
        let config = Preset::find(name).unwrap().config();
        let checkpoint = Checkpoint::of_shapes(&config, Dtype::Bf16).unwrap();
        let row = RowShape { text_tokens: 256, trained: 64, pictures: vec![(1024, 1024)] };
        Case { config, checkpoint, row, device: DeviceKind::Cpu }
    }

    fn plan(&self, recipe: &Recipe, answers: Option<EngineLimits>) -> Result<MemoryPlan, Error> {
        let images = ImageSettings { max_pixels: 12_845_056, ..ImageSettings::of(&FAMILIES[0].images) };
        let limits = self.row.limits(recipe, &images).unwrap();
        MemoryPlan::of(&PlanInput {
            recipe,
            config: &self.config,
            checkpoint: &self.checkpoint,
            device: self.device,
            driver_bytes: None,
            limits,
            answers,
            loader: LoaderBuffers::of_settings(&images, (limits.patches, limits.tokens), recipe.ahead()),
            tokenizer_bytes: None,
            index_bytes: 16_000,
            evaluates: answers.is_some(),
            reading_bytes: 9 << 20,
            dataset_bytes: 1 << 30,
            processor_bytes: None,
            saves: None,
        })
    }
}

fn host(bytes: u64) -> AvailableMemory {
    AvailableMemory { host: Bytes(bytes), gpu: Bytes(0) }
}

fn recipe() -> Recipe {
    Recipe { threads: 2, ..Recipe::default() }
}

#[test]
fn lines_add_up_and_have_their_place() {
    let plan = Case::of("qwen2.5-vl-3b").plan(&recipe(), None).unwrap();
    let sum = |place: Place| plan.lines.iter().filter(|line| line.place == place).map(|line| line.bytes).sum::<u64>();
    assert_eq!((sum(Place::Device), sum(Place::Host)), (plan.device_bytes, plan.host_bytes));
    assert_eq!(plan.device_bytes + plan.host_bytes, plan.total_bytes);
    assert!(plan.lines.iter().all(|line| line.bytes > 0 && !line.what.is_empty()));
    assert_eq!(plan.bytes(PlanItem::Index), 16_000);
    let needs = plan.requirements;
    assert_eq!(needs.processor.minimum_bytes, plan.total_bytes);
    // The embedding passes through the host on its way to a GPU.
    assert!(needs.gpu_host.minimum_bytes >= 2 * 151_936 * 2048);
    let fit = plan.fits(host(plan.total_bytes));
    assert!(fit.all() && fit.gpu.is_none() && fit.host.percent() == 100);
    assert!(!plan.fits(host(plan.total_bytes - 1)).all());
}

/// On a GPU activations are of 16 bits and weights are not in host memory, and each place has to suffice.
#[test]
fn a_gpu_has_its_own_plan() {
    let case = Case::of("qwen2.5-vl-3b");
    let on_cpu = case.plan(&recipe(), None).unwrap();
    let on_gpu = Case { device: DeviceKind::Cuda, ..case }.plan(&recipe(), None).unwrap();
    let needs = on_cpu.requirements;
    assert_eq!(needs, on_gpu.requirements);
    assert_eq!((needs.gpu.minimum_bytes, needs.gpu_host.minimum_bytes), (on_gpu.device_bytes, on_gpu.total_bytes));
    assert_eq!(on_gpu.total_bytes, on_gpu.host_bytes);
    let sum = |place: Place| on_gpu.lines.iter().filter(|line| line.place == place).map(|line| line.bytes).sum::<u64>();
    assert_eq!((sum(Place::Device), sum(Place::Host)), (on_gpu.device_bytes, on_gpu.host_bytes));
    assert_eq!(
        on_gpu.bytes(PlanItem::Buffers(Purpose::Activations)) * 2,
        on_cpu.bytes(PlanItem::Buffers(Purpose::Activations))
    );
    assert!(on_gpu.bytes(PlanItem::Driver) > 0 && on_gpu.bytes(PlanItem::PageEnds) == 0);
    let available = |host: u64, gpu: u64| AvailableMemory { host: Bytes(host), gpu: Bytes(gpu) };
    let (host, gpu) = (on_gpu.total_bytes, on_gpu.device_bytes);
    assert!(on_gpu.fits(available(host, gpu)).all());
    assert!(!on_gpu.fits(available(host, gpu - 1)).all() && !on_gpu.fits(available(host - 1, gpu)).all());
}

/// What is advised for a GPU saves its memory, and is enough of it.
#[test]
fn advice_for_a_gpu_is_about_its_memory() {
    let case = Case { device: DeviceKind::Cuda, ..Case::of("qwen2.5-vl-7b") };
    let recipe = Recipe { recompute: Recompute::None, ..recipe() };
    let available = AvailableMemory { host: Bytes(64 << 30), gpu: Bytes(16 << 30) };
    let now = case.plan(&recipe, None).unwrap();
    let advice = advise(&recipe, Some(1036 * 1036), available, |other| case.plan(other, None)).unwrap();
    let names: Vec<&str> = advice.savings.iter().map(|saving| saving.settings[0].0.as_str()).collect();
    assert_eq!(names, ["recompute", "batch-size", "optim", "load-in-4bit", "max-pixels", "lora-r"]);
    let without = case.plan(&Recipe { recompute: Recompute::Layer, ..recipe.clone() }, None).unwrap();
    assert_eq!(advice.savings[0].saves_bytes, now.device_bytes - without.device_bytes);
    let found = advice.combination.unwrap();
    assert!(found.fits && found.total_bytes <= 16 << 30, "{found:?}");
}

/// Full training widens each weight as a whole while it is loaded, and the head is the last one.
#[test]
fn loading_counts_where_it_needs_more_than_steps() {
    let case = Case { row: RowShape { text_tokens: 1, trained: 1, pictures: vec![] }, ..Case::of("qwen2.5-vl-7b") };
    let small = Recipe { batch_size: 1, load_in_4bit: true, ..recipe() };
    let plan = case.plan(&small, None).unwrap();
    let head = 2 * 152_064 * 3584;
    // Steps of one token need little memory, so the head's pages in the file are on top.
    assert!(
        plan.bytes(PlanItem::Loading) > head / 2 && plan.bytes(PlanItem::Loading) < head,
        "{}",
        plan.bytes(PlanItem::Loading)
    );
    assert_eq!(Case::of("qwen2.5-vl-7b").plan(&recipe(), None).unwrap().bytes(PlanItem::Loading), 0);
}

#[test]
fn answers_of_evaluations_are_planned() {
    let case = Case::of("qwen2.5-vl-3b");
    let answers = EngineLimits { rows: 4, context: 2000, patches: 5476 };
    let (without, with) = (case.plan(&recipe(), None).unwrap(), case.plan(&recipe(), Some(answers)).unwrap());
    assert_eq!(with.bytes(PlanItem::Buffers(Purpose::KvCache)), 2 * 36 * 4 * 2000 * 2 * 128 * 4);
    assert!(
        with.device_bytes > without.device_bytes && with.bytes(PlanItem::Saving) >= without.bytes(PlanItem::Saving)
    );
}

#[test]
fn what_changes_the_result_least_comes_first_and_is_enough_where_it_can_be() {
    let case = Case::of("qwen2.5-vl-3b");
    let recipe = Recipe { recompute: Recompute::None, ..recipe() };
    let now = case.plan(&recipe, None).unwrap().total_bytes;
    let advise =
        |available: u64| advise(&recipe, Some(1036 * 1036), host(available), |other| case.plan(other, None)).unwrap();
    let advice = advise(now - 1);
    let names: Vec<&str> = advice.savings.iter().map(|saving| saving.settings[0].0.as_str()).collect();
    assert_eq!(
        names,
        ["recompute", "prefetch", "loader-threads", "batch-size", "optim", "load-in-4bit", "max-pixels", "lora-r"]
    );
    let found = advice.combination.unwrap();
    assert!(found.fits && found.changes == 1 && found.settings[0].0 == "recompute");
    // Each figure is that of a plan with this change alone.
    let narrow = Recipe { optim: Optim::Adamw8Bit, ..recipe.clone() };
    assert_eq!(advice.savings[4].saves_bytes, now - case.plan(&narrow, None).unwrap().total_bytes);
    let accumulated = &advice.savings[3].settings;
    assert_eq!(accumulated[1], ("gradient-accumulation".to_string(), "8".to_string()));
    // None of what is chosen can be left away.
    let tight = advise(5 << 30).combination.unwrap();
    assert!(tight.fits && tight.total_bytes <= 5 << 30, "{tight:?}");
    let hopeless = advise(1 << 30).combination.unwrap();
    assert!(!hopeless.fits && hopeless.changes == 8);
}

#[test]
fn full_training_is_told_about_adapters() {
    let case = Case::of("qwen2.5-vl-3b");
    let recipe = Recipe { full: true, ..recipe() };
    let advice = advise(&recipe, None, host(16 << 30), |other| case.plan(other, None)).unwrap();
    let found = advice.combination.unwrap();
    assert!(found.fits && found.settings.contains(&("full".to_string(), "false".to_string())), "{found:?}");
}

#[test]
fn changes_of_the_loader_have_their_price() {
    let case = Case::of("qwen2.5-vl-3b");
    let changes = loader_changes(&recipe(), |other| case.plan(other, None)).unwrap();
    // Pixels, and tokens with their labels.
    let micro_batch = 2 * 5476 * 1176 * 4 + 2 * 4 * 2 * (5476 / 4 + 256);
    // 256 MiB have room for five micro-batches of 49 MiB that wait; a second as much for as many more, but no more than eight wait.
    assert_eq!((changes[1].setting.1.as_str(), changes[1].costs_bytes), ("512MB", 3 * micro_batch));
    assert!(changes[0].costs_bytes > 0 && changes[0].setting.1 == "3");
}
