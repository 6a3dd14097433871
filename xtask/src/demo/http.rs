//! The HTTP of the demo: short requests to servers on this machine, and servers that return their name.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// Time limit of one request with its answer.
const LIMIT: Duration = Duration::from_secs(30);

/// An answer.
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    pub(super) body: String,
}

impl Answer {
    /// A header, by its name without regard to case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// GET of a URL.
pub(super) async fn get(url: &str) -> Result<Answer> {
    request("GET", url, &[], "").await
}

/// A request to a `http://` URL.
pub(super) async fn request(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> Result<Answer> {
    let rest = url
        .strip_prefix("http://")
        .with_context(|| format!("{url} is not http://"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    // HTTP/1.0, so that the answer is not chunked and ends with the connection.
    let mut text = format!("{method} /{path} HTTP/1.0\r\nHost: {host}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    let exchange = async {
        let mut stream = TcpStream::connect(host).await?;
        stream.write_all(text.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(LIMIT, exchange).await;
    let answer = answer
        .with_context(|| format!("{url} does not answer"))?
        .with_context(|| format!("no answer of {url}"))?;
    parse(&answer).with_context(|| format!("{url} closed the connection without an answer"))
}

fn parse(answer: &str) -> Option<Answer> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().ok()?,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

/// Servers in place of the Pods of a Service. Each listens on the node port of a node's address, as kube-proxy would, and
/// answers with the name of its node.
#[derive(Default)]
pub(super) struct Pods {
    tasks: JoinSet<()>,
    by_node: BTreeMap<String, Vec<AbortHandle>>,
}

impl Pods {
    /// Starts the server of a Service on a node.
    pub(super) async fn start(
        &mut self,
        service: &str,
        node: &str,
        address: IpAddr,
        port: u16,
    ) -> Result<()> {
        if !address.is_loopback() {
            bail!("node {node} has the address {address}, which is not one of this machine");
        }
        let place = SocketAddr::new(address, port);
        let socket = TcpListener::bind(place).await;
        let socket = socket
            .with_context(|| format!("cannot listen on {place}, the address of {service} on node {node}"))?;
        let text = format!("{service} on {node}\n");
        let text = format!("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n{text}");
        let task = self.tasks.spawn(serve(socket, text));
        self.by_node.entry(node.to_owned()).or_default().push(task);
        Ok(())
    }

    /// Stops all servers of a node.
    pub(super) fn stop(&mut self, node: &str) {
        for task in self.by_node.remove(node).unwrap_or_default() {
            task.abort();
        }
    }

    /// The nodes that answer.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.by_node.keys().map(String::as_str)
    }
}

async fn serve(socket: TcpListener, text: String) {
    loop {
        let Ok((mut client, _)) = socket.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // The content of the request does not matter, but closing with unread bytes would discard the answer.
        let mut request = [0; 4096];
        let received = tokio::time::timeout(LIMIT, client.read(&mut request)).await;
        if matches!(received, Ok(Ok(count)) if count > 0) {
            // The client may have closed the connection.
            let _sent = client.write_all(text.as_bytes()).await;
        }
    }
}
