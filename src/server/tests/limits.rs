//! Clients that take too much.

use super::*;

#[tokio::test]
async fn a_thousand_idle_connections_block_no_client() {
    let folder = tempfile::tempdir().unwrap();
    let running = start_in(folder.path()).await;
    let file = folder.path().join("cloud-controller-manager.crt");
    // Some shook hands, one began a request, most say nothing at all.
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(connect(running.address, &file, b"http/1.1").await.unwrap());
    }
    idle[0].write_all(b"GET /livez HTTP/1.1\r\nHost: loc").await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(TcpStream::connect(running.address).await.unwrap());
    }
    for _ in 0..10 {
        let answer = timeout(LAST_ANSWER, get(&running, folder.path(), "/livez"));
        assert!(answer.await.unwrap().starts_with("HTTP/1.1 200"));
    }
    let metrics = get(&running, folder.path(), "/metrics").await;
    let line = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()
    };
    assert!(line("ccm_https_connections ") <= MAX_CONNECTIONS, "{metrics}");
    assert!(line("ccm_https_evictions_total ") >= 1000 - MAX_CONNECTIONS, "{metrics}");
}

#[tokio::test]
async fn a_head_that_never_ends_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let running = start_in(folder.path()).await;
    let file = folder.path().join("cloud-controller-manager.crt");
    let mut slow = connect(running.address, &file, b"http/1.1").await.unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nHost: loc").await.unwrap();
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest).await;
    let took = began.elapsed();
    assert!(took <= HEAD_TIMEOUT + Duration::from_secs(1), "{took:?}");
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{rest}");
}

#[tokio::test]
async fn a_huge_head_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let running = start_in(folder.path()).await;
    let file = folder.path().join("cloud-controller-manager.crt");
    let one = format!("X-Long: {}\r\n", "a".repeat(2 * MAX_HEAD));
    let many: String = (0..300).map(|number| format!("X-{number}: a\r\n")).collect();
    for headers in [one, many] {
        let mut stream = connect(running.address, &file, b"http/1.1").await.unwrap();
        let head = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        // It may be refused before all of it is sent.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    assert!(get(&running, folder.path(), "/livez").await.starts_with("HTTP/1.1 200"));
}
