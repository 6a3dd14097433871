//! The log of all writes, with their writers and times.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::sleep};

/// One write.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The name of the writer.
    pub(crate) writer: String,
    /// The time of the answer, if it was sent.
    pub(crate) returned: Option<SystemTime>,
}

/// The delay of the answers to writes.
#[derive(Clone, Debug, Default)]
struct Delay {
    /// The only writer with this delay, or `None` for all writers.
    writer: Option<String>,
    time: Duration,
}

impl Delay {
    fn of(&self, writer: &str) -> Duration {
        match &self.writer {
            Some(delayed) if delayed != writer => Duration::ZERO,
            _ => self.time,
        }
    }
}

/// A server that records all POST requests in the order of arrival.
pub(crate) struct WriteLog {
    address: String,
    entries: watch::Sender<Vec<Entry>>,
    delay: Arc<watch::Sender<Delay>>,
    server: JoinHandle<()>,
}

impl WriteLog {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let entries = watch::Sender::new(Vec::new());
        let delay = Arc::new(watch::Sender::new(Delay::default()));
        let (list, wait) = (entries.clone(), Arc::clone(&delay));
        let server = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let (list, wait) = (list.clone(), Arc::clone(&wait));
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (list, delay) = (list.clone(), wait.borrow().clone());
                    async move {
                        let writer = request.uri().path().trim_start_matches('/').to_owned();
                        let wait = delay.of(&writer);
                        let mut number = 0;
                        list.send_modify(|list| {
                            number = list.len();
                            list.push(Entry {
                                writer,
                                returned: None,
                            });
                        });
                        sleep(wait).await;
                        list.send_modify(|list| list[number].returned = Some(SystemTime::now()));
                        Ok::<_, Infallible>(Response::new(String::new()))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self {
            address,
            entries,
            delay,
            server,
        }
    }

    /// The URL for the writes of this writer.
    pub(crate) fn url(&self, writer: &str) -> String {
        format!("{}/{writer}", self.address)
    }

    /// Sets the time that each write takes.
    pub(crate) fn delay(&self, time: Duration) {
        self.delay.send_replace(Delay { writer: None, time });
    }

    /// Sets the time that each write of this writer takes. Writes of others take no time.
    pub(crate) fn delay_of(&self, writer: &str, time: Duration) {
        let writer = Some(writer.to_owned());
        self.delay.send_replace(Delay { writer, time });
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.entries.borrow().clone()
    }

    /// The number of writes of this writer.
    pub(crate) fn count(&self, writer: &str) -> usize {
        let entries = self.entries.borrow();
        entries.iter().filter(|entry| entry.writer == writer).count()
    }

    /// The writers in their order, each once for every time that it followed another.
    pub(crate) fn successions(&self) -> Vec<String> {
        self.successions_of(|_| true)
    }

    /// The same for a part of the writers.
    pub(crate) fn successions_of(&self, of: impl Fn(&str) -> bool) -> Vec<String> {
        let mut writers: Vec<_> = self.entries().into_iter().map(|entry| entry.writer).collect();
        writers.retain(|writer| of(writer));
        writers.dedup();
        writers
    }
}

impl Drop for WriteLog {
    fn drop(&mut self) {
        self.server.abort();
    }
}
