//! `clouds.yaml`, the file that OpenStack's command-line tools read.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use ccm_core::{
    Environment,
    config::{ConfigFiles, KeyCase, Position, yaml},
};
use serde::Deserialize;

use super::credentials::Given;

/// The values of an entry that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Entry {
    profile: Option<String>,
    cloud: Option<String>,
    auth: Given,
    region_name: Option<String>,
    endpoint_type: Option<String>,
    interface: Option<String>,
    cacert: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    clouds: BTreeMap<String, Entry>,
    #[serde(rename = "public-clouds")]
    public_clouds: BTreeMap<String, Entry>,
}

/// A key of `[Global]`, and the problem with it.
type Wrong = (&'static str, String);

impl Entry {
    /// The values of `[Global]` in their place.
    pub(super) fn into_given(self) -> Given {
        Given {
            region: self.region_name,
            endpoint_type: self.endpoint_type.or(self.interface),
            ca_file: self.cacert,
            cert_file: self.cert,
            key_file: self.key,
            ..self.auth
        }
    }

    /// Fills missing values from another entry.
    fn or(self, other: Self) -> Self {
        Self {
            auth: self.auth.or(other.auth),
            profile: self.profile.or(other.profile),
            cloud: self.cloud.or(other.cloud),
            region_name: self.region_name.or(other.region_name),
            endpoint_type: self.endpoint_type.or(other.endpoint_type),
            interface: self.interface.or(other.interface),
            cacert: self.cacert.or(other.cacert),
            cert: self.cert.or(other.cert),
            key: self.key.or(other.key),
        }
    }
}

/// Reads an entry of `clouds.yaml`. `secure.yaml` overrides it, and its profile in `clouds-public.yaml` has the
/// defaults.
///
/// # Errors
///
/// If the file or the entry cannot be found or read. The error does not repeat the content, which contains secrets.
pub(super) fn entry(
    file: &str,
    cloud: &str,
    env: &Environment,
    files: &mut ConfigFiles,
) -> Result<Entry, Wrong> {
    let directories = directories(env);
    let named = Some(file)
        .filter(|file| !file.is_empty())
        .map(|file| ("clouds-file", PathBuf::from(file)));
    let named = named.or_else(|| Some(("use-clouds", PathBuf::from(env.var("OS_CLIENT_CONFIG_FILE")?))));
    let (path, mut clouds) = match named {
        Some((key, path)) => match read(&path, files)? {
            Some(clouds) => (path, clouds),
            None => return Err((key, format!("file {} not found", path.display()))),
        },
        None => search("clouds", &directories, files)?.ok_or_else(|| {
            let places: Vec<_> = directories
                .iter()
                .map(|place| place.display().to_string())
                .collect();
            (
                "use-clouds",
                format!("clouds.yaml not found in {}", places.join(", ")),
            )
        })?,
    };
    let (key, name) = match (cloud, env.var("OS_CLOUD")) {
        ("", None) if clouds.clouds.len() == 1 => ("use-clouds", clouds.clouds.keys().next().cloned()),
        ("", None) => ("cloud", None),
        ("", Some(name)) => ("use-clouds", Some(name.to_owned())),
        (name, _) => ("cloud", Some(name.to_owned())),
    };
    let found = name.as_ref().and_then(|name| clouds.clouds.remove(name));
    let (Some(name), Some(mut entry)) = (name.clone(), found) else {
        let names: Vec<_> = clouds.clouds.into_keys().collect();
        let which = name.map(|name| format!(" {name:?}")).unwrap_or_default();
        return Err((
            key,
            format!(
                "could not find cloud{which} in {}, which has: {}",
                path.display(),
                names.join(", ")
            ),
        ));
    };

    // The directory of the file itself comes first.
    let mut places: Vec<PathBuf> = path.parent().map(Path::to_path_buf).into_iter().collect();
    places.extend(directories);
    if let Some((_, mut secure)) = search("secure", &places, files)?
        && let Some(secrets) = secure.clouds.remove(&name)
    {
        entry = secrets.or(entry);
    }
    if let Some(profile) = entry.profile.clone().or(entry.cloud.clone())
        && let Some((_, mut public)) = search("clouds-public", &places, files)?
        && let Some(vendor) = public.public_clouds.remove(&profile)
    {
        entry = entry.or(vendor);
    }
    Ok(entry)
}

/// The directories to search, in order.
fn directories(env: &Environment) -> Vec<PathBuf> {
    let home = env
        .var("HOME")
        .map(|home| Path::new(home).join(".config/openstack"));
    let own = env.working_directory().map(Path::to_path_buf);
    own.into_iter()
        .chain(home)
        .chain([PathBuf::from("/etc/openstack")])
        .collect()
}

/// The first file with this name.
fn search(stem: &str, places: &[PathBuf], files: &mut ConfigFiles) -> Result<Option<(PathBuf, File)>, Wrong> {
    for place in places {
        for suffix in ["yaml", "yml"] {
            let path = place.join(format!("{stem}.{suffix}"));
            if let Some(file) = read(&path, files)? {
                return Ok(Some((path, file)));
            }
        }
    }
    Ok(None)
}

/// Reads a file; `None` if it does not exist.
fn read(path: &Path, files: &mut ConfigFiles) -> Result<Option<File>, Wrong> {
    let text = files
        .read(path)
        .and_then(|text| String::from_utf8(text).map_err(io::Error::other));
    let text = match text {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err((
                "use-clouds",
                format!("could not read {}: {error}", path.display()),
            ));
        }
    };
    // Neither the error's own text nor the line may be shown: they may contain a password.
    let wrong = |at: Position| {
        (
            "use-clouds",
            format!(
                "{}:{at}: not YAML, or a value is not what its key takes",
                path.display()
            ),
        )
    };
    let Some(mut root) = yaml::document(&text).map_err(|error| wrong(error.position))? else {
        return Ok(Some(File::default()));
    };
    if let Some(twice) = root.duplicates(KeyCase::Sensitive).first() {
        return Err(wrong(twice.entry.at));
    }
    drop_empty(&mut root);
    root.deserialize().map(Some).map_err(|(at, _)| wrong(at))
}

/// Removes the keys with an empty text: as in Go, they count as missing.
fn drop_empty(node: &mut yaml::Node) {
    if let yaml::Value::Map(entries) = &mut node.value {
        entries.retain(|entry| entry.node.scalar() != Some(""));
        entries.iter_mut().for_each(|entry| drop_empty(&mut entry.node));
    }
}
