//! Tables in other clothes: data frames as JSON, decimal commas, counts of pages.

use crate::common::{check, refusal, series};
use expect_test::expect;

#[test]
fn data_frames_of_pandas_in_every_orientation() {
    let rising: Vec<u64> = (0..12).map(|row| 4000 + 30 * row).collect();
    let rows = |row: &dyn Fn(usize, u64) -> String| {
        rising.iter().enumerate().map(|(at, &mib)| row(at, mib)).collect::<Vec<_>>().join(",")
    };
    let columns = format!(
        "{{\"step\":{{{}}},\"rss_mb\":{{{}}}}}",
        rows(&|at, _| format!("\"{at}\":{at}")),
        rows(&|at, mib| format!("\"{at}\":{mib}.0"))
    );
    let index = format!("{{{}}}", rows(&|at, mib| format!("\"{at}\":{{\"step\":{at},\"rss_mb\":{mib}.0}}")));
    let split = format!(
        "{{\"columns\":[\"step\",\"rss_mb\"],\"index\":[{}],\"data\":[{}]}}",
        rows(&|at, _| at.to_string()),
        rows(&|at, mib| format!("[{at},{mib}.0]"))
    );
    let records = format!("[{}]", rows(&|at, mib| format!("{{\"step\":{at},\"rss_mb\":{mib}.0}}")));
    let indented = columns.replace("{\"step\"", "{\n  \"step\"").replace(",\"", ",\n    \"") + "\n";
    for text in [&columns, &index, &split, &records, &indented] {
        assert_eq!(series(text), [(String::new(), rising.clone())], "{text}");
    }
    // Rows keep their order: as texts, `10` would stand before `2`.
    check(
        r#"{"rss_mb":{"8":4000,"9":4100,"10":4200},"loss":{"8":0.5,"9":null,"10":0.25}}"#,
        expect![[r#"
        json of pandas | 3 samples | rss_mb | MiB | 0 skipped
          rss=3.91 GiB
          rss=4.00 GiB
          rss=4.10 GiB
    "#]],
    );
    check(
        r#"{"rss_mb":{"1735689600000":4000,"1735689660000":4100}}"#,
        expect![[r#"
        json of pandas | 2 samples | rss_mb | MiB | 0 skipped
          t 1735689600 rss=3.91 GiB
          t 1735689660 rss=4.00 GiB
    "#]],
    );
    check(
        &columns[..columns.len() / 2],
        expect![[r#"
        error: it begins like a data frame of pandas, but breaks off or is not valid JSON
        hint: write it again, best with `to_csv()` or `to_json(orient="records", lines=True)`
    "#]],
    );
}

#[test]
fn one_object_with_a_memory_per_gpu_is_no_frame() {
    let lines = "{\"step\":1,\"gpu\":{\"0\":512}}\n{\"step\":2,\"gpu\":{\"0\":513}}\n";
    assert!(!refusal(lines).contains("pandas"), "{}", refusal(lines));
}

#[test]
fn a_comma_that_can_only_be_decimal_makes_all_of_them_decimal() {
    // 10,125 alone might be ten thousand.
    let quoted = "step,rss_gb\n1,\"9,5\"\n2,\"9,75\"\n3,\"10,125\"\n4,\"10,25\"\n";
    let tabs = quoted.replace(",\"", "\t").replace('"', "").replace("step,", "step\t");
    let semicolons = tabs.replace('\t', ";");
    for text in [quoted, &tabs, &semicolons] {
        assert_eq!(series(text)[0].1, [9728, 9984, 10368, 10496], "{text}");
    }
    let thousands = "step,rss_mb\n1,\"9,500\"\n2,\"9,750\"\n3,\"10,125\"\n";
    assert_eq!(series(thousands)[0].1, [9500, 9750, 10125]);
    let below_one = "step,rss_gb\n1,\"0,500\"\n2,\"0,750\"\n3,\"1,125\"\n";
    assert_eq!(series(below_one)[0].1, [512, 768, 1152]);
}

#[test]
fn resident_pages_as_statm_counts_them() {
    check(
        "step,rss_pages\n1,262144\n2,262400\n",
        expect![[r#"
        csv | 2 samples | rss_pages | pages of 4 KiB | 0 skipped
          step 1 rss=1.00 GiB
          step 2 rss=1.00 GiB
        note column `rss_pages` counts pages, taken to be of 4 KiB (`getconf PAGESIZE` tells)
    "#]],
    );
}
