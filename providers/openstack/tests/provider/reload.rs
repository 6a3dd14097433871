//! A changed config of a running provider: replaced values, unchanged values, and values that need a restart.

mod keys;
mod running;
mod swap;
