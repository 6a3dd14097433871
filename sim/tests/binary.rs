//! The binary prints one line of JSON, and runs a cloud until it is stopped.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;

/// A GET without any library.
fn get(url: &str) -> String {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn prints_where_it_listens_and_stops_on_sigterm() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccm-sim"));
    command.args(["openstack", "--servers", "3", "--region", "Here"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["region"], "Here");
    assert!(ready["cloud_conf"].as_str().unwrap().contains("region=\"Here\""));
    assert!(get(ready["auth_url"].as_str().unwrap()).starts_with("HTTP/1.1 200"));
    assert!(get(ready["control_url"].as_str().unwrap()).contains("\"servers\":3"));
    let terminated = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(terminated.success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn runs_a_digitalocean_with_droplets() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccm-sim"));
    command.args(["digitalocean", "--droplets", "2"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert!(ready["token"].is_string());
    assert!(get(ready["control_url"].as_str().unwrap()).contains("\"service\":\"digitalocean\""));
    let droplets = format!("{}/documents/droplets", ready["control_url"].as_str().unwrap());
    assert!(get(&droplets).contains("\"name\":\"node-00001\""));
    let terminated = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(terminated.success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccm-sim"));
    let output = command.args(["openstack", "--listen", &address]).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("ccm-sim: cannot listen on {address}")), "{said}");
}
