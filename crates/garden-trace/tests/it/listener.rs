//! What is heard in a program's output while it runs.

use garden_memory::EventKind;
use garden_trace::Listener;

#[test]
fn steps_come_from_lines_and_bars_in_pieces() {
    let mut listener = Listener::new();
    assert_eq!(listener.hear(b"Step 1").step, None);
    assert_eq!(listener.hear(b"0: loss 1.2\nnothing\n").step, Some(10.0));
    assert_eq!(listener.hear(b"\r  8%|#  | 20/249 [01:00<10:12, 3.00s/it]\r").step, Some(20.0));
    assert_eq!(listener.hear(b"RAM: 5 GB\n").step, None);
}

#[test]
fn events_and_facts_are_told_once() {
    let mut listener = Listener::new();
    let banner = b"***** Running training *****\n  Num examples = 663\n  Instantaneous batch size per device = 2\n  \
        Gradient Accumulation steps = 4\n  Total optimization steps = 249\n";
    let facts = listener.hear(banner).facts.unwrap();
    assert_eq!((facts.epoch_steps(), facts.total_steps), (Some(83), Some(249)));
    assert_eq!(listener.hear(b"Step 5: loss 1\n").facts, None);
    let heard = listener.hear(b"***** Running Evaluation *****\n");
    assert_eq!(heard.events, [EventKind::EvalStart]);
    assert_eq!(listener.hear(b"Saving model checkpoint to out/checkpoint-50\n").events, [EventKind::Checkpoint]);
}

/// What a listener makes of each of these lines: the steps that were told, in order, without those told twice.
fn steps(lines: &[String]) -> Vec<f64> {
    let mut listener = Listener::new();
    let mut steps: Vec<f64> = lines.iter().filter_map(|line| listener.hear(line.as_bytes()).step).collect();
    steps.dedup();
    steps
}

/// A bar as tqdm draws it.
fn bar(words: &str, step: usize, total: usize) -> String {
    let share = 100 * step / total;
    format!("\r{words}{share:3}%|████      | {step}/{total} [00:{:02}<00:10,  3.00s/it]", step % 60)
}

fn whole(range: impl IntoIterator<Item = usize>) -> Vec<f64> {
    range.into_iter().map(|step| step as f64).collect()
}

/// The trainer of transformers: a bar for the steps, and one without a word for each evaluation, also after the last step.
#[test]
fn bars_of_evaluations_are_no_steps() {
    for says_loss in [true, false] {
        let mut lines = Vec::new();
        for step in 0..=60 {
            lines.push(bar("", step, 60));
            if says_loss && step % 10 == 0 {
                // The bar has not been wiped when the dictionary is printed.
                let epoch = step as f64 / 30.0;
                lines.push(format!("{{'loss': '0.41', 'learning_rate': '2e-05', 'epoch': '{epoch}'}}\n"));
            }
            if step > 0 && step % 20 == 0 {
                lines.extend((0..=15).map(|batch| bar("", batch, 15)));
                lines.push("\r{'eval_loss': 0.4, 'eval_runtime': 1.2}\n".into());
            }
        }
        lines.push("\rdone\n".into());
        assert_eq!(steps(&lines), whole(0..=60), "loss: {says_loss}");
    }
}

#[test]
fn a_bar_of_the_preparation_gives_way_to_the_one_of_the_training() {
    let mut lines: Vec<String> = (0..=50).map(|row| bar("", row * 100, 5000)).collect();
    lines.extend((0..=249).map(|step| bar("", step, 249).replace("s/it]", "s/it, loss=0.3]")));
    lines.extend((0..=10).map(|batch| bar("", batch, 10)));
    lines.push("\n".into());
    let heard = steps(&lines);
    assert!(heard.ends_with(&whole(0..=249)), "{heard:?}");
}

/// Lightning: one bar for each epoch, which is named, and others for sanity checks and validation.
#[test]
fn bars_with_the_name_of_an_epoch_count_on() {
    for (first, of) in [(0, ""), (1, "/3")] {
        let mut lines = vec![bar("Sanity Checking DataLoader 0: ", 1, 2)];
        for epoch in 0..3 {
            for step in 0..=20 {
                lines.push(bar(&format!("Epoch {}{of}: ", first + epoch), step, 20).replace("s/it]", "s/it, v_num=0]"));
            }
            lines.extend((0..=5).map(|batch| bar("Validation DataLoader 0: ", batch, 5)));
        }
        lines.push("\n".into());
        assert_eq!(steps(&lines), whole(0..=60), "{of}");
    }
}

#[test]
fn bars_of_an_own_loop_count_on_from_epoch_to_epoch() {
    let mut lines = Vec::new();
    for _epoch in 0..3 {
        lines.extend((0..=20).map(|step| bar("train: ", step, 20)));
        lines.extend((0..=5).map(|batch| bar("eval: ", batch, 5)));
    }
    lines.push("\n".into());
    assert_eq!(steps(&lines), whole(0..=60));
    let other: Vec<String> = (0..=9).map(|part| bar("Downloading: ", part, 9)).chain(["\n".into()]).collect();
    assert_eq!(steps(&other), Vec::<f64>::new());
}

#[test]
fn the_banner_of_the_trainer_is_learnt_whole() {
    let banner = "[INFO|trainer.py:2519] 2026-03-01 10:00:00,123 >> ***** Running training *****\n\
        [INFO|trainer.py:2520] 2026-03-01 10:00:00,124 >>   Num examples = 12,663\n\
        [INFO|trainer.py:2521] 2026-03-01 10:00:00,124 >>   Num Epochs = 3\n\
        [INFO|trainer.py:2522] 2026-03-01 10:00:00,124 >>   Instantaneous batch size per device = 2\n\
        [INFO|trainer.py:2525] 2026-03-01 10:00:00,124 >>   Total train batch size (w. parallel, distributed & accumulation) = 8\n\
        [INFO|trainer.py:2526] 2026-03-01 10:00:00,124 >>   Gradient Accumulation steps = 4\n\
        [INFO|trainer.py:2527] 2026-03-01 10:00:00,124 >>   Total optimization steps = 4,749\n\
        [INFO|trainer.py:2528] 2026-03-01 10:00:00,125 >>   Number of trainable parameters = 3,000,000\n";
    let facts = Listener::new().hear(banner.as_bytes()).facts.unwrap_or_default();
    assert_eq!((facts.examples, facts.batch_size, facts.gradient_accumulation), (Some(12_663), Some(2), Some(4)));
    assert_eq!((facts.total_steps, facts.epoch_steps()), (Some(4749), Some(1583)));
    let newer = "[transformers] ***** Running training *****\n[transformers]   Num examples = 1,203\n\
        [transformers]   Num Epochs = 2\n[transformers]   Num update steps per epoch = 151\n\
        [transformers]   Total optimization steps = 302\n";
    let facts = Listener::new().hear(newer.as_bytes()).facts.unwrap_or_default();
    assert_eq!((facts.examples, facts.epoch_steps(), facts.total_steps), (Some(1203), Some(151), Some(302)));
}
