//! Faults, quotas and latency as a client observes them.

use std::time::Duration;

use ccm_sim::openstack::ServerSpec;
use ccm_sim::{Action, Fault, Moment, Quota};
use reqwest::Method;
use serde_json::json;

use crate::client::Session;

const LIST: &str = "/RegionOne/compute/v2.1/servers/detail";

/// A request's outcome: its status, or an error without a whole answer.
async fn outcome(session: &Session, path: &str) -> Result<u16, reqwest::Error> {
    let response = session.request(Method::GET, path).timeout(Duration::from_secs(10)).send().await?;
    let status = response.status().as_u16();
    response.bytes().await?;
    Ok(status)
}

#[tokio::test]
async fn a_quota_answers_429_with_retry_after() {
    let session = Session::start().await;
    let quota = Quota {
        per_second: 0.1,
        burst: 2,
    };
    session.cloud.set_quota("compute", Some(quota));
    assert_eq!(session.get(LIST).await.status, 200);
    assert_eq!(session.get(LIST).await.status, 200);
    let refused = session.get(LIST).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, "10"));
    assert_eq!(refused.json["overLimit"]["code"], 429);
    assert_eq!(session.neutron("/ports").await.status, 200, "another service");
    session.cloud.advance_clock(Duration::from_secs(10));
    assert_eq!(session.get(LIST).await.status, 200);
    session.cloud.set_quota("compute", None);
    assert_eq!(session.get(LIST).await.status, 200);
}

#[tokio::test]
async fn a_status_comes_in_the_services_own_form() {
    let session = Session::start().await;
    session.cloud.add_fault(Fault {
        count: Some(2),
        ..Fault::new(Action::status(503))
    });
    assert_eq!(session.get(LIST).await.json["serviceUnavailable"]["code"], 503);
    assert_eq!(session.neutron("/ports").await.json["NeutronError"]["detail"], "");
    assert_eq!(session.get(LIST).await.status, 200, "fired twice and no more");
    let headers = [("Retry-After".to_owned(), "4".to_owned())].into();
    let action = Action::Status {
        code: 502,
        body: Some("<html>bad gateway</html>".into()),
        headers,
    };
    session.cloud.add_fault(Fault::on("server_list", action).once());
    let answer = session.get(LIST).await;
    assert_eq!(
        (answer.status, &*answer.text, answer.header("retry-after")),
        (502, "<html>bad gateway</html>", "4")
    );
}

#[tokio::test]
async fn rules_choose_by_operation_path_method_and_count() {
    let session = Session::start().await;
    let fail = |fault: Fault| session.cloud.add_fault(fault);
    fail(Fault {
        nth: 2,
        count: Some(1),
        ..Fault::on("port_list", Action::status(500))
    });
    fail(Fault {
        path: Some("/flavors/".into()),
        ..Fault::new(Action::status(501))
    });
    let post = fail(Fault {
        method: Some("POST".into()),
        ..Fault::new(Action::status(502))
    });
    let statuses = [
        session.neutron("/ports").await.status,
        session.neutron("/ports").await.status,
        session.neutron("/ports").await.status,
        session.nova("2.1", "/flavors/2").await.status,
        session.nova("2.1", "/servers/detail").await.status,
        session.login(&json!({})).await.status,
    ];
    assert_eq!(statuses, [200, 500, 200, 501, 200, 502]);
    assert!(session.cloud.remove_fault(post));
    assert_eq!(session.login(&json!({})).await.status, 400);
    assert_eq!(session.cloud.faults().len(), 2);
    let logged: Vec<Option<&str>> = session.cloud.calls().iter().map(|call| call.fault).collect();
    assert_eq!(
        logged,
        [
            None,
            Some("status"),
            None,
            Some("status"),
            None,
            Some("status"),
            None
        ]
    );
}

#[tokio::test]
async fn connections_end_without_an_answer() {
    let session = Session::start().await;
    for action in [Action::Drop, Action::Reset, Action::CommitThenDrop] {
        let name = action.name();
        session.cloud.clear_calls();
        session.cloud.add_fault(Fault::new(action).once());
        // A client may repeat a safe request on a new connection, but not a POST.
        let sent = session
            .http
            .post(format!("{}/auth/tokens", session.cloud.auth_url()))
            .json(&json!({}))
            .send()
            .await;
        assert!(sent.unwrap_err().status().is_none(), "{name}");
        let call = &session.cloud.calls()[0];
        assert_eq!((call.status, call.fault), (None, Some(name)));
        assert_eq!(outcome(&session, LIST).await.unwrap(), 200, "after {name}");
    }
}

#[tokio::test]
async fn commit_then_drop_handles_the_request_and_drop_does_not() {
    let session = Session::start().await;
    for (action, still_valid) in [(Action::Drop, 200), (Action::CommitThenDrop, 401)] {
        session.cloud.add_fault(Fault::on("token_delete", action).once());
        let request = session.request(Method::DELETE, "/identity/v3/auth/tokens");
        let request = request.header("x-subject-token", &session.token);
        assert!(request.send().await.is_err());
        assert_eq!(session.get(LIST).await.status, still_valid);
    }
}

#[tokio::test]
async fn a_truncated_body_is_an_error_and_an_empty_object_is_none() {
    let session = Session::start().await;
    session.cloud.create_servers(5, &ServerSpec::named("n{i}")).unwrap();
    session.cloud.add_fault(Fault::on("server_list", Action::Truncate { bytes: None }).once());
    let response = session.request(Method::GET, LIST).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let promised = response.content_length().unwrap();
    assert!(promised > 5000);
    assert!(response.bytes().await.is_err());
    session.cloud.add_fault(Fault::on("server_list", Action::EmptyJson).once());
    let answer = session.get(LIST).await;
    assert_eq!((answer.status, &*answer.text), (200, "{}"));
}

#[tokio::test]
async fn a_timeout_does_not_end_before_the_client_gives_up() {
    let session = Session::start().await;
    for action in [Action::Timeout, Action::CommitThenHang] {
        session.cloud.clear_calls();
        session.cloud.add_fault(Fault::on("server_list", action).once());
        let request = tokio::spawn(session.request(Method::GET, LIST).send());
        session.cloud.wait_for_calls(|calls| !calls.is_empty()).await;
        assert!(session.cloud.calls()[0].duration.is_zero());
        request.abort();
        session
            .cloud
            .wait_for_calls(|calls| calls.iter().all(|call| !call.duration.is_zero()))
            .await;
        assert_eq!(session.cloud.calls()[0].status, None);
    }
}

#[tokio::test]
async fn a_stale_read_answers_from_the_state_at_which_the_rule_was_added() {
    let session = Session::start().await;
    let old = session.cloud.create_server(&ServerSpec::named("old")).unwrap();
    session.cloud.add_fault(Fault::on("server_list", Action::StaleRead).once());
    session.cloud.create_server(&ServerSpec::named("new")).unwrap();
    session.cloud.delete_server(&old).unwrap();
    assert_eq!(session.get(LIST).await.each("servers", "name"), ["old"]);
    assert_eq!(session.get(LIST).await.each("servers", "name"), ["new"]);
    assert_eq!(session.nova("2.1", &format!("/servers/{old}")).await.status, 404);
}

#[tokio::test]
async fn answers_take_their_time() {
    let session = Session::start().await;
    let time = Duration::from_millis(40);
    session.cloud.set_latency(time);
    session.cloud.add_fault(Fault::on("port_list", Action::Delay { time }));
    session.get(LIST).await;
    session.neutron("/ports").await;
    let calls = session.cloud.calls();
    assert!(calls[0].duration >= time);
    assert!(calls[1].duration >= 2 * time);
}

/// The number of names in a listing that is held at this moment while another server is created.
async fn held_listing(at: Moment) -> usize {
    let session = Session::start().await;
    let fault = session.cloud.add_fault(Fault::on("server_list", Action::Hold { at }).once());
    let listing = session.get(LIST);
    let meanwhile = async {
        assert!(session.cloud.wait_for_fault(fault).await.is_some());
        session.cloud.create_server(&ServerSpec::named("new")).unwrap();
        assert!(session.cloud.remove_fault(fault));
    };
    let (answer, ()) = tokio::join!(listing, meanwhile);
    assert_eq!(answer.status, 200, "it goes on when the rule is gone");
    answer.json["servers"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_request_is_held_before_it_is_handled_or_after() {
    assert_eq!(held_listing(Moment::Before).await, 1);
    assert_eq!(held_listing(Moment::AfterCommit).await, 0);
}

#[tokio::test]
async fn a_sent_reply_is_notified() {
    let session = Session::start().await;
    let action = Action::Hold {
        at: Moment::AfterReply,
    };
    let fault = session.cloud.add_fault(Fault::on("server_list", action.clone()).once());
    assert_eq!(session.get(LIST).await.status, 200);
    assert!(session.cloud.wait_for_fault(fault).await.is_some());
    assert_eq!(session.cloud.faults()[0].reached, 1);
    // A task that waits for a removed fault is notified.
    let fault = session.cloud.add_fault(Fault::on("server_list", action));
    let (reached, removed) =
        tokio::join!(session.cloud.wait_for_fault(fault), async { session.cloud.remove_fault(fault) });
    assert!(reached.is_none() && removed);
}

#[tokio::test]
async fn a_partial_listing_has_the_form_of_a_whole_one() {
    let session = Session::start().await;
    session.cloud.create_servers(4, &ServerSpec::named("s-{i}")).unwrap();
    session.cloud.configure(|settings| settings.max_limit = 3);
    for (share, servers) in [(0.0, 0), (0.5, 1), (1.0, 3)] {
        let fault = session.cloud.add_fault(Fault::on("server_list", Action::Partial { share }));
        let answer = session.get(LIST).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json["servers"].as_array().unwrap().len(), servers);
        assert!(answer.json.get("servers_links").is_none(), "no other page");
        session.cloud.remove_fault(fault);
    }
}
