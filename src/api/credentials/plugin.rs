//! Credential plugins: programs that a kubeconfig names and that print credentials, as an `ExecCredential` of
//! `client.authentication.k8s.io`.

use std::{collections::HashMap, process::Stdio, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::config::ExecConfig;
use serde::Deserialize;
use serde_json::json;
use tokio::{process::Command, time::timeout};

/// A plugin that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// The most bytes of its standard error that are shown.
const SHOWN: usize = 300;

/// The credentials of a plugin.
pub(super) struct Given {
    pub(super) token: Option<String>,
    /// Certificate and key, PEM.
    pub(super) pair: Option<(String, String)>,
    pub(super) expires: Option<Timestamp>,
}

/// The output of a plugin. Never shown.
#[derive(Deserialize)]
struct PrintedCredential {
    status: Option<PluginStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PluginStatus {
    expiration_timestamp: Option<Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Runs a plugin. Its standard output stays out of every message.
///
/// # Errors
/// It cannot be run, fails, or prints no credentials: the problem, for the user.
pub(super) async fn run(config: &ExecConfig) -> Result<Given, String> {
    let name = config.command.as_deref().ok_or("its user has a credential plugin without a command")?;
    let plugin = format!("its credential plugin {name}");
    let mut command = Command::new(name);
    command
        .args(config.args.iter().flatten())
        .envs(config.env.iter().flatten().filter_map(variable))
        .env("KUBERNETES_EXEC_INFO", about(config))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(LIMIT, command.output())
        .await
        .map_err(|_| format!("{plugin} did not exit within {} s", LIMIT.as_secs()))?
        .map_err(|error| match config.install_hint.as_deref().map(str::trim) {
            None | Some("") => format!("{plugin} cannot be run: {error}"),
            Some(hint) => format!("{plugin} cannot be run: {error}; {hint}"),
        })?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        let text = printed.trim();
        let end = text.get(text.floor_char_boundary(text.len().saturating_sub(SHOWN))..);
        let (status, end) = (output.status, end.unwrap_or_default());
        return Err(format!("{plugin} failed ({status}) and printed {end:?}"));
    }
    let printed: PrintedCredential = serde_json::from_slice(&output.stdout)
        // The text of the error may quote the output.
        .map_err(|error| {
            let (line, column) = (error.line(), error.column());
            format!("{plugin} printed no ExecCredential (line {line}, column {column})")
        })?;
    let status = printed
        .status
        .ok_or_else(|| format!("{plugin} printed an ExecCredential without a status"))?;
    let pair = status.client_certificate_data.zip(status.client_key_data);
    let token = status.token.filter(|token| !token.is_empty());
    if token.is_none() && pair.is_none() {
        return Err(format!("{plugin} printed neither a token nor a certificate with its key"));
    }
    Ok(Given {
        token,
        pair,
        expires: status.expiration_timestamp,
    })
}

fn variable(entry: &HashMap<String, String>) -> Option<(&String, &String)> {
    Some((entry.get("name")?, entry.get("value")?))
}

/// The input of a plugin: `KUBERNETES_EXEC_INFO`.
fn about(config: &ExecConfig) -> String {
    let mut spec = json!({ "interactive": false });
    if config.provide_cluster_info
        && let Some(cluster) = &config.cluster
    {
        spec["cluster"] = serde_json::to_value(cluster).unwrap_or_default();
    }
    json!({
        "apiVersion": config.api_version,
        "kind": "ExecCredential",
        "spec": spec,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn shell(script: &str) -> ExecConfig {
        ExecConfig {
            api_version: Some("client.authentication.k8s.io/v1".to_owned()),
            command: Some("sh".to_owned()),
            args: Some(vec!["-c".to_owned(), script.to_owned()]),
            env: Some(vec![HashMap::from([
                ("name".to_owned(), "GREETING".to_owned()),
                ("value".to_owned(), "hello".to_owned()),
            ])]),
            install_hint: Some("install it with apt\n".to_owned()),
            ..ExecConfig::default()
        }
    }

    async fn problem(script: &str) -> String {
        run(&shell(script)).await.err().unwrap()
    }

    #[tokio::test]
    async fn a_token_and_its_expiry_are_read() {
        let script = r#"test "$GREETING" = hello || exit 1
            case "$KUBERNETES_EXEC_INFO" in *client.authentication.k8s.io/v1*) ;; *) exit 2 ;; esac
            echo '{"status": {"token": "s3cret", "expirationTimestamp": "2030-01-01T00:00:00Z"}}'"#;
        let given = run(&shell(script)).await.unwrap();
        assert_eq!(given.token.as_deref(), Some("s3cret"));
        assert_eq!(given.expires.unwrap().to_string(), "2030-01-01T00:00:00Z");
    }

    #[tokio::test]
    async fn errors_do_not_contain_the_output() {
        let error = problem("echo s3cret; echo go and log in >&2; exit 3").await;
        assert!(
            error.contains("plugin sh failed (exit status: 3)") && error.contains("go and log in"),
            "{error}"
        );
        for (script, words) in [
            ("echo s3cret", "printed no ExecCredential (line 1"),
            (r#"echo '"s3cret"'"#, "printed no ExecCredential"),
            (r#"echo '{"kind": "s3cret"}'"#, "without a status"),
            (r#"echo '{"status": {"clientKeyData": "s3cret"}}'"#, "neither a token nor a certificate"),
            (r#"echo '{"status": {"token": ["s3cret"]}}'"#, "printed no ExecCredential"),
        ] {
            let error = problem(script).await;
            assert!(error.contains(words) && !error.contains("s3cret"), "{error}");
        }
        let mut missing = shell("");
        missing.command = Some("/no/such/plugin".to_owned());
        let error = run(&missing).await.err().unwrap();
        assert!(
            error.contains("/no/such/plugin cannot be run") && error.ends_with("; install it with apt"),
            "{error}"
        );
    }
}
