//! The HTTPS server of the whole program with a real API server: access of clients, failures of the API server, and changed
//! certificates.

mod clients;
mod faults;
mod pages;
mod stage;
