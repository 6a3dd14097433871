//! Files as they are at one moment, and the directories where a change of them shows.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::OsString,
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

/// A config file is never longer; what comes after this is not looked at.
const MOST_READ: u64 = 16 << 20;
/// As many symbolic links as the kernel follows.
const MOST_LINKS: usize = 40;

/// What some files hold, without keeping it: they hold secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents(BTreeMap<PathBuf, Content>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Hash(u64),
    Unreadable(io::ErrorKind),
}

impl Contents {
    /// Reads them. Blocks.
    pub(crate) fn read(files: &[PathBuf], hasher: &RandomState) -> Self {
        let content = |path: &Path| {
            let mut bytes = Vec::new();
            match File::open(path).and_then(|file| file.take(MOST_READ).read_to_end(&mut bytes)) {
                Ok(_) => Content::Hash(hasher.hash_one(bytes)),
                Err(error) => Content::Unreadable(error.kind()),
            }
        };
        Self(files.iter().map(|path| (path.clone(), content(path))).collect())
    }

    /// The same files, but as an earlier look has them where that saw them.
    pub(super) fn with_seen(mut self, earlier: &Self) -> Self {
        for (path, content) in &mut self.0 {
            if let Some(seen) = earlier.0.get(path) {
                content.clone_from(seen);
            }
        }
        self
    }
}

/// The directories in which a change of this file's content shows: its own, and that of each symbolic link on the way
/// to it. A mounted Secret is two of them, `cloud.conf -> ..data/cloud.conf` and `..data -> ..<time>`, and only the second
/// is ever replaced. Where the way breaks off, the last directory there is: there it may be continued.
pub(super) fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut directories = BTreeSet::new();
    let Ok(path) = std::path::absolute(path) else {
        return directories;
    };
    let mut left: VecDeque<Step> = path.components().filter_map(Step::of).collect();
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(step) = left.pop_front() {
        let name = match step {
            Step::Root => {
                at = PathBuf::from("/");
                continue;
            }
            Step::Up => {
                at.pop();
                continue;
            }
            Step::Down(name) => name,
        };
        let next = at.join(name);
        let is_last = left.is_empty();
        match next.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => {
                directories.insert(at.clone());
                links += 1;
                match next.read_link() {
                    Ok(target) if links <= MOST_LINKS => {
                        for step in target.components().filter_map(Step::of).rev() {
                            left.push_front(step);
                        }
                    }
                    _ => return directories,
                }
            }
            Ok(_) if !is_last => at = next,
            _ => {
                directories.insert(at);
                return directories;
            }
        }
    }
    // It ends in a directory, not in a file.
    directories.insert(at);
    directories
}

enum Step {
    Root,
    Up,
    Down(OsString),
}

impl Step {
    fn of(component: Component<'_>) -> Option<Self> {
        match component {
            Component::RootDir => Some(Self::Root),
            Component::ParentDir => Some(Self::Up),
            Component::Normal(name) => Some(Self::Down(name.to_owned())),
            Component::CurDir | Component::Prefix(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn root() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        // The way to it may have links of its own.
        let root = folder.path().canonicalize().unwrap();
        (folder, root)
    }

    fn of(path: &Path) -> Vec<PathBuf> {
        directories(path).into_iter().collect()
    }

    #[test]
    fn a_plain_file_shows_in_its_own_directory() {
        let (_folder, root) = root();
        fs::write(root.join("cloud.conf"), "").unwrap();
        assert_eq!(of(&root.join("cloud.conf")), std::slice::from_ref(&root));
        assert_eq!(of(&root.join("not-yet.conf")), [root]);
    }

    #[test]
    fn a_mounted_secret_shows_where_its_links_are() {
        let (_folder, root) = root();
        fs::create_dir(root.join("..2030_01")).unwrap();
        fs::write(root.join("..2030_01/cloud.conf"), "").unwrap();
        symlink("..2030_01", root.join("..data")).unwrap();
        symlink("..data/cloud.conf", root.join("cloud.conf")).unwrap();
        assert_eq!(
            of(&root.join("cloud.conf")),
            [root.clone(), root.join("..2030_01")]
        );
    }

    #[test]
    fn links_to_elsewhere_and_up_are_followed() {
        let (_folder, root) = root();
        for name in ["etc", "real", "other"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        fs::write(root.join("other/file"), "").unwrap();
        symlink("../other/file", root.join("real/cloud.conf")).unwrap();
        symlink(root.join("real/cloud.conf"), root.join("etc/cloud.conf")).unwrap();
        let all = ["etc", "other", "real"].map(|name| root.join(name));
        assert_eq!(of(&root.join("etc/cloud.conf")), all);
    }

    #[test]
    fn a_way_that_breaks_off_shows_where_it_does_and_a_circle_ends() {
        let (_folder, root) = root();
        assert_eq!(of(&root.join("no/such/file")), std::slice::from_ref(&root));
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert_eq!(of(&root.join("a")), [root]);
    }

    #[test]
    fn contents_differ_when_bytes_do_and_not_by_a_touch() {
        let (_folder, root) = root();
        let file = root.join("cloud.conf");
        let hasher = RandomState::new();
        let read = || Contents::read(std::slice::from_ref(&file), &hasher);
        let missing = read();
        fs::write(&file, "a").unwrap();
        let first = read();
        fs::write(&file, "a").unwrap();
        assert_eq!(first, read());
        fs::write(&file, "b").unwrap();
        assert!(first != read() && missing != first);
    }
}
