//! EC2: security groups.
