//! Sections of quotas: the rate limits of a provider's cloud calls.

use super::Problems;
use crate::client::Quota;

/// The largest accepted value of a key; larger ones are most likely mistakes.
const MAX: u32 = 100_000;

/// Defines a struct that reads a section of quotas: three keys for each service of a cloud. A line names the keys' prefix,
/// the field, the bucket of the gate, and the service as in the documentation of the keys. A default may follow; otherwise,
/// it is the default of [`Quota`](crate::client::Quota).
///
/// ```
/// use ccm_core::config::{self, config_file, quota_section};
///
/// quota_section! {
///     /// Rate limits of cloud calls.
///     pub struct Quotas {
///         "compute" => pub compute: "compute", "the compute API";
///     }
/// }
/// config_file! {
///     /// The file.
///     pub struct File {
///         "Quota" => pub quota: Quotas,
///     }
/// }
///
/// let parsed = config::parse::<File>("[Quota]\ncompute-burst = 7", "cloud.conf")?;
/// assert_eq!(parsed.value.quota.compute.burst, 7);
/// # Ok::<(), config::ConfigErrors>(())
/// ```
#[macro_export]
macro_rules! quota_section {
    (
        $(#[doc = $about:literal])*
        $vis:vis struct $name:ident {
            $( $prefix:literal => $field_vis:vis $field:ident : $bucket:expr, $service:literal $(, $default:expr)?; )+
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        $vis struct $name {
            $( #[doc = ::core::concat!("The quota of ", $service, ".")] $field_vis $field: $crate::client::Quota, )+
        }

        impl ::core::default::Default for $name {
            fn default() -> Self {
                Self { $( $field: $crate::config_section!(@default $($default)?), )+ }
            }
        }

        impl $crate::config::Section for $name {
            const ABOUT: &'static [&'static str] = &[$($about),*];

            fn read(reader: &mut $crate::config::SectionReader<'_, '_>) -> Self {
                let mut section = Self::default();
                $(
                    reader.key(::core::concat!($prefix, "-requests-per-second"), &mut section.$field.rate);
                    reader.key(::core::concat!($prefix, "-burst"), &mut section.$field.burst);
                    reader.key(::core::concat!($prefix, "-in-flight"), &mut section.$field.max_in_flight);
                )+
                section
            }

            fn keys() -> ::std::vec::Vec<$crate::config::KeyDoc> {
                use $crate::config::KeyDoc;
                let defaults = Self::default();
                ::std::vec![$(
                    KeyDoc::of(
                        ::core::concat!($prefix, "-requests-per-second"),
                        &defaults.$field.rate,
                        &[::core::concat!("Sustained requests per second to ", $service, ".")],
                    ),
                    KeyDoc::of(
                        ::core::concat!($prefix, "-burst"),
                        &defaults.$field.burst,
                        &[::core::concat!("Burst of requests to ", $service, " after an idle period.")],
                    ),
                    KeyDoc::of(
                        ::core::concat!($prefix, "-in-flight"),
                        &defaults.$field.max_in_flight,
                        &[::core::concat!("Concurrent requests to ", $service, ".")],
                    ),
                )+]
            }

            fn changed_keys(&self, new: &Self) -> ::std::vec::Vec<&'static str> {
                let mut changed = ::std::vec::Vec::new();
                $(
                    if !$crate::same_value!(self.$field.rate, new.$field.rate) {
                        changed.push(::core::concat!($prefix, "-requests-per-second"));
                    }
                    if self.$field.burst != new.$field.burst {
                        changed.push(::core::concat!($prefix, "-burst"));
                    }
                    if self.$field.max_in_flight != new.$field.max_in_flight {
                        changed.push(::core::concat!($prefix, "-in-flight"));
                    }
                )+
                changed
            }
        }

        impl $name {
            /// The buckets of the gate with their quotas, for [`GateConfig`]($crate::client::GateConfig).
            #[allow(dead_code, reason = "a provider may have several buckets of one quota")]
            $vis fn buckets(&self) -> ::std::vec::Vec<(&'static str, $crate::client::Quota)> {
                ::std::vec![$( ($bucket, self.$field) ),+]
            }

            /// Reports every value that is out of range. `section` is the section's name in the file.
            $vis fn check(&self, section: &str, problems: &mut $crate::config::Problems) {
                let defaults = Self::default();
                $(
                    $crate::config::check_quota(
                        &self.$field,
                        &defaults.$field,
                        section,
                        [
                            ::core::concat!($prefix, "-requests-per-second"),
                            ::core::concat!($prefix, "-burst"),
                            ::core::concat!($prefix, "-in-flight"),
                        ],
                        problems,
                    );
                )+
            }
        }
    };
}

#[doc(hidden)]
pub fn check_quota(quota: &Quota, default: &Quota, section: &str, keys: [&str; 3], problems: &mut Problems) {
    let [rate_key, burst_key, in_flight_key] = keys;
    if quota.rate <= 0.0 || quota.rate > f64::from(MAX) {
        let what = format!("must be more than 0 and at most {MAX}; the default is {}", default.rate);
        problems.error((section, rate_key), what);
    }
    for (key, value, default) in [
        (burst_key, quota.burst, default.burst),
        (in_flight_key, quota.max_in_flight, default.max_in_flight),
    ] {
        if value == 0 || value > MAX {
            let what = format!("must be between 1 and {MAX}; the default is {default}");
            problems.error((section, key), what);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::{
        client::Quota,
        config::{self, ConfigFile, config_file},
    };

    quota_section! {
        /// Limits.
        struct Quotas {
            "compute" => compute: "machines", "the compute API";
            "network" => network: "networks", "the network API", Quota { burst: 9, ..Quota::default() };
        }
    }

    config_file! {
        /// The file.
        struct File {
            "Quota" => quota: Quotas,
        }
    }

    fn errors(text: &str) -> Vec<String> {
        let text = format!("[Quota]\n{text}");
        let parsed = config::parse_with::<File>(&text, "cloud.conf", |file, problems| {
            file.quota.check("Quota", problems);
        });
        let errors = parsed.unwrap_err();
        errors.problems().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn quotas_have_keys_buckets_defaults_and_limits() {
        let read = |text: &str| config::parse::<File>(text, "cloud.conf").unwrap().value;
        let text = "[Quota]\ncompute-requests-per-second = 2.5\nnetwork-burst = 7\nnetwork-in-flight = 1";
        let (default, file) = (read(""), read(text));
        assert_eq!(default.quota, Quotas::default());
        let [(machines, compute), (networks, network)] = file.quota.buckets().try_into().unwrap();
        assert_eq!((machines, networks), ("machines", "networks"));
        assert!((compute.rate - 2.5).abs() < 1e-9);
        assert_eq!((compute.burst, network.burst, network.max_in_flight), (50, 7, 1));
        assert_eq!(default.quota.network.burst, 9);
        assert_eq!(
            default.changed_keys(&file),
            [
                "[Quota] compute-requests-per-second",
                "[Quota] network-burst",
                "[Quota] network-in-flight"
            ]
        );
        let docs = File::sections();
        let burst = docs.first().unwrap().keys.get(1).unwrap();
        assert_eq!((burst.name, burst.default.as_str()), ("compute-burst", "50"));
        assert_eq!(burst.about, "Burst of requests to the compute API after an idle period.");
    }

    #[test]
    fn a_value_out_of_range_is_an_error() {
        let errors = errors(
            "compute-requests-per-second = 0\ncompute-burst = 0\nnetwork-requests-per-second = inf\nnetwork-in-flight = 100001",
        );
        assert_eq!(errors.len(), 4, "{errors:#?}");
        for (error, part) in errors.iter().zip([
            "2:31: [Quota] compute-requests-per-second: must be more than 0 and at most 100000; the default is 20",
            "3:17: [Quota] compute-burst: must be between 1 and 100000; the default is 50",
            "network-requests-per-second",
            "network-in-flight: must be between 1 and 100000; the default is 8",
        ]) {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
}
