//! Plots: valid, complete, within their paper, readable on light and on dark.

use super::{GAME, named, sample, six, uniform};
use greenroom::statistics::{Sample, plots, summarize};
use roxmltree::{Document, Node};
use std::collections::BTreeMap;

fn drawn(sample: &Sample) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let written = plots(sample, &summarize(sample), folder.path()).unwrap();
    let name = |path: &std::path::PathBuf| path.file_stem().unwrap().to_string_lossy().to_string();
    written.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

fn three(n: u64) -> Sample {
    let cells: [&[&str]; 3] =
        [&["stakes.temptation=3"], &["stakes.temptation=5"], &["stakes.temptation=7.5"]];
    sample(GAME, &cells, n, |cell, seed| (0.9 - 0.2 * cell as f64) * (0.4 + 0.6 * uniform(seed, 9)), "Yes.")
}

/// Checks what holds for every plot; returns its texts.
fn check(name: &str, svg: &str) -> Vec<String> {
    let picture = Document::parse(svg).unwrap_or_else(|error| panic!("{name}: {error}"));
    let root = picture.root_element();
    let size = ["width", "height"].map(|side| root.attribute(side).unwrap().parse::<f64>().unwrap());
    assert_eq!((size[0], root.attribute("role")), (480.0, Some("img")), "{name}");
    assert!(root.children().any(|node| node.has_tag_name("title")), "{name} has no title");
    let style = root.children().find(|node| node.has_tag_name("style")).unwrap().text().unwrap();
    let (light, dark) = style.split_once("prefers-color-scheme: dark").unwrap();
    let texts: Vec<_> = picture.descendants().filter(|node| node.has_tag_name("text")).collect();
    for node in picture.descendants().filter(Node::is_element) {
        for class in node.attribute("class").unwrap_or_default().split(' ').filter(|class| !class.is_empty())
        {
            assert!(light.contains(&format!(".{class} {{")), "{name}: {class} looks like nothing");
            let is_same = ["strong", "s2", "s3", "s4", "s5"].contains(&class);
            assert!(is_same || dark.contains(&format!(".{class} {{")), "{name}: {class} stays light");
        }
        let paints = node.has_tag_name("rect") || node.has_tag_name("text") || node.has_tag_name("line");
        let is_styled = node.ancestors().any(|node| node.attribute("class").is_some());
        assert!(!paints || is_styled, "{name}: {node:?} is black on every paper");
    }
    let boxes: Vec<[f64; 4]> = texts.iter().map(extent).collect();
    for (at, [left, top, right, bottom]) in boxes.iter().enumerate() {
        let text = texts[at].text();
        assert!(
            *left >= 0.0 && *top >= 0.0 && *right <= size[0] && *bottom <= size[1],
            "{name}: {text:?} is cut"
        );
        for (other, [l, t, r, b]) in boxes.iter().enumerate().skip(at + 1) {
            let are_apart = right <= l || r <= left || bottom <= t || b <= top;
            assert!(are_apart, "{name}: {text:?} and {:?} cover each other", texts[other].text());
        }
    }
    assert!(!svg.contains(['\u{202e}', '\u{0}']), "{name}: a text turns others around");
    texts.iter().map(|node| node.text().unwrap_or_default().trim().to_string()).collect()
}

/// Left, top, right and bottom of a text, in wide letters.
fn extent(text: &Node<'_, '_>) -> [f64; 4] {
    let [x, y, size] =
        ["x", "y", "font-size"].map(|name| text.attribute(name).unwrap().parse::<f64>().unwrap());
    let moved = text.ancestors().filter_map(|node| node.attribute("transform"));
    let moved =
        moved.map(|to| to.trim_start_matches("translate(0 ").trim_end_matches(')').parse::<f64>().unwrap());
    let (y, width) = (
        y + moved.sum::<f64>(),
        console::measure_text_width(text.text().unwrap().trim()) as f64 * size * 0.6,
    );
    let left = match text.attribute("text-anchor") {
        Some("middle") => x - width / 2.0,
        Some("end") => x - width,
        _ => x,
    };
    [left, y - 0.75 * size, left + width, y + 0.2 * size]
}

#[test]
fn every_plot_says_what_it_shows() {
    let plots = drawn(&three(6));
    let texts: BTreeMap<&str, Vec<String>> =
        plots.iter().map(|(name, svg)| (name.as_str(), check(name, svg))).collect();
    insta::assert_debug_snapshot!(texts);
}

#[test]
fn what_agents_say_breaks_no_plot() {
    let game = GAME
        .replace(
            "[share, take]",
            "['</svg>&\"', \"<b>\\u202e a text that goes on for ever and ever and \
                                   ever\"]",
        )
        .replace("game.votes.share", "game.rounds")
        .replace(
            "share: { share: [3, 3], take:",
            "'</svg>&\"': { '</svg>&\"': [3, 3], \"<b>\\u202e a text \
                                                   that goes on for ever and ever and ever\":",
        )
        .replace(
            "take: { share: [",
            "\"<b>\\u202e a text that goes on for ever and ever and ever\": { \
                                      '</svg>&\"': [",
        )
        .replace("take: [1, 1]", "\"<b>\\u202e a text that goes on for ever and ever and ever\": [1, 1]");
    let plots = drawn(&sample(
        &game,
        &[&["stakes.temptation=1"], &["stakes.temptation=1000000"]],
        3,
        |_, _| 0.5,
        "x",
    ));
    assert_eq!(plots.len(), 3);
    plots.iter().for_each(|(name, svg)| drop(check(name, svg)));
}

#[test]
fn one_run_and_one_value_are_drawn_too() {
    let one = drawn(&sample(GAME, &[&[]], 1, |_, _| 0.5, "x"));
    one.iter().for_each(|(name, svg)| drop(check(name, svg)));
    let alike = drawn(&sample(GAME, &[&[]], 6, |_, _| 1.0 - 1e-9, "x"));
    alike.iter().for_each(|(name, svg)| drop(check(name, svg)));
    assert!(drawn(&Sample::default()).is_empty());
}

#[test]
fn many_cells_and_long_names_have_their_place() {
    drawn(&six()).iter().for_each(|(name, svg)| drop(check(name, svg)));
    let plots =
        drawn(&sample(&named(), &[&[], &["stakes.temptation=3"]], 4, |_, seed| uniform(seed, 3), "x"));
    assert_eq!(plots.len(), 3);
    plots.iter().for_each(|(name, svg)| drop(check(name, svg)));
}

#[test]
fn no_number_is_too_great_or_too_small_to_draw() {
    let plain = three(3);
    for numbers in
        [[1e300, -1e300], [1e308, -1e308], [1e-300, 0.0], [0.0, 0.0], [1e17, 1e17 + 16.0], [-5.0, 1e9]]
    {
        let mut sample = plain.clone();
        for (at, run) in sample.runs.iter_mut().enumerate() {
            let payoffs = run.transcript.footer.as_mut().unwrap().record.payoffs.as_mut().unwrap();
            payoffs.totals.values_mut().for_each(|total| *total = Some(numbers[at % 2]));
        }
        drawn(&sample).iter().for_each(|(name, svg)| drop(check(name, svg)));
        let text = greenroom::terminal::statistics(&summarize(&sample), &[], false);
        let longest = text.lines().map(console::measure_text_width).max();
        assert!(longest <= Some(150), "{numbers:?}:\n{text}");
    }
}

#[test]
fn equal_runs_are_drawn_equally_in_any_order() {
    let mut sample = three(4);
    let first = drawn(&sample);
    sample.runs.reverse();
    assert_eq!(first, drawn(&sample));
}
