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
