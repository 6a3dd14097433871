//! The differences between two configs, and which of them take effect at run time.
//!
//! Changes of credentials, the connection to Keystone and quotas do. Everything else needs a restart: it affected nodes
//! already, or is read in many places that would have to change together.

use ccm_core::config::{ConfigChanges, ConfigFile};

use super::Config;

/// Whether a change of a key, as `[Section] key`, takes effect without a restart.
pub(crate) fn is_live(key: &str) -> bool {
    let of_nodes = ["[Global] region", "[Global] os-endpoint-type"];
    key.starts_with("[Quota] ") || key.starts_with("[Global] ") && !of_nodes.contains(&key)
}

/// Keys of `[Global]` that locate other values.
const WHERE: [&str; 3] = ["[Global] use-clouds", "[Global] clouds-file", "[Global] cloud"];

impl Config {
    /// The changes from this config to a new one. Values count, not their spelling. The content of a file counts as the
    /// value of the key that names it.
    pub(crate) fn changes(&self, new: &Self) -> ConfigChanges {
        let mut changes = ConfigChanges::default();
        let reported = self.given.changed_keys(&new.given);
        changes.live.extend(reported.iter().map(|key| format!("[Global] {key}")));
        let (tls, new_tls) = (&self.settings.connection.tls, &new.settings.connection.tls);
        let pem = |identity: &Option<(Vec<u8>, Vec<u8>)>| identity.clone().unzip();
        let ((certificate, key), (new_certificate, new_key)) = (pem(&tls.identity), pem(&new_tls.identity));
        // A key that names another file, or no file anymore, is reported already.
        let rotated = [
            ("ca-file", ["ca-file", "cafilecontents"], tls.roots != new_tls.roots),
            ("cert-file", ["cert-file", "key-file"], certificate != new_certificate),
            ("key-file", ["cert-file", "key-file"], key != new_key),
        ];
        for (key, related, differs) in rotated {
            if differs && !related.iter().any(|key| reported.contains(key)) {
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
        for key in ConfigFile::changed_keys(&self.conf, &new.conf) {
            if key.starts_with("[Global] ") && !WHERE.contains(&key.as_str()) {
                // The credentials were compared above, wherever they come from.
                continue;
            }
            let list = if is_live(&key) {
                &mut changes.live
            } else {
                &mut changes.restart
            };
            list.push(key);
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::config::tests::{Files, context, global};

    /// The changes from one file to another, live ones and those that need a restart.
    fn changes(old: &str, new: &str) -> [Vec<String>; 2] {
        let loaded = |text: &str| {
            let files = Files::new(&[("cloud.conf", text)]);
            let context = context(Some(&files.path("cloud.conf")), &files.environment());
            crate::config::load(&context, &mut ccm_core::config::ConfigFiles::default())
                .unwrap()
                .value
        };
        let changes = loaded(old).changes(&loaded(new));
        assert_eq!(
            changes.reconnect,
            changes.live.iter().any(|key| key.starts_with("[Global]")),
            "{changes:?}"
        );
        [changes.live, changes.restart]
    }

    #[test]
    fn credentials_and_quotas_change_live_and_everything_else_with_a_restart() {
        let none: [Vec<String>; 2] = [vec![], vec![]];
        let old = global("token = t\nregion = One");
        // The same config, with another spelling.
        let same = global(
            "token = \"t\"\nregion = One\nos-endpoint-type = public\ntls-insecure =\n[Quota]\ncompute-burst = 50",
        );
        assert_eq!(changes(&old, &same), none);
        for (keys, live, restart) in [
            ("token = u\nregion = One", vec!["[Global] token"], vec![]),
            (
                "user-id = u\npassword = p\ntenant-id = t\nregion = One",
                vec![
                    "[Global] user-id",
                    "[Global] password",
                    "[Global] tenant-id",
                    "[Global] token",
                ],
                vec![],
            ),
            ("token = t\nregion = Two", vec![], vec!["[Global] region"]),
            ("token = t\nregion = One\ntls-insecure = true", vec!["[Global] tls-insecure"], vec![]),
            (
                "token = t\nregion = One\nos-endpoint-type = internal\n[Quota]\nnetwork-burst = 1\n[Route]\nrouter-id = r",
                vec!["[Quota] network-burst"],
                vec!["[Global] os-endpoint-type", "[Route] router-id"],
            ),
        ] {
            assert_eq!(changes(&old, &global(keys)), [live, restart], "{keys}");
        }
    }
}
