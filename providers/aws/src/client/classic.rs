//! Elastic Load Balancing (classic).
