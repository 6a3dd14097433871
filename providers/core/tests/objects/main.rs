//! Plans of objects: properties of every difference.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod properties;
