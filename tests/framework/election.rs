//! Leader election: replicas of the program and other programs contend for Leases in a real API server. Each leader writes
//! continuously to one server, which logs the writes. The order of the writes shows whether there were two writers at a time.

mod contest;
mod endings;
mod faults;
mod migration;
mod successions;
mod write_log;
