//! The engine with a cloud that uses all of it: pages by tokens, fingerprints or entity tags, slow deletions.

use std::sync::LazyLock;
use std::time::Duration;

use http::Method;

use super::*;
use crate::quota::Quota;

/// A small description. The answer of `things_bad` violates it.
static DESCRIPTION: LazyLock<std::result::Result<Description, String>> = LazyLock::new(|| {
    let thing = json!({"$ref": "#/components/schemas/thing"});
    let content = |schema: &Value| json!({"content": {"application/json": {"schema": schema}}});
    let one = content(&thing);
    let page = content(&json!({
        "type": "object",
        "required": ["things"],
        "properties": {"things": {"type": "array", "items": thing}},
    }));
    let size =
        json!({"name": "size", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 3}});
    let token = json!({"name": "token", "in": "query", "schema": {"type": "string"}});
    let failure = content(&json!({"type": "object", "required": ["error"]}));
    let responses = |status: &str, answer: &Value| json!({ status: answer, "default": failure });
    let text = json!({
        "paths": {
            "/things": {
                "get": {"operationId": "things_list", "parameters": [size, token], "responses": responses("200", &page)},
                "post": {"operationId": "things_create", "requestBody": one, "responses": responses("200", &one)},
                "delete": {"operationId": "things_bad", "responses": responses("200", &one)},
            },
            "/things/{id}": {
                "get": {"operationId": "things_get", "responses": responses("200", &one)},
                "put": {"operationId": "things_update", "requestBody": one, "responses": responses("200", &one)},
                "delete": {"operationId": "things_delete", "responses": responses("202", &json!({}))},
                "patch": {"operationId": "things_patch", "responses": responses("200", &one)},
            },
        },
        "components": {"schemas": {"thing": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "kind": {"type": "string", "enum": ["a", "b"], "nullable": true},
                "fingerprint": {"type": "string"},
            },
        }}},
    });
    Description::parse(&text.to_string(), &[])
});

struct ThingRules(Revisions);

impl Rules for ThingRules {
    fn service(&self) -> &'static str {
        "things"
    }

    fn paging(&self) -> Paging {
        Paging::Tokens {
            size: "size",
            token: "token",
            next: "next",
            default: 2,
        }
    }

    fn revisions(&self) -> Revisions {
        self.0
    }

    fn invalid(&self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }

    fn authenticate(&self, _: &Request) -> std::result::Result<(), DocumentFault> {
        Ok(())
    }

    fn error(&self, fault: &DocumentFault, _: &str) -> Value {
        json!({ "error": fault.message })
    }

    fn headers(&self, rate: Option<Level>, _: Timestamp) -> Vec<(&'static str, String)> {
        let rate = rate.map(|rate| ("remaining", rate.remaining.to_string()));
        rate.into_iter().collect()
    }

    fn refusals(&self) -> Vec<crate::faults::Fault> {
        Vec::new()
    }

    fn complete(&self, _: &str, fields: &mut Map<String, Value>, fresh: &Fresh<'_>) -> String {
        let id = fresh.number().to_string();
        fields.insert("id".to_owned(), json!(id));
        id
    }

    fn run(&self, operation: &str, call: &mut Call<'_>) -> Option<Outcome> {
        let show = |call: &Call<'_>, id: &str| {
            let found = call.store.get("things", id).map(|found| call.show(found));
            Ok((StatusCode::OK, found))
        };
        Some(match operation {
            "things_list" => Ok((StatusCode::OK, Some(call.page("things", |_| true)))),
            "things_get" => call.find("things").and_then(|found| show(call, &found.id)),
            "things_create" => {
                let fields = call.body.as_object().cloned().unwrap_or_default();
                call.create("things", fields).and_then(|id| show(call, &id))
            }
            "things_update" => call.find_to_change("things").and_then(|found| {
                let fields = call.body.as_object().cloned().unwrap_or_default();
                call.store.change("things", &found.id, |known| known.extend(fields));
                show(call, &found.id)
            }),
            "things_delete" => call.find("things").map(|found| {
                let later = call.now.checked_add(Duration::from_secs(60)).unwrap();
                let failed = Map::from_iter([("kind".to_owned(), json!("b"))]);
                let change = |effect| vec![("things", found.id.clone(), effect)];
                let (success, failure) = (change(Effect::Remove), change(Effect::Merge(failed)));
                call.store.schedule(later, success, failure);
                (StatusCode::ACCEPTED, None)
            }),
            "things_bad" => Ok((StatusCode::OK, Some(json!({"name": 5})))),
            _ => return None,
        })
    }
}

/// A cloud with its control, called without HTTP.
struct Session {
    control: Control,
    _server: Server,
}

impl Session {
    async fn with(revisions: Revisions) -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let rules = Box::new(ThingRules(revisions));
        let (control, server) = start(listen, 0, &DESCRIPTION, rules).await.unwrap();
        Self {
            control,
            _server: server,
        }
    }

    fn send(&self, method: Method, path: &str, body: &Value, headers: &[(&str, &str)]) -> (u16, Value) {
        let mut request = http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::new(&parts, body.into());
        let cloud = &self.control.cloud;
        let reply = cloud.handle(&request, &cloud.target(&request), None);
        let json = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
        (reply.status.as_u16(), json)
    }

    fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, &Value::Null, &[])
    }

    fn create(&self, name: &str) -> (u16, Value) {
        self.send(Method::POST, "/things", &json!({ "name": name }), &[])
    }
}

fn names(page: &Value) -> Vec<&str> {
    let things = page["things"].as_array().unwrap();
    things.iter().map(|thing| thing["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn pages_follow_tokens_in_the_order_of_creation() {
    let session = Session::with(Revisions::Unchecked).await;
    for name in ["c", "a", "b"] {
        assert_eq!(session.create(name).0, 200);
    }
    let (_, first) = session.get("/things");
    assert_eq!(names(&first), ["c", "a"]);
    let token = first["next"].as_str().unwrap();
    let (_, second) = session.get(&format!("/things?token={token}"));
    assert_eq!(names(&second), ["b"]);
    assert_eq!(second["next"], Value::Null);
    let (_, all) = session.get("/things?size=3");
    assert_eq!(names(&all), ["c", "a", "b"]);
}

#[tokio::test]
async fn requests_and_answers_are_checked_against_the_description() {
    let session = Session::with(Revisions::Unchecked).await;
    for (body, reason) in [
        (json!({}), "body: \"name\" is a required property"),
        (json!({"name": 1}), "body/name: 1 is not of type \"string\""),
        (json!({"name": "A"}), "body/name: \"A\" does not match \"^[a-z]+$\""),
        (json!({"name": "abcdef"}), "body/name: \"abcdef\" is longer than 5 characters"),
        (json!({"name": "a", "kind": "c"}), "body/kind: \"c\" is not one of \"a\" or \"b\""),
        (
            json!({"name": "a", "colour": "red"}),
            "body: Unevaluated properties are not allowed ('colour' was unexpected)",
        ),
    ] {
        let answer = session.send(Method::POST, "/things", &body, &[]);
        assert_eq!(answer, (400, json!({ "error": reason })), "{body}");
    }
    for (query, reason) in [
        ("size=0", "size: 0 is less than the minimum of 1"),
        ("size=4", "size: 4 is greater than the maximum of 3"),
        ("size=x", "size: \"x\" is not of type \"integer\""),
        ("colour=red", "parameter colour is not described"),
    ] {
        let answer = session.get(&format!("/things?{query}"));
        assert_eq!(answer, (400, json!({ "error": reason })));
    }
    let violations = session.control.take_violations();
    assert_eq!(violations.len(), 10, "{violations:?}");
    let nothing = json!({"name": "a", "kind": null});
    assert_eq!(session.send(Method::POST, "/things", &nothing, &[]).0, 200);
    let (status, answer) = session.send(Method::DELETE, "/things", &Value::Null, &[]);
    let reason = "The simulator's answer violates the description: body/name: 5 is not of type \"string\"";
    assert_eq!((status, answer), (500, json!({ "error": reason })));
    let (status, answer) = session.send(Method::PATCH, "/things/1", &Value::Null, &[]);
    let reason = "The simulator does not have this operation.";
    assert_eq!((status, answer), (501, json!({ "error": reason })));
    assert_eq!(session.get("/nothing").0, 404);
    assert_eq!(session.control.take_violations().len(), 3);
}

#[tokio::test]
async fn a_change_must_match_the_revision_that_it_names() {
    let session = Session::with(Revisions::EntityTag("etag")).await;
    let (_, created) = session.create("a");
    let tag = created["etag"].as_str().unwrap();
    let put = |name: &str, tag: &str| {
        let body = json!({ "name": name });
        session.send(Method::PUT, "/things/1", &body, &[("if-match", tag)])
    };
    let (status, changed) = put("b", tag);
    assert_eq!(status, 200);
    assert_ne!(changed["etag"], created["etag"]);
    assert_eq!(put("c", tag).0, 412);
    assert_eq!(put("c", "*").0, 200);
    assert_eq!(session.get("/things/1").1["name"], "c");

    let session = Session::with(Revisions::Fingerprint("fingerprint")).await;
    let (_, created) = session.create("a");
    let put = |print: &Value| {
        let body = json!({"name": "b", "fingerprint": print});
        session.send(Method::PUT, "/things/1", &body, &[]).0
    };
    assert_eq!(put(&json!("other")), 412);
    assert_eq!(put(&created["fingerprint"]), 200);
    assert_eq!(put(&created["fingerprint"]), 412);
}

#[tokio::test]
async fn an_operation_ends_when_its_time_is_up_and_may_fail() {
    let session = Session::with(Revisions::Unchecked).await;
    session.create("a");
    session.create("b");
    let delete = |id: u32| session.send(Method::DELETE, &format!("/things/{id}"), &Value::Null, &[]);
    session.control.fail_next_changes(1);
    assert_eq!(delete(1), (202, Value::Null));
    session.control.advance_clock(Duration::from_secs(59));
    assert_eq!(session.get("/things/1").1["kind"], Value::Null);
    session.control.advance_clock(Duration::from_secs(2));
    assert_eq!(session.get("/things/1").1["kind"], "b");
    assert_eq!(delete(2), (202, Value::Null));
    assert_eq!(session.get("/things/2").0, 200);
    session.control.advance_clock(Duration::from_secs(60));
    assert_eq!(session.get("/things/2").0, 404);
}

#[tokio::test]
async fn quotas_limit_documents_and_requests() {
    let session = Session::with(Revisions::Unchecked).await;
    session.control.set_limit("things", Some(1));
    assert_eq!(session.create("a").0, 200);
    let (status, answer) = session.create("b");
    assert_eq!(status, 422);
    assert_eq!(answer["error"], "The limit of things is reached.");
    session.control.set_limit("things", None);
    assert_eq!(session.create("b").0, 200);

    let quota = Quota {
        per_second: 1.0,
        burst: 3,
    };
    session.control.set_quota("things", Some(quota));
    let left = || {
        let (parts, ()) = http::Request::builder().uri("/things").body(()).unwrap().into_parts();
        let request = Request::new(&parts, Vec::new().into());
        let cloud = &session.control.cloud;
        let reply = cloud.handle(&request, &cloud.target(&request), None);
        reply.headers.get("remaining").unwrap().to_str().unwrap().to_owned()
    };
    assert_eq!(left(), "3");
    let now = session.control.cloud.traffic.clock.elapsed();
    session.control.cloud.traffic.quotas.take("things", now).unwrap();
    assert_eq!(left(), "2");
}
