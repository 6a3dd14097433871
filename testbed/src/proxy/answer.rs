//! Answers and bodies of a proxy.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ccm_sim::wire::{CutOff, Line, WireBody};
use http::{Response, StatusCode, header};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use serde_json::json;
use tokio::sync::mpsc;

/// The next chunk of a body.
pub(super) async fn next<B>(body: &mut B) -> Option<Result<Bytes, ()>>
where
    B: Body<Data = Bytes> + Unpin,
{
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => return Some(Ok(data)),
            Ok(Err(_trailers)) => {}
            Err(_) => return Some(Err(())),
        }
    }
}

/// The whole body.
pub(super) async fn collect<B>(mut body: B) -> Result<Bytes, CutOff>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut whole = Vec::new();
    while let Some(data) = next(&mut body).await {
        whole.extend_from_slice(&data.map_err(|()| CutOff)?);
    }
    Ok(whole.into())
}

/// The response with half of its body.
pub(super) async fn truncate(response: Response<ProxyBody>, line: &Arc<Line>) -> Response<ProxyBody> {
    let (head, body) = response.into_parts();
    let ProxyBody::Whole(body) = body else {
        return Response::from_parts(head, body);
    };
    // A complete body does not fail.
    let data = collect(body).await.unwrap_or_default();
    let sent = data.slice(..data.len() / 2);
    let mut response = Response::from_parts(head, ProxyBody::Whole(WireBody::cut(sent, Arc::clone(line))));
    response.headers_mut().insert(header::CONTENT_LENGTH, data.len().into());
    response
}

/// The body of an API server error.
pub(super) fn refusal(code: u16) -> String {
    let reason = match code {
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "refused on purpose",
        "reason": reason,
        "code": code,
    })
    .to_string()
}

/// An error answer with this body.
pub(super) fn refused(code: u16, retry_after: Option<u32>, body: String) -> Response<ProxyBody> {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_response(status, body.into_bytes());
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// A success with an empty object.
pub(super) fn empty_json() -> Response<ProxyBody> {
    json_response(StatusCode::OK, b"{}".to_vec())
}

fn json_response(status: StatusCode, body: Vec<u8>) -> Response<ProxyBody> {
    let mut response = Response::new(ProxyBody::Whole(WireBody::whole(body)));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// The body of an answer to the program.
#[derive(Debug)]
pub(super) enum ProxyBody {
    Whole(WireBody),
    Stream(mpsc::Receiver<Result<Bytes, CutOff>>),
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(context),
            Self::Stream(parts) => {
                parts.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(body) if body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
