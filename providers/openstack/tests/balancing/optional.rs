//! Listings of optional kinds that fail: floating IPs, and security groups that the config does not manage.

use ccm_sim::{Action, Fault};

use crate::stage::{INTERNAL, MANAGED, Stage, annotate, service};

/// How a listing fails: refused for good, or for a while.
const CODES: [u16; 2] = [403, 503];

fn fail(stage: &Stage, op: &str, code: u16) {
    stage.sim.add_fault(Fault::on(op, Action::status(code)));
}

fn members(stage: &Stage) -> usize {
    stage.balancers().iter().map(|balancer| balancer.members.len()).sum()
}

#[tokio::test]
async fn an_internal_service_is_served_although_floating_ips_were_never_read() {
    for code in CODES {
        let mut stage = Stage::new(1, "").await;
        fail(&stage, "floating_ip_list", code);
        let mut internal = service("internal", &[80]);
        annotate(&mut internal, INTERNAL, Some("true"));
        stage.services.push(internal);
        stage.settle_well().await;
        let balancer = stage.balancers().remove(0).loadbalancer;
        assert_eq!(balancer.attributes["vip_address"], stage.address("internal").as_str());

        // A Service that gets a floating IP waits, and holds up no other.
        stage.services.push(service("public", &[80]));
        stage.join();
        stage.settle().await;
        stage.assert_complaints(&[if code == 403 { "403" } else { "503" }]);
        assert_eq!((stage.balancers().len(), members(&stage)), (1, 2), "{code}");
        assert_eq!(stage.address("public"), "");

        stage.service("internal").deleting = true;
        stage.settle().await;
        assert_eq!((stage.services.len(), stage.balancers().len()), (1, 0), "{code}");
        stage.sim.clear_faults();
        stage.settle_well().await;
        assert_eq!(stage.sim.floating_ips().len(), 1);
        assert_eq!(stage.address("public"), stage.sim.floating_ips()[0].address.to_string());
    }
}

#[tokio::test]
async fn a_public_service_follows_the_nodes_and_keeps_its_address_while_floating_ips_fail() {
    for code in CODES {
        let mut stage = Stage::new(1, "").await;
        stage.services.push(service("web", &[80]));
        stage.settle_well().await;
        let address = stage.address("web");
        fail(&stage, "floating_ip_list", code);
        stage.restart().await;
        stage.join();
        stage.settle().await;
        assert_eq!(members(&stage), 2, "{code}");
        assert_eq!(stage.address("web"), address);
        // It becomes internal only when its floating IP can be released.
        annotate(stage.service("web"), INTERNAL, Some("true"));
        stage.settle().await;
        assert_eq!(stage.address("web"), address);
        annotate(stage.service("web"), INTERNAL, None);
        // Without the listing, its floating IP would be forgotten.
        stage.service("web").deleting = true;
        stage.settle().await;
        assert_eq!((stage.services.len(), stage.balancers().len()), (1, 1), "{code}");
        stage.sim.clear_faults();
        stage.settle().await;
        assert!(stage.services.is_empty(), "{:?}", stage.complaints());
        assert!(stage.sim.floating_ips().is_empty());
    }
}

#[tokio::test]
async fn security_groups_that_are_not_managed_may_be_unreadable() {
    for code in CODES {
        let mut stage = Stage::new(1, "").await;
        fail(&stage, "security_group_list", code);
        stage.services.push(service("web", &[80]));
        stage.settle_well().await;
        assert!(!stage.address("web").is_empty());
        stage.service("web").deleting = true;
        stage.settle().await;
        // A group that may exist is not forgotten.
        assert_eq!(stage.services.is_empty(), code == 403, "{code}");
        stage.sim.clear_faults();
        stage.settle().await;
        assert!(stage.services.is_empty() && stage.balancers().is_empty());
    }
}

#[tokio::test]
async fn a_group_of_former_settings_is_deleted_once_groups_can_be_read() {
    let mut stage = Stage::new(1, MANAGED).await;
    stage.services.push(service("web", &[80]));
    stage.settle_well().await;
    let groups = |stage: &Stage| {
        let groups = stage.sim.security_groups();
        groups.iter().filter(|group| group.name.starts_with("lb-sg-")).count()
    };
    fail(&stage, "security_group_list", 503);
    stage.restart_with("").await;
    stage.service("web").deleting = true;
    stage.settle().await;
    assert_eq!((stage.services.len(), groups(&stage)), (1, 1));
    stage.sim.clear_faults();
    stage.settle().await;
    assert_eq!((stage.services.len(), groups(&stage)), (0, 0));
}
