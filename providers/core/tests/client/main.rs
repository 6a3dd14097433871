//! The client kit: quota, retries, fence, batches and caches, and calls of REST APIs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod batch;
mod bucket;
mod cache;
mod fence;
mod gate;
#[cfg(all(feature = "rest", feature = "testkit"))]
mod rest;

use ccm_core::client::operations;

operations! {
    /// The calls of the tests of gate and fence.
    enum Op {
        /// A thing.
        Get = "thing_get", "things", Read;
        /// Another version of a thing.
        Put = "thing_put", "things", IdempotentWrite;
        /// A new thing.
        Post = "thing_post", "things", Write;
    }
}
