//! The HTTP client that all requests go through.

use std::time::Duration;

use reqwest::{Certificate, Client, Identity, NoProxy, Proxy, redirect};

use crate::{Environment, Error, ErrorKind, Result};

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// TLS options, the files already read.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The only certificate authorities to trust, as PEM. Without it those of the system.
    pub roots: Option<Vec<u8>>,
    /// Client certificate and key, as PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Certificates of servers are not verified.
    pub insecure: bool,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("roots", &self.roots.is_some())
            .field("identity", &self.identity.is_some())
            .field("insecure", &self.insecure)
            .finish()
    }
}

/// The HTTP proxies of the environment.
#[derive(Clone, Default)]
pub struct Proxies {
    http: Option<String>,
    https: Option<String>,
    except: String,
}

/// Omits the values: they may contain passwords.
impl std::fmt::Debug for Proxies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxies")
            .field("http", &self.http.is_some())
            .field("https", &self.https.is_some())
            .finish_non_exhaustive()
    }
}

impl Proxies {
    /// Reads `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, or their lower-case forms.
    #[must_use]
    pub fn of(environment: &Environment) -> Self {
        let first = |names| environment.first(names).map(|(_, value)| value.to_owned());
        Self {
            http: first(&["HTTP_PROXY", "http_proxy"]),
            https: first(&["HTTPS_PROXY", "https_proxy"]),
            except: environment.no_proxy(),
        }
    }

    fn list(&self) -> Result<Vec<Proxy>> {
        let mut proxies = Vec::new();
        if let Some(url) = &self.http {
            let proxy = Proxy::http(resolving_names(url)).map_err(|_| not_a_proxy("HTTP_PROXY"))?;
            proxies.push(proxy.no_proxy(NoProxy::from_string(&self.except)));
        }
        if let Some(url) = &self.https {
            let proxy = Proxy::https(resolving_names(url)).map_err(|_| not_a_proxy("HTTPS_PROXY"))?;
            proxies.push(proxy.no_proxy(NoProxy::from_string(&self.except)));
        }
        Ok(proxies)
    }
}

/// The URL of a proxy. As in Go, a SOCKS proxy resolves the names of hosts.
fn resolving_names(url: &str) -> String {
    url.replacen("socks5://", "socks5h://", 1)
}

/// The error about a variable. It does not show the value, which may contain a password.
fn not_a_proxy(variable: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{variable} is not the URL of a proxy"))
}

/// The certificate authorities of a PEM bundle.
///
/// # Errors
/// The text is not PEM, or contains no certificate.
pub fn root_certificates(pem: &[u8]) -> Result<Vec<Certificate>, String> {
    match Certificate::from_pem_bundle(pem) {
        Ok(roots) if roots.is_empty() => Err("contains no PEM certificate".to_owned()),
        Ok(roots) => Ok(roots),
        Err(error) => Err(crate::error::report(&error)),
    }
}

/// The client certificate and its key.
///
/// # Errors
/// One of the two is not PEM, or is not a certificate or key.
pub fn client_identity(certificate: &[u8], key: &[u8]) -> Result<Identity, String> {
    let mut pem = certificate.to_vec();
    pem.push(b'\n');
    pem.extend_from_slice(key);
    Identity::from_pem(&pem).map_err(|error| crate::error::report(&error))
}

/// A client that follows redirects only within one origin and connects within 10 seconds. It uses only the given proxies.
///
/// # Errors
/// The TLS material or a proxy's URL cannot be used.
pub fn http_client(tls: &Tls, proxies: &Proxies, user_agent: &str) -> Result<Client> {
    // Fails if the program has installed another crypto provider, which then stays in use.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // The system's certificate authorities are trusted, as the operator of the node maintains them.
    let mut builder = Client::builder()
        .user_agent(user_agent)
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Duration::from_secs(30))
        .pool_idle_timeout(Duration::from_secs(60))
        // Every request carries credentials, which a redirect must not send to another host.
        .redirect(redirect::Policy::custom(|attempt| {
            let from = attempt.previous().last().map(url::Url::origin);
            if attempt.previous().len() > 5 {
                attempt.error("too many redirects")
            } else if from.is_some_and(|from| from == attempt.url().origin()) {
                attempt.follow()
            } else {
                attempt.stop()
            }
        }))
        .danger_accept_invalid_certs(tls.insecure);
    let invalid = |what: &str, why: String| Error::new(ErrorKind::InvalidConfig, format!("{what}: {why}"));
    for proxy in proxies.list()? {
        builder = builder.proxy(proxy);
    }
    if let Some(pem) = &tls.roots {
        builder = builder.tls_built_in_root_certs(false);
        for root in root_certificates(pem).map_err(|why| invalid("certificate authorities", why))? {
            builder = builder.add_root_certificate(root);
        }
    }
    if let Some((certificate, key)) = &tls.identity {
        let identity = client_identity(certificate, key);
        builder = builder.identity(identity.map_err(|why| invalid("client certificate", why))?);
    }
    builder.build().map_err(|error| {
        Error::new(ErrorKind::InvalidConfig, "the HTTP client could not be created").with_source(error)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn refuses_material_that_is_not_pem() {
        assert!(root_certificates(b"").is_err());
        assert!(root_certificates(b"nonsense").is_err());
        assert!(client_identity(b"nonsense", b"nonsense").is_err());
        let tls = Tls {
            roots: Some(b"nonsense".to_vec()),
            ..Tls::default()
        };
        assert!(
            http_client(&tls, &Proxies::default(), "test")
                .unwrap_err()
                .to_string()
                .contains("certificate authorities: ")
        );
    }

    /// Answers every request with its own name.
    async fn server(name: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{name}",
                    name.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        address.to_string()
    }

    #[tokio::test]
    async fn a_proxy_is_used_for_all_but_this_host_and_exceptions() {
        let (proxy, direct) = (server("proxy").await, server("direct").await);
        let environment = Environment::default().with("HTTP_PROXY", proxy);
        let client = http_client(&Tls::default(), &Proxies::of(&environment), "test").unwrap();
        let get = async |url: String| client.get(url).send().await.unwrap().text().await.unwrap();
        assert_eq!(get("http://cloud.invalid/v3".into()).await, "proxy");
        assert_eq!(get(format!("http://{direct}/v3")).await, "direct");
        for (except, url, expected) in [
            ("keystone.invalid:5000", "http://keystone.invalid:5000/v3", None),
            ("[2001:db8::1]:5000", "http://[2001:db8::1]:5000/v3", None),
            ("2001:db8::/32", "http://[2001:db8::1]:5000/v3", None),
            ("*.cloud.invalid", "http://nova.cloud.invalid/v3", None),
            ("keystone.invalid:5000", "http://nova.invalid:5000/v3", Some("proxy")),
        ] {
            let except_all = format!("10.0.0.0/8, {except}");
            let proxies = Proxies::of(&environment.clone().with("NO_PROXY", except_all));
            // A direct connection fails.
            let client = http_client(&Tls::default(), &proxies, "test").unwrap();
            let answer = client.get(url).timeout(Duration::from_secs(5)).send().await;
            let text = match answer {
                Ok(answer) => Some(answer.text().await.unwrap()),
                Err(_) => None,
            };
            assert_eq!(text.as_deref(), expected, "{except} {url}");
        }
        let wrong = Proxies {
            http: Some("http://:hunter2@".into()),
            ..Proxies::default()
        };
        let text = http_client(&Tls::default(), &wrong, "test").unwrap_err().report();
        assert!(text.contains("HTTP_PROXY") && !text.contains("hunter2"), "{text}");
    }

    #[tokio::test]
    async fn a_socks_proxy_gets_the_name_of_the_host() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxies = Proxies {
            https: Some(format!("socks5://{}", listener.local_addr().unwrap())),
            ..Proxies::default()
        };
        let client = http_client(&Tls::default(), &proxies, "test").unwrap();
        let request = tokio::spawn(client.get("https://cloud.invalid/v3").send());
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut seen = [0; 512];
        assert!(stream.read(&mut seen).await.unwrap() > 2);
        assert_eq!(seen[0], 5, "the version of SOCKS");
        stream.write_all(&[5, 0]).await.unwrap();
        let length = stream.read(&mut seen).await.unwrap();
        assert!(seen[..length].windows(13).any(|part| part == b"cloud.invalid"));
        drop(stream);
        assert!(request.await.unwrap().is_err());
    }

    #[test]
    fn debug_shows_no_key() {
        let tls = Tls {
            identity: Some((b"hunter1".to_vec(), b"hunter2".to_vec())),
            ..Tls::default()
        };
        assert!(!format!("{tls:?}").contains("104"), "{tls:?}");
    }
}
