//! Modules of a crate do not import each other in a circle.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

// A test that needs none of the crates still links them.
use cloud_controller_manager as _;

/// The first name of a path.
fn first_name(path: &str) -> String {
    let path = path.trim_start();
    let end = path.find(|sign: char| sign != '_' && !sign.is_alphanumeric());
    path[..end.unwrap_or(path.len())].to_owned()
}

/// The modules of `crate::..` that the product part of a file names.
fn imports(text: &str) -> BTreeSet<String> {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        let path = &code[at + found.len()..];
        if !path.starts_with('{') {
            names.insert(first_name(path));
            continue;
        }
        // Of `crate::{a::{b, c}, d}` only `a` and `d` are modules of the crate.
        let mut depth = 0;
        for (at, sign) in path.char_indices() {
            match sign {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if depth == 1 && matches!(sign, '{' | ',') {
                names.insert(first_name(&path[at + 1..]));
            }
        }
    }
    // After the last comma of a list.
    names.remove("");
    names
}

/// The imports of each module at the top of a crate.
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

/// The modules that a module imports, also through others.
fn reachable<'a>(from: &str, imports: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for (other, _) in
            imports.get(module).into_iter().flatten().filter_map(|name| imports.get_key_value(name))
        {
            if other != module && seen.insert(other.as_str()) {
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
        // Every module may name the crate's own items, and the test kit everything.
        found.retain(|module, _| !["lib", "main", "testkit"].contains(&module.as_str()));
        let reached: BTreeMap<_, _> =
            found.keys().map(|module| (module.as_str(), reachable(module, &found))).collect();
        for (module, others) in &reached {
            let circle: Vec<_> =
                others.iter().filter(|other| reached[*other].contains(module)).copied().collect();
            if !circle.is_empty() {
                circles.insert(format!("{folder}: {}", circle.join(", ")));
            }
        }
    }
    assert_eq!(circles, BTreeSet::<String>::new(), "modules that import each other in a circle");
}

#[test]
fn names_are_found_in_lists_of_imports() {
    let text = "use crate::{\n    a::{self, b},\n    c,\n};\nfn f() { crate::d::e() }\n// crate::x\n";
    assert_eq!(imports(text), ["a", "c", "d"].map(str::to_owned).into());
}
