//! `clouds.yaml`, the file that OpenStack's command-line tools read.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use ccm_core::{
    Environment,
    config::{ConfigFiles, KeyCase, Position, Problems, yaml},
};
use serde::Deserialize;

use super::credentials::{Given, refuse};

/// The values of an entry that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CloudEntry {
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
    clouds: BTreeMap<String, CloudEntry>,
    #[serde(rename = "public-clouds")]
    public_clouds: BTreeMap<String, CloudEntry>,
}

impl CloudEntry {
    /// The values of `[Global]` in their place.
    fn into_given(self) -> Given {
        Given {
            region: self.region_name,
            endpoint_type: self.endpoint_type.or(self.interface),
            ca_file: self.cacert,
            cert_file: self.cert,
            key_file: self.key,
            ..self.auth
        }
    }

    /// The name of its defaults in `clouds-public.yaml`.
    fn profile(&self) -> Option<String> {
        self.profile.clone().or(self.cloud.clone())
    }
}

/// Reads an entry of `clouds.yaml`. `secure.yaml` overrides it, and its profile in `clouds-public.yaml` has the
/// defaults. `None` with errors, which do not repeat the content: it contains secrets.
pub(super) fn entry(
    file: &str,
    cloud: &str,
    env: &Environment,
    files: &mut ConfigFiles,
    problems: &mut Problems,
) -> Option<Given> {
    let directories = directories(env);
    let named = Some(file)
        .filter(|file| !file.is_empty())
        .map(|file| ("clouds-file", PathBuf::from(file)));
    let named = named.or_else(|| Some(("use-clouds", PathBuf::from(env.var("OS_CLIENT_CONFIG_FILE")?))));
    let (path, mut clouds) = match named {
        Some((key, path)) => match read(&path, files, problems)? {
            Some(clouds) => (path, clouds),
            None => return refuse(problems, key, format!("file {} not found", path.display())),
        },
        None => match search("clouds", &directories, files, problems)? {
            Some(found) => found,
            None => {
                let places = directories
                    .iter()
                    .map(|place| place.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", ");
                let what = format!("clouds.yaml not found in {places}");
                return refuse(problems, "use-clouds", what);
            }
        },
    };
    let (key, name) = match (cloud, env.var("OS_CLOUD")) {
        ("", None) if clouds.clouds.len() == 1 => ("use-clouds", clouds.clouds.keys().next().cloned()),
        ("", None) => ("cloud", None),
        ("", Some(name)) => ("use-clouds", Some(name.to_owned())),
        (name, _) => ("cloud", Some(name.to_owned())),
    };
    let found = name.as_ref().and_then(|name| clouds.clouds.remove(name));
    let (Some(name), Some(entry)) = (name.clone(), found) else {
        let names: Vec<_> = clouds.clouds.into_keys().collect();
        let names = match names.join(", ") {
            none if none.is_empty() => " no clouds; write them below the key clouds".to_owned(),
            names => format!(": {names}"),
        };
        let which = name.map(|name| format!(" {name:?}")).unwrap_or_default();
        let what = format!("could not find cloud{which} in {}, which has{names}", path.display());
        return refuse(problems, key, what);
    };

    // The directory of the file itself comes first.
    let mut places: Vec<PathBuf> = path.parent().map(Path::to_path_buf).into_iter().collect();
    places.extend(directories);
    let (mut profile, mut given) = (entry.profile(), entry.into_given());
    if let Some((_, mut secure)) = search("secure", &places, files, problems)?
        && let Some(secrets) = secure.clouds.remove(&name)
    {
        profile = secrets.profile().or(profile);
        given = secrets.into_given().or(given);
    }
    if let Some(profile) = profile
        && let Some((_, mut public)) = search("clouds-public", &places, files, problems)?
        && let Some(vendor) = public.public_clouds.remove(&profile)
    {
        given = given.or(vendor.into_given());
    }
    Some(given)
}

/// The directories to search, in order.
fn directories(env: &Environment) -> Vec<PathBuf> {
    let home = env.var("HOME").map(|home| Path::new(home).join(".config/openstack"));
    let own = env.working_directory().map(Path::to_path_buf);
    own.into_iter().chain(home).chain([PathBuf::from("/etc/openstack")]).collect()
}

/// The first file with this name. The outer `None` is an error.
fn search(
    stem: &str,
    places: &[PathBuf],
    files: &mut ConfigFiles,
    problems: &mut Problems,
) -> Option<Option<(PathBuf, File)>> {
    for place in places {
        for suffix in ["yaml", "yml"] {
            let path = place.join(format!("{stem}.{suffix}"));
            if let Some(file) = read(&path, files, problems)? {
                return Some(Some((path, file)));
            }
        }
    }
    Some(None)
}

/// Reads a file; the inner `None` if it does not exist. The outer `None` is an error.
fn read(path: &Path, files: &mut ConfigFiles, problems: &mut Problems) -> Option<Option<File>> {
    let text = files.read(path).and_then(|text| String::from_utf8(text).map_err(io::Error::other));
    let text = match text {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(None),
        Err(error) => {
            let what = format!("could not read {}: {error}", path.display());
            return refuse(problems, "use-clouds", what);
        }
    };
    let mut add = |at: Position, key: &str, what: &str, is_error| {
        problems.add_in(path, at, key, what, is_error);
    };
    let mut root = match yaml::document(&text) {
        Ok(Some(root)) => root,
        Ok(None) => return Some(Some(File::default())),
        Err(error) => {
            // The error's own text and the line may contain a password.
            add(error.position, "", "not YAML", true);
            return None;
        }
    };
    let repeated = root.duplicates(KeyCase::Sensitive);
    for key in &repeated {
        let what = format!("given twice, first in line {}; keep only one", key.first.line);
        add(key.entry.at, &key.entry.key, &what, true);
    }
    let is_unique = repeated.is_empty();
    drop_empty(&mut root);
    let read = root.deserialize();
    // All values are texts and maps, so that these errors only name kinds of values.
    for (at, error) in &read.errors {
        let key = error.path().trim_start_matches('.');
        add(*at, key, &error.to_string(), true);
    }
    for list in root.entries() {
        for cloud in list.node.entries() {
            // Other tools have more keys outside of `auth`.
            for key in cloud.node.get("auth").into_iter().flat_map(yaml::Node::entries) {
                if let Some(unknown) = read.unknown.iter().find(|unknown| unknown.at == key.at) {
                    let key = format!("{}.{}.auth.{}", list.key, cloud.key, key.key);
                    add(unknown.at, &key, &unknown.message(), false);
                }
            }
        }
    }
    if is_unique { read.value.map(Some) } else { None }
}

/// Removes the keys with an empty text: as in Go, they count as missing.
fn drop_empty(node: &mut yaml::Node) {
    if let yaml::Value::Map(entries) = &mut node.value {
        entries.retain(|entry| entry.node.scalar() != Some(""));
        entries.iter_mut().for_each(|entry| drop_empty(&mut entry.node));
    }
}
