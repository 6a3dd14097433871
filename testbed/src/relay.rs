//! A TCP relay that drops packets on request, like a firewall that lost its connection state.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use socket2::{SockFilter, SockRef, Socket};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};

/// The Berkeley Packet Filter program `ret #0`: no packet passes.
const DROP_ALL: SockFilter = SockFilter::new(0x06, 0, 0, 0);

/// A running relay. Dropping it closes it and all its connections.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<Connection>>>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Connection {
    /// The client's side. It keeps the connection open after the task has ended.
    socket: Socket,
    task: AbortHandle,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
        for connection in self.connections.lock().iter() {
            connection.task.abort();
        }
    }
}

impl Relay {
    /// Starts a relay on loopback in front of this address.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let connections = Arc::default();
        let task = tokio::spawn(accept(listener, target, Arc::clone(&connections)));
        Ok(Self {
            address,
            connections,
            task,
        })
    }

    /// The address that clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of connections since the start.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.lock().len()
    }

    /// Silences all present connections: packets of their clients are not acknowledged or answered, and no packets are sent to
    /// them. New connections work.
    ///
    /// # Errors
    /// When the kernel refuses the packet filter.
    pub async fn silence(&self) -> Result<()> {
        for connection in self.connections.lock().iter() {
            connection.task.abort();
        }
        // The kernel would retransmit unacknowledged packets.
        while self.has_unacknowledged()? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for connection in self.connections.lock().iter() {
            connection.socket.attach_filter(&[DROP_ALL])?;
        }
        Ok(())
    }

    /// Whether packets to a client are unacknowledged, by the kernel's table of connections.
    fn has_unacknowledged(&self) -> Result<bool> {
        let local = format!(":{:04X}", self.address.port());
        let table = fs::read_to_string("/proc/net/tcp")?;
        Ok(table.lines().any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let (address, queues) = (columns.next(), columns.nth(2));
            let empty = queues.is_none_or(|queues| queues.starts_with("00000000:"));
            address.is_some_and(|address| address.ends_with(&local)) && !empty
        }))
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, connections: Arc<Mutex<Vec<Connection>>>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let Ok(socket) = SockRef::from(&client).try_clone() else {
            continue;
        };
        let relayed = tokio::spawn(async move {
            if let Ok(mut server) = TcpStream::connect(target).await {
                // A broken connection is handled like a closed one.
                let _broken = copy_bidirectional(&mut client, &mut server).await;
            }
            // The other handle keeps the socket open.
            let _gone = SockRef::from(&client).shutdown(std::net::Shutdown::Both);
        });
        connections.lock().push(Connection {
            socket,
            task: relayed.abort_handle(),
        });
    }
}
