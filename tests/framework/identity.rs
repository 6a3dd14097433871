//! Credentials for the API server: every form of a kubeconfig, changes while the program runs, and the rate of requests.

mod changes;
mod forms;
mod rate;
mod stage;
