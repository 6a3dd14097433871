//! Connections with faults: resets, bodies that end too early, and notifications of sent answers. hyper hides these, so
//! the types are below and above it.
//!
//! Public, since a proxy with faults needs them, too.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, Sleep};

/// The shared state of a connection and its bodies.
#[derive(Debug, Default)]
pub struct Line {
    reset: AtomicBool,
    /// How often all written data was sent.
    flushes: watch::Sender<u64>,
}

impl Line {
    /// Makes the connection end with a reset.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    fn flushed(&self) -> u64 {
        *self.flushes.borrow()
    }
}

/// A connection that can end with a reset and counts what was sent.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    line: Arc<Line>,
}

impl Connection {
    /// Wraps a stream.
    #[must_use]
    pub fn new(stream: TcpStream, line: Arc<Line>) -> Self {
        // Answers are written at once; waiting for more data would only add latency.
        let _best_effort = stream.set_nodelay(true);
        Self { stream, line }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.line.reset.load(Ordering::Relaxed) {
            // Without lingering, closing sends a reset instead of an orderly shutdown.
            let _best_effort = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.line.flushes.send_modify(|flushes| *flushes += 1);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.line.reset.load(Ordering::Relaxed) {
            // An orderly shutdown would reach the client before the reset.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The number of held requests. A request is released when its client's connection is closed.
#[derive(Debug, Default)]
pub struct Held(watch::Sender<usize>);

impl Held {
    /// Counts a request during `wait`.
    pub async fn during<T>(&self, wait: impl Future<Output = T>) -> T {
        struct Counted<'a>(&'a Held);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.0.send_modify(|held| *held = held.saturating_sub(1));
            }
        }
        self.0.send_modify(|held| *held += 1);
        let _counted = Counted(self);
        wait.await
    }

    /// Waits until no request is held.
    pub async fn none(&self) {
        let mut held = self.0.subscribe();
        // The sender is in `self`, so the wait cannot fail.
        let _none = held.wait_for(|held| *held == 0).await;
    }
}

/// A body on the wire, whole or cut off.
#[derive(Debug)]
pub struct WireBody {
    data: Option<Bytes>,
    cut: Option<Cut>,
    sent: Option<(Arc<Line>, oneshot::Sender<u64>)>,
}

/// How a body is cut off: after its data was sent, since an error would overtake the data.
#[derive(Debug)]
struct Cut {
    line: Arc<Line>,
    flushes_before: u64,
    pause: Pin<Box<Sleep>>,
}

/// The poll interval for sent data.
const CUT_POLL: Duration = Duration::from_millis(1);

impl WireBody {
    /// The whole body.
    pub fn whole(data: impl Into<Bytes>) -> Self {
        Self {
            data: Some(data.into()),
            cut: None,
            sent: None,
        }
    }

    /// Sends only this data; the server then closes the connection since the promised length is not reached.
    pub fn cut(data: impl Into<Bytes>, line: Arc<Line>) -> Self {
        let cut = Cut {
            line,
            flushes_before: 0,
            pause: Box::pin(tokio::time::sleep(CUT_POLL)),
        };
        Self {
            data: Some(data.into()),
            cut: Some(cut),
            sent: None,
        }
    }

    /// The body, and a future that resolves when the whole answer was passed to the system: `true`, or `false` if the
    /// connection ended before.
    pub fn with_notification(
        mut self,
        line: &Arc<Line>,
    ) -> (Self, impl Future<Output = bool> + Send + use<>) {
        let (sender, dropped) = oneshot::channel();
        let mut flushes = line.flushes.subscribe();
        self.sent = Some((Arc::clone(line), sender));
        let sent = async move {
            let Ok(before) = dropped.await else { return false };
            flushes.wait_for(|now| *now > before).await.is_ok()
        };
        (self, sent)
    }
}

impl Drop for WireBody {
    fn drop(&mut self) {
        // hyper drops a body when its end is in the buffer, and flushes the buffer next.
        if let Some((line, sender)) = self.sent.take() {
            // The receiver may be dropped.
            let _unheard = sender.send(line.flushed());
        }
    }
}

/// Why a cut body ends.
#[derive(Debug, thiserror::Error)]
#[error("the body was cut off on purpose")]
pub struct CutOff;

impl Body for WireBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let data = self.data.take();
        if let (Some(_), Some(cut)) = (&data, &mut self.cut) {
            cut.flushes_before = cut.line.flushed();
        }
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let Some(cut) = &mut self.cut else {
            return Poll::Ready(None);
        };
        while cut.line.flushed() == cut.flushes_before {
            ready!(cut.pause.as_mut().poll(context));
            cut.pause.as_mut().reset(Instant::now() + CUT_POLL);
        }
        Poll::Ready(Some(Err(CutOff)))
    }

    fn is_end_stream(&self) -> bool {
        self.cut.is_none() && self.data.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        if self.cut.is_some() {
            SizeHint::default()
        } else {
            SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64))
        }
    }
}
