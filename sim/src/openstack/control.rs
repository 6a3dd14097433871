//! The control API in Rust: creates and changes objects, sets the behavior, and reads the call log.

mod balancers;
mod network;
mod routers;
mod things;

pub use balancers::{BalancerState, ObjectState};
pub use network::{FloatingState, GroupState};

use std::sync::Arc;
use std::time::Duration;

use super::OpenStackCloud;
use super::identity::DOMAIN_NAME;
use super::region::Region;
use super::settings::Settings;
use super::spec::{AppCredential, AppCredentialSpec, FlavorSpec, NetworkSpec, RouterSpec, UserSpec};
use crate::control::Behavior;
use crate::error::{Error, Result};

/// A handle to a simulated OpenStack. Clones are cheap and belong to the same cloud. [`Behavior`], its `Deref` target,
/// sets faults and reads the call log.
#[derive(Clone)]
pub struct Control {
    cloud: Arc<OpenStackCloud>,
    behavior: Behavior,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Control").field("base", &self.cloud.base).finish_non_exhaustive()
    }
}

/// The connection data of this cloud.
impl Control {
    pub(super) fn new(cloud: Arc<OpenStackCloud>, behavior: Behavior) -> Self {
        Self { cloud, behavior }
    }

    /// Keystone's URL, as in a cloud.conf.
    pub fn auth_url(&self) -> String {
        format!("{}/identity/v3", self.cloud.base)
    }

    /// URL of the HTTP form of this API.
    pub fn control_url(&self) -> String {
        format!("{}/_sim", self.cloud.base)
    }

    /// The default region.
    pub fn region(&self) -> String {
        self.cloud.regions.read().first().map(|region| region.name.clone()).unwrap_or_default()
    }

    /// Id of the default project.
    pub fn project_id(&self) -> String {
        self.cloud.identity.read().default_project.clone()
    }

    /// A cloud.conf for the default user and project.
    pub fn cloud_conf(&self) -> String {
        let region = self.region();
        let identity = self.cloud.identity.read();
        let (name, password) = identity
            .users
            .get(&identity.default_user)
            .map(|user| (&user.name, &user.password))
            .unzip();
        let project = identity.projects.get(&identity.default_project);
        format!(
            "[Global]\nauth-url={}\nusername={}\npassword={}\ntenant-name={}\ndomain-name={DOMAIN_NAME}\nregion={}\n",
            self.auth_url(),
            quoted(name),
            quoted(password),
            quoted(project),
            quoted(Some(&region)),
        )
    }

    /// A cloud.conf for an application credential.
    pub fn cloud_conf_for(&self, credential: &AppCredential) -> String {
        format!(
            "[Global]\nauth-url={}\napplication-credential-id={}\napplication-credential-secret={}\nregion={}\n",
            self.auth_url(),
            credential.id,
            quoted(Some(&credential.secret)),
            quoted(Some(&self.region())),
        )
    }
}

/// A quoted value, whose characters are not read as comments or escapes.
fn quoted(value: Option<&String>) -> String {
    let value = value.map(String::as_str).unwrap_or_default();
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Regions, projects, users, credentials, tokens.
impl Control {
    /// Creates a region with a network `private`, an external network `public`, a router between them
    /// (whose interface has no port) and two flavors.
    ///
    /// # Errors
    /// If the name is taken or is that of a service.
    pub fn create_region(&self, name: &str) -> Result<()> {
        if name.is_empty() || matches!(name, "identity" | "internal" | "admin" | "_sim") {
            return Err(Error::Invalid(format!("a region cannot be called {name:?}")));
        }
        {
            let mut regions = self.cloud.regions.write();
            if regions.iter().any(|region| region.name == name) {
                return Err(Error::Invalid(format!("region {name:?} exists")));
            }
            Arc::make_mut(&mut regions).push(Region::new(name.to_owned()));
        }
        let region = Some(name.to_owned());
        for (id, name, vcpus, ram, disk) in [("2", "m1.small", 1, 2048, 20), ("3", "m1.medium", 2, 4096, 40)]
        {
            let (id, name, region) = (Some(id.to_owned()), name.to_owned(), region.clone());
            self.create_flavor(&FlavorSpec {
                id,
                name,
                region,
                vcpus,
                ram,
                disk,
            })?;
        }
        for (name, external, subnet) in [
            ("private", false, self.cloud.private_subnet),
            ("public", true, self.cloud.public_subnet),
        ] {
            let (name, subnets, region) = (name.to_owned(), vec![subnet], region.clone());
            self.create_network(&NetworkSpec {
                name,
                region,
                external,
                subnets,
                ..NetworkSpec::default()
            })?;
        }
        self.create_router(&RouterSpec {
            name: "router".to_owned(),
            region,
            gateway: Some("public".to_owned()),
            networks: vec!["private".to_owned()],
            without_ports: true,
            ..RouterSpec::default()
        })?;
        Ok(())
    }

    pub(super) fn require_region(&self) -> Result<()> {
        if self.cloud.regions.read().is_empty() {
            return Err(Error::Invalid("a cloud needs at least one region".to_owned()));
        }
        Ok(())
    }

    /// Creates a project and returns its id.
    pub fn create_project(&self, name: &str) -> String {
        self.cloud.identity.write().create_project(name, &self.cloud.ids)
    }

    /// Renames a project; everything else stays.
    ///
    /// # Errors
    /// If the project does not exist.
    pub fn rename_project(&self, project: &str, name: &str) -> Result<()> {
        self.cloud.identity.write().rename_project(project, name)
    }

    /// Adds a user to a project. Without a name it is the default user.
    ///
    /// # Errors
    /// If the user or project does not exist.
    pub fn add_member(&self, user: Option<&str>, project: &str) -> Result<()> {
        self.cloud.identity.write().add_member(user, project)
    }

    /// Creates a user and returns its id.
    ///
    /// # Errors
    /// If a project does not exist.
    pub fn create_user(&self, spec: &UserSpec) -> Result<String> {
        self.cloud.identity.write().create_user(spec, &self.cloud.ids)
    }

    /// Changes a user's password, which revokes the user's tokens. Without a name it is the default user.
    ///
    /// # Errors
    /// If the user does not exist.
    pub fn set_password(&self, user: Option<&str>, password: &str) -> Result<()> {
        self.cloud.identity.write().set_password(user, password)
    }

    /// Creates an application credential.
    ///
    /// # Errors
    /// If the user or project does not exist.
    pub fn create_app_credential(&self, spec: &AppCredentialSpec) -> Result<AppCredential> {
        self.cloud.identity.write().create_app_credential(spec, &self.cloud.ids)
    }

    /// Deletes an application credential, by id or name, which revokes its tokens.
    ///
    /// # Errors
    /// If the credential does not exist.
    pub fn delete_app_credential(&self, requested: &str) -> Result<()> {
        self.cloud.identity.write().delete_app_credential(requested)
    }

    /// Lets a trustee act as the trustor in a project and returns the trust's id.
    ///
    /// # Errors
    /// If a user or the project does not exist.
    pub fn create_trust(&self, trustor: &str, trustee: &str, project: &str) -> Result<String> {
        self.cloud.identity.write().create_trust(trustor, trustee, project, &self.cloud.ids)
    }

    /// Revokes all tokens.
    pub fn revoke_tokens(&self) {
        self.cloud.identity.write().revoke(|_, _| true);
    }

    /// Sets how long new tokens are valid.
    pub fn set_token_lifetime(&self, lifetime: Duration) {
        self.cloud.identity.write().token_lifetime = lifetime;
    }
}

impl std::ops::Deref for Control {
    type Target = Behavior;

    fn deref(&self) -> &Behavior {
        &self.behavior
    }
}

/// Settings.
impl Control {
    /// The current settings.
    pub fn settings(&self) -> Settings {
        self.cloud.settings.read().clone()
    }

    /// Changes settings.
    pub fn configure(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.cloud.settings.write());
    }
}
