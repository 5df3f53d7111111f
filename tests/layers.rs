//! The layers of the crate: what may import what, read from the imports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the ground up. A module imports only from lines above its own.
const LAYERS: [&[&str]; 12] = [
    &["exit", "mounts", "runtime", "text"],
    &["sys"],
    &["time"],
    &["lease"],
    &["store"],
    &["election"],
    &["notes"],
    &["slots"],
    &["observe"],
    &["guard"],
    &["runner"],
    &["member", "cli"],
];

/// The parts that decide: the same input gives the same output, so none of these words may stand in them.
const PURE: [&str; 5] =
    ["src/election.rs", "src/election/", "src/guard/policy.rs", "src/guard/policy/", "src/guard/lateness.rs"];
const IMPURE: [&str; 10] =
    ["tokio", "nix", "libc", "sys", "getrandom", "rand", "Instant::now", "SystemTime", "wall_clock_millis", "env"];

/// Each source file, by its path from the root of the repository, without comments and unit tests.
fn sources() -> BTreeMap<String, String> {
    fn read(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    read(&root.join("src"), &mut found);
    let code = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let tests = ["#[cfg(test)]\nmod ", "#[cfg(test)]\npub mod "];
        let text = tests.iter().fold(text.as_str(), |text, tests| text.split(tests).next().unwrap());
        text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
    };
    let name = |path: &PathBuf| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
    found.iter().map(|path| (name(path), code(path))).filter(|(path, _)| !path.ends_with("/tests.rs")).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let group = rest.strip_prefix('{').map(|group| group.split('}').next().unwrap());
        match group {
            Some(group) => found.extend(group.split(',').filter_map(|item| words(item).next()).map(str::to_owned)),
            None => found.extend(words(rest).next().map(str::to_owned)),
        }
    }
    found
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

#[test]
fn each_module_imports_only_from_the_layers_below_it() {
    let mut breaches = Vec::new();
    for (path, code) in sources() {
        let module = words(path.strip_prefix("src/").unwrap()).next().unwrap().to_owned();
        if ["lib", "bin"].contains(&module.as_str()) {
            continue;
        }
        let own = layer(&module).unwrap_or_else(|| panic!("{path} is in no layer: name its module in LAYERS"));
        for imported in imports(&code).into_iter().filter(|imported| *imported != module) {
            // What is no module is a macro or an item of lib.rs, which is above everything.
            if layer(&imported).is_none_or(|layer| layer >= own) {
                breaches.push(format!("{path} imports crate::{imported}"));
            }
        }
    }
    assert!(breaches.is_empty(), "upward imports:\n{}", breaches.join("\n"));
}

#[test]
fn what_decides_knows_no_clock_no_kernel_and_no_runtime() {
    let is_pure = |path: &&(String, String)| PURE.iter().any(|pure| path.0.starts_with(pure));
    let sources: Vec<_> = sources().into_iter().collect();
    let pure: Vec<_> = sources.iter().filter(is_pure).collect();
    assert!(pure.len() > PURE.len(), "the pure parts have moved: {pure:?}");
    for (path, code) in pure {
        for impure in IMPURE {
            let named =
                if impure.contains(':') { code.contains(impure) } else { words(code).any(|word| word == impure) };
            assert!(!named, "{path} names {impure}");
        }
    }
}
