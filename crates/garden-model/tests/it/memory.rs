//! Memory does not grow from step to step, measured in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]
#![allow(clippy::print_stdout, reason = "figures for whoever runs it with --nocapture")]

use crate::case::{find, step};
use garden_device::Cpu;
use garden_model::{Engine, EngineLimits, GradientCheckpointing, Images, NewToken, Prompt, Sampling};
use garden_testing::alone;

/// Anonymous memory may change by this much after the second step.
const FLAT: i64 = 1 << 20;

fn anonymous() -> i64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<i64>().unwrap() << 10
}

#[test]
fn memory_is_flat_after_the_second_step() {
    alone("memory::memory_is_flat_after_the_second_step", measure_steps_and_tokens);
}

fn measure_steps_and_tokens() {
    for name in ["vision_lora", "full_untied", "bfloat16"] {
        let case = find(name);
        let mut cpu = Cpu::new(2);
        let mut model = case.build(&mut cpu, GradientCheckpointing::PerLayer);
        let mut early = 0;
        for number in 0..200 {
            step(&case, &mut cpu, &mut model, number);
            if number == 1 {
                early = anonymous();
            }
        }
        let grown = anonymous() - early;
        println!("{name}: {grown} bytes after 200 steps");
        assert!(grown.abs() < FLAT, "{name}: {grown} bytes between step 2 and step 200");
    }
    let grown = growth_while_generating();
    println!("generation: {grown} bytes");
    assert!(grown.abs() < FLAT, "{grown} bytes from the first to the last token");
}

/// From the first token to the last of three times three answers of 500.
fn growth_while_generating() -> i64 {
    let case = find("bfloat16");
    let mut cpu = Cpu::new(2);
    let limits = EngineLimits { rows: 3, context: 600, patches: 0 };
    let mut engine =
        Engine::build(&mut cpu, &case.config, &case.checkpoint, case.adapter().as_ref(), None, limits).unwrap();
    let sampling = Sampling { max_new_tokens: 500, temperature: Some(1.0), top_p: Some(0.9), ..Sampling::default() };
    let prompt = |length: usize| Prompt { tokens: vec![5; length], images: Images::default() };
    let (mut seen, mut early) = (0, 0);
    for _ in 0..3 {
        let count = &mut |_: NewToken<'_>| {
            seen += 1;
            early = if seen == 1 { anonymous() } else { early };
        };
        engine.generate(&mut cpu, vec![prompt(100), prompt(3), prompt(40)], &sampling, count).unwrap();
    }
    assert_eq!(seen, 3 * 3 * 500);
    anonymous() - early
}
