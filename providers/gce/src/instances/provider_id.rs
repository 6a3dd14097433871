//! Provider IDs: `gce://<project>/<zone>/<name>`.

use ccm_core::{Error, ErrorKind, Result};

/// The scheme of provider IDs of GCE.
pub(crate) const SCHEME: &str = "gce";

/// The instance in a provider ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceName {
    pub(crate) project: String,
    pub(crate) zone: String,
    pub(crate) name: String,
}

impl InstanceName {
    /// The text that identifies the instance, `<project>/<zone>/<name>`.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}/{}", self.project, self.zone, self.name)
    }

    /// Reads [`Self::id`].
    pub(crate) fn of_id(id: &str) -> Option<Self> {
        let parts: Vec<_> = id.split('/').collect();
        match parts.as_slice() {
            [project, zone, name] if parts.iter().all(|part| !part.is_empty()) => Some(Self {
                project: (*project).to_owned(),
                zone: (*zone).to_owned(),
                name: (*name).to_owned(),
            }),
            _ => None,
        }
    }
}

/// The instance in a provider ID; `None` for provider IDs of other clouds.
///
/// # Errors
///
/// The provider ID is not one of GCE and not one of another cloud either.
pub(crate) fn parse(provider_id: &str) -> Result<Option<InstanceName>> {
    let rest = match provider_id.split_once("://") {
        Some((SCHEME, rest)) => rest,
        Some(_) => return Ok(None),
        None => "",
    };
    let Some(name) = InstanceName::of_id(rest) else {
        let text = format!("provider ID {provider_id:?} is not of the form gce://<project>/<zone>/<name>");
        return Err(Error::new(ErrorKind::InvalidSpec, text));
    };
    Ok(Some(name))
}

/// The provider ID of an instance.
pub(crate) fn render(id: &str) -> String {
    format!("{SCHEME}://{id}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_provider_id_has_project_zone_and_name() {
        for project in [
            "project-example-164317",
            "project-example.164317",
            "example.com:project",
        ] {
            let text = format!("gce://{project}/us-central1-f/kubernetes-node-fhx1");
            let instance = parse(&text).unwrap().unwrap();
            assert_eq!((instance.project.as_str(), instance.zone.as_str()), (project, "us-central1-f"));
            assert_eq!(instance.name, "kubernetes-node-fhx1");
            assert_eq!(render(&instance.id()), text);
        }
        assert_eq!(parse("aws:///us-east-1a/i-1").unwrap(), None);
        for wrong in [
            "",
            "n-1",
            "gce:/p/z/n",
            "gce://p/z",
            "gce://p//n",
            "gce://p/z/n/",
            "gce://p/z/n/x",
            "gce:///z/n",
        ] {
            let error = parse(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{wrong}");
        }
    }
}
