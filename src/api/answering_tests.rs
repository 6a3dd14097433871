//! An API server for tests that answers from a function.

use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower::BoxError;

/// A client of an API server that gives these answers: a status and an object.
pub(crate) fn client<F>(answer: impl Fn(Request<Body>) -> F + Send + Sync + 'static) -> Client
where
    F: Future<Output = (u16, Value)> + Send + 'static,
{
    let service = tower::service_fn(move |request| {
        let answered = answer(request);
        async move {
            let (code, body) = answered.await;
            let body = serde_json::to_vec(&body).map(Body::from)?;
            Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
        }
    });
    Client::new(service, "default")
}

/// The answer with which a request is refused.
pub(crate) fn failure(code: u16) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": "no", "reason": "InternalError", "code": code});
    (code, status)
}
