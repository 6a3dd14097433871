//! Plans of objects and documents: properties of every diff, and the kinds of AWS's network load balancers.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod nlb;
mod nlb_laws;
mod properties;
