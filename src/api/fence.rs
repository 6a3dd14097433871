//! The fence between the controllers and the API server.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use ccm_core::client::{Fence, Fenced};
use http::{Method, Request, Response};
use tower::{BoxError, Layer, Service};

/// Lets everything but reads through only while the fence allows it.
///
/// A write whose answer has begun counts as returned: it was carried out by then.
#[derive(Clone, Debug)]
pub(super) struct FenceLayer(pub(super) Fence);

impl<S> Layer<S> for FenceLayer {
    type Service = FencedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FencedService {
            inner,
            fence: self.0.clone(),
        }
    }
}

#[derive(Debug)]
pub(super) struct FencedService<S> {
    inner: S,
    fence: Fence,
}

impl<S, B, R> Service<Request<B>> for FencedService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if !reads && !self.fence.allows() {
            return Box::pin(async { Err(Fenced::Refused.into()) });
        }
        let answer = self.inner.call(request);
        if reads {
            return Box::pin(async { answer.await.map_err(Into::into) });
        }
        let fence = self.fence.clone();
        Box::pin(async move { fence.run(answer).await?.map_err(Into::into) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::{sync::Arc, time::Duration};

    use kube::client::{Body, ClientBuilder};
    use parking_lot::Mutex;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// A client of an API server that takes a second for everything, and what arrived there.
    fn client(fence: &Fence) -> (kube::Client, Arc<Mutex<Vec<Method>>>) {
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&arrived);
        let server = tower::service_fn(move |request: Request<Body>| {
            let log = Arc::clone(&log);
            async move {
                log.lock().push(request.method().clone());
                sleep(Duration::from_secs(1)).await;
                Ok::<_, BoxError>(Response::new(Body::from(b"{}".to_vec())))
            }
        });
        let client = ClientBuilder::new(server, "default")
            .with_layer(&FenceLayer(fence.clone()))
            .build();
        (client, arrived)
    }

    async fn send(client: &kube::Client, method: Method) -> Result<String, String> {
        let request = Request::builder()
            .method(method)
            .uri("/x")
            .body(Vec::new())
            .unwrap();
        let answer = client.request_text(request).await;
        answer.map_err(|error| ccm_core::error::report(&error))
    }

    const WRITES: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

    #[tokio::test(start_paused = true)]
    async fn a_standby_reads_and_sends_no_write() {
        let (client, arrived) = client(&Fence::standby());
        send(&client, Method::GET).await.unwrap();
        for method in WRITES {
            let error = send(&client, method).await.unwrap_err();
            assert!(error.contains("not the leader and may not write"), "{error}");
        }
        assert_eq!(*arrived.lock(), [Method::GET]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_under_way_is_cut_when_permission_ends_and_a_read_is_not() {
        let fence = Fence::standby();
        let (client, arrived) = client(&fence);
        for method in WRITES {
            let began = Instant::now();
            fence.allow_until(began + Duration::from_millis(500));
            let (read, write) = tokio::join!(send(&client, Method::GET), send(&client, method.clone()));
            read.unwrap();
            assert!(write.unwrap_err().contains("ceased to be the leader"), "{method}");
            assert!(!fence.is_settled(Duration::from_secs(10)));
        }
        assert_eq!(arrived.lock().len(), 2 * WRITES.len());
        fence.allow_until(Instant::now() + Duration::from_secs(2));
        send(&client, Method::PATCH).await.unwrap();
    }
}
