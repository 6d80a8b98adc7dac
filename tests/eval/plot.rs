//! Charts: that they are written whole, hold what they were given, and bear any numbers.

#[path = "../../src/plot/axis.rs"]
#[allow(dead_code)]
mod axis;

use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams};
use ropewalk::plot::{rope, Axis, Chart, Grid, Heat, HeatPanel, Map, PlotError, Scale, Series};
use ropewalk::rope::Plan;

use axis::Span;

fn hparams(freq_base: f64, n_rot: usize, n_head_kv: usize, n_ctx_train: usize) -> Hparams {
    Hparams {
        arch: "llama".into(),
        n_layer: 2,
        n_embd: 64,
        n_vocab: 256,
        n_ctx_train,
        norm_eps: 1e-5,
        attention: vec![LayerAttention::new(n_head_kv, n_head_kv, n_rot).rotated(freq_base, n_rot)],
        layers: LayerHparams::alike(2, 128),
        ..Hparams::default()
    }
}

fn of(spec: &str, hp: &Hparams, n_ctx: usize) -> Chart {
    let plan = Plan::new(&spec.parse().expect("a spec"), hp, n_ctx).expect("a plan");
    rope(&[&plan.inspect(hp).expect("its own model")])
}

fn perplexity() -> Chart {
    let curve =
        |f: &dyn Fn(f64) -> f64| (1..=32).map(|i| (f64::from(i) * 512.0, f(f64::from(i) * 512.0))).collect();
    Chart {
        title: "SmolLM2-135M, perplexity by position".into(),
        x: Axis::new("position, tokens", Scale::Linear).mark(8192.0, "trained window 8192"),
        y: Axis::new("perplexity", Scale::Log),
        series: vec![
            Series::new("plain", curve(&|p| 22.0 * (1.0 + (p / 9000.0).powi(6)))),
            Series::new("yarn:factor=2", curve(&|p| 23.0 - p / 9000.0)),
            Series::new("pi:factor=2", curve(&|p| 63.0 - p / 4000.0)),
            Series::new("sba:factor=2", curve(&|p| 26.0 - p / 9000.0 + (p / 900.0).sin())),
        ],
    }
}

fn charts() -> Vec<(&'static str, Chart)> {
    let smol = hparams(1e5, 64, 3, 8192);
    let llama2 = hparams(1e4, 128, 32, 4096);
    vec![
        ("perplexity", perplexity()),
        ("yarn", of("yarn:factor=4", &smol, 32768)),
        ("sba", of("sba", &smol, 16384)),
        ("plain", of("plain", &smol, 8192)),
        ("harpe3", of("harpe", &smol, 16384)),
        ("harpe32", of("harpe:bases=table2", &llama2, 131_072)),
    ]
}

#[test]
fn files_are_written_whole_and_replaced() {
    let dir = tempfile::tempdir().expect("a folder");
    // For looking at them: a folder to keep the pictures in, set when this is compiled.
    let keep = option_env!("ROPEWALK_KEEP_CHARTS");
    for (name, chart) in charts() {
        for (extension, magic) in
            [("svg", &b"<svg"[..]), ("png", b"\x89PNG\r\n\x1a\n"), ("pdf", b"%PDF-1.4\n")]
        {
            let path = dir.path().join(format!("{name}.{extension}"));
            std::fs::write(&path, "somebody else's").expect("writable");
            chart.write(&path).expect_err("it was replaced");
            std::fs::remove_file(&path).expect("it is there");
            chart.write(&path).expect("a chart");
            chart.write(&path).expect("the same again");
            let bytes = std::fs::read(&path).expect("the chart");
            assert!(bytes.starts_with(magic), "{name}.{extension}");
            if extension == "svg" {
                let text = String::from_utf8(bytes).expect("SVG is text");
                assert!(text.trim_end().ends_with("</svg>"));
                assert!(
                    chart.series.iter().all(|s| text.contains(&s.name)),
                    "{name}: a legend entry is missing"
                );
                assert!(chart.x.markers.iter().chain(&chart.y.markers).all(|m| text.contains(&m.label)));
            }
            if let Some(folder) = keep {
                std::fs::copy(&path, std::path::Path::new(folder).join(format!("{name}.{extension}")))
                    .expect("copied");
            }
        }
        println!("{}", chart.text(90, 18).expect("a text plot"));
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("listed").count(),
        18,
        "a temporary file was left behind"
    );
}

#[test]
fn what_cannot_be_written_is_an_error_that_names_the_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let chart = perplexity();
    for (path, word) in
        [("chart.jpg", ".png, or .pdf"), ("chart", ".png, or .pdf"), ("missing/chart.png", "missing")]
    {
        let e = chart.write(dir.path().join(path)).expect_err(path).to_string();
        assert!(e.contains(word) && e.contains("chart") && e.lines().count() == 1, "{e}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0);
}

#[test]
fn any_numbers_are_borne() {
    let hostile =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1e300, f64::MAX, 1.0, 1.0, 1e12];
    for scale in [Scale::Linear, Scale::Log] {
        let points: Vec<(f64, f64)> =
            hostile.iter().flat_map(|a| hostile.iter().map(move |b| (*a, *b))).collect();
        let mut chart = Chart {
            title: "t\u{2192}".repeat(300),
            x: Axis::new("x", scale).mark(f64::NAN, "nowhere").mark(-5.0, "left"),
            y: Axis::new("y", scale).mark(1e300, "far").mark(2.0, "z".repeat(500)),
            series: (0..40)
                .map(|i| Series::new(format!("{i} {}", "n".repeat(300)), points.clone()))
                .collect(),
        };
        chart.to_svg().expect("drawn");
        for (w, h) in [(0, 0), (1, 1000), (usize::MAX, 7), (80, 20)] {
            let text = chart.text(w, h).expect("drawn");
            assert!(text.lines().all(|l| l.chars().count() <= w.clamp(24, 400)), "{w}");
        }
        chart.series = vec![Series::new("one point", vec![(3.0, 3.0)])];
        chart.to_svg().expect("drawn");
        for none in [vec![], vec![Series::new("none", vec![(f64::NAN, 1.0)])]] {
            chart.series = none;
            assert!(matches!(chart.to_svg(), Err(PlotError::Empty(_))));
            assert!(matches!(chart.text(80, 20), Err(PlotError::Empty(_))));
        }
    }
    let names = |n: usize| (0..n).map(|i| i.to_string()).collect();
    let scores = vec![hostile.iter().map(|s| Some(*s)).chain([None]).collect(); 2];
    let (title, x, y) = ("t".into(), "x".into(), "y".into());
    let grid = Grid { title, x, y, columns: names(12), rows: names(2), scores };
    let svg = grid.to_svg().expect("drawn");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

/// An axis shows what it is extended to, and a line without points leaves the colors of the others as they were.
#[test]
fn axes_and_colors_can_be_the_same_in_all_charts() {
    let line = |points| Series::new("line", points);
    let chart = |first: Vec<(f64, f64)>| Chart {
        title: "scores".into(),
        x: Axis::new("x", Scale::Linear),
        y: Axis::new("y", Scale::Linear).showing([0.0, 100.0]),
        series: vec![Series::new("first", first), line(vec![(0.0, 98.0), (1.0, 99.0)])],
    };
    let (with, without) = (chart(vec![(0.0, 98.5)]), chart(vec![]));
    let (with, without) = (with.to_svg().expect("drawn"), without.to_svg().expect("drawn"));
    assert!(without.contains(">\n0\n</text>") && without.contains(">\n100\n</text>"), "{without}");
    assert!(with.contains("first") && !without.contains("first"));
    assert!(with.contains("#D55E00") && without.contains("#D55E00") && !without.contains("#0072B2"));
}

/// Twelve lines, and intervals of two points and of one.
fn twelve(name: &str) -> Chart {
    let line = |i: u32| {
        let y = f64::from(i) + 2.0;
        let points = vec![(0.0, y), (1.0, y + 1.0), (2.0, f64::NAN), (3.0, y)];
        let bounds = points.iter().map(|p: &(f64, f64)| (p.1 / 1.5, p.1 * 1.5)).collect();
        Series::new(format!("{name} {i}"), points).between(bounds)
    };
    Chart {
        title: "Method after method".into(),
        x: Axis::new("step", Scale::Linear),
        y: Axis::new("loss", Scale::Log),
        series: (0..12).map(line).collect(),
    }
}

#[test]
fn lines_are_told_apart() {
    let svg = twelve("line").to_svg().expect("drawn");
    let strokes = |svg: &str| {
        let all = svg.split("stroke=\"#").skip(1).filter_map(|s| s.split('"').next()).map(str::to_owned);
        all.collect::<std::collections::BTreeSet<_>>()
    };
    // Seven colors, the grid, and the axes.
    assert_eq!(strokes(&svg).len(), 9, "{:?}", strokes(&svg));
    assert!(svg.contains("loss (log)") && !svg.contains("step (log)"));
    assert_eq!(svg.matches("<polygon").count(), 12, "an interval is missing");
    // Names stand at the lines: none has a letter. Long names do, in a legend and at the lines.
    let letter = |svg: &str, letter: char| svg.matches(&format!(">\n{letter}\n</text>")).count();
    assert_eq!((letter(&svg, 'L'), svg.matches("line 11").count()), (0, 1));
    let long = twelve("a name too long for the margin").to_svg().expect("drawn");
    assert_eq!((letter(&long, 'A'), letter(&long, 'L'), letter(&long, 'M')), (2, 2, 0));
    assert_eq!(long.matches("a name too long for the margin 11").count(), 1);
    // A title breaks, and only what has no room on two lines is cut.
    let mut chart = twelve("line");
    chart.title = "words ".repeat(16);
    let svg = chart.to_svg().expect("drawn");
    assert_eq!(svg.matches("words").count(), 16, "{svg}");
}

/// The bytes of the object of a PDF, by its place in the table at the end.
fn object(pdf: &[u8], n: usize) -> &[u8] {
    let text = String::from_utf8_lossy(&pdf[pdf.len() - 400..]).into_owned();
    let place = |line: &str| line.split(' ').next().and_then(|p| p.trim().parse::<usize>().ok());
    let after = text.split_once("startxref\n").and_then(|(_, end)| place(end.lines().next()?));
    let table = std::str::from_utf8(&pdf[after.expect("a table")..]).expect("text");
    let line = table.lines().nth(2 + n).expect("an object");
    &pdf[place(line).expect("a place")..]
}

#[test]
fn a_pdf_has_the_shapes_and_the_text() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("chart.pdf");
    let mut chart = twelve("line");
    chart.title = "a (b) & c\u{2192}".into();
    chart.write(&path).expect("a chart");
    let pdf = std::fs::read(&path).expect("the chart");
    for n in 1..=7 {
        assert!(object(&pdf, n).starts_with(format!("{n} 0 obj\n").as_bytes()), "object {n}");
    }
    let page = object(&pdf, 4);
    let start = page.windows(8).position(|w| w == b"\nstream\n").expect("a stream") + 8;
    let mut drawn = String::new();
    let mut packed = flate2::read::ZlibDecoder::new(&page[start..]);
    std::io::Read::read_to_string(&mut packed, &mut drawn).expect("unpacked");
    let hex = |text: &str| text.bytes().map(|b| format!("{b:02x}")).collect::<String>();
    for text in ["a (b) & c?", "loss (log)", "line 11"] {
        assert!(drawn.contains(&format!("<{}> Tj", hex(text))), "{text}");
    }
    // The bands of twelve lines, paler than the lines.
    let bands = drawn.lines().filter(|l| l.starts_with("/G14 gs ") && l.trim_end().ends_with('f'));
    assert_eq!(bands.count(), 12);
    assert!(drawn.lines().filter(|l| l.ends_with(" S")).count() > 20);
}

#[test]
fn plans_of_one_method_are_named_by_what_differs() {
    let hp = hparams(1e5, 64, 3, 8192);
    let plans = ["yarn:factor=4", "yarn:factor=8", "pi", "yarn:factor=4,beta-fast=64"]
        .map(|spec| plan(spec, &hp, 32768).inspect(&hp).expect("its own model"));
    let chart = rope(&plans.iter().collect::<Vec<_>>());
    let names: Vec<&str> = chart.series.iter().map(|s| s.name.as_str()).collect();
    let want = [
        "yarn:factor=4,beta-fast=32",
        "as in the file",
        "yarn:factor=8,beta-fast=32",
        "pi",
        "yarn:factor=4,beta-fast=64",
    ];
    assert_eq!(names, want);
}

#[test]
fn the_text_plot_follows_the_line() {
    let chart = Chart {
        title: "up".into(),
        x: Axis::new("x", Scale::Linear),
        y: Axis::new("y", Scale::Linear),
        series: vec![Series::new("line", vec![(0.0, 0.0), (10.0, 10.0)])],
    };
    let text = chart.text(40, 8).expect("drawn");
    let rows: Vec<&str> = text.lines().filter(|l| l.contains(['\u{2502}', '\u{2524}'])).collect();
    assert_eq!(rows.len(), 8);
    let first = |row: &str| {
        row.chars()
            .skip_while(|c| !"\u{2502}\u{2524}".contains(*c))
            .skip(1)
            .position(|c| c > '\u{2800}' && c <= '\u{28ff}')
    };
    let starts: Vec<usize> = rows.iter().filter_map(|r| first(r)).collect();
    assert!(starts.len() >= 7 && starts.windows(2).all(|w| w[1] < w[0]), "{starts:?}\n{text}");
    assert!(rows[..2].iter().any(|r| r.ends_with('A')) && text.contains("A line"), "{text}");
}

/// A title that does not fit goes on a second line; one that does not fit on two ends in dots.
#[test]
fn the_text_plot_has_its_whole_title() {
    let title = |spec: &str| {
        let chart = Chart { title: spec.into(), ..perplexity() };
        let text = chart.text(40, 8).expect("drawn");
        text.lines().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let long = "yarn:factor=4,beta-fast=32,beta-slow=1,ext-factor=1,original=8192";
    assert_eq!(title(long), ["yarn:factor=4,beta-fast=32,beta-slow=1,", "ext-factor=1,original=8192"]);
    let cut = title(&long.repeat(2));
    assert!(cut[1].ends_with("...") && cut[1].chars().count() == 40, "{cut:?}");
}

fn plan(spec: &str, hp: &Hparams, n_ctx: usize) -> Plan {
    Plan::new(&spec.parse().expect("a spec"), hp, n_ctx).expect("a plan")
}

/// The rows of a text map without their labels.
fn rows(text: &str) -> Vec<&str> {
    text.lines().filter_map(|l| Some(l.split_once('\u{2502}')?.1)).collect()
}

#[test]
fn the_text_map_shows_the_distance_of_every_pair() {
    // Ten tokens trained, so that a digit is a distance, and a cell for each pair.
    let hp = hparams(1e4, 8, 1, 10);
    let map = |spec: &str| Map::new(&[&plan(spec, &hp, 12)], &hp).expect("a map").text(80, 12);
    let se = map("self-extend:window=4,group=2");
    let want = [
        "0",
        "10",
        "210",
        "3210",
        "43210",
        "443210",
        "5543210",
        "55443210",
        "665543210",
        "6655443210",
        "77665543210",
        "776655443210",
    ];
    assert_eq!(rows(&se), want, "{se}");
    assert!(se.contains("original context of 10 tokens") && se.contains("11 \u{2502}"), "{se}");
    let lm = map("lm-infinite:window=3,global=1");
    assert_eq!(rows(&lm)[4..7], ["3.210", "3..210", "3...210"], "{lm}");
    let dca = map("dca:chunk=4,local=1");
    assert_eq!(rows(&dca)[3..8], ["3210", "43210", "432210", "4323210", "43243210"][..], "{dca}");
    let plain = map("plain");
    assert_eq!(rows(&plain)[11], "#99876543210", "{plain}");
    // Sinks of 4 tokens stay in sight where a cell is a thousand of them.
    let wide = hparams(1e4, 8, 1, 8192);
    let streaming =
        Map::new(&[&plan("streaming:window=2000", &wide, 65536)], &wide).expect("a map").text(70, 24);
    assert!(
        rows(&streaming).iter().skip(3).all(|r| r.starts_with("2.") && r.ends_with(['0', '1'])),
        "{streaming}"
    );
}

#[test]
fn maps_are_written_whole() {
    let hp = hparams(1e5, 64, 3, 8192);
    let dir = tempfile::tempdir().expect("a folder");
    let both = [plan("self-extend", &hp, 16384), plan("dca", &hp, 16384)];
    let map = Map::new(&[&both[0], &both[1]], &hp).expect("a map");
    for (name, magic) in [("map.svg", &b"<svg"[..]), ("map.png", b"\x89PNG\r\n\x1a\n")] {
        map.write(dir.path().join(name)).expect("drawn");
        assert!(std::fs::read(dir.path().join(name)).expect("there").starts_with(magic), "{name}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 2, "a temporary file was left behind");
    let svg = map.to_svg().expect("drawn");
    assert!(svg.trim_end().ends_with("</svg>") && svg.len() < 250_000, "{} bytes", svg.len());
    for word in [
        "self-extend:window=1024,group=8",
        "dca:chunk=6144",
        "16384",
        "original context 8192",
        "distance shown",
    ] {
        assert!(svg.contains(word), "{word}");
    }
    // Distances beyond the trained window have separate colors and a legend, only if there are any.
    assert!(!svg.contains("never trained"));
    let plain = Map::new(&[&plan("plain", &hp, 16384)], &hp).expect("a map").to_svg().expect("drawn");
    assert!(plain.contains("never trained") && plain.contains("16383"));
    assert!(matches!(map.write(dir.path().join("map.jpg")), Err(PlotError::Extension(_))));
}

#[test]
fn maps_bear_any_plan() {
    let hp = hparams(1e4, 8, 1, 2048);
    for n in [1, 2, 7, 100, 1 << 20, i32::MAX as usize] {
        for spec in [
            "plain",
            "self-extend",
            "lm-infinite",
            "dca",
            "streaming",
            "dca:original=9+plain",
            "streaming:original=1",
        ] {
            let plan = plan(spec, &hp, n);
            let map = Map::new(&[&plan, &plan, &plan, &plan], &hp).expect("a map");
            assert!(map.to_svg().expect("drawn").trim_end().ends_with("</svg>"), "{spec} at {n}");
            for (w, h) in [(0, 0), (usize::MAX, 7), (70, 24)] {
                let text = map.text(w, h);
                assert!(text.lines().all(|l| l.chars().count() <= w.clamp(24, 400)), "{spec} at {n}: {text}");
            }
            assert!(matches!(Map::new(&[&plan; 5], &hp), Err(PlotError::Panels(5))));
        }
    }
    assert!(matches!(Map::new(&[], &hp), Err(PlotError::Panels(0))));
}

#[test]
fn heat_maps_show_every_square() {
    let panel = |title: &str, rows: Vec<Vec<f32>>| HeatPanel {
        title: title.into(),
        tokens: 16 * rows.len(),
        trained: 32,
        rows,
        difference: false,
    };
    let a = panel("a", vec![vec![1.0], vec![0.04, 0.55], vec![0.3, 0.0, 0.96]]);
    let b = panel("b", vec![vec![0.0], vec![0.04, 0.75], vec![0.3, 1.0, 0.86]]);
    let difference = HeatPanel::difference("b less a", &b, &a);
    let heat = Heat { panels: vec![a, b, difference], scale: "one head".into() };
    let text = heat.text(40, 12);
    let want = ["#", ".6", "3.#", ".", ".8", "3#9", "j", ".2", ".#a"];
    assert_eq!(rows(&text), want, "{text}");
    assert!(["a\n", "b\n", "b less a\n", "48 \u{2502}"].iter().all(|t| text.contains(t)), "{text}");
    let svg = heat.to_svg().expect("drawn");
    assert!(["one head", "b less a", "query, tokens", "difference"].iter().all(|t| svg.contains(t)));

    // Many squares in few cells: the one farthest from 0 is seen.
    let mut many: Vec<Vec<f32>> = (0..512).map(|r| vec![0.0; r + 1]).collect();
    many[300][17] = 1.0;
    let heat = Heat { panels: vec![panel("many", many)], scale: String::new() };
    let text = heat.text(40, 16);
    let found: Vec<usize> = rows(&text).iter().map(|r| r.matches('#').count()).collect();
    assert_eq!((found.len(), found.iter().sum::<usize>(), found[300 * 16 / 512]), (16, 1, 1), "{text}");
    assert!(heat.to_svg().expect("drawn").len() < 1 << 20, "few rectangles");
    for (w, h) in [(0, 0), (usize::MAX, usize::MAX), (25, 5)] {
        assert!(heat.text(w, h).lines().count() > 4);
    }
    Heat { panels: vec![], scale: String::new() }.to_svg().expect("nothing drawn");
    assert!(Heat { panels: vec![panel("none", vec![])], scale: String::new() }.text(30, 5).contains("none"));
}

fn span(scale: Scale, lo: f64, hi: f64) -> Span {
    Span::around(&Axis::new("", scale), [lo, hi].into_iter(), 0.0)
}

#[test]
fn ticks_are_round_and_inside() {
    let labels = |s: Span, n| s.ticks(n).into_iter().map(|t| t.1).collect::<Vec<_>>().join(" ");
    assert_eq!(labels(span(Scale::Linear, 0.0, 16384.0), 5), "0 5k 10k 15k");
    assert_eq!(labels(span(Scale::Linear, 0.0, 8192.0), 5), "0 2000 4000 6000 8000");
    assert_eq!(labels(span(Scale::Linear, 0.0, 63.0), 7), "0 10 20 30 40 50 60");
    assert_eq!(labels(span(Scale::Log, 6.5, 2e6), 8), "10 100 1k 10k 100k 1M");
    assert_eq!(labels(span(Scale::Log, 10.0, 500.0), 6), "10 20 50 100 200 500");
    assert_eq!(labels(span(Scale::Log, 20.0, 30.0), 5), "20 22 24 26 28 30");
    for (lo, hi) in [(0.0, 0.0), (5.0, 5.0), (-1e149, 1e149), (1e-9, 2e-9), (1e9, 1e9 + 1.0)] {
        let s = span(Scale::Linear, lo, hi);
        let ticks = s.ticks(6);
        assert!(ticks.len() < 30, "{ticks:?}");
        assert!(
            ticks.iter().all(|t| s.at(t.0).is_some_and(|a| (-1e-6..=1.000001).contains(&a))),
            "{lo} {hi} {ticks:?}"
        );
    }
}

#[test]
fn what_an_axis_cannot_show_is_left_out() {
    let s = span(Scale::Log, 1.0, 100.0);
    assert_eq!(
        (s.at(10.0), s.at(0.0), s.at(-1.0), s.at(f64::NAN), s.at(f64::INFINITY)),
        (Some(0.5), None, None, None, None)
    );
}
