//! Servers in place of Pods, which return their names.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::{AbortHandle, JoinSet},
};

/// Time limit of one request.
const LIMIT: Duration = Duration::from_secs(30);

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
        let socket = TcpListener::bind(place)
            .await
            .with_context(|| format!("cannot listen on {place}, the address of {service} on node {node}"))?;
        let answer = format!("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n{service} on {node}\n");
        let task = self.tasks.spawn(serve(socket, answer));
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
