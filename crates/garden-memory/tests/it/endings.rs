//! How a run ends, begins anew and what it is made of: the answer is about the run, not about the moment of its end.

use garden_memory::{
    Bytes, Diagnosis, EventKind, MIB, Mechanism, ProcessTrack, Quantity, Question, RunFacts, Sample, Stability, Trace,
    Verdict, diagnose,
};

use garden_random::SplitMix64;

fn sample(step: u64, anon_mib: u64, file_mib: u64) -> Sample {
    let mut sample = Sample::default();
    sample.step = Some(step as f64);
    sample.set(Quantity::Anon, anon_mib * MIB);
    sample.set(Quantity::File, file_mib * MIB);
    sample.set(Quantity::Rss, (anon_mib + file_mib) * MIB);
    sample
}

fn judge(trace: &Trace) -> Diagnosis {
    diagnose(trace, &Question::default())
}

/// A launcher and its ranks, which keep `per_step` MiB each step, then end one after the other within thirty samples.
fn launched(per_step: u64) -> Trace {
    let mut trace = Trace::default();
    let named = |pid, role: &str| ProcessTrack { pid, parent: 1, role: role.into(), ..ProcessTrack::default() };
    trace.processes.push(ProcessTrack { levels: vec![(0, 30 * MIB)], ..named(10, "launcher") });
    let held = |step: u64| 200 + per_step * step;
    for rank in 0..4 {
        let levels = (0..120).map(|step| (step as usize, held(step) * MIB)).collect();
        trace.processes.push(ProcessTrack {
            levels,
            gone: Some(126 + 7 * rank),
            ..named(20 + rank as u32, "training")
        });
    }
    for index in 0..150 {
        let total: u64 = trace.processes.iter().map(|track| track.at(index)).sum();
        trace.push(&sample((index as u64).min(119), total / MIB, 50));
    }
    trace.push_event(EventKind::Exit, Some(119.0), None);
    trace
}

#[test]
fn ranks_that_end_one_by_one_have_not_lost_what_they_held() {
    for (per_step, verdict) in [(1, Verdict::Growing), (0, Verdict::Flat)] {
        let found = judge(&launched(per_step));
        assert_eq!(found.verdict, verdict, "{}", found.summary);
        let ranks: Vec<_> = found.processes.iter().filter(|process| process.role == "training").collect();
        assert_eq!(ranks.len(), 4);
        for rank in ranks {
            assert!(rank.to_bytes >= rank.from_bytes && rank.to_bytes >= 200 * MIB, "{rank:?}");
        }
        if per_step > 0 {
            assert_eq!(found.processes[0].role, "training", "{:?}", found.processes);
        }
    }
}

/// Children that come and go all the time are no farewell, however high they once stood.
#[test]
fn children_that_leave_while_others_come_are_not_the_end() {
    let mut trace = Trace::default();
    for index in 0..200 {
        let levels = vec![(index, 20 * MIB)];
        let (pid, gone) = (100 + index as u32, Some(index + 2).filter(|&gone| gone < 200));
        trace.processes.push(ProcessTrack { pid, levels, gone, ..ProcessTrack::default() });
        trace.push(&sample(index as u64, if (40..44).contains(&index) { 200 } else { 140 }, 30));
    }
    trace.push_event(EventKind::Exit, Some(199.0), None);
    let found = judge(&trace);
    assert_eq!(found.verdict, Verdict::Flat, "{}", found.summary);
    assert!(found.phases.last().is_some_and(|phase| phase.to > 190.0), "{:?}", found.phases);
}

#[test]
fn file_pages_beside_growth_that_stays_are_not_all_there_is() {
    let mut trace = Trace::default();
    (0..150).for_each(|step| trace.push(&sample(step, 20 + 4 * step.min(60), 30 + 6 * step)));
    let found = judge(&trace);
    assert_ne!(found.mechanism, Mechanism::FilePages, "{}", found.summary);
    assert_eq!(found.verdict, Verdict::Settled, "{}", found.summary);
    let mut trace = Trace::default();
    (0..150).for_each(|step| trace.push(&sample(step, 20, 30 + 6 * step)));
    assert_eq!(judge(&trace).mechanism, Mechanism::FilePages);
}

#[test]
fn a_program_that_was_started_again_is_headed_by_the_whole_run() {
    let mut trace = Trace::default();
    (1..=60).for_each(|step| trace.push(&sample(step, 100 + 5 * step, 30)));
    trace.push_event(EventKind::Restart, None, None);
    (51..=80).for_each(|step| trace.push(&sample(step, 100, 30)));
    let found = judge(&trace);
    assert!(
        found.summary.starts_with("2 starts over steps 1 to 80, judged growing, flat. The last one: Memory is flat"),
        "{}",
        found.summary
    );
}

#[test]
fn a_last_start_that_is_too_short_leaves_the_one_before_it() {
    let mut trace = Trace::default();
    (1..=60).for_each(|step| trace.push(&sample(step, 100, 30)));
    trace.push_event(EventKind::Restart, None, None);
    (61..=63).for_each(|step| trace.push(&sample(step, 400, 30)));
    // While it goes on, nothing is known of it yet.
    assert_eq!(judge(&trace).verdict, Verdict::Insufficient);
    trace.push_event(EventKind::Exit, None, None);
    let found = judge(&trace);
    let head = "2 starts over steps 1 to 63, judged flat, insufficient. The last one has only 3 samples; the one before: Memory is flat";
    assert!(found.verdict == Verdict::Flat && found.summary.starts_with(head), "{}", found.summary);
    // What is asserted is asserted of the end.
    let asked = Stability { from: 0.0, to: None, max_variation: Some(Bytes(20 << 20)), max_growth: None };
    let found = diagnose(&trace, &Question { stability: Some(asked), ..Question::default() });
    assert!(found.stability.is_some_and(|check| !check.passed), "{}", found.summary);
}

/// Growth of 4 MiB a step in which live tensors are counted at these steps.
fn counted(counts: &[(u64, u64)]) -> Diagnosis {
    let mut trace = Trace::default();
    for step in 0..200 {
        let mut sample = sample(step, 100 + 4 * step, 30);
        let count = counts.iter().find(|count| count.0 == step);
        count.into_iter().for_each(|count| sample.set(Quantity::Tensors, count.1));
        trace.push(&sample);
    }
    judge(&trace)
}

#[test]
fn two_counts_say_what_tensors_did_and_one_says_nothing() {
    let rose = counted(&[(10, 34), (199, 518)]);
    let kept = rose.causes.iter().find(|cause| cause.id == "graph_kept").expect("a cause that fits");
    assert!(kept.supporting.iter().any(|sign| sign.contains("rose by 484 from 34")), "{kept:?}");
    for counts in [&[(199, 518)][..], &[(150, 518), (199, 518)]] {
        let unknown = counted(counts);
        assert!(unknown.ruled_out.iter().all(|cause| cause.id != "graph_kept"), "{:?}", unknown.ruled_out);
        let stated = format!("{:?}", unknown.evidence);
        assert!(!stated.contains("Live tensors"), "{stated}");
    }
    let stayed = counted(&[(10, 518), (199, 518)]);
    assert!(stayed.ruled_out.iter().any(|cause| cause.id == "graph_kept"), "{:?}", stayed.causes);
}

#[test]
fn causes_are_those_of_what_was_loaded() {
    let judged = |libraries: Option<&[&str]>| {
        let mut trace = Trace::default();
        (0..200).for_each(|step| trace.push(&sample(step, 100 + 4 * step.min(83), 30)));
        if let Some(names) = libraries {
            trace.libraries.add(names.iter().map(ToString::to_string));
        }
        let facts = RunFacts { steps_per_epoch: Some(83), batch_size: Some(2), ..RunFacts::default() };
        diagnose(&trace, &Question { facts, ..Question::default() })
    };
    let ids = |found: &Diagnosis| found.causes.iter().map(|cause| cause.id).collect::<Vec<_>>();
    let unknown = judged(None);
    assert_eq!(ids(&unknown)[0], "decoded_images_kept", "{:?}", unknown.causes);
    let pictures = judged(Some(&["PIL", "libc", "python3.12"]));
    assert_eq!(ids(&pictures), ids(&unknown));
    assert!(pictures.causes[0].supporting.contains(&"PIL is loaded".to_string()), "{:?}", pictures.causes);
    let plain = judged(Some(&["libc", "numpy", "python3.12"]));
    assert_eq!(ids(&plain)[0], "large_examples_kept", "{:?}", plain.causes);
    let decoded = plain.causes.iter().find(|cause| cause.id == "decoded_images_kept");
    assert!(decoded.is_none_or(|decoded| decoded.score < 0.05 && !decoded.against.is_empty()), "{:?}", plain.causes);
}

#[test]
fn the_parts_of_a_growth_come_to_the_growth() {
    let told = |anon: fn(u64) -> u64| {
        let mut trace = Trace::default();
        (0..600).for_each(|step| trace.push(&sample(step, anon(step), 30)));
        let lines = judge(&trace).evidence.into_iter().map(|line| line.text);
        lines.collect::<Vec<_>>().join(" ")
    };
    let amount = |text: &str, before: &str| {
        let (_, rest) = text.split_once(before).expect("an amount");
        rest.split(&[',', '.'][..]).next().expect("an amount").to_string()
    };
    for anon in [|step| 100 + step, |step| 100 + step + step * 7919 % 5] {
        let text = told(anon);
        assert_eq!(amount(&text, "has risen by "), amount(&text, "During the growth: anon +"), "{text}");
    }
}

#[test]
fn growth_is_told_with_the_command_that_finds_its_place() {
    let mut trace = Trace::default();
    (0..100).for_each(|step| trace.push(&sample(step, 100 + 4 * step, 30)));
    assert!(judge(&trace).advice.iter().any(|line| line.contains("`model-garden bisect MODULE:FUNCTION`")));
    trace.origin.push(("command".into(), "python3 src/train.py --lr 1e-4".into()));
    let advice = judge(&trace).advice;
    assert!(advice.iter().any(|line| line.contains("`model-garden bisect src.train:pieces`")), "{advice:?}");
    // Behind a launcher the process that grows is the one that trains.
    for (pid, command, per_step) in
        [(10, "python3 launch.py", 0), (11, "python3 rank.py 0", 2), (12, "python3 rank.py 1", 2)]
    {
        let levels = (0..100).map(|step| (step as usize, (40 + per_step * step) * MIB)).collect();
        trace.processes.push(ProcessTrack { pid, command: command.into(), levels, ..ProcessTrack::default() });
    }
    let advice = judge(&trace).advice;
    assert!(advice.iter().any(|line| line.contains("`model-garden bisect rank:pieces`")), "{advice:?}");
}

/// Steps are slow while pictures are decoded for the first time, and fast afterwards; nobody was there to see the first.
#[test]
fn a_first_pass_that_was_seen_from_its_second_step_on_is_one() {
    let mut trace = Trace::default();
    let steps = (2..=16).chain((19..38).step_by(2));
    steps.for_each(|step| trace.push(&sample(step, 60 + 11 * step.min(16), 9)));
    let facts = RunFacts { steps_per_epoch: Some(16), ..RunFacts::default() };
    let found = diagnose(&trace, &Question { facts, ..Question::default() });
    assert_eq!((found.verdict, found.mechanism), (Verdict::Settled, Mechanism::EpochFill), "{}", found.summary);
}

/// Steps with the most and the least that were held, in KiB, of a program whose children take 20 MiB for 50 ms each: as sampled on a busy machine.
#[rustfmt::skip]
const COMING_AND_GOING: [(u64, u64, u64); 121] = [
    (2, 72816, 27644), (4, 69944, 27644), (6, 73700, 27644), (8, 59368, 27644), (10, 67380, 27644), (11, 71248, 27644), (13, 65704, 27644), (14, 66724, 27644),
    (16, 68520, 27644), (18, 69736, 27644), (20, 76092, 27644), (22, 44864, 27644), (23, 76280, 31204), (25, 55052, 27644), (25, 55668, 27644), (27, 56004, 27644),
    (29, 68580, 27644), (30, 56680, 27644), (32, 57612, 27644), (34, 53092, 27644), (36, 75724, 27644), (38, 55800, 27644), (40, 68132, 27644), (41, 62284, 27644),
    (43, 73036, 27644), (45, 72028, 27644), (46, 59684, 27644), (48, 75656, 27644), (50, 60268, 27644), (52, 60604, 27644), (54, 60296, 27644), (56, 82908, 27644),
    (58, 45720, 27644), (60, 65560, 27644), (61, 75048, 27644), (63, 60696, 27644), (64, 66328, 27644), (65, 77736, 27644), (67, 62972, 27644), (68, 69416, 27644),
    (70, 71020, 27644), (71, 65104, 27644), (73, 64460, 27644), (74, 77084, 27644), (76, 68520, 27644), (77, 57360, 27644), (79, 65320, 27644), (81, 84776, 27644),
    (82, 59008, 27644), (84, 84396, 27644), (86, 44464, 27644), (88, 77700, 27644), (89, 50764, 27644), (91, 64644, 27644), (92, 44360, 27644), (93, 62812, 27644),
    (94, 75960, 27644), (96, 80720, 27644), (98, 82512, 27644), (99, 62448, 27644), (102, 62936, 27644), (102, 70850, 42956), (104, 75512, 27644), (105, 70576, 27644),
    (106, 81736, 27644), (107, 62448, 27644), (109, 76940, 27644), (110, 69904, 27644), (112, 75752, 27644), (113, 78216, 27644), (115, 74268, 27644), (117, 85924, 27644),
    (119, 62448, 27644), (121, 82460, 27644), (123, 84764, 27644), (126, 64160, 27644), (128, 67644, 27644), (130, 81468, 27644), (132, 84920, 27644), (134, 86760, 27644),
    (136, 87240, 27644), (139, 66556, 27644), (141, 78396, 27644), (143, 88524, 27644), (145, 62448, 27644), (148, 62448, 27644), (150, 62824, 27644), (152, 79660, 27644),
    (154, 80728, 27644), (156, 71136, 27644), (156, 20432, 13272), (156, 17602, 14684), (158, 52518, 27644), (159, 39914, 27644), (161, 45986, 27644), (162, 61890, 27644),
    (164, 41574, 27644), (164, 40702, 27644), (166, 62642, 27644), (167, 41334, 27644), (169, 45566, 27644), (170, 63514, 27644), (171, 41964, 27644), (173, 63848, 27644),
    (174, 33376, 19056), (175, 63740, 27644), (177, 58488, 27644), (178, 47328, 27644), (179, 67544, 27644), (180, 41964, 27644), (180, 21420, 14256), (180, 27644, 27644),
    (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644),
    (180, 27644, 27644),
];

/// The same program on another day: a dip in the middle that the floor came out of within a few steps.
#[rustfmt::skip]
const OUT_OF_A_DIP: [(u64, u64, u64); 131] = [
    (2, 72784, 27644), (4, 44828, 27644), (6, 73628, 27644), (8, 52476, 27644), (10, 46728, 27644), (11, 53060, 27644), (13, 32768, 22028), (14, 75172, 42640),
    (16, 20896, 16140), (17, 54168, 27644), (18, 32792, 27644), (20, 39268, 27644), (21, 54044, 27644), (22, 55088, 27644), (24, 37780, 27644), (24, 76059, 65764),
    (26, 41964, 27644), (27, 45964, 27644), (29, 46948, 27644), (30, 64292, 27644), (31, 41964, 27644), (33, 46924, 27644), (34, 59120, 27644), (35, 64292, 27644),
    (36, 41964, 27644), (38, 61332, 27644), (39, 64076, 27644), (40, 41964, 27644), (42, 53820, 27644), (43, 64076, 27644), (44, 41964, 27644), (46, 47752, 27644),
    (47, 49124, 27644), (48, 64228, 27644), (49, 64448, 27644), (51, 55800, 27644), (52, 64964, 27644), (53, 41964, 27644), (55, 42300, 27644), (56, 71228, 40332),
    (57, 71016, 27644), (58, 85360, 27644), (59, 76084, 27644), (61, 78632, 27644), (62, 86112, 27644), (63, 67644, 27644), (65, 84472, 27644), (66, 86864, 27644),
    (67, 61812, 27644), (69, 83748, 27644), (70, 48480, 27008), (71, 82944, 40976), (73, 55196, 27644), (75, 70864, 27644), (77, 78752, 27644), (79, 76704, 27644),
    (81, 85524, 27644), (83, 54316, 27644), (85, 62832, 27644), (86, 62448, 27644), (86, 7160, 7160), (86, 7160, 7160), (87, 11448, 10004), (89, 50876, 27644),
    (91, 29660, 27644), (91, 31384, 18092), (92, 72936, 59596), (93, 64464, 27644), (94, 51752, 27644), (96, 52128, 27644), (97, 51132, 27588), (97, 52029, 28732),
    (98, 69552, 27644), (99, 59144, 27588), (99, 74734, 57220), (101, 87088, 27644), (103, 82324, 27644), (104, 52436, 27644), (106, 83264, 27644), (107, 83372, 27644),
    (109, 83412, 27644), (111, 69056, 27644), (112, 58676, 27644), (114, 84392, 27644), (116, 62448, 27644), (118, 82912, 27644), (120, 84760, 27644),
    (123, 63764, 27644), (125, 71252, 27644), (127, 76456, 27644), (129, 80428, 27644), (129, 34804, 27644), (130, 26132, 18972), (132, 78308, 27644),
    (134, 78684, 27644), (136, 57688, 27644), (139, 65024, 27644), (140, 55748, 27644), (141, 58628, 27644), (143, 75708, 27644), (145, 60688, 27644),
    (146, 51532, 27644), (148, 70848, 27644), (149, 59944, 27644), (150, 81724, 27644), (152, 60508, 27644), (154, 61072, 27644), (156, 67852, 27644),
    (158, 61668, 27644), (160, 62060, 27644), (162, 78284, 27644), (164, 80228, 27644), (166, 54696, 27644), (167, 61396, 27644), (168, 74088, 27644),
    (170, 62584, 27644), (171, 79996, 27644), (173, 79296, 27644), (175, 80720, 27644), (177, 86768, 27644), (180, 66464, 27644), (180, 27644, 27644),
    (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644), (180, 27644, 27644),
    (180, 27644, 27644), (180, 27644, 27644),
];

#[test]
fn a_floor_that_comes_out_of_a_dip_and_rises_no_more_has_not_grown() {
    for recorded in [&COMING_AND_GOING[..], &OUT_OF_A_DIP] {
        let mut trace = Trace::default();
        for (step, most, least) in recorded {
            let mut sample = Sample::default();
            sample.step = Some(*step as f64);
            sample.set(Quantity::Anon, most << 10);
            if least < most {
                sample.set(Quantity::AnonLeast, least << 10);
            }
            trace.push(&sample);
        }
        trace.push_event(EventKind::Exit, Some(180.0), None);
        let facts = RunFacts { steps_per_epoch: Some(30), ..RunFacts::default() };
        let found = diagnose(&trace, &Question { facts, ..Question::default() });
        assert!(matches!(found.verdict, Verdict::Flat | Verdict::Sawtooth), "{}", found.summary);
    }
}

/// Flat memory with one or two dips of any depth, each within a twelfth of the run; and memory that fell once, at the start, and has grown ever since.
#[test]
fn a_dip_is_no_growth_and_growth_after_a_fall_is() {
    let mut draw = SplitMix64(garden_testing::seed());
    let verdict = |levels: &[f64], epoch: u64| {
        let mut trace = Trace::default();
        for (step, level) in levels.iter().enumerate() {
            let mut sample = Sample::default();
            sample.step = Some(step as f64 + 1.0);
            sample.set(Quantity::Anon, *level as u64);
            trace.push(&sample);
        }
        let facts = RunFacts { steps_per_epoch: Some(epoch), ..RunFacts::default() };
        diagnose(&trace, &Question { facts, ..Question::default() }).verdict
    };
    let (mut grown, mut missed) = (0, 0);
    const DRAWS: usize = 200;
    for number in 0..DRAWS {
        let samples = [60, 150, 400][number % 3];
        let level = [27e6, 900e6, 12e9][(number / 3) % 3];
        // The sum of twelve uniform numbers, near enough to a normal one.
        let noise = |draw: &mut SplitMix64| 0.002 * level * ((0..12).map(|_| draw.unit()).sum::<f64>() - 6.0);
        let mut flat: Vec<f64> = (0..samples).map(|_| level + noise(&mut draw)).collect();
        for _ in 0..1 + number % 2 {
            let length = 1 + (0.08 * draw.unit() * samples as f64) as usize;
            let begin = samples / 6 + (draw.unit() * (samples * 2 / 3 - length) as f64) as usize;
            let depth = (0.1 + 0.8 * draw.unit()) * level;
            flat[begin..begin + length].iter_mut().for_each(|sample| *sample = (*sample - depth).max(0.0));
        }
        grown += usize::from(!matches!(verdict(&flat, 30), Verdict::Flat | Verdict::Sawtooth));
        // A few megabytes would not count as growth.
        let level = level.max(900e6);
        let (fell, low) = (samples / 6, (0.3 + 0.5 * draw.unit()) * level);
        let leak: Vec<f64> = (0..samples)
            .map(|sample| match sample < fell {
                true => level,
                false => low + (level - low) * (sample - fell) as f64 / (samples - fell) as f64,
            } + noise(&mut draw))
            .collect();
        missed += usize::from(!matches!(verdict(&leak, samples as u64 / 6), Verdict::Leak | Verdict::Growing));
    }
    assert!(grown * 50 <= DRAWS, "{grown} of {DRAWS} dips are called growth");
    assert_eq!(missed, 0, "growth after a fall is called flat");
}
