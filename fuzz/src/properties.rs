//! Properties of every input. Shared by the fuzz targets and an ordinary test of `ccm-core`.
#![allow(dead_code, reason = "each user needs a part of it")]

use std::{collections::BTreeMap, fmt::Write as _};

use ccm_core::config::{
    self, GoDuration, config_file, config_section, duration as go_duration,
    gcfg::{self, Document},
};

config_section! {
    /// Keys of every type.
    struct Global {
        /// A string.
        "auth-url" => auth_url: String,
        /// A bool.
        "use-clouds" => use_clouds: bool,
        /// An unsigned number.
        "monitor-max-retries" => monitor_max_retries: u32,
        /// A signed number.
        "max-shared-lb" => max_shared_lb: i64,
        /// A duration.
        "monitor-delay" => monitor_delay: GoDuration,
        /// A list.
        "internal-network-name" => internal_network_name: Vec<String>,
        /// A list of numbers.
        "ports" => ports: Vec<u16>,
    }
}

config_file! {
    /// A file with both kinds of sections.
    struct File {
        "Global" => global: Global,
        "LoadBalancerClass" => classes: BTreeMap<String, Global>,
    }
}

/// Checks any bytes as a config file.
pub(crate) fn gcfg(bytes: &[u8]) {
    let (document, errors) = gcfg::parse(bytes);
    let result = config::parse::<File>(bytes, "cloud.conf");
    if !errors.is_empty() {
        assert!(result.is_err(), "a file with syntax errors is refused");
    }
    for pair in errors.windows(2) {
        assert!(pair[0].position <= pair[1].position, "errors are in the order of the file");
    }
    if let Err(errors) = result {
        assert!(!errors.problems().is_empty(), "a refused file has a problem");
        for problem in errors.problems() {
            assert!(!problem.to_string().contains('\n'), "a problem is one line");
        }
    }
    if errors.is_empty() {
        let (again, errors) = gcfg::parse(write(&document));
        assert_eq!(errors, [], "a written document has no errors");
        assert_eq!(contents(&again), contents(&document), "a written document is equal");
    }
}

/// Checks any bytes as a duration.
pub(crate) fn duration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match go_duration::parse(text) {
        Ok(read) => assert_eq!(go_duration::parse(&go_duration::format(read)), Ok(read)),
        Err(error) => assert!(!error.to_string().is_empty() && !error.hint().is_empty()),
    }
}

/// Name and subsection of a section, and its keys with their values.
type Contents<'a> = (&'a str, Option<&'a str>, Vec<(&'a str, Option<&'a str>)>);

/// The document without positions.
fn contents(document: &Document) -> Vec<Contents<'_>> {
    document
        .sections
        .iter()
        .map(|section| {
            let entries = section.entries.iter();
            (
                section.name.text.as_str(),
                section.subsection.as_ref().map(|name| name.text.as_str()),
                entries
                    .map(|entry| {
                        (entry.key.text.as_str(), entry.value.as_ref().map(|value| value.text.as_str()))
                    })
                    .collect(),
            )
        })
        .collect()
}

/// Writes the document as a file.
fn write(document: &Document) -> String {
    let escaped = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
    let mut file = String::new();
    for section in &document.sections {
        let _ = match &section.subsection {
            Some(name) => writeln!(file, "[{} \"{}\"]", section.name.text, escaped(&name.text)),
            None => writeln!(file, "[{}]", section.name.text),
        };
        for entry in &section.entries {
            let _ = match &entry.value {
                Some(value) => {
                    let value = escaped(&value.text).replace('\n', r"\n").replace('\t', r"\t");
                    writeln!(file, "{} = \"{value}\"", entry.key.text)
                }
                None => writeln!(file, "{}", entry.key.text),
            };
        }
    }
    file
}
