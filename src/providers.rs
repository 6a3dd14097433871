//! The clouds of this repository. The only file in `src/` that knows one by name.
//!
//! Each cloud is a crate in `providers/`, a Cargo feature of the same name and a line here. `tests/registry.rs` fails when
//! the places disagree.

use std::{ffi::OsStr, path::Path};

use ccm_core::{Provider, registry};

use crate::controllers::FRAMEWORK;

/// Links the crates of the clouds whose features are on. Without the `pub use`, the linker would leave out a crate together
/// with its registration.
macro_rules! clouds {
    ($($feature:literal => $crate_name:ident as $name:ident;)+) => {
        $(cfg_if::cfg_if! {
            if #[cfg(feature = $feature)] {
                pub use $crate_name as $name;
            }
        })+

        /// The clouds that can be compiled in, each by the Cargo feature of its name.
        pub const FEATURES: &[&str] = &[$($feature),+];

        /// The clouds whose features are on.
        #[must_use]
        pub fn enabled() -> Vec<&'static str> {
            let clouds = [$(($feature, cfg!(feature = $feature))),+].into_iter();
            clouds.filter_map(|(cloud, is_on)| is_on.then_some(cloud)).collect()
        }
    };
}

clouds! {
    "aws" => ccm_provider_aws as aws;
    "azure" => ccm_provider_azure as azure;
    "digitalocean" => ccm_provider_digitalocean as digitalocean;
    "gce" => ccm_provider_gce as gce;
    "openstack" => ccm_provider_openstack as openstack;
}

/// All providers linked into this binary, sorted by name.
///
/// # Errors
/// Two providers have one name, or a provider has a controller with a name that is taken.
pub fn registered() -> Result<Vec<&'static Provider>, String> {
    without_duplicates(registry::all())
}

fn without_duplicates(providers: Vec<&'static Provider>) -> Result<Vec<&'static Provider>, String> {
    let twice = providers.windows(2).find_map(|pair| match pair {
        [a, b] if a.name == b.name => Some(a),
        _ => None,
    });
    if let Some(provider) = twice {
        return Err(format!(
            "two cloud providers are linked into this binary under the name {:?} (one of them: {:?}); build it with one \
             of them only",
            provider.name, provider.summary
        ));
    }
    for provider in &providers {
        let controllers = provider.controllers.iter();
        let mut names = controllers.flat_map(|controller| controller.names.migration_names());
        if let Some(name) =
            names.find(|name| FRAMEWORK.iter().any(|controller| controller.names.is_called(name)))
        {
            return Err(format!(
                "the cloud provider {} defines {name:?}, which belongs to the framework; choose another name",
                provider.name
            ));
        }
    }
    Ok(providers)
}

/// The error of a binary without any provider.
pub(crate) fn none_compiled_in() -> String {
    format!(
        "this binary was built without any cloud provider; build it again with --features <name>, where the name is \
         one of: {} (all-providers for all of them)",
        FEATURES.join(", ")
    )
}

/// The provider of a program that is started without `--cloud-provider`: the one in the program's own name, as the former
/// cloud controllers are called (`openstack-cloud-controller-manager`), else the only one compiled in.
pub(crate) fn implied(program: &OsStr, compiled_in: &[&'static Provider]) -> Option<&'static str> {
    let name = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let found = compiled_in
        .iter()
        .find(|provider| name.split(['-', '_', '.']).any(|word| word == provider.name))
        .or(match compiled_in {
            [only] => Some(only),
            _ => None,
        });
    found.map(|provider| provider.name)
}

/// The provider that `--cloud-provider` names.
///
/// # Errors
/// There is no such provider: the error for the user.
pub(crate) fn find<'a>(name: &str, compiled_in: &[&'a Provider]) -> Result<&'a Provider, String> {
    if let Some(provider) = compiled_in.iter().find(|provider| provider.name == name) {
        return Ok(provider);
    }
    if compiled_in.is_empty() {
        return Err(none_compiled_in());
    }
    let names: Vec<_> = compiled_in.iter().map(|provider| provider.name).collect();
    let here = format!("compiled in: {}", names.join(", "));
    if name.is_empty() {
        return Err(format!("--cloud-provider cannot be empty ({here})"));
    }
    if FEATURES.contains(&name) {
        return Err(format!(
            "--cloud-provider: {name:?} is not compiled into this binary ({here}); build it with --features {name}"
        ));
    }
    let known = names.iter().chain(FEATURES).copied();
    let hint = match ccm_core::config::suggest::nearest(name, known) {
        Some(near) => format!("; did you mean {near:?}?"),
        None => String::new(),
    };
    Err(format!("--cloud-provider: there is no cloud provider {name:?} ({here}){hint}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use ccm_core::{
        BuildFuture,
        controllers::{ControllerDef, Needs},
    };

    use super::*;
    use crate::controllers::lifecycle;

    fn provider(name: &'static str) -> &'static Provider {
        let build = |_| -> BuildFuture {
            Box::pin(async { Err(ccm_core::Error::new(ccm_core::ErrorKind::Unsupported, "no")) })
        };
        Box::leak(Box::new(Provider::new(name, "for a test", build)))
    }

    #[test]
    fn a_name_registered_twice_is_an_error() {
        assert!(without_duplicates(vec![provider("acme"), provider("zeta")]).is_ok());
        let error = without_duplicates(vec![provider("acme"), provider("acme")]).unwrap_err();
        assert!(error.contains("\"acme\""), "{error}");
    }

    #[test]
    fn names_of_the_framework_are_taken() {
        const SAME: ControllerDef = ControllerDef {
            names: lifecycle::CONTROLLER.names,
            default_on: true,
            needs: |_| Ok(Needs::default()),
            start: |_| Ok(Box::pin(async {})),
        };
        let controllers = Provider {
            controllers: &[SAME],
            ..*provider("acme")
        };
        let error = without_duplicates(vec![Box::leak(Box::new(controllers))]).unwrap_err();
        assert!(error.contains("acme") && error.contains("\"cloud-node-lifecycle-controller\""), "{error}");
    }

    #[test]
    fn a_missing_provider_is_an_error_with_its_fix() {
        let compiled_in = [provider("acme")];
        assert_eq!(find("acme", &compiled_in).unwrap().name, "acme");
        let cases = [
            (
                "openstack",
                "is not compiled into this binary (compiled in: acme); build it with --features openstack",
            ),
            ("acne", "no cloud provider \"acne\" (compiled in: acme); did you mean \"acme\"?"),
            ("somewhere-else", "no cloud provider \"somewhere-else\" (compiled in: acme)"),
        ];
        for (name, text) in cases {
            let error = find(name, &compiled_in).unwrap_err();
            assert!(error.contains(text), "{name}: {error}");
        }
    }

    #[test]
    fn the_programs_name_implies_a_provider() {
        let (acme, zeta) = (provider("acme"), provider("zeta"));
        let implied =
            |program: &str, compiled_in: &[&'static Provider]| implied(OsStr::new(program), compiled_in);
        for (program, name) in [
            ("/bin/acme-cloud-controller-manager", Some("acme")),
            ("zeta-ccm", Some("zeta")),
            ("/acme/cloud-controller-manager", None),
            ("acmezeta", None),
            ("", None),
        ] {
            assert_eq!(implied(program, &[acme, zeta]), name, "{program}");
            assert_eq!(implied(program, &[acme]), Some("acme"), "{program}");
        }
        assert_eq!(implied("acme-ccm", &[]), None);
    }
}
