//! The command line before clap sees it: Go's flag dialect made plain, and every mistake in it found at once.
//!
//! Programs that replace another one are started with its command lines. Those follow Go's `pflag`: `_` may stand for
//! `-` in a flag's name, a boolean takes its value only after `=`, a later flag replaces an earlier one, and a word
//! that is no flag is an error. clap stops at its first error; here the unknown and incomplete flags are collected and
//! taken out, so that the values of the others are still checked.

use std::ffi::OsString;

use ccm_core::config::suggest;
use clap::{Arg, Command};

use super::OptionError;

/// The words that are no flags. One of them may stand anywhere, so that it can be added to the arguments of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// `plan`: say what would be done.
    Plan,
    /// `validate`: say what is wrong.
    Validate,
}

impl Word {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "plan" => Some(Self::Plan),
            "validate" => Some(Self::Validate),
            _ => None,
        }
    }
}

/// What `normalise` makes of the command line.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// Every known flag as `--name` or `--name=value`, in the given order.
    pub(super) flags: Vec<String>,
    /// Whether help is asked for.
    pub(super) help: bool,
    /// The word that stands among the flags.
    pub(super) word: Option<Word>,
    /// Everything that is wrong with the others.
    pub(super) errors: Vec<OptionError>,
}

impl Arguments {
    fn refuse(&mut self, message: impl Into<String>) {
        self.errors.push(OptionError::new(message));
    }
}

/// Reads the words after the program's name.
pub(super) fn normalise(command: &Command, words: impl IntoIterator<Item = OsString>) -> Arguments {
    let mut found = Arguments::default();
    let mut positional: Vec<String> = Vec::new();
    let mut words = words.into_iter().peekable();
    words.next_if(is_program);
    let mut after_unknown = false;
    while let Some(word) = words.next() {
        let word = match word.into_string() {
            Ok(word) => word,
            Err(word) => {
                found.refuse(format!("{:?} is not UTF-8", word.to_string_lossy()));
                continue;
            }
        };
        if word == "--" {
            positional.extend(words.map(|word| word.to_string_lossy().into_owned()));
            break;
        }
        let Some(flag) = read_flag(&word) else {
            // The word after an unknown flag may well be its value; to complain of it too would mislead.
            if !after_unknown {
                match Word::parse(&word) {
                    Some(known) if found.word.is_none() => found.word = Some(known),
                    _ => positional.push(word),
                }
            }
            after_unknown = false;
            continue;
        };
        after_unknown = false;
        if matches!((flag.name, flag.is_long), ("help", true) | ("h", false)) {
            found.help = true;
            continue;
        }
        let Some(arg) = lookup(command, &flag) else {
            after_unknown = flag.value.is_none();
            found.refuse(unknown(command, &word, &flag));
            continue;
        };
        let name = arg.get_long().unwrap_or_default();
        match (flag.value, takes_next_word(arg)) {
            (Some(value), _) => found.flags.push(format!("--{name}={value}")),
            (None, false) => found.flags.push(format!("--{name}")),
            (None, true) => match words.next().map(OsString::into_string) {
                Some(Ok(value)) => found.flags.push(format!("--{name}={value}")),
                Some(Err(_)) => found.refuse(format!("--{name}: the value is not UTF-8")),
                None => found.refuse(format!("--{name}: a value must follow")),
            },
        }
    }
    if !positional.is_empty() {
        let quoted: Vec<_> = positional.iter().map(|word| format!("{word:?}")).collect();
        found.refuse(format!(
            "{:?} does not take any arguments, got [{}]",
            command.get_name(),
            quoted.join(" ")
        ));
    }
    found
}

/// Whether the word is the path of a program like this one. Arguments in manifests for images without an entrypoint begin
/// with it; ours has one.
fn is_program(word: &OsString) -> bool {
    word.to_str()
        .is_some_and(|word| word.starts_with('/') && word.ends_with("cloud-controller-manager"))
}

/// A word that is a flag.
struct Flag<'a> {
    /// The name, or the letter of a short flag.
    name: &'a str,
    is_long: bool,
    value: Option<&'a str>,
}

/// `None` if the word is no flag. A lone `-` is a word.
fn read_flag(word: &str) -> Option<Flag<'_>> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        return Some(Flag {
            name,
            is_long: true,
            value,
        });
    }
    let short = word.strip_prefix('-')?;
    let (name, rest) = short.split_at(short.chars().next()?.len_utf8());
    Some(Flag {
        name,
        is_long: false,
        // Both `-v=4` and `-v4`.
        value: (!rest.is_empty()).then(|| rest.strip_prefix('=').unwrap_or(rest)),
    })
}

fn dashes(name: &str) -> String {
    name.replace('_', "-")
}

fn lookup<'a>(command: &'a Command, flag: &Flag<'_>) -> Option<&'a Arg> {
    let name = dashes(flag.name);
    command.get_arguments().find(|arg| match flag.is_long {
        true => arg.get_long() == Some(name.as_str()),
        false => arg
            .get_short()
            .is_some_and(|letter| flag.name.starts_with(letter)),
    })
}

/// Whether the flag's value may be the next word; a boolean's only stands after `=`.
fn takes_next_word(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

fn unknown(command: &Command, word: &str, flag: &Flag<'_>) -> String {
    let mut known = command.get_arguments().filter_map(Arg::get_long);
    let shown = word.split('=').next().unwrap_or(word);
    let guess = match flag.is_long {
        true => suggest::nearest(&dashes(flag.name), known),
        // `-kubeconfig=x`: meant as a long flag.
        false => known.find(|known| *known == dashes(shown.trim_start_matches('-'))),
    };
    let hint = guess
        .map(|name| format!("; did you mean --{name}?"))
        .unwrap_or_default();
    format!("unknown flag {shown}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::command;

    fn read(words: &[&str]) -> Arguments {
        normalise(&command(&[]), words.iter().map(OsString::from))
    }

    fn errors(words: &[&str]) -> Vec<String> {
        read(words).errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_way_to_write_a_flag_is_the_same_flag() {
        for words in [
            &["--cluster-name", "a"][..],
            &["--cluster-name=a"],
            &["--cluster_name", "a"],
            &["--cluster_name=a"],
        ] {
            assert_eq!(read(words).flags, ["--cluster-name=a"], "{words:?}");
        }
        for words in [&["-v", "4"][..], &["-v4"], &["-v=4"], &["--v", "4"], &["--v=4"]] {
            assert_eq!(read(words).flags, ["--v=4"], "{words:?}");
        }
    }

    #[test]
    fn an_underscore_in_a_value_stays() {
        assert_eq!(read(&["--cluster_name=a_b"]).flags, ["--cluster-name=a_b"]);
    }

    #[test]
    fn a_value_may_look_like_a_flag() {
        assert_eq!(read(&["--cluster-name", "--v"]).flags, ["--cluster-name=--v"]);
    }

    #[test]
    fn the_path_of_the_program_may_come_first() {
        let path = "/bin/openstack-cloud-controller-manager";
        assert_eq!(read(&[path, "--v=1"]).flags, ["--v=1"]);
        assert_eq!(
            read(&["/cloud-controller-manager", "plan"]).word,
            Some(Word::Plan)
        );
        for words in [
            &["--v=1", path][..],
            &[path, path],
            &["openstack-cloud-controller-manager"],
            &["/bin/sh"],
        ] {
            assert_eq!(errors(words).len(), 1, "{words:?}");
        }
    }

    #[test]
    fn a_boolean_does_not_take_the_next_word() {
        let read = read(&["--refresh-topology-labels", "false"]);
        assert_eq!(read.flags, ["--refresh-topology-labels"]);
        assert_eq!(
            read.errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["\"cloud-controller-manager\" does not take any arguments, got [\"false\"]"]
        );
    }

    #[test]
    fn an_unknown_flag_names_the_nearest_one() {
        assert_eq!(
            errors(&["--cloud-provder=openstack"]),
            ["unknown flag --cloud-provder; did you mean --cloud-provider?"]
        );
        assert_eq!(
            errors(&["-kubeconfig=/x"]),
            ["unknown flag -kubeconfig; did you mean --kubeconfig?"]
        );
        assert_eq!(
            errors(&["--quite-another-thing"]),
            ["unknown flag --quite-another-thing"]
        );
        assert_eq!(errors(&["-x"]), ["unknown flag -x"]);
    }

    #[test]
    fn all_mistakes_are_reported_and_the_rest_is_kept() {
        let read = read(&[
            "--bogus",
            "value",
            "--cluster-name=a",
            "word",
            "--other=1",
            "--",
            "--v=2",
            "--master",
        ]);
        assert_eq!(read.flags, ["--cluster-name=a"]);
        assert_eq!(
            read.errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "unknown flag --bogus",
                "unknown flag --other",
                "\"cloud-controller-manager\" does not take any arguments, got [\"word\" \"--v=2\" \"--master\"]",
            ]
        );
        assert_eq!(errors(&["--master"]), ["--master: a value must follow"]);
    }

    #[test]
    fn help_is_found_among_mistakes() {
        assert!(read(&["--bogus", "-h"]).help);
        assert!(read(&["--help"]).help);
        assert!(!read(&["--cluster-name", "--help"]).help);
    }
}
