//! What a server needs from a connection in order to misbehave on it: resets, bodies that end too early, and news of
//! when an answer has really gone out. hyper hides these, so they sit below and above it.
//!
//! Public because a proxy with faults needs the same.

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

/// What a connection and the bodies on it tell each other.
#[derive(Debug, Default)]
pub struct Line {
    reset: AtomicBool,
    /// How often everything written so far went out.
    flushes: watch::Sender<u64>,
}

impl Line {
    /// The connection shall end in a reset instead of an orderly end.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    fn flushed(&self) -> u64 {
        *self.flushes.borrow()
    }
}

/// A connection that can end in a reset and counts what went out.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    line: Arc<Line>,
}

impl Connection {
    /// A connection on this stream.
    #[must_use]
    pub fn new(stream: TcpStream, line: Arc<Line>) -> Self {
        // Answers are written at once; waiting for more to send would only add latency that nobody asked for.
        let _best_effort = stream.set_nodelay(true);
        Self { stream, line }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.line.reset.load(Ordering::Relaxed) {
            // Without lingering, closing sends a reset instead of an orderly end.
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

/// How many requests are held. One whose client goes away is held no more as soon as its connection is seen to be closed.
#[derive(Debug, Default)]
pub struct Held(watch::Sender<usize>);

impl Held {
    /// Counts a request while it waits for this.
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

    /// Waits until there is none.
    pub async fn none(&self) {
        let mut held = self.0.subscribe();
        // The sender is in `self`, so that waiting can not fail.
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

/// How a body is cut off: after its data went out, which an error would otherwise overtake.
#[derive(Debug)]
struct Cut {
    line: Arc<Line>,
    flushes_before: u64,
    pause: Pin<Box<Sleep>>,
}

/// How often the cut looks whether the data went out.
const CUT_POLL: Duration = Duration::from_millis(1);

impl WireBody {
    /// All of it.
    pub fn whole(data: impl Into<Bytes>) -> Self {
        Self {
            data: Some(data.into()),
            cut: None,
            sent: None,
        }
    }

    /// Sends only this; the server then closes the connection because the promised length is not reached.
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

    /// The same, with something that resolves when all of the answer was handed to the system: `true`, or `false`
    /// if the connection ended before.
    pub fn told(mut self, line: &Arc<Line>) -> (Self, impl Future<Output = bool> + Send + use<>) {
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
        // hyper lets go of a body when the last of it is in its buffer, and flushes the buffer next.
        if let Some((line, sender)) = self.sent.take() {
            // Nobody may be interested any more.
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
