//! Registration of providers in the binary that links them.
//!
//! A provider crate calls [`register_provider!`](crate::register_provider) once; the binary must *name* the crate
//! somewhere, or the linker leaves it out (the root package does this in `src/providers.rs`).

use std::{path::PathBuf, pin::Pin, sync::Arc};

#[cfg(feature = "controllers")]
use crate::controllers::{ControllerDef, ControllerNames};
use crate::{
    Cloud, Environment, FlagDef, FlagValues, Result,
    check::{Checker, Finding},
    client::{ClientMetrics, Fences},
    flags::parse_bool,
    plan::PlanMetrics,
};

/// The result of [`Provider::build`].
pub type BuildFuture = Pin<Box<dyn Future<Output = Result<Arc<dyn Cloud>>> + Send>>;

/// The result of [`Provider::checker`]: the checker of config, cloud and Services, or the errors of the config.
pub type CheckerResult = Result<Box<dyn Checker>, Vec<Finding>>;

/// A provider that is linked into this binary. Its fields are static, since `--help`, parsing and documents need them before
/// the cloud exists.
#[derive(Clone, Copy, Debug)]
pub struct Provider {
    /// The value of `--cloud-provider`.
    pub name: &'static str,
    /// One line for `--list-providers`.
    pub summary: &'static str,
    /// The module that registers it. Only its crate and those called `ccm_..` log at debug and trace; others are libraries,
    /// which may print secrets there.
    pub module: &'static str,
    /// Reads and checks the configuration without cloud calls, and reports all problems at once. Runs before anything else
    /// is started; an error ends the process. Logs the warnings.
    pub validate: fn(&BuildContext) -> Result<()>,
    /// Reads the configuration again and connects to the cloud. The framework repeats it with backoff until it
    /// succeeds, so that no restart is needed when a Secret is corrected or the cloud is available again.
    pub build: fn(BuildContext) -> BuildFuture,
    /// The reference of the provider's config file as Markdown, generated from the fields' documentation.
    pub config_reference: fn() -> String,
    /// Reads the configuration for `validate`, which checks it together with cloud and Services. `None`: `validate` only
    /// reads the configuration and connects, with the two functions above.
    pub checker: Option<fn(&BuildContext) -> CheckerResult>,
    /// Flags of this provider; `--help` shows them under its name. With another provider they are errors. Their
    /// values are in [`BuildContext::flags`]. One with the name of a flag that the framework accepts without effect, such as
    /// `--allocate-node-cidrs`, replaces that flag; other flags of the framework must not be redefined.
    pub flags: &'static [FlagDef],
    /// Whether the program continues if the cluster refuses to return its client CA, as with
    /// `--authentication-tolerate-lookup-failure`. For a cloud whose Go cloud-controller-manager does not read it: the role in use does not
    /// grant this right.
    pub client_ca_is_optional: bool,
    /// Controllers of this provider. They run in addition to those of the framework, under the same rules.
    #[cfg(feature = "controllers")]
    pub controllers: &'static [ControllerDef],
    /// The names of upstream's second service controller, which serves only Services with a class of this cloud. The framework's
    /// service controller serves these, too: it runs if `--controllers` names either of the two.
    #[cfg(feature = "controllers")]
    pub class_controller: Option<ControllerNames>,
}

impl Provider {
    /// A provider without a config file, flags and controllers.
    #[must_use]
    pub const fn new(
        name: &'static str,
        summary: &'static str,
        build: fn(BuildContext) -> BuildFuture,
    ) -> Self {
        Self {
            name,
            summary,
            module: "",
            validate: |_| Ok(()),
            build,
            config_reference: || "This provider takes no config file.\n".to_owned(),
            checker: None,
            flags: &[],
            client_ca_is_optional: false,
            #[cfg(feature = "controllers")]
            controllers: &[],
            #[cfg(feature = "controllers")]
            class_controller: None,
        }
    }
}

inventory::collect!(Provider);

/// The input for building a provider's cloud. The default, for tests, has no config file and no flags and may write.
#[derive(Clone, Debug, Default)]
pub struct BuildContext {
    /// `--cloud-config`, if it is set.
    pub cloud_config: Option<PathBuf>,
    /// The environment of the process.
    pub environment: Environment,
    /// The flags of the command line; those of the provider are well formed. [`Provider::validate`] reports other
    /// errors.
    pub flags: FlagValues,
    /// `--cluster-name`; part of the names of created objects.
    pub cluster_name: String,
    /// The `User-Agent` header for every cloud call.
    pub user_agent: String,
    /// The metrics of cloud calls.
    pub metrics: ClientMetrics,
    /// The metrics of the plan engine. For [`Engine::new`](crate::plan::Engine::new).
    pub plan: PlanMetrics,
    /// Whether this process may write to the cloud. For [`GateConfig::fence`](crate::client::GateConfig) and
    /// [`Gate::fenced_by`](crate::client::Gate::fenced_by).
    pub fences: Fences,
}

impl BuildContext {
    /// Whether the program manages routes: `--configure-cloud-routes`, which is true by default.
    #[must_use]
    pub fn has_routes(&self) -> bool {
        let Some([.., last]) = self.flags.given("configure-cloud-routes") else {
            return true;
        };
        parse_bool(last).unwrap_or(true)
    }
}

/// All providers linked into this binary, sorted by name. A name that is registered twice is listed twice.
#[must_use]
pub fn all() -> Vec<&'static Provider> {
    let mut providers: Vec<_> = inventory::iter::<Provider>.into_iter().collect();
    // Link order is arbitrary.
    providers.sort_by_key(|provider| provider.name);
    providers
}

/// Registers a provider:
///
/// ```
/// # use std::sync::Arc;
/// # use ccm_core::{BuildContext, Cloud, Result, register_provider};
/// #[derive(Debug)]
/// struct Acme;
///
/// impl Cloud for Acme {
///     fn name(&self) -> &'static str { "acme" }
/// }
///
/// async fn build(_: BuildContext) -> Result<Arc<dyn Cloud>> { Ok(Arc::new(Acme)) }
///
/// register_provider! { name: "acme", summary: "Acme Cloud", build: build }
/// # fn main() { assert_eq!(ccm_core::registry::all()[0].name, "acme"); }
/// ```
///
/// Any other field of [`Provider`] may follow `build`, each as `field: value`.
#[macro_export]
macro_rules! register_provider {
    (name: $name:expr, summary: $summary:expr, build: $build:expr $(, $field:ident: $value:expr)* $(,)?) => {
        $crate::private::inventory::submit! {
            $crate::Provider {
                $($field: $value,)* module: ::core::module_path!(),
                ..$crate::Provider::new($name, $summary, |context| ::std::boxed::Box::pin($build(context)))
            }
        }
    };
}
