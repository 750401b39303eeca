//! Times in the forms that people write them, and what all rows together say about them.

use crate::common::{all, mebibytes, shown_with};
use garden_memory::Quantity;
use garden_trace::{ReadOptions, ReadTrace, Unit};

/// Seconds since the first sample.
fn since_start(read: &ReadTrace) -> Vec<f64> {
    let time = |index| read.trace.time_s(index).expect("every sample has it");
    (0..read.trace.len()).map(|index| time(index) - time(0)).collect()
}

/// A table of such times, in which memory grows by 100 MiB a row.
fn table(times: &[&str]) -> ReadTrace {
    let rows = times.iter().enumerate().map(|(row, time)| format!("{time},{}\n", 4000 + 100 * row));
    let text = format!("time,rss_mb\n{}", rows.collect::<String>());
    all(&text).remove(0)
}

fn notes(read: &ReadTrace) -> String {
    read.input.notes.join("; ")
}

#[test]
fn dates_as_people_write_them() {
    for times in [
        ["02/22/2025 11:59 PM", "02/23/2025 12:00 AM", "02/23/2025 12:01 AM"],
        ["22.02.2025 23:59:00", "23.02.2025 00:00:00", "23.02.2025 00:01:00"],
        ["22/02/2025 23:59", "23/02/2025 00:00", "23/02/2025 00:01"],
        ["2025/02/22 23:59:00", "2025/02/23 00:00:00", "2025/02/23 00:01:00"],
        ["Feb 22 23:59:00", "Feb 23 00:00:00", "Feb 23 00:01:00"],
        ["Dec 31 23:59:00", "Jan  1 00:00:00", "Jan  1 00:01:00"],
        ["Sat Feb 22 23:59:00 2025", "Sun Feb 23 00:00:00 2025", "Sun Feb 23 00:01:00 2025"],
        ["20250222T235900Z", "20250223T000000Z", "20250223T000100Z"],
        ["1740268740000", "1740268800000", "1740268860000"],
        ["23:59:00", "00:00:00", "00:01:00"],
        ["11:59:00 PM", "12:00:00 AM", "12:01:00 AM"],
        ["23:59", "00:00", "00:01"],
    ] {
        let read = table(&times);
        assert_eq!(since_start(&read), [0.0, 60.0, 120.0], "{times:?}");
        assert_eq!(read.input.skipped, 0, "{times:?}");
    }
}

#[test]
fn a_clock_that_begins_anew_is_no_midnight() {
    let read = table(&["00:00:00", "13:00:00", "00:00:00", "00:01:00"]);
    assert_eq!(since_start(&read), [0.0, 46_800.0, 0.0, 60.0]);
    let read = table(&["20:00:00", "07:00:00", "08:00:00"]);
    assert_eq!(since_start(&read), [0.0, 39_600.0, 43_200.0]);
}

#[test]
fn json_rows_cross_midnight_too() {
    let rows = ["23:59:59", "00:00:00", "00:00:01"].map(|time| format!("{{\"time\":\"{time}\",\"rss_mb\":4000}}\n"));
    assert_eq!(since_start(&all(&rows.concat())[0]), [0.0, 1.0, 2.0]);
}

#[test]
fn the_day_is_told_by_all_rows() {
    // A value above 12 anywhere decides.
    let read = table(&["03/02/2025 12:00", "12/02/2025 12:00", "13/02/2025 12:00"]);
    assert_eq!(since_start(&read), [0.0, 9.0 * 86_400.0, 10.0 * 86_400.0]);
    let read = table(&["02/03/2025 12:00", "02/12/2025 12:00", "02/13/2025 12:00"]);
    assert_eq!(since_start(&read), [0.0, 9.0 * 86_400.0, 10.0 * 86_400.0]);
    // Else the order without jumps.
    let read = table(&["01/02/2025 23:59", "02/02/2025 00:00", "03/02/2025 00:00"]);
    assert_eq!(since_start(&read), [0.0, 60.0, 86_460.0]);
    assert_eq!(notes(&read), "dates are read with the day first: with the month first they would jump");
    let read = table(&["02/01/2025 23:59", "02/02/2025 00:00", "02/03/2025 00:00"]);
    assert_eq!(since_start(&read), [0.0, 60.0, 86_460.0]);
    // Within a day it makes no difference.
    assert_eq!(notes(&table(&["03/02/2025 12:00", "03/02/2025 12:01"])), "");
    let read = table(&["13/02/2025 12:00", "02/14/2025 12:00", "02/15/2025 12:00"]);
    assert_eq!(read.trace.time_s(0), None);
    assert_eq!(notes(&read), "times are ignored: some dates have the day first and others the month");
}

#[test]
fn hours_and_minutes_or_minutes_and_seconds() {
    for (times, seconds, meaning) in [
        (["09:00", "09:01", "09:03"], [0.0, 60.0, 180.0], "`09:00` are read as hours and minutes"),
        (["00:10", "00:10", "00:11"], [0.0, 0.0, 60.0], "`00:10` are read as hours and minutes"),
        (["00:00", "00:01", "00:03"], [0.0, 1.0, 3.0], "`00:00` are read as minutes and seconds"),
        (["23:58", "24:58", "25:58"], [0.0, 60.0, 120.0], "`23:58` are read as minutes and seconds"),
        (["09:00.5", "09:01.0", "09:01.5"], [0.0, 0.5, 1.0], "`09:00` are read as minutes and seconds"),
    ] {
        let read = table(&times);
        assert_eq!(since_start(&read), seconds, "{times:?}");
        assert_eq!(notes(&read), format!("times such as {meaning}"), "{times:?}");
    }
    // Time that has passed grows an hour.
    let read = table(&["59:58", "59:59", "1:00:00"]);
    assert_eq!(since_start(&read), [0.0, 1.0, 2.0]);
    let amounts = all("09:00 4000 MB\n09:01 4100 MB\n09:02 4200 MB\n");
    assert_eq!(since_start(&amounts[0]), [0.0, 60.0, 120.0]);
}

#[test]
fn the_newest_row_first() {
    const NOTE: &str = "the newest sample comes first in the file: judged in the order of time";
    for times in [
        ["1700000180", "1700000120", "1700000060", "1700000000"],
        ["2025-02-23 00:02:00", "2025-02-23 00:01:00", "2025-02-23 00:00:00", "2025-02-22 23:59:00"],
        ["00:02:00", "00:01:00", "00:00:00", "23:59:00"],
    ] {
        let read = table(&times);
        assert_eq!(since_start(&read), [0.0, 60.0, 120.0, 180.0], "{times:?}");
        assert_eq!((mebibytes(&read), notes(&read)), (vec![4300, 4200, 4100, 4000], NOTE.to_string()), "{times:?}");
    }
    let read = all("step,time,rss_mb\n4,400,40\n3,300,30\n2,200,20\n1,100,10\n").remove(0);
    assert_eq!((mebibytes(&read), read.trace.step(0)), (vec![10, 20, 30, 40], Some(1.0)));
    // A run that was started again is no reason to turn it round, and neither is a clock beside steps that rise.
    let read = all("step,rss_mb\n1,40\n2,41\n3,42\n1,40\n2,41\n3,43\n").remove(0);
    assert_eq!(mebibytes(&read), [40, 41, 42, 40, 41, 43]);
    let read = all("step,time,rss_mb\n1,400,10\n2,300,20\n3,200,30\n4,100,40\n").remove(0);
    assert_eq!(mebibytes(&read), [10, 20, 30, 40]);
}

#[test]
fn logs_with_halves_of_the_day() {
    let text =
        "12:59:59 PM RAM: 4000 MB\n01:00:00 PM RAM: 4001 MB\n11:59:59 PM RAM: 4002 MB\n12:00:00 AM RAM: 4003 MB\n";
    let read = all(text).remove(0);
    assert_eq!(since_start(&read), [0.0, 1.0, 39_600.0, 39_601.0]);
    assert_eq!(read.input.column.as_deref(), Some("RAM"));
}

#[test]
fn a_number_of_seconds_without_an_amount_is_no_amount() {
    let text = "1794847642433 219896\n1794847643433 219904\n1794847644433 219908\n1794847645433\n";
    let options = ReadOptions { unit: Some(Unit::Kib), ..ReadOptions::default() };
    let read = garden_trace::read(text.as_bytes(), &options).unwrap();
    assert_eq!((read.trace.len(), read.trace.value(2, Quantity::Rss)), (3, Some(219_908 * 1024)));
    assert!(shown_with(text.as_bytes(), &options).contains("t 1794847642.433"));
}

/// Numbers below a bound in an order that looks like chance and is the same each time.
fn shuffled(count: usize) -> impl Iterator<Item = usize> {
    // A step that has no divisor in common with the count visits each number once.
    (0..count).map(move |at| (at * 47 + 13) % count)
}

#[test]
fn lines_that_were_shuffled_are_sorted_though_steps_repeat() {
    let rows = || shuffled(120).map(|at| (10 * (at / 2), 4000 + 3 * (at / 2)));
    let table: String = rows().map(|(step, mib)| format!("{step},{mib}\n")).collect();
    let objects: String = rows().map(|(step, mib)| format!("{{\"step\":{step},\"rss_mb\":{mib}}}\n")).collect();
    let log: String = rows().map(|(step, mib)| format!("step {step}: RAM: {mib} MB\n")).collect();
    for text in [format!("step,rss_mb\n{table}"), objects, log] {
        let read = all(&text).remove(0);
        assert!(mebibytes(&read).is_sorted(), "{text}");
        assert_eq!(read.trace.step(119), Some(590.0));
        assert_eq!(notes(&read), "the samples are in no order: sorted by step");
    }
    let times: String = shuffled(120).map(|at| format!("{},{}\n", 5 * (at / 2), 4000 + at / 2)).collect();
    let read = all(&format!("time_s,rss_mb\n{times}")).remove(0);
    assert!(mebibytes(&read).is_sorted());
    assert_eq!(notes(&read), "the samples are in no order: sorted by time");
}

#[test]
fn steps_that_begin_anew_are_not_shuffled() {
    // Three rows of each epoch, whose steps count from one.
    let rows: String = (0..30)
        .flat_map(|epoch| (1..=3).map(move |step| (epoch, step)))
        .map(|(epoch, step)| format!("{step},{}\n", 5000 - 3 * epoch - step))
        .collect();
    let read = all(&format!("step,rss_mb\n{rows}")).remove(0);
    assert_eq!((read.trace.step(0), read.trace.step(89)), (Some(1.0), Some(3.0)));
    // Steps that go back while the clock goes on: a run that is resumed again and again.
    let rows: String = (0..60).map(|at| format!("{at},{},{}\n", 100 + at - 2 * (at % 3), 4000 + at)).collect();
    let read = all(&format!("time_s,step,rss_mb\n{rows}")).remove(0);
    assert_eq!((read.trace.step(2), read.input.notes.len()), (Some(98.0), 0));
}

#[test]
fn a_clock_that_jumps_forward_leaves_a_gap() {
    let time = |at: u32| if at < 30 { 10 * at } else { 3 * 3600 + 10 * at };
    let clock = |at: u32| format!("{:02}:{:02}:{:02}", 9 + time(at) / 3600, time(at) / 60 % 60, time(at) % 60);
    let rows: String = (0..60).map(|at| format!("{},{}\n", clock(at), 4000 + 2 * at)).collect();
    let read = all(&format!("time,rss_mb\n{rows}")).remove(0);
    let times = since_start(&read);
    assert_eq!((times[29], times[30], times[59]), (290.0, 11_100.0, 11_390.0));
    assert_eq!((read.trace.events.len(), read.trace.len()), (0, 60));
    assert_eq!(
        notes(&read),
        "the clock jumps by 3 h before sample 31: a pause, or a clock that was set; nothing is known of the time between"
    );
    // Rows without a rhythm have no gap that stands out.
    let rows: String = (0..60).map(|at| format!("{},{}\n", at * at * at, 4000 + at)).collect();
    assert_eq!(notes(&all(&format!("time_s,rss_mb\n{rows}"))[0]), "");
}

#[test]
fn a_clock_that_was_not_set_yet_has_no_time() {
    let time = |at: u32| if at < 3 { f64::from(at) } else { 1_740_866_400.0 + f64::from(at) };
    let rows: String = (0..10).map(|at| format!("{},{}\n", time(at), 4000 + at)).collect();
    let read = all(&format!("time_s,rss_mb\n{rows}")).remove(0);
    assert_eq!((read.trace.len(), read.trace.time_s(2), read.trace.time_s(3)), (10, None, Some(1_740_866_403.0)));
    assert_eq!(notes(&read), "3 times near 1970 are ignored: the clock was not set yet");
    // Seconds since the start stay.
    let rows: String = (0..10).map(|at| format!("{at},{}\n", 4000 + at)).collect();
    assert_eq!(all(&format!("time_s,rss_mb\n{rows}"))[0].trace.time_s(2), Some(2.0));
}
