//! Reads the files of a config into a provider's settings: at the start, and again when one of them changes.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use tokio::sync::MutexGuard;
use tracing::warn;

use super::{ConfigErrors, ConfigFile, KeyCase, Parsed, Problem, Problems, Section, parse_with, parse_yaml};
use crate::{Environment, Error, ErrorKind, Reload, Result};

/// The files that a config was read from, including missing ones: creating them changes the config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigFiles(BTreeSet<PathBuf>);

impl ConfigFiles {
    /// Reads a file and remembers it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.0.insert(path.as_ref().to_owned());
        std::fs::read(path)
    }

    /// All files, sorted.
    #[must_use]
    pub fn list(&self) -> Vec<PathBuf> {
        self.0.iter().cloned().collect()
    }
}

/// Why there is no config.
#[derive(Debug)]
pub enum LoadError {
    /// No file is given, or it cannot be read.
    File(Error),
    /// The content is invalid.
    Content(ConfigErrors),
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::File(error) => error,
            LoadError::Content(errors) => errors.into(),
        }
    }
}

/// Reads the config file of `cloud` (its display name) and resolves its keys into the provider's settings. `resolve` reports
/// all errors, reads further files through [`ConfigFiles`], and returns `None` only after an error.
///
/// # Errors
/// All errors, with line numbers.
pub fn load<T: ConfigFile, S>(
    cloud: &str,
    path: Option<&Path>,
    files: &mut ConfigFiles,
    resolve: impl FnOnce(&T, &mut ConfigFiles, &mut Problems) -> Option<S>,
) -> Result<Parsed<S>, LoadError> {
    let path = path.filter(|path| !path.as_os_str().is_empty()).ok_or_else(|| {
        let text = format!("no {cloud} cloud provider config file given; name it with --cloud-config");
        LoadError::File(Error::new(ErrorKind::InvalidConfig, text))
    })?;
    load_optional(Some(path), "", files, resolve)
}

/// As [`load`], for a file that may be missing: without a path, every key has its default, and `resolve` takes the values
/// from elsewhere, such as the environment. Messages then contain `absent` instead of the file's name.
///
/// # Errors
/// All errors, with line numbers.
pub fn load_optional<T: ConfigFile, S>(
    path: Option<&Path>,
    absent: &str,
    files: &mut ConfigFiles,
    resolve: impl FnOnce(&T, &mut ConfigFiles, &mut Problems) -> Option<S>,
) -> Result<Parsed<S>, LoadError> {
    let path = path.filter(|path| !path.as_os_str().is_empty());
    let text = path.map_or_else(|| Ok(Vec::new()), |path| read_file(path, files))?;
    let mut settings = None;
    let name = path.unwrap_or_else(|| Path::new(absent));
    let parsed = parse_with::<T>(text, name, |config, problems| {
        settings = resolve(config, files, problems);
    });
    finish_load(parsed, settings)
}

/// As [`load_optional`], for a YAML or JSON file and environment variables, which override it.
///
/// # Errors
/// All errors, with line numbers.
pub fn load_yaml<T: Section, S>(
    path: Option<&Path>,
    environment: &Environment,
    case: KeyCase,
    files: &mut ConfigFiles,
    resolve: impl FnOnce(&T, &mut ConfigFiles, &mut Problems) -> Option<S>,
) -> Result<Parsed<S>, LoadError> {
    let path = path.filter(|path| !path.as_os_str().is_empty());
    let text = path.map_or_else(|| Ok(Vec::new()), |path| read_file(path, files))?;
    let mut settings = None;
    let name = path.unwrap_or_else(|| Path::new("environment"));
    let parsed = parse_yaml::<T>(text, name, case, environment, |config, problems| {
        settings = resolve(config, files, problems);
    });
    finish_load(parsed, settings)
}

fn read_file(path: &Path, files: &mut ConfigFiles) -> Result<Vec<u8>, LoadError> {
    files.read(path).map_err(|error| {
        let text = format!("could not read {}: {error}", path.display());
        LoadError::File(Error::new(ErrorKind::InvalidConfig, text))
    })
}

fn finish_load<T, S>(
    parsed: Result<Parsed<T>, ConfigErrors>,
    settings: Option<S>,
) -> Result<Parsed<S>, LoadError> {
    let parsed = parsed.map_err(LoadError::Content)?;
    let Some(value) = settings else {
        let text = "bug: the config has neither settings nor errors";
        return Err(LoadError::File(Error::new(ErrorKind::Unexpected, text)));
    };
    Ok(Parsed {
        value,
        warnings: parsed.warnings,
        locations: parsed.locations,
    })
}

/// Logs the warnings of a config: the usual [`Provider::validate`](crate::Provider).
///
/// # Errors
/// The config could not be read.
pub fn validate<S>(loaded: Result<Parsed<S>, LoadError>) -> Result<()> {
    match &loaded {
        Ok(parsed) => log_warnings(&parsed.warnings, &[]),
        Err(LoadError::Content(errors)) => log_warnings(errors.warnings(), &[]),
        Err(LoadError::File(_)) => {}
    }
    Ok(loaded.map(drop)?)
}

/// Logs the warnings of a config that are not in `known`.
pub fn log_warnings(warnings: &[Problem], known: &[Problem]) {
    for warning in warnings {
        if !known.iter().any(|known| known.message() == warning.message()) {
            warn!(%warning, "The cloud config needs attention");
        }
    }
}

/// The configs of a running provider: the first one and the applied one.
#[derive(Debug)]
pub struct Reloader<C> {
    /// Locked during a reload.
    configs: tokio::sync::Mutex<Configs<C>>,
    files: Mutex<ConfigFiles>,
}

#[derive(Debug)]
struct Configs<C> {
    start: C,
    last: Parsed<C>,
    /// The files of `last`.
    files: ConfigFiles,
}

impl<C: Clone> Reloader<C> {
    /// A reloader with the config of a provider that starts.
    pub fn new(start: Parsed<C>, files: ConfigFiles) -> Self {
        Self {
            files: Mutex::new(files.clone()),
            configs: tokio::sync::Mutex::new(Configs {
                start: start.value.clone(),
                last: start,
                files,
            }),
        }
    }

    /// The files to watch: those of the applied config, and after a failed reload also those of the invalid config, since a
    /// change of one of them may correct it.
    pub fn files(&self) -> Vec<PathBuf> {
        self.files.lock().list()
    }

    /// Begins a reload, once no other one is in progress. It fails if it is dropped before
    /// [`commit`](PendingReload::commit).
    pub async fn begin(&self) -> PendingReload<'_, C> {
        PendingReload {
            configs: self.configs.lock().await,
            watched: &self.files,
            files: ConfigFiles::default(),
            committed: false,
        }
    }
}

/// A reload in progress.
#[derive(Debug)]
pub struct PendingReload<'a, C> {
    configs: MutexGuard<'a, Configs<C>>,
    watched: &'a Mutex<ConfigFiles>,
    /// The files of the new config.
    pub files: ConfigFiles,
    committed: bool,
}

impl<C> PendingReload<'_, C> {
    /// The config that the process started with, for keys that need a restart.
    #[must_use]
    pub fn start(&self) -> &C {
        &self.configs.start
    }

    /// The config that was applied last.
    #[must_use]
    pub fn last(&self) -> &C {
        &self.configs.last.value
    }

    /// Ends the reload: the new config is applied. Logs its warnings that are new.
    #[must_use]
    pub fn commit(mut self, new: Parsed<C>, applied: Vec<String>, restart_needed: Vec<String>) -> Reload {
        log_warnings(&new.warnings, &self.configs.last.warnings);
        self.configs.last = new;
        self.committed = true;
        Reload {
            applied,
            restart_needed,
        }
    }
}

impl<C> Drop for PendingReload<'_, C> {
    fn drop(&mut self) {
        let mut watched = std::mem::take(&mut self.files);
        if self.committed {
            self.configs.files.clone_from(&watched);
        } else {
            watched.0.extend(self.configs.files.0.iter().cloned());
        }
        *self.watched.lock() = watched;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{config_file, config_section};

    config_section! {
        /// Credentials.
        struct Global {
            /// The file of the token.
            "token-file" => token_file: String,
        }
    }
    config_file! {
        /// The file.
        struct File {
            "Global" => global: Global,
        }
    }

    /// Reads a config of two files into the token.
    fn read(path: Option<&Path>, files: &mut ConfigFiles) -> Result<Parsed<String>, LoadError> {
        load::<File, _>("Acme", path, files, |file, files, problems| {
            match files.read(&file.global.token_file) {
                Ok(token) => Some(String::from_utf8(token).unwrap()),
                Err(error) => {
                    problems.error(("Global", "token-file"), error);
                    None
                }
            }
        })
    }

    #[tokio::test]
    async fn a_reload_applies_all_or_nothing_and_watches_the_files_of_both() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();
        let conf = |token: &str| format!("[Global]\ntoken-file = {}\n", at(token).display());
        write("a", "first");
        write("cloud.conf", &conf("a"));
        let path = at("cloud.conf");
        let mut files = ConfigFiles::default();
        let start = read(Some(&path), &mut files).unwrap();
        let reloader = Reloader::new(start, files);
        assert_eq!(reloader.files(), [at("a"), path.clone()]);

        // The new file names one that does not exist.
        write("cloud.conf", &conf("b"));
        let mut pending = reloader.begin().await;
        let error = Error::from(read(Some(&path), &mut pending.files).unwrap_err());
        assert!(error.report().contains("2:14: [Global] token-file"), "{error}");
        drop(pending);
        assert_eq!(reloader.files(), [at("a"), at("b"), path.clone()]);

        write("b", "second");
        let mut pending = reloader.begin().await;
        assert_eq!((pending.start().as_str(), pending.last().as_str()), ("first", "first"));
        let new = read(Some(&path), &mut pending.files).unwrap();
        let reload = pending.commit(new, vec!["[Global] token-file".into()], Vec::new());
        assert_eq!(reload.applied, ["[Global] token-file"]);
        assert_eq!(reloader.files(), [at("b"), path]);
        let pending = reloader.begin().await;
        assert_eq!((pending.start().as_str(), pending.last().as_str()), ("first", "second"));
    }

    #[test]
    fn a_missing_or_unreadable_config_is_an_error() {
        for (path, text) in [
            (None, "no Acme cloud provider config file given; name it with --cloud-config"),
            (Some(Path::new("")), "no Acme cloud provider config file given"),
            (Some(Path::new("/no/such/file")), "could not read /no/such/file: "),
        ] {
            let error = Error::from(read(path, &mut ConfigFiles::default()).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
