//! An HTTP server with answers of the test, for what no simulator and no emulator does.

use std::{net::Ipv4Addr, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// From a request, head and body, to the answer. It is a whole HTTP message and may be broken.
type Respond = dyn Fn(&str) -> String + Send + Sync;

/// A running server. It ends with the test's runtime. A clone is the same server.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a function has none")]
pub struct Server {
    port: u16,
    respond: Arc<Respond>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves HTTP on loopback.
    ///
    /// # Panics
    ///
    /// The server cannot listen.
    pub async fn start(respond: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self::start_with(respond, |server, stream| async move { server.serve(stream).await }).await
    }

    /// As [`Self::start`]. `accept` gets each connection, and passes it to [`Self::serve`], for example after a TLS handshake.
    ///
    /// # Panics
    ///
    /// The server cannot listen.
    pub async fn start_with<F: Future<Output = ()> + Send + 'static>(
        respond: impl Fn(&str) -> String + Send + Sync + 'static,
        accept: impl Fn(Self, TcpStream) -> F + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let server = Self {
            port: listener.local_addr().expect("an address").port(),
            respond: Arc::new(respond),
            requests: Arc::default(),
        };
        let running = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(accept(running.clone(), stream));
            }
        });
        server
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL without TLS.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The requests so far, head and body.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// Methods and paths of the requests so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let requests = self.requests();
        let lines = requests.iter().filter_map(|request| request.lines().next());
        lines.map(|line| line.trim_end_matches(" HTTP/1.1").to_owned()).collect()
    }

    /// Reads a request and adds it to the log. `None`: the connection ended before.
    pub async fn request(&self, stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
                if body.len() >= length {
                    self.requests.lock().push(text.to_string());
                    return Some(text.into_owned());
                }
            }
            let mut chunk = [0; 4096];
            let read = stream.read(&mut chunk).await.ok().filter(|read| *read > 0)?;
            bytes.extend_from_slice(chunk.get(..read)?);
        }
    }

    /// Answers the first request of a connection, and closes the connection.
    pub async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        if let Some(request) = self.request(&mut stream).await {
            let answer = (self.respond)(&request);
            // The client may be gone.
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    }
}

/// An answer. `status`: `200 OK`. `headers`: each with the end of its line.
#[must_use]
pub fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}")
}
