//! The macros that define config structs.

/// Defines a struct that reads one section of a config file: each field is a key with its name in the file, type, default
/// and meaning. The doc comments become the reference for users.
///
/// The struct gets public `Debug`, `Clone`, `Default` and [`Section`](crate::config::Section). A field's type is
/// anything that serde deserializes from a text, a bool, a number, a list of these or an enum without data; durations
/// are [`GoDuration`](crate::config::GoDuration), secrets `secrecy::SecretString` (or an `Option` or `Vec` of it). Other types
/// need `PartialEq`, which decides whether a reload changes the key. A field without a default has the default of its type.
///
/// `"key" | "VARIABLE"` is a key with an environment variable. The variable overrides the file
/// ([`load_yaml`](crate::config::load_yaml)); items of a list are separated by commas there.
///
/// ```
/// use ccm_core::config::{GoDuration, config_section};
///
/// config_section! {
///     /// Health monitors.
///     pub struct Monitor {
///         /// Interval between two probes.
///         "monitor-delay" => pub delay: GoDuration = GoDuration::from_secs(5),
///         /// Whether to create health monitors.
///         "create-monitor" => pub create: bool,
///     }
/// }
///
/// assert_eq!(Monitor::default().delay.to_string(), "5s");
/// ```
#[macro_export]
macro_rules! config_section {
    (@default) => { ::core::default::Default::default() };
    (@default $default:expr) => { $default };
    (
        $(#[doc = $about:literal])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $meaning:literal])+
                $key:literal $(| $variable:literal)? => $field_vis:vis $field:ident : $type:ty $(= $default:expr)?
            ),* $(,)?
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            $( $(#[doc = $meaning])+ $field_vis $field: $type, )*
        }

        impl ::core::default::Default for $name {
            fn default() -> Self {
                Self { $( $field: $crate::config_section!(@default $($default)?), )* }
            }
        }

        impl $crate::config::Section for $name {
            const ABOUT: &'static [&'static str] = &[$($about),*];

            fn read(reader: &mut $crate::config::SectionReader<'_, '_>) -> Self {
                let mut section = Self::default();
                $(
                    reader.key($key, &mut section.$field);
                    $( reader.variable($key, $variable, &mut section.$field); )?
                )*
                section
            }

            fn keys() -> ::std::vec::Vec<$crate::config::KeyDoc> {
                let defaults = Self::default();
                ::std::vec![
                    $(
                        $crate::config::KeyDoc::of($key, &defaults.$field, &[$($meaning),+])
                            $( .with_variable($variable) )?,
                    )*
                ]
            }

            fn changed_keys(&self, new: &Self) -> ::std::vec::Vec<&'static str> {
                let mut changed = ::std::vec::Vec::new();
                $(
                    if !$crate::same_value!(self.$field, new.$field) {
                        changed.push($key);
                    }
                )*
                changed
            }
        }
    };
}

/// Whether two values of a key are equal. Their type has `PartialEq`, or is a secret.
#[doc(hidden)]
#[macro_export]
macro_rules! same_value {
    ($old:expr, $new:expr) => {{
        #[allow(unused_imports, reason = "secrets have a comparison of their own")]
        use $crate::config::CompareValues as _;
        $crate::config::KeyValues(&$old, &$new).are_same()
    }};
}

/// Defines a struct that reads a whole config file: each field is a section with its name in the file. Its type is a
/// struct of [`config_section!`](crate::config_section), or a `BTreeMap<String, _>` of it where the section is given
/// with the names of subsections.
///
/// Sections after `ignored` are accepted without a warning; other unknown sections cause a warning.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use ccm_core::config::{self, config_file, config_section};
///
/// config_section! {
///     /// One zone.
///     pub struct Zone {
///         /// Its network.
///         "network-id" => pub network_id: String,
///     }
/// }
/// config_file! {
///     /// The file.
///     pub struct File {
///         "Zone" => pub zones: BTreeMap<String, Zone>,
///     }
///     ignored: ["Legacy"]
/// }
///
/// let parsed = config::parse::<File>("[zone \"a\"]\nnetwork-id = 1234", "cloud.conf")?;
/// assert_eq!(parsed.value.zones["a"].network_id, "1234");
/// # Ok::<(), config::ConfigErrors>(())
/// ```
#[macro_export]
macro_rules! config_file {
    (
        $(#[doc = $about:literal])*
        $vis:vis struct $name:ident {
            $( $(#[doc = $meaning:literal])* $section:literal => $field_vis:vis $field:ident : $type:ty ),* $(,)?
        }
        $(ignored: [$($ignored:literal),* $(,)?] $(,)?)?
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default)]
        $vis struct $name {
            $(
                $(#[doc = $meaning])*
                #[doc = ::core::concat!("Section `[", $section, "]`.")]
                $field_vis $field: $type,
            )*
        }

        impl $crate::config::ConfigFile for $name {
            const IGNORED: &'static [&'static str] = &[$($($ignored),*)?];

            fn read(reader: &mut $crate::config::FileReader<'_>) -> Self {
                Self { $( $field: $crate::config::FileField::read(reader, $section), )* }
            }

            fn sections() -> ::std::vec::Vec<$crate::config::SectionDoc> {
                ::std::vec![$( <$type as $crate::config::FileField>::doc($section), )*]
            }

            fn changed_keys(&self, new: &Self) -> ::std::vec::Vec<::std::string::String> {
                let sections: &[::std::vec::Vec<::std::string::String>] = &[
                    $( $crate::config::FileField::changed_keys(&self.$field, $section, &new.$field), )*
                ];
                sections.concat()
            }
        }
    };
}
