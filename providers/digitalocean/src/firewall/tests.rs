#![allow(clippy::unwrap_used)]

use ccm_core::{
    controllers::metrics_text,
    testkit::cluster::{annotate, service},
};
use ccm_sim::{
    Action, Fault,
    digitalocean::{Config, DigitalOcean},
};

use super::*;
use crate::load_balancer::desired::tests::{create_balancer, settings};

const FIREWALL: [(&str, &str); 2] = [
    ("PUBLIC_ACCESS_FIREWALL_NAME", "nodes"),
    ("PUBLIC_ACCESS_FIREWALL_TAGS", "k8s, worker"),
];

fn firewall(services: &[ServiceView], balancers: &Balancers) -> Value {
    let services: Vec<_> = services.iter().collect();
    desired_firewall(&services, &settings(&FIREWALL), balancers)
}

/// A load balancer with the ID `lb-1`.
fn balancer(document: Value) -> Balancers {
    let balancer = Arc::new(serde_json::from_value(document).unwrap());
    Balancers::from([("lb-1".to_owned(), balancer)])
}

fn of_type(kind: &str) -> Balancers {
    balancer(json!({"id": "lb-1", "type": kind, "network": "EXTERNAL"}))
}

fn inbound(services: &[ServiceView]) -> Vec<String> {
    show(&firewall(services, &Balancers::new()))
}

/// The inbound rules as `tcp 80 0.0.0.0/0 ::/0`.
fn show(firewall: &Value) -> Vec<String> {
    let mut shown = Vec::new();
    for ((protocol, ports), peers) in rules(firewall, "inbound_rules") {
        let peers: Vec<_> = peers.into_iter().collect();
        shown.push(format!("{protocol} {ports} {}", peers.join(" ")));
    }
    shown
}

fn node_port(name: &str) -> ServiceView {
    ServiceView {
        service_type: ServiceType::NodePort,
        ..service(name, &[80])
    }
}

fn annotated(mut service: ServiceView, key: &str, value: &str) -> ServiceView {
    annotate(&mut service, key, Some(value));
    service
}

#[test]
fn rules_open_the_ports_of_services() {
    use annotations::{FIREWALL_MANAGED, ID, NETWORK, TYPE};
    assert!(inbound(&[]).is_empty());
    assert_eq!(inbound(&[node_port("a")]), ["tcp 30080 0.0.0.0/0 ::/0"]);
    for (value, count) in [("false", 0), ("0", 0), ("true", 1), ("perhaps", 1)] {
        let service = annotated(node_port("a"), FIREWALL_MANAGED, value);
        assert_eq!(inbound(&[service]).len(), count, "{value}");
    }
    let mut sctp = node_port("a");
    sctp.ports[0].protocol = Protocol::Sctp;
    assert!(inbound(&[sctp]).is_empty());
    let web = service("web", &[80]);
    let rules = ["tcp 10256 0.0.0.0/0 ::/0", "tcp 80 0.0.0.0/0 ::/0"];
    assert_eq!(inbound(std::slice::from_ref(&web)), rules);
    let known = annotated(web.clone(), ID, "lb-1");
    let limited = ServiceView {
        source_ranges: Some(vec!["10.0.0.0/8".into()]),
        ..known.clone()
    };
    for (balancers, checker) in [
        (of_type("REGIONAL_NETWORK"), "lb-1"),
        // An ID that is wrong, or that of a load balancer that was deleted.
        (Balancers::new(), "0.0.0.0/0 ::/0"),
    ] {
        let shown = show(&firewall(std::slice::from_ref(&limited), &balancers));
        let rules = format!("tcp 10256 {checker}, tcp 80 10.0.0.0/8");
        assert_eq!(shown.join(", "), rules);
    }
    assert!(inbound(&[annotated(known, FIREWALL_MANAGED, "false")]).is_empty());
    assert!(inbound(&[annotated(web.clone(), TYPE, "REGIONAL")]).is_empty());
    assert!(inbound(&[annotated(web.clone(), NETWORK, "INTERNAL")]).is_empty());
    // The load balancer decides, not what an annotation requests in vain.
    for (asked, has, count) in [
        ("REGIONAL", "REGIONAL_NETWORK", 2),
        ("REGIONAL_NETWORK", "REGIONAL", 0),
    ] {
        let service = annotated(annotated(web.clone(), TYPE, asked), ID, "lb-1");
        let shown = show(&firewall(&[service], &of_type(has)));
        assert_eq!(shown.len(), count, "{has}");
    }
    // An invalid Service does not block others, and its ports stay open if it has an address.
    let mut bad = annotated(service("bad", &[81]), TYPE, "GLOBAL");
    let rules = inbound(&[bad.clone(), node_port("a")]);
    assert_eq!(rules, ["tcp 30080 0.0.0.0/0 ::/0"]);
    bad.ingress = vec![Default::default()];
    assert_eq!(inbound(&[bad.clone()]).len(), 2);
    // Its load balancer keeps its ports, whatever the Service requests now.
    let known = annotated(bad, annotations::OVERRIDE_HEALTH_CHECK, "true");
    let known = annotated(known, ID, "lb-1");
    let has = balancer(json!({
        "id": "lb-1", "type": "REGIONAL_NETWORK", "network": "EXTERNAL", "health_check": {"port": 10256},
        "forwarding_rules": [{"entry_protocol": "udp", "entry_port": 53}],
    }));
    let rules = "tcp 10256 lb-1, tcp 30081 lb-1, tcp 81 0.0.0.0/0 ::/0, udp 53 0.0.0.0/0 ::/0";
    assert_eq!(show(&firewall(&[known], &has)).join(", "), rules);
}

#[test]
fn equivalent_rules_are_equal() {
    let desired = firewall(&[node_port("a"), service("web", &[80])], &Balancers::new());
    let outbound = desired["outbound_rules"].as_array().unwrap();
    let reversed: Vec<_> = outbound.iter().rev().collect();
    let first = &desired["inbound_rules"].as_array().unwrap()[..1];
    for (field, value, is_same) in [
        ("", json!(null), true),
        ("/outbound_rules", json!(reversed), true),
        ("/outbound_rules/0/ports", json!(""), true),
        ("/outbound_rules/0/destinations/droplet_ids", json!([1]), true),
        ("/tags", json!(["worker", "k8s"]), true),
        ("/tags", json!(["worker"]), false),
        ("/name", json!("other"), false),
        ("/inbound_rules/0/ports", json!("1"), false),
        ("/inbound_rules/0/sources/addresses", json!(["10.0.0.0/8"]), false),
        ("/inbound_rules", json!(first), false),
    ] {
        let mut observed = desired.clone();
        if let Some((object, name)) = field.rsplit_once('/') {
            observed.pointer_mut(object).unwrap()[name] = value;
        }
        let observed = Firewall::planned(&observed);
        assert_eq!(same(&observed, &desired), is_same, "{field}");
    }
}

async fn start() -> (DigitalOcean, FirewallController) {
    let sim = DigitalOcean::start(Config::default()).await.unwrap();
    let controller = controller(&sim, &ControllerMetrics::default()).await;
    (sim, controller)
}

async fn controller(sim: &DigitalOcean, metrics: &ControllerMetrics) -> FirewallController {
    let token = Config::default().token;
    let context = desired::tests::context(&[
        ("DO_OVERRIDE_URL", sim.url()),
        ("DO_ACCESS_TOKEN", token.as_str()),
        ("REGION", "nyc3"),
        FIREWALL[0],
        FIREWALL[1],
    ]);
    let cloud = Arc::new(crate::connect(context).await.unwrap());
    let api = cloud.nodes.api.clone();
    FirewallController::new(cloud, api, metrics)
}

/// The operations since the calls were cleared.
fn ops(sim: &DigitalOcean) -> Vec<&'static str> {
    sim.calls().into_iter().map(|call| call.op).collect()
}

#[tokio::test(start_paused = true)]
async fn a_change_of_services_ends_the_wait_after_failures() {
    let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
    let failed = |now: Instant| FirewallSchedule {
        at: now + RESYNC,
        earliest: now + BACKOFF.first,
    };
    let began = Instant::now();
    sender.send(()).unwrap();
    assert_eq!(failed(began).wait(&mut changes).await, Some(true));
    assert!(began.elapsed() < RESYNC, "{:?}", began.elapsed());
    assert_eq!(failed(began).wait(&mut changes).await, Some(false));
    assert!(began.elapsed() >= RESYNC, "{:?}", began.elapsed());
    drop(sender);
    assert_eq!(failed(Instant::now()).wait(&mut changes).await, None);
}

#[tokio::test]
async fn a_write_is_finished_when_the_process_ends() {
    let (sim, mut controller) = start().await;
    let time = Duration::from_millis(100);
    sim.add_fault(Fault::on("firewalls_create", Action::Delay { time }));
    let (_sender, changes) = tokio::sync::mpsc::unbounded_channel::<()>();
    let is_sent = async {
        while sim.faults()[0].fired == 0 {
            tokio::task::yield_now().await;
        }
    };
    controller.run(changes, Vec::new, is_sent).await;
    assert!(controller.observed.is_some());
}

#[tokio::test]
async fn the_firewall_is_read_again_only_if_it_may_differ() {
    let (sim, mut controller) = start().await;
    let one = annotated(node_port("a"), annotations::FIREWALL_MANAGED, "fasle");
    let two = annotated(service("web", &[80]), annotations::FIREWALL_MANAGED, "fasle");
    let mut step = async |services: &[&ServiceView]| {
        sim.clear_calls();
        controller.step(services, true).await;
        (controller.failures, ops(&sim))
    };
    let (get, list) = ("firewalls_get", "firewalls_list");
    let (create, update) = ("firewalls_create", "firewalls_update");
    assert_eq!(step(&[&one]).await, (0, vec![list, create]));
    sim.add_fault(Fault::on(update, Action::status(403)).once());
    assert_eq!(step(&[&one, &two]).await, (1, vec![get, update]));
    assert_eq!(step(&[&one, &two]).await, (0, vec![get, update]), "refused");
    let id = sim.documents("firewalls")[0]["id"].as_str().unwrap().to_owned();
    sim.remove("firewalls", &id).unwrap();
    sim.add_fault(Fault::on(create, Action::status(500)).once());
    assert_eq!(step(&[&one]).await, (1, vec![get, list, create]));
    assert_eq!(step(&[&one]).await, (0, vec![list, create]), "unknown");
    let reported: Vec<_> = controller.reported.iter().map(|(id, _)| &*id.name).collect();
    assert_eq!(reported, ["a"], "a load balancer's values are reported as Events");
}

#[tokio::test]
async fn load_balancers_are_listed_once_and_again_after_a_refusal() {
    let (sim, mut controller) = start().await;
    let id = create_balancer(&sim, "auidweb");
    let web = annotated(service("web", &[80]), annotations::ID, &id);
    let (asked, other) = (annotated(web, annotations::TYPE, "REGIONAL"), node_port("a"));
    let state = || {
        let listings = ops(&sim).iter().filter(|op| **op == "loadBalancers_list").count();
        (listings, show(&sim.documents("firewalls")[0]))
    };
    for _ in 0..2 {
        controller.step(&[&asked], true).await;
    }
    let rules = [format!("tcp 10256 {id}"), "tcp 80 0.0.0.0/0 ::/0".to_owned()];
    assert_eq!(state(), (1, rules.into()));
    // The rule of a load balancer that was deleted is refused, and is removed then.
    sim.remove("load_balancers", &id).unwrap();
    sim.add_fault(Fault::on("firewalls_update", Action::status(422)).once());
    for failures in [1, 0] {
        controller.step(&[&asked, &other], true).await;
        assert_eq!(controller.failures, failures);
    }
    assert_eq!(state(), (2, vec!["tcp 30080 0.0.0.0/0 ::/0".to_owned()]));
}

#[tokio::test]
async fn load_balancers_are_read_by_their_ids_while_listings_fail() {
    let (sim, mut controller) = start().await;
    let id = create_balancer(&sim, "auidweb");
    sim.add_fault(Fault::on("loadBalancers_list", Action::status(504)));
    let web = annotated(service("web", &[80]), annotations::ID, &id);
    let web = annotated(web, annotations::TYPE, "REGIONAL");
    controller.step(&[&web], true).await;
    let rules = [format!("tcp 10256 {id}"), "tcp 80 0.0.0.0/0 ::/0".to_owned()];
    assert_eq!(show(&sim.documents("firewalls")[0]), rules);
    assert_eq!(controller.failures, 0);
}

#[tokio::test]
async fn a_change_of_services_is_not_background_work() {
    use ccm_core::client::{Operation as _, rest::RestApi as _};
    let (sim, mut controller) = start().await;
    let gate = controller.api.gate().clone();
    gate.bucket(Op::FirewallList.bucket()).observe_remaining(400, 5000, None);
    let refused = controller.step(&[], false).await;
    assert!(refused.earliest < refused.at);
    assert_eq!((controller.failures, sim.documents("firewalls").len()), (1, 0));
    controller.step(&[], true).await;
    assert_eq!((controller.failures, sim.documents("firewalls").len()), (0, 1));
}

#[tokio::test]
async fn the_firewall_is_created_changed_and_repaired() {
    let (sim, mut controller) = start().await;
    let droplet = sim.create_droplet("by-hand");
    let (one, two) = (vec![node_port("a")], vec![node_port("a"), service("web", &[80])]);
    let id = || sim.documents("firewalls")[0]["id"].as_str().unwrap().to_owned();
    let nothing = || {};
    let edit = || {
        let fields = json!({"inbound_rules": [], "droplet_ids": [droplet.parse::<u64>().unwrap()]});
        let fields = fields.as_object().cloned().unwrap();
        sim.change("firewalls", &id(), fields).unwrap();
    };
    let delete = || sim.remove("firewalls", &id()).unwrap();
    let (get, list) = ("firewalls_get", "firewalls_list");
    let (create, update) = ("firewalls_create", "firewalls_update");
    type Step<'a> = (&'a str, &'a dyn Fn(), &'a [ServiceView], bool, &'a [&'a str]);
    let steps: [Step<'_>; 8] = [
        ("not created yet", &nothing, &one, true, &[list, create]),
        ("nothing changed", &nothing, &one, true, &[get]),
        ("no resync", &nothing, &one, false, &[]),
        ("a Service is created", &nothing, &two, false, &[get, update]),
        ("edited by hand, changed", &edit, &one, false, &[get, update]),
        ("edited by hand", &edit, &two, true, &[get, update]),
        ("deleted, changed", &delete, &one, false, &[get, list, create]),
        ("deleted, read", &delete, &one, true, &[get, list, create]),
    ];
    for (step, before, services, is_resync, expected) in steps {
        before();
        sim.clear_calls();
        let services: Vec<_> = services.iter().collect();
        let resync = is_resync.then_some(Priority::Background);
        controller.sync_and_reconcile(&services, resync).await.unwrap();
        assert_eq!(ops(&sim), expected, "{step}");
        let firewalls = sim.documents("firewalls");
        let observed: Firewall = serde_json::from_value(firewalls[0].clone()).unwrap();
        let desired = desired_firewall(&services, &settings(&FIREWALL), &Balancers::new());
        assert!(firewalls.len() == 1 && same(&observed, &desired), "{step}");
        if step.starts_with("edited by hand") {
            let kept = firewalls[0]["droplet_ids"][0].to_string();
            assert_eq!(kept, droplet, "droplets of others are kept");
        }
    }
    for op in [get, update, list] {
        let fault = sim.add_fault(Fault::on(op, Action::status(403)));
        if op == list {
            delete();
        }
        let services: Vec<_> = two.iter().collect();
        let resync = Some(Priority::Background);
        controller.sync_and_reconcile(&services, resync).await.unwrap_err();
        sim.remove_fault(fault);
    }
}

/// Names, labels and values of all metrics of the firewall, without durations.
fn counted(metrics: &ControllerMetrics) -> Vec<String> {
    let text = metrics.read(metrics_text::render).unwrap();
    let counters = text.lines().filter(|line| line.starts_with("firewall_") && line.contains("_total{"));
    let counters = counters.map(|line| line.replace("firewall_", "").replace("_total", ""));
    let mut counters: Vec<_> = counters.collect();
    counters.sort();
    counters
}

/// The values are those of `firewall_controller.go`: `succeeded` and `failed`, the status of the answer, `updated`, `reconciled`,
/// `skipped`.
#[tokio::test]
async fn labels_have_the_values_of_the_go_cloud_controller() {
    let sim = DigitalOcean::start(Config::default()).await.unwrap();
    let metrics = ControllerMetrics::default();
    let mut controller = controller(&sim, &metrics).await;
    let (one, two) = (vec![node_port("a")], vec![service("web", &[80])]);
    let step = async |controller: &mut FirewallController, services: &[ServiceView], resync: bool| {
        let services: Vec<_> = services.iter().collect();
        let resync = resync.then_some(Priority::User);
        let before = counted(&metrics);
        let _failed = controller.sync_and_reconcile(&services, resync).await;
        let after = counted(&metrics).into_iter();
        let changed = after.filter(|line| !before.contains(line));
        changed.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    let call = |operation: &str, result: &str, code: &str| {
        format!(
            "api_operations{{operation=\"{operation}\",result=\"{result}\",http_response_code=\"{code}\"}}"
        )
    };
    let reconcile =
        |result: &str, kind: &str| format!("reconciles{{result=\"{result}\",error_type=\"{kind}\"}}");
    let sync = |result: &str| format!("resource_syncs{{result=\"{result}\"}}");
    assert_eq!(
        step(&mut controller, &one, true).await,
        [
            call("create", "succeeded", "202"),
            call("get_by_list", "succeeded", "200"),
            reconcile("reconciled", ""),
            sync("updated")
        ]
    );
    assert_eq!(step(&mut controller, &one, false).await, [reconcile("skipped", "")]);
    assert_eq!(
        step(&mut controller, &two, false).await,
        [
            call("get_by_id", "succeeded", "200"),
            call("update", "succeeded", "200"),
            reconcile("reconciled", "")
        ]
    );
    // A proxy refuses the write.
    sim.add_fault(Fault::on("firewalls_update", Action::status(418)).once());
    let refused = step(&mut controller, &one, false).await;
    let expected = [call("update", "failed", "418"), reconcile("failed", "generic")];
    assert!(expected.iter().all(|line| refused.contains(line)), "{refused:?}");
    // Someone deleted it.
    let id = sim.documents("firewalls")[0]["id"].as_str().unwrap().to_owned();
    sim.remove("firewalls", &id).unwrap();
    let created = step(&mut controller, &one, true).await;
    assert!(created.contains(&call("get_by_id", "failed", "404")), "{created:?}");
    assert_eq!(sim.documents("firewalls").len(), 1);
    // No answer.
    let before = counted(&metrics);
    let late = || Error::new(ErrorKind::Timeout, "no answer in time");
    let unanswered = controller.metrics.call("update", async { Err::<(), _>(late()) });
    unanswered.await.unwrap_err();
    controller.metrics.synced(Instant::now(), Some(&late()));
    controller.metrics.reconciled(Instant::now(), &Err(late()));
    let expected = [
        call("update", "failed", ""),
        reconcile("failed", "timeout"),
        sync("canceled"),
    ];
    let after = counted(&metrics);
    let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
    for line in expected {
        assert!(new.iter().any(|new| new.contains(&line)), "{line} is not in {new:?}");
    }
}
