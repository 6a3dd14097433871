//! Keystone's state: projects, users, application credentials, trusts and tokens.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;

use crate::error::{Error, Result};
use crate::openstack::ids::Ids;
use crate::openstack::spec::{AppCredential, AppCredentialSpec, UserSpec};

/// The only domain, which every new cloud has.
pub(crate) const DOMAIN_ID: &str = "default";
/// The name of the domain.
pub(crate) const DOMAIN_NAME: &str = "Default";

/// A user. The roles are the same in all of the user's projects.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) password: String,
    pub(crate) projects: Vec<String>,
    pub(crate) admin: bool,
}

/// A trust: the trustee acts as the trustor in one project.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    pub(crate) trustor: String,
    pub(crate) trustee: String,
    pub(crate) project_id: String,
}

/// The scope of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    Unscoped,
    Project(String),
}

/// A token.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) methods: Vec<String>,
    pub(crate) user_id: String,
    pub(crate) grant: Grant,
    pub(crate) app_credential: Option<String>,
    pub(crate) trust: Option<String>,
    pub(crate) issued: Timestamp,
    pub(crate) expires: Timestamp,
    pub(crate) audit_ids: Vec<String>,
}

/// The caller of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Empty without a project.
    pub(crate) project_id: String,
    pub(crate) admin: bool,
}

/// The state of Keystone.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) projects: BTreeMap<String, String>,
    pub(crate) users: BTreeMap<String, User>,
    pub(crate) app_credentials: BTreeMap<String, AppCredential>,
    pub(crate) trusts: BTreeMap<String, Trust>,
    pub(crate) tokens: HashMap<String, Token>,
    pub(crate) token_lifetime: Duration,
    pub(crate) default_project: String,
    pub(crate) default_user: String,
}

impl Identity {
    pub(crate) fn new(project: &str, user: &UserSpec, token_lifetime: Duration, ids: &Ids) -> Self {
        let project_id = ids.hex();
        let user_id = ids.hex();
        let owner = User {
            id: user_id.clone(),
            name: user.name.clone(),
            password: user.password.clone(),
            projects: vec![project_id.clone()],
            admin: user.admin,
        };
        Self {
            projects: BTreeMap::from([(project_id.clone(), project.to_owned())]),
            users: BTreeMap::from([(user_id.clone(), owner)]),
            app_credentials: BTreeMap::new(),
            trusts: BTreeMap::new(),
            tokens: HashMap::new(),
            token_lifetime,
            default_project: project_id,
            default_user: user_id,
        }
    }

    /// A project's id, by id or name; the default project if none is named.
    pub(crate) fn project(&self, requested: Option<&str>) -> Result<String> {
        let Some(requested) = requested else {
            return Ok(self.default_project.clone());
        };
        self.find_project(requested, requested)
            .ok_or_else(|| Error::unknown("project", requested))
    }

    pub(crate) fn find_project(&self, id: &str, name: &str) -> Option<String> {
        if self.projects.contains_key(id) {
            return Some(id.to_owned());
        }
        let (id, _) = self.projects.iter().find(|(_, known)| *known == name)?;
        Some(id.clone())
    }

    /// A user, by id or name; the default user if none is named.
    pub(crate) fn user(&self, requested: Option<&str>) -> Result<&User> {
        let requested = requested.unwrap_or(&self.default_user);
        self.users
            .get(requested)
            .or_else(|| self.users.values().find(|user| user.name == requested))
            .ok_or_else(|| Error::unknown("user", requested))
    }

    /// The creator of objects in a project: the default user or else another member.
    pub(crate) fn maker_in(&self, project_id: &str) -> String {
        let is_member = |user: &&User| user.projects.iter().any(|id| id == project_id);
        let default = self.users.get(&self.default_user).filter(is_member);
        let maker = default.or_else(|| self.users.values().find(is_member));
        maker.map_or_else(|| self.default_user.clone(), |user| user.id.clone())
    }

    pub(crate) fn create_project(&mut self, name: &str, ids: &Ids) -> String {
        let id = ids.hex();
        self.projects.insert(id.clone(), name.to_owned());
        id
    }

    pub(crate) fn rename_project(&mut self, project: &str, name: &str) -> Result<()> {
        let id = self.project(Some(project))?;
        self.projects.insert(id, name.to_owned());
        Ok(())
    }

    pub(crate) fn add_member(&mut self, user: Option<&str>, project: &str) -> Result<()> {
        let (id, project) = (self.user(user)?.id.clone(), self.project(Some(project))?);
        if let Some(user) = self.users.get_mut(&id) {
            user.projects.push(project);
        }
        Ok(())
    }

    pub(crate) fn create_user(&mut self, spec: &UserSpec, ids: &Ids) -> Result<String> {
        let projects = match &spec.projects {
            Some(projects) => projects.iter().map(|name| self.project(Some(name))).collect::<Result<_>>()?,
            None => vec![self.default_project.clone()],
        };
        let id = ids.hex();
        let user = User {
            id: id.clone(),
            name: spec.name.clone(),
            password: spec.password.clone(),
            projects,
            admin: spec.admin,
        };
        self.users.insert(id.clone(), user);
        Ok(id)
    }

    /// Sets a new password. As in Keystone, this revokes the user's tokens.
    pub(crate) fn set_password(&mut self, user: Option<&str>, password: &str) -> Result<()> {
        let id = self.user(user)?.id.clone();
        if let Some(user) = self.users.get_mut(&id) {
            password.clone_into(&mut user.password);
        }
        self.revoke(|_, token| token.user_id == id);
        Ok(())
    }

    pub(crate) fn create_app_credential(
        &mut self,
        spec: &AppCredentialSpec,
        ids: &Ids,
    ) -> Result<AppCredential> {
        let credential = AppCredential {
            id: ids.hex(),
            name: spec.name.clone(),
            secret: spec.secret.clone().unwrap_or_else(|| ids.text(86)),
            user_id: self.user(spec.user.as_deref())?.id.clone(),
            project_id: self.project(spec.project.as_deref())?,
        };
        self.app_credentials.insert(credential.id.clone(), credential.clone());
        Ok(credential)
    }

    /// Deletes an application credential, by ID or name, with its tokens.
    pub(crate) fn delete_app_credential(&mut self, requested: &str) -> Result<()> {
        let found = self
            .app_credentials
            .get(requested)
            .or_else(|| self.app_credentials.values().find(|known| known.name == requested))
            .ok_or_else(|| Error::unknown("application credential", requested))?;
        let id = found.id.clone();
        self.app_credentials.remove(&id);
        self.revoke(|_, token| token.app_credential.as_ref() == Some(&id));
        Ok(())
    }

    pub(crate) fn create_trust(
        &mut self,
        trustor: &str,
        trustee: &str,
        project: &str,
        ids: &Ids,
    ) -> Result<String> {
        let trust = Trust {
            trustor: self.user(Some(trustor))?.id.clone(),
            trustee: self.user(Some(trustee))?.id.clone(),
            project_id: self.project(Some(project))?,
        };
        let id = ids.hex();
        self.trusts.insert(id.clone(), trust);
        Ok(id)
    }

    /// Revokes the tokens that `chosen` selects. They are still known as former tokens.
    pub(crate) fn revoke(&mut self, chosen: impl Fn(&str, &Token) -> bool) {
        for (id, token) in &mut self.tokens {
            if chosen(id, token) {
                token.expires = token.issued;
            }
        }
    }

    /// A token that is valid.
    pub(crate) fn token(&self, id: &str, now: Timestamp) -> Option<&Token> {
        self.tokens.get(id).filter(|token| now < token.expires)
    }

    /// The caller with this token.
    pub(crate) fn caller(&self, token: &Token) -> Caller {
        let project_id = match &token.grant {
            Grant::Project(project) => project.clone(),
            Grant::Unscoped => String::new(),
        };
        let admin = self.users.get(&token.user_id).is_some_and(|user| user.admin);
        Caller {
            admin: admin && token.grant != Grant::Unscoped,
            project_id,
        }
    }

    /// Stores a token under a new ID.
    pub(crate) fn issue(&mut self, token: Token, ids: &Ids) -> String {
        if self.tokens.len() >= 10_000 {
            let now = token.issued;
            self.tokens.retain(|_, known| now < known.expires);
        }
        let id = ids.token();
        self.tokens.insert(id.clone(), token);
        id
    }
}
