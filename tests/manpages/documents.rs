//! What the documents point to is there: each file, and each page of the guide in its list of contents.

use super::{path, read};
use std::fs;

pub fn guide() -> Vec<String> {
    fn pages(folder: &str) -> Vec<String> {
        let entries = fs::read_dir(path(folder)).expect("a folder").map(|entry| entry.expect("an entry"));
        let mut found = Vec::new();
        for entry in entries {
            let name = format!("{folder}/{}", entry.file_name().to_str().expect("our names are ASCII"));
            if entry.path().is_dir() {
                found.extend(pages(&name));
            } else if entry.path().extension().is_some_and(|end| end == "md") && !name.ends_with("/SUMMARY.md") {
                found.push(name);
            }
        }
        found.sort();
        found
    }
    pages("docs")
}

fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut within = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        within ^= fence;
        !within && !fence
    })
}

/// What stands in `[..](target)`, and not in code.
fn links(text: &str) -> Vec<String> {
    let line_links = |line: &str| {
        let spoken: Vec<&str> = line.split('`').step_by(2).collect();
        let spoken = spoken.join("");
        let targets = spoken.split("](").skip(1).map(|rest| rest.split(')').next().unwrap_or(rest).to_owned());
        targets.collect::<Vec<_>>()
    };
    prose(text).flat_map(line_links).collect()
}

#[test]
fn every_link_leads_to_a_file_that_is_there() {
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "GLOSSARY.md",
        "SECURITY.md",
        "docs/SUMMARY.md",
        "packaging/README.md",
        "examples/infrastructure/README.md",
    ];
    let mut seen = 0;
    let mut broken = Vec::new();
    for name in others.into_iter().map(str::to_owned).chain(guide()) {
        let text = read(&name);
        for link in links(&text).into_iter().filter(|link| !link.starts_with("http")) {
            let file = link.split('#').next().unwrap_or_default();
            if !file.is_empty() && !path(&name).with_file_name(file).exists() {
                broken.push(format!("{name}: {link}"));
            }
            seen += 1;
        }
    }
    assert!(broken.is_empty(), "these lead nowhere:\n{}", broken.join("\n"));
    assert!(seen > 60, "only {seen} links were found");
}

#[test]
fn the_list_of_contents_has_every_page_of_the_guide_and_no_other() {
    let listed: Vec<String> = links(&read("docs/SUMMARY.md")).iter().map(|link| format!("docs/{link}")).collect();
    let mut once = listed.clone();
    once.sort();
    assert_eq!(once, guide());
}
