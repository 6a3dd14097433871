//! Source ranges of both IP families.

use ccm_core::load_balancer::{IpFamily, ServiceView};
use serde_json::json;

use crate::stage::{MANAGED, Stage, service};

fn ranges(service: &mut ServiceView, ranges: &[&str]) {
    service.source_ranges = Some(ranges.iter().map(|range| (*range).into()).collect());
}

fn ipv4(name: &str, ports: &[u16]) -> ServiceView {
    ServiceView {
        ip_families: [IpFamily::V4].into(),
        ..service(name, ports)
    }
}

/// The ranges of every listener.
fn allowed(stage: &Stage) -> Vec<serde_json::Value> {
    let listeners = stage.balancers().into_iter().flat_map(|balancer| balancer.listeners);
    listeners.map(|listener| listener.attributes["allowed_cidrs"].clone()).collect()
}

fn left_out(stage: &Stage) -> Vec<String> {
    let events = stage.reports.iter().flat_map(|report| &report.events);
    let events = events.filter(|event| event.reason == "LoadBalancerSourceRangesLeftOut");
    events.map(|event| event.message.clone()).collect()
}

#[tokio::test]
async fn ranges_of_the_other_family_are_left_out_with_a_warning() {
    let mut stage = Stage::new(1, "").await;
    let mut web = ipv4("web", &[443]);
    ranges(&mut web, &["10.0.0.0/8", "2001:db8::/32"]);
    stage.services.push(web);
    stage.settle_well().await;
    assert_eq!(allowed(&stage), [json!(["10.0.0.0/8"])]);
    let warnings = left_out(&stage);
    assert!(
        matches!(&*warnings, [text] if text.contains("2001:db8::/32") && !text.contains("10.0.0.0")),
        "{warnings:?}"
    );

    // With other changes in the same update.
    let web = stage.service("web");
    *web = ServiceView {
        ports: service("web", &[443, 444]).ports,
        ..web.clone()
    };
    ranges(web, &["10.0.0.0/8", "2001:db8::/32", "192.0.2.0/24", "2001:db9::/32"]);
    stage.settle_well().await;
    let both = json!(["10.0.0.0/8", "192.0.2.0/24"]);
    assert_eq!(allowed(&stage), [both.clone(), both]);
    stage.sim.clear_calls();
    stage.restart().await;
    stage.settle_well().await;
    assert_eq!(stage.cost().0, 0);
}

#[tokio::test]
async fn a_service_with_ranges_of_the_other_family_alone_is_refused_and_serves_as_before() {
    let mut stage = Stage::new(1, "").await;
    let mut web = ipv4("web", &[443]);
    ranges(&mut web, &["10.0.0.0/8"]);
    let mut new = ipv4("new", &[443]);
    ranges(&mut new, &["2001:db8::/32"]);
    stage.services.extend([web, new]);
    stage.settle().await;
    stage.assert_complaints(&["source ranges 2001:db8::/32"]);
    assert_eq!(stage.balancers().len(), 1);

    ranges(stage.service("web"), &["2001:db8::/32"]);
    stage.join();
    stage.settle().await;
    assert_eq!(allowed(&stage), [json!(["10.0.0.0/8"])]);
    assert_eq!(stage.balancers()[0].members.len(), 2);
    for name in ["web", "new"] {
        stage.service(name).deleting = true;
    }
    stage.settle().await;
    assert!(stage.services.is_empty(), "{:?}", stage.complaints());
}

#[tokio::test]
async fn rules_of_security_groups_have_one_family() {
    let mut stage = Stage::new(1, &format!("{MANAGED}\nlb-provider = ovn\nlb-method = SOURCE_IP_PORT")).await;
    let mut web = ipv4("web", &[443]);
    ranges(&mut web, &["10.0.0.0/8", "2001:db8::/32"]);
    stage.services.push(web);
    stage.settle_well().await;
    let groups = stage.sim.security_groups();
    let group = groups.iter().find(|group| group.name.starts_with("lb-sg-")).unwrap();
    assert_eq!(group.rules, ["ingress IPv4 tcp 30443-30443 from 10.0.0.0/8"]);
    assert_eq!(left_out(&stage).len(), 1);

    ranges(stage.service("web"), &["2001:db8::/32"]);
    stage.settle().await;
    stage.assert_complaints(&["source ranges 2001:db8::/32"]);
    assert_eq!(stage.sim.security_groups(), groups);
}
