//! Modules of a crate do not import each other in a circle.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

// A test that needs none of the crates still links them.
use cloud_controller_manager as _;
use regex::Regex;

/// The imports in a circle that are to be removed. No other one may be added.
const KNOWN: &[&str] = &[
    "providers/core/src: check, load_balancer",
    "providers/openstack/src: config, load_balancer, routes, view",
];

/// The modules of `crate::..` that the product part of a file names.
fn imports(text: &str) -> BTreeSet<String> {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: Vec<_> = product
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    let inner = Regex::new(r"\{[^{}]*\}").unwrap();
    let list = Regex::new(r"crate::\{([^{}]*)\}").unwrap();
    let mut text = code.join("\n");
    // Of `crate::{a::{b, c}, d}` only `a` and `d` are modules of the crate.
    while let Some(found) = inner
        .find_iter(&text)
        .find(|found| !text[..found.start()].ends_with("crate::"))
    {
        text.replace_range(found.range(), "");
    }
    let single = Regex::new(r"crate::([a-z_]\w*)").unwrap();
    let lists = list.captures_iter(&text).flat_map(|list| {
        let items = list[1].split(',');
        let names: Vec<_> = items
            .filter_map(|item| item.trim().split("::").next().map(str::to_owned))
            .collect();
        names
    });
    let singles = single.captures_iter(&text).map(|name| name[1].to_owned());
    lists.chain(singles).collect()
}

fn read(folder: &Path, module: Option<&str>, found: &mut BTreeMap<String, BTreeSet<String>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let module = module.unwrap_or(&stem);
        if path.is_dir() {
            read(&path, Some(module), found);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !stem.ends_with("tests") {
            let names = imports(&fs::read_to_string(&path).unwrap());
            found.entry(module.to_owned()).or_default().extend(names);
        }
    }
}

fn reachable<'a>(from: &'a str, imports: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for other in imports.get(module).into_iter().flatten() {
            if imports.contains_key(other) && other != module && seen.insert(other.as_str()) {
                next.push(other);
            }
        }
    }
    seen
}

#[test]
fn no_module_imports_itself_through_others() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut circles = BTreeSet::new();
    for folder in ["src", "providers/core/src", "providers/openstack/src"] {
        let mut found = BTreeMap::new();
        read(&root.join(folder), None, &mut found);
        // Every module may name the crate's own items.
        for file in ["lib", "main"] {
            found.remove(file);
        }
        for module in found.keys() {
            let circle: Vec<_> = found
                .keys()
                .filter(|other| reachable(module, &found).contains(other.as_str()))
                .filter(|other| reachable(other, &found).contains(module.as_str()))
                .map(String::as_str)
                .collect();
            if !circle.is_empty() {
                circles.insert(format!("{folder}: {}", circle.join(", ")));
            }
        }
    }
    let known: BTreeSet<_> = KNOWN.iter().map(|circle| (*circle).to_owned()).collect();
    assert_eq!(circles, known, "modules that import each other in a circle");
}
