//! Contents of reports.

use std::collections::HashMap;

use ropewalk_study::report::Report;

use crate::fake::{Fake, Study, PLAN};

/// Tags of HTML in order, with the end of each element where it belongs.
#[track_caller]
fn check_nesting(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in html.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name = tag.split([' ', '/']).find(|s| !s.is_empty()).unwrap_or("");
        if tag.starts_with('!') || tag.ends_with('/') || ["meta", "br"].contains(&name) {
            continue;
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "near {tag}");
        } else {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_page_needs_nothing_else_and_hides_nothing() {
    let study = Study::new(PLAN);
    study.run("s", &mut Fake::default()).unwrap();
    let (html, markdown) = study.reports("s");
    check_nesting(&html);
    for outside in ["src=", "href=", "url(", "@import", "<script", "<link", "<iframe", "onload", "onclick"] {
        assert!(!html.contains(outside), "{outside}");
    }
    // The one address names the dialect of the drawings.
    assert_eq!(html.matches("http").count(), html.matches("http://www.w3.org/2000/svg").count() + 1);
    for part in [
        "<meta name=\"viewport\" content=\"width=device-width",
        "prefers-color-scheme: dark",
        "http-equiv=\"Content-Security-Policy\"",
        "role=\"img\" aria-label=\"Perplexity by position, 12k tokens\"",
        "overflow-x: auto",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!(html.matches("<svg").count(), html.matches("<title>").count() - 1);
    for heading in [
        "All tasks",
        "Scores by length",
        "Perplexity by position",
        "Where needles are found",
        "Tables in the forms of the papers",
        "Does perplexity tell?",
        "Frozen and trained weights",
        "Every cell",
    ] {
        assert!(html.contains(&format!("<h2>{heading}</h2>")), "{heading}");
        assert!(markdown.contains(&format!("\n## {heading}\n")), "{heading}");
    }
    for table in [
        "Table 1 of LCEG",
        "Table 2 of LCEG",
        "Table 3 of LCEG",
        "Table 1 of Untie the Knots",
        "Table 5 of HARPE",
        "Tables 3 and 4 of SBA-RoPE",
    ] {
        assert!(html.contains(table) && markdown.contains(table), "{table}");
    }
    assert!(!html.contains("NaN") && !html.contains("inf<"), "figures that are none");
    assert!(!html.contains("not whole") && !html.contains("not run"));
    // Every cell stands in the appendix with what belongs to it.
    assert_eq!(html.matches(">small</th>").count(), 161);
    assert_eq!(html.matches(">abababababab</td>").count(), 23);
}

/// Records from before buckets had standard errors are read, and drawn without bands.
#[test]
fn perplexity_by_position_has_bands_where_errors_are_known() {
    let study = Study::new(PLAN);
    study.run("s", &mut Fake::default()).unwrap();
    let known = |html: &str| {
        let (_, after) = html.split_once("<h2>Perplexity by position</h2>").unwrap();
        let section = after.split("<h2>").next().unwrap();
        (section.contains("<polygon "), section.contains("Bands are 95% intervals."))
    };
    assert_eq!(known(&study.reports("s").0), (true, true));
    for entry in std::fs::read_dir(study.at("s/cells")).unwrap() {
        let path = entry.unwrap().path();
        let mut cell: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let buckets = cell.pointer_mut("/state/done/buckets").and_then(|b| b.as_array_mut());
        for bucket in buckets.into_iter().flatten() {
            bucket.as_object_mut().unwrap().remove("nll_stderr").unwrap();
        }
        std::fs::write(&path, cell.to_string()).unwrap();
    }
    assert_eq!(study.run("s", &mut Fake::default()).unwrap().measured, 0);
    assert_eq!(known(&study.reports("s").0), (false, false));
}

#[test]
fn tables_hold_the_figures_of_the_cells() {
    let study = Study::new(PLAN);
    let mut fake = Fake { scores: Some(("yarn, vt, 8192", 12.34)), ..Fake::default() };
    study.run("s", &mut fake).unwrap();
    let (_, markdown) = study.reports("s");
    let table = |caption: &str| -> Vec<Vec<String>> {
        let (_, after) = markdown.split_once(caption).unwrap_or_else(|| panic!("no {caption:?}"));
        let lines = after.lines().skip_while(|l| !l.starts_with('|')).take_while(|l| l.starts_with('|'));
        let cells = |l: &str| l.trim_matches('|').split(" | ").map(|c| c.trim().to_owned()).collect();
        lines.map(cells).collect()
    };
    let all = table("Tasks at 8k tokens.");
    let column = all[0].iter().position(|h| h == "vt").unwrap();
    let row = all.iter().find(|r| r[0] == "yarn").unwrap();
    assert!(row[column].starts_with("12.3 ("), "{row:?}");
    // The mean of 4 RULER tasks, from the figures of the appendix.
    let cells = table("Every cell: what was measured");
    let value = |task: &str, length: &str| -> f64 {
        let row = cells.iter().find(|r| r[1] == "yarn" && r[2] == task && r[3] == length).unwrap();
        row[6].parse().unwrap()
    };
    let tasks = ["niah_single_2", "niah_multikey_1", "vt", "cwe"];
    let mean = |length: &str| tasks.iter().map(|t| value(t, length)).sum::<f64>() / 4.0;
    let ruler = table("Mean of 4 tasks of RULER's 13");
    let row = ruler.iter().find(|r| r[0] == "yarn").unwrap();
    let shown: Vec<f64> = row[1..].iter().map(|c| c.trim_matches('*').parse().unwrap()).collect();
    let means = ["4k", "8k", "12k"].map(mean);
    let whole = means.iter().sum::<f64>() / 3.0;
    for (shown, mean) in shown.iter().zip(means.iter().chain([&whole])) {
        assert!((shown - mean).abs() < 0.06, "{row:?} {means:?}");
    }
    // Two seeds of the passkey in one figure.
    let seeds: Vec<f64> = cells
        .iter()
        .filter(|r| r[1] == "pi" && r[2] == "passkey" && r[3] == "4k")
        .map(|r| r[6].parse().unwrap())
        .collect();
    let passkey = table("Passkey by length");
    let shown: f64 = passkey.iter().find(|r| r[0] == "pi").unwrap()[1].trim_matches('*').parse().unwrap();
    assert!(seeds.len() == 2 && (shown - (seeds[0] + seeds[1]) / 2.0).abs() < 0.06, "{seeds:?} {shown}");
    // Lower perplexity is better, and the best is bold once.
    let perplexity = table("Perplexity by length");
    let at = |r: &[String]| r[3].trim_matches('*').parse::<f64>().unwrap();
    let best = perplexity[2..].iter().min_by(|a, b| at(a).total_cmp(&at(b))).unwrap();
    assert!(best[3].starts_with("**"), "{best:?}");
    assert_eq!(perplexity.iter().filter(|r| r[3].starts_with("**")).count(), 1);
    // 4 methods of exact attention, 3 of approximate; the trained one has one pair.
    let correlation = table("Correlation of ln(perplexity)");
    let row = correlation.iter().find(|r| r[0] == "cwe" && r[1] == "12k").unwrap();
    assert_eq!((row[4].as_str(), row[7].as_str()), ("4", "3"), "{row:?}");
    assert!(row[2].parse::<f64>().unwrap() < -0.5, "{row:?}");
    let trained = table("Means over methods with frozen and with trained weights");
    assert!(trained.iter().any(|r| r[0] == "vt" && r[4].ends_with("(n 1)")), "{trained:?}");
    let few = Study::new(
        &PLAN.replace("name = \"lm-infinite\"\nspec = \"lm-infinite\"", "name = \"x\"\nspec = \"plain\""),
    );
    few.run("s", &mut Fake::default()).unwrap();
    assert!(few.reports("s").1.contains("| too few |"));
}

/// A set of tasks has one chart, and a single task of RULER is also a set.
#[test]
fn scores_by_length_are_drawn_once_for_the_same_tasks() {
    let charts = |tasks: &str| {
        let study = Study::new(&format!(
            "title = \"x\"\nlengths = [4096, 8192]\nmodels = [{{ name = \"m\", path = \"m.gguf\" }}]\n\
             methods = [{{ name = \"a\" }}]\ntasks = [{tasks}]\n"
        ));
        study.run("s", &mut Fake::default()).unwrap();
        let html = study.reports("s").0;
        let labels = html.split("aria-label=\"").skip(1).filter_map(|after| after.split('"').next());
        labels.filter(|l| l.contains(" by length")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(charts("{ name = \"vt\" }"), ["Vt by length"]);
    assert_eq!(charts("{ name = \"passkey\" }"), ["Passkey by length"]);
    let two = "RULER by length: mean of 2 of its 13 tasks";
    assert_eq!(charts("{ name = \"vt\" }, { name = \"cwe\" }"), [two]);
    let three = charts("{ name = \"vt\" }, { name = \"cwe\" }, { name = \"passkey\" }");
    assert_eq!(three, [two, "Mean of 3 tasks by length"]);
    // Means of the same tasks alone are drawn.
    assert_eq!(
        charts("{ name = \"vt\" }, { name = \"cwe\", lengths = [8192, 16384] }"),
        Vec::<String>::new()
    );
}

/// A mean of fewer tasks than the table's says so, and is not part of the mean over lengths.
#[test]
fn means_of_fewer_tasks_say_of_how_many() {
    let study = Study::new(
        "title = \"x\"\nlengths = [4096, 8192]\nmodels = [{ name = \"m\", path = \"m.gguf\" }]\n\
         methods = [{ name = \"a\" }]\ntasks = [{ name = \"vt\" }, { name = \"cwe\", lengths = [8192, 16384] }]\n",
    );
    study.run("s", &mut Fake::default()).unwrap();
    let markdown = study.reports("s").1;
    let (_, table) = markdown.split_once("Mean of 2 tasks of RULER's 13").unwrap();
    let head = table.lines().find(|line| line.starts_with('|')).unwrap();
    assert_eq!(head, "| method | 4k (1 of 2) | 8k | 16k (1 of 2) |");
}

/// A plan of a few kilobytes names a hundred thousand cells, of which nobody has measured any.
#[test]
fn a_report_of_nothing_is_small() {
    for (n_lengths, n_seeds) in [(100, 1000), (1000, 100)] {
        let list = |n: u64| format!("{:?}", (2..2 + n).collect::<Vec<_>>());
        let study = Study::new(&format!(
            "title = \"x\"\nlengths = {}\nseeds = {}\nmodels = [{{ name = \"m\", path = \"m.gguf\" }}]\n\
             methods = [{{ name = \"a\" }}]\ntasks = [{{ name = \"vt\" }}]\n",
            list(n_lengths),
            list(n_seeds)
        ));
        let report = Report::new(&study.plan(), &HashMap::new());
        assert_eq!(report.counts(), (0, 0, 100_000));
        let (html, markdown) = (report.html(), report.markdown());
        assert!(html.contains("99000 more") && markdown.contains("99000 more"));
        let bytes = html.len() + markdown.len();
        assert!(bytes < 16 << 20, "{n_lengths} lengths, {n_seeds} seeds: {bytes} bytes");
    }
}

#[test]
fn forms_of_other_studies_appear_with_their_tasks() {
    let plan = PLAN
        .replace("spec = \"pi:factor=2\"", "spec = \"dynamic-ntk:t=5\"\nmodels = [\"small\"]")
        .replace("spec = \"yarn:factor=2\"\n\n", "spec = \"dynamic-ntk:t=3\"\n\n")
        .replace(
            "[[methods]]\nname = \"plain\"",
            "[[models]]\nname = \"large\"\npath = \"l.gguf\"\n\n[[methods]]\nname = \"plain\"",
        )
        .replace("name = \"cwe\"", "name = \"longbench\"")
        .replace("name = \"vt\"", "name = \"needle_lwm\"\nlabel = \"cities\"");
    let study = Study::new(&plan);
    let summary = study.run("s", &mut Fake::default()).unwrap();
    let tasks = 3 * (1 + 2 + 2 + 1 + 2) + 2;
    assert_eq!(summary.measured, (7 + 6) * tasks, "one method is of the small model only");
    let (html, markdown) = study.reports("s");
    check_nesting(&html);
    for model in ["small", "large"] {
        assert!(html.contains(&format!("<h2>{model}: all tasks</h2>")), "{model}");
    }
    let (small, large) = markdown.split_once("\n## large: all tasks\n").unwrap();
    let grid = "Perplexity of dynamic-NTK by its scale t and length (after Table 9 of LCEG)";
    assert!(!large.contains(grid) && !large.split("## Every cell").next().unwrap().contains("| pi |"));
    let (_, grid) = small.split_once(grid).unwrap();
    let rows: Vec<&str> = grid.lines().filter(|l| l.starts_with('|')).take(4).collect();
    assert!(rows[0].starts_with("| method | t | 4k") && rows[2].starts_with("| yarn | 3 |"), "{rows:?}");
    assert!(rows[3].starts_with("| pi | 5 |"), "{rows:?}");
    assert!(small.contains("Mean of the 2 tasks of longbench, by length."));
    assert!(small.contains("Cities by length."));
    assert!(small.contains("Maps of cities") && small.contains("| 90+ % | "));
    assert!(small.contains("| method | ppl | needle | passkey | LongBench (2) | RULER (2) |"));
}

#[test]
fn text_of_models_and_files_stays_text() {
    let evil = "<script>alert(1)</script>";
    let plan = PLAN
        .replace("Twice the window", evil)
        .replace("name = \"plain\"", "name = \"<b>'plain\"")
        .replace("name = \"small\"", "name = '</table>\"|x'");
    let study = Study::new(&plan);
    let notes = vec![evil.to_owned(), "a | b\n# c\u{202e}\u{1b}[31m `d` *e* [f](g)".to_owned()];
    let mut fake =
        Fake { notes, fails: Some(("yarn, vt", "</title><img src=x onerror=alert(1)>")), ..Fake::default() };
    study.run("s", &mut fake).unwrap();
    let (html, markdown) = study.reports("s");
    check_nesting(&html);
    for text in [&html, &markdown] {
        assert!(!text.contains("<script") && !text.contains("<img") && !text.contains("<b>'"));
        assert!(!text.contains('\u{202e}') && !text.contains('\u{1b}'));
        assert!(text.contains("&lt;script&gt;"));
    }
    assert!(html.contains("&lt;/table&gt;&quot;|x") && html.contains("&lt;b&gt;&#39;plain"));
    assert!(markdown.contains("a \\| b\\\\n\\# c"), "one line, no column, no heading");
    assert!(markdown.contains("\\[f\\](g)") && markdown.contains("\\`d\\` \\*e\\*"));
}

/// The page that `scripts/check-report.sh` opens in a browser: every kind of content, and what goes wrong.
#[test]
fn a_page_for_the_browser() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("study-report");
    std::fs::create_dir_all(&folder).unwrap();
    let evil = "<script>document.title = 'broken'</script>";
    let study = Study::new(&PLAN.replace("name = \"plain\"", &format!("name = \"{evil}\"")));
    let mut fake = Fake {
        notes: vec![evil.to_owned(), "a_long_name_without_any_blank_in_it_".repeat(8)],
        fails: Some(("dca, vt", "out of memory: the context takes 8 GiB")),
        stop_after: Some(150),
        ..Fake::default()
    };
    study.run("s", &mut fake).unwrap();
    std::fs::copy(study.at("s/report.html"), folder.join("hostile.html")).unwrap();
    let study = Study::new(PLAN);
    study.run("s", &mut Fake::default()).unwrap();
    std::fs::copy(study.at("s/report.html"), folder.join("whole.html")).unwrap();
    std::fs::copy(study.at("s/report.md"), folder.join("whole.md")).unwrap();
}
