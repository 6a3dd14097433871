//! The words of the command line, in Go's flag dialect.
//!
//! A program that replaces another one is started with the command line of that program. It follows Go's `pflag`: `_` may
//! replace `-` in a flag's name, a boolean takes its value only after `=`, a later flag replaces an earlier one, and a word
//! that is not a flag is an error. clap does not read this dialect and stops at its first error. Unknown and incomplete
//! flags are collected here, so that the values of the others are still checked.

use std::{collections::BTreeMap, ffi::OsString};

use ccm_core::config::suggest;
use clap::{Arg, ArgAction, Command};

use super::OptionError;

/// A subcommand. It may be anywhere among the flags, so that it can be added to the arguments of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subcommand {
    /// `plan`: print what a run would do.
    Plan,
    /// `validate`: print problems.
    Validate,
}

impl Subcommand {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "plan" => Some(Self::Plan),
            "validate" => Some(Self::Validate),
            _ => None,
        }
    }
}

/// A form of the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelpForm {
    /// `-h`: the most important flags.
    Short,
    /// `--help`, or the word `help`: all flags.
    Full,
}

/// The content of the command line.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// The values of every known flag that was given: the last one, or all of a flag that may be repeated.
    pub(super) given: BTreeMap<String, Vec<String>>,
    /// The help that the user requests.
    pub(super) help_requested: Option<HelpForm>,
    pub(super) subcommand: Option<Subcommand>,
    /// Whether there are words that are neither flags nor a subcommand.
    pub(super) has_unknown_words: bool,
    /// All problems of the other words.
    pub(super) errors: Vec<OptionError>,
}

impl Arguments {
    fn refuse(&mut self, message: impl Into<String>) {
        self.errors.push(OptionError::new(message));
    }

    fn give(&mut self, flag: &Arg, value: impl Into<String>) {
        let values = self.given.entry(flag.get_id().to_string()).or_default();
        if !matches!(flag.get_action(), ArgAction::Append) {
            values.clear();
        }
        values.push(value.into());
    }
}

/// Reads the words after the program's name.
pub(super) fn read(command: &Command, words: impl IntoIterator<Item = OsString>) -> Arguments {
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
            // The word after an unknown flag is probably its value; a second error would mislead.
            if !after_unknown {
                match Subcommand::parse(&word) {
                    Some(known) if found.subcommand.is_none() => found.subcommand = Some(known),
                    None if word == "help" => found.help_requested = Some(HelpForm::Full),
                    _ => positional.push(word),
                }
            }
            after_unknown = false;
            continue;
        };
        after_unknown = false;
        match (flag.name, flag.is_long) {
            ("help", true) => {
                found.help_requested = Some(HelpForm::Full);
                continue;
            }
            ("h", false) => {
                found.help_requested = found.help_requested.or(Some(HelpForm::Short));
                continue;
            }
            _ => {}
        }
        let Some(arg) = lookup(command, &flag) else {
            after_unknown = flag.value.is_none();
            found.refuse(unknown(command, &word, &flag));
            continue;
        };
        match flag.value {
            Some(value) => found.give(arg, value),
            // A boolean.
            None if arg.is_require_equals_set() => found.give(arg, "true"),
            None => match words.next().map(OsString::into_string) {
                Some(Ok(value)) => found.give(arg, value),
                Some(Err(_)) => found.refuse(format!("--{}: the value is not UTF-8", arg.get_id())),
                None => found.refuse(format!("--{}: a value must follow", arg.get_id())),
            },
        }
    }
    if !positional.is_empty() {
        found.has_unknown_words = true;
        let quoted: Vec<_> = positional.iter().map(|word| format!("{word:?}")).collect();
        let meant = positional.iter().find_map(|word| suggest::nearest(word, ["plan", "validate"]));
        let hint = match (found.subcommand, meant) {
            (Some(_), _) => String::new(),
            (None, Some(meant)) => format!("; did you mean {meant}?"),
            (None, None) => "; the subcommands are plan, validate and help".to_owned(),
        };
        let (name, quoted) = (command.get_name(), quoted.join(" "));
        found.refuse(format!("{name:?} does not take any arguments, got [{quoted}]{hint}"));
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
struct FlagWord<'a> {
    /// The name, or the letter of a short flag.
    name: &'a str,
    is_long: bool,
    value: Option<&'a str>,
}

/// `None` if the word is not a flag. A lone `-` is not a flag.
fn read_flag(word: &str) -> Option<FlagWord<'_>> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        return Some(FlagWord {
            name,
            is_long: true,
            value,
        });
    }
    let short = word.strip_prefix('-')?;
    let (name, rest) = short.split_at(short.chars().next()?.len_utf8());
    Some(FlagWord {
        name,
        is_long: false,
        // Both `-v=4` and `-v4`.
        value: (!rest.is_empty()).then(|| rest.strip_prefix('=').unwrap_or(rest)),
    })
}

fn dashes(name: &str) -> String {
    name.replace('_', "-")
}

fn lookup<'a>(command: &'a Command, flag: &FlagWord<'_>) -> Option<&'a Arg> {
    let name = dashes(flag.name);
    command.get_arguments().find(|arg| {
        if flag.is_long {
            arg.get_long() == Some(name.as_str())
        } else {
            arg.get_short().is_some_and(|letter| flag.name.starts_with(letter))
        }
    })
}

fn unknown(command: &Command, word: &str, flag: &FlagWord<'_>) -> String {
    let mut known = command.get_arguments().filter_map(Arg::get_long);
    let shown = word.split('=').next().unwrap_or(word);
    let guess = if flag.is_long {
        suggest::nearest(&dashes(flag.name), known)
    } else {
        // `-kubeconfig=x`: a long flag without its second dash.
        known.find(|known| *known == dashes(shown.trim_start_matches('-')))
    };
    let hint = guess.map(|name| format!("; did you mean --{name}?")).unwrap_or_default();
    format!("unknown flag {shown}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::command;

    fn arguments(words: &[&str]) -> Arguments {
        read(&command(&[]), words.iter().map(OsString::from))
    }

    /// Each flag with its only value.
    fn flags(words: &[&str]) -> Vec<String> {
        let given = arguments(words).given.into_iter();
        given.map(|(name, values)| format!("--{name}={}", values.join(","))).collect()
    }

    fn errors(words: &[&str]) -> Vec<String> {
        let errors = arguments(words).errors;
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_way_to_write_a_flag_is_the_same_flag() {
        for words in [
            &["--cluster-name", "a"][..],
            &["--cluster-name=a"],
            &["--cluster_name", "a"],
            &["--cluster_name=a"],
        ] {
            assert_eq!(flags(words), ["--cluster-name=a"], "{words:?}");
        }
        for words in [&["-v", "4"][..], &["-v4"], &["-v=4"], &["--v", "4"], &["--v=4"]] {
            assert_eq!(flags(words), ["--v=4"], "{words:?}");
        }
    }

    #[test]
    fn an_underscore_in_a_value_stays() {
        assert_eq!(flags(&["--cluster_name=a_b"]), ["--cluster-name=a_b"]);
    }

    #[test]
    fn a_value_may_look_like_a_flag() {
        assert_eq!(flags(&["--cluster-name", "--v"]), ["--cluster-name=--v"]);
    }

    #[test]
    fn the_path_of_the_program_may_come_first() {
        let path = "/bin/openstack-cloud-controller-manager";
        assert_eq!(flags(&[path, "--v=1"]), ["--v=1"]);
        assert_eq!(arguments(&["/cloud-controller-manager", "plan"]).subcommand, Some(Subcommand::Plan));
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
        let words = ["--refresh-topology-labels", "false"];
        assert_eq!(flags(&words), ["--refresh-topology-labels=true"]);
        assert_eq!(
            errors(&words),
            [
                "\"cloud-controller-manager\" does not take any arguments, got [\"false\"]; the subcommands are plan, validate and help"
            ]
        );
    }

    #[test]
    fn an_unknown_flag_names_the_nearest_one() {
        assert_eq!(
            errors(&["--cloud-provder=openstack"]),
            ["unknown flag --cloud-provder; did you mean --cloud-provider?"]
        );
        assert_eq!(errors(&["-kubeconfig=/x"]), ["unknown flag -kubeconfig; did you mean --kubeconfig?"]);
        assert_eq!(errors(&["--quite-another-thing"]), ["unknown flag --quite-another-thing"]);
        assert_eq!(errors(&["-x"]), ["unknown flag -x"]);
    }

    #[test]
    fn a_word_names_the_nearest_subcommand() {
        let meant =
            |words: &[&str]| errors(words).remove(0).split_once("; ").map(|(_, hint)| hint.to_owned());
        assert_eq!(meant(&["valdate"]).as_deref(), Some("did you mean validate?"));
        assert_eq!(meant(&["plan", "validate"]), None);
        let all = "the subcommands are plan, validate and help";
        assert_eq!(meant(&["status"]).as_deref(), Some(all));
    }

    #[test]
    fn all_mistakes_are_reported_and_the_rest_is_kept() {
        let words = [
            "--bogus",
            "value",
            "--cluster-name=a",
            "word",
            "--other=1",
            "--",
            "--v=2",
            "--master",
        ];
        assert_eq!(flags(&words), ["--cluster-name=a"]);
        assert_eq!(
            errors(&words),
            [
                "unknown flag --bogus",
                "unknown flag --other",
                "\"cloud-controller-manager\" does not take any arguments, got [\"word\" \"--v=2\" \"--master\"]; \
                 the subcommands are plan, validate and help",
            ]
        );
        assert_eq!(errors(&["--master"]), ["--master: a value must follow"]);
    }

    #[test]
    fn help_is_found_among_mistakes() {
        let requested = |words| arguments(words).help_requested;
        assert_eq!(requested(&["--bogus", "-h"]), Some(HelpForm::Short));
        assert_eq!(requested(&["-h", "--help"]), Some(HelpForm::Full));
        assert_eq!(requested(&["--help", "-h"]), Some(HelpForm::Full));
        assert_eq!(requested(&["help", "plan"]), Some(HelpForm::Full));
        assert_eq!(requested(&["--cluster-name", "--help"]), None);
    }
}
