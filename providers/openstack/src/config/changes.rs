//! What a new config changes, and what of it can be taken over while running.
//!
//! Credentials, the way to Keystone and quotas can. Everything else shapes what was already done to nodes, or is read in
//! so many places that half of it would be old: it waits for a restart.

use super::Loaded;

/// The keys that differ, as `[Section] key`, in no particular order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Those that can be taken over while running.
    pub(crate) live: Vec<String>,
    /// Those that need a restart.
    pub(crate) restart: Vec<String>,
    /// Whether the cloud has to be connected to anew to take the former over.
    pub(crate) reconnect: bool,
}

/// Keys of `[Global]` that say where others stand.
const WHERE: [&str; 3] = ["[Global] use-clouds", "[Global] clouds-file", "[Global] cloud"];

impl Loaded {
    /// What changes from this config to a new one. Values count, not how they are written; and what files hold counts as
    /// the value of the key that names them.
    pub(crate) fn changes(&self, new: &Self) -> Changes {
        let mut changes = Changes::default();
        let told = self.given.changed_keys(&new.given);
        changes
            .live
            .extend(told.iter().map(|key| format!("[Global] {key}")));
        let (tls, new_tls) = (&self.settings.connection.tls, &new.settings.connection.tls);
        let pem = |identity: &Option<(Vec<u8>, Vec<u8>)>| identity.clone().unzip();
        let ((certificate, key), (new_certificate, new_key)) = (pem(&tls.identity), pem(&new_tls.identity));
        // A key that names another file, or none any more, has been told already.
        let rotated = [
            (
                "ca-file",
                ["ca-file", "cafilecontents"],
                tls.roots != new_tls.roots,
            ),
            (
                "cert-file",
                ["cert-file", "key-file"],
                certificate != new_certificate,
            ),
            ("key-file", ["cert-file", "key-file"], key != new_key),
        ];
        for (key, related, differs) in rotated {
            if differs && !related.iter().any(|key| told.contains(key)) {
                changes.live.push(format!("[Global] {key}"));
            }
        }
        changes.reconnect = !changes.live.is_empty();

        if self.settings.connection.region != new.settings.connection.region {
            changes.restart.push("[Global] region".to_owned());
        }
        if self.settings.connection.interface != new.settings.connection.interface {
            changes.restart.push("[Global] os-endpoint-type".to_owned());
        }
        for key in ccm_core::config::ConfigFile::changed_keys(&self.conf, &new.conf) {
            if key.starts_with("[Quota] ") || WHERE.contains(&key.as_str()) {
                changes.live.push(key);
            } else if !key.starts_with("[Global] ") {
                changes.restart.push(key);
            }
        }
        changes
    }
}
