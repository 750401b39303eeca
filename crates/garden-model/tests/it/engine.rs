//! Rows that join and leave: whoever is beside a row, it is answered as if it were alone.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::collections::BTreeMap;

use garden_model::{Engine, EngineLimits, Error, Images, NewToken, Order, Prompt, Question, Sampling};
use garden_random::SplitMix64;

use crate::case::{Make, is_f32, on_every_device};
use crate::generation::{Agreement, Run, runs};

on_every_device! {
    rows_that_join_and_leave_are_answered_as_alone,
    tokens_flow_while_a_prompt_is_read,
    a_row_without_numbers_ends_alone,
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
    engine.admit(Question { row: 0, prompt: prompt.clone(), sampling: sampling.clone() }).unwrap();
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
                Question { row: 100 + row, prompt, sampling: drawn_sampling(&run, random) }
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
    let short = |row| Question { row, prompt: run.prompts[0].clone(), sampling: sampling.clone() };
    let long = |row| Question { row, prompt: long(), sampling: sampling.clone() };
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
    engine.admit(Question { row: 0, prompt: run.prompts[0].clone(), sampling: run.greedy() }).unwrap();
    engine.admit(Question { row: 7, prompt, sampling: run.greedy() }).unwrap();
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
