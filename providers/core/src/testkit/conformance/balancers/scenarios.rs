//! The scenarios in which no call fails.

use std::time::Duration;

use super::*;
use crate::{
    load_balancer::{ClusterTag, FormerLoadBalancer, OwnershipTag, ServiceType},
    testkit::cluster::annotate,
};

/// Runs the scenarios in which no call fails.
///
/// # Panics
///
/// A scenario fails; the message lists all failed ones.
pub async fn balancer_scenarios(subject: &dyn BalancerSubject) {
    scenarios!(
        subject,
        a_service_stays_within_the_budget,
        a_plan_writes_nothing_and_is_empty_afterwards,
        a_change_keeps_the_address_and_can_be_undone,
        a_service_of_another_type_releases_everything,
        a_service_that_returns_to_its_type_during_the_deletion_is_served_again,
        a_service_deleted_while_no_process_runs_leaves_nothing,
        a_service_that_got_another_class_while_no_process_ran_leaves_nothing,
        a_foreign_load_balancer_of_a_service_of_another_class_is_left_unchanged,
        members_are_kept_while_no_node_is_eligible,
        nodes_with_one_address_are_one_member,
        services_do_not_disturb_each_other,
        an_abandoned_pass_is_finished_by_the_next,
        foreign_objects_are_left_unchanged,
        edits_by_users_are_kept,
        edits_of_our_objects_are_reverted,
        an_edited_load_balancer_is_deleted_completely,
        clusters_with_the_same_name_do_not_share,
    );
}

/// Checks that the calls since the last check are within the budget.
fn within(subject: &dyn BalancerSubject, what: &str, budget: Cost) -> Checked {
    let calls = subject.take_calls();
    let count = |kind| calls.iter().filter(|call| call.kind == kind).count();
    let (writes, reads) = (count(CallKind::Write), count(CallKind::Read));
    ensure!(
        writes == budget.writes && reads <= budget.reads,
        "{what}: {writes} writes and {reads} reads instead of {} and at most {}: {calls:?}",
        budget.writes,
        budget.reads
    );
    Ok(())
}

async fn a_service_stays_within_the_budget(subject: &dyn BalancerSubject) -> Checked {
    let budgets = subject.budgets();
    let mut cluster = new_cluster(subject, 6).await?;
    let empty = subject.picture().await?;
    cluster.services.push(service("web", &[80, 443, 8080]));
    settle(&mut cluster).await?;
    within(subject, "create", budgets.create)?;
    let address = web(&mut cluster)?.ingress.clone();
    settle_without_writes(subject, &mut cluster).await?;
    restart(subject, &mut cluster).await?;
    settle(&mut cluster).await?;
    let start = Cost {
        writes: 0,
        reads: budgets.restart_reads,
    };
    within(subject, "restart", start)?;
    join(subject, &mut cluster).await?;
    subject.take_calls();
    let before = subject.picture().await?;
    settle(&mut cluster).await?;
    within(subject, "join", budgets.join)?;
    ensure!(subject.picture().await? != before, "the node that joined is no member");
    cluster.nodes.pop();
    settle(&mut cluster).await?;
    ensure!(web(&mut cluster)?.ingress == address, "the address changed");
    subject.take_calls();
    web(&mut cluster)?.deleting = true;
    settle(&mut cluster).await?;
    within(subject, "delete", budgets.delete)?;
    ensure!(cluster.services.is_empty(), "the Service keeps its finalizer");
    same(&subject.picture().await?, &empty)
}

async fn a_plan_writes_nothing_and_is_empty_afterwards(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = new_cluster(subject, 2).await?;
    cluster.services.push(service("web", &[80, 443]));
    for due in [true, false] {
        let plans = cluster.load_balancers()?.plan(&cluster.request(), None).await?;
        no_writes(subject)?;
        let steps: Vec<_> = plans.iter().flat_map(|plan| &plan.steps).collect();
        ensure!(steps.is_empty() != due, "the steps are {steps:?}");
        settle(&mut cluster).await?;
        subject.take_calls();
    }
    Ok(())
}

async fn a_change_keeps_the_address_and_can_be_undone(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = served(subject).await?;
    let before = subject.picture().await?;
    let original = web(&mut cluster)?.clone();
    let web_now = web(&mut cluster)?;
    web_now.ports = service("web", &[443, 8080]).ports;
    subject.change(web_now);
    settle(&mut cluster).await?;
    ensure!(web(&mut cluster)?.ingress == original.ingress, "the address changed");
    ensure!(subject.picture().await? != before, "nothing changed");
    *web(&mut cluster)? = original;
    settle(&mut cluster).await?;
    same(&subject.picture().await?, &before)
}

async fn a_service_of_another_type_releases_everything(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = new_cluster(subject, 2).await?;
    let empty = subject.picture().await?;
    let original = service("web", &[80, 443]);
    cluster.services.push(original.clone());
    settle(&mut cluster).await?;
    web(&mut cluster)?.service_type = ServiceType::ClusterIp;
    settle(&mut cluster).await?;
    same(&subject.picture().await?, &empty)?;
    let web_now = cluster.services.first_mut().ok_or("the Service was deleted")?;
    ensure!(
        web_now.finalizers.is_empty() && web_now.ingress.is_empty(),
        "the Service keeps a finalizer or an address"
    );
    ensure!(
        web_now.annotations == original.annotations,
        "the Service keeps annotations: {:?}",
        web_now.annotations
    );
    web_now.service_type = ServiceType::LoadBalancer;
    web_now.finalizers = original.finalizers;
    annotate(web_now, "example.com/note", Some("again"));
    settle(&mut cluster).await?;
    web(&mut cluster)?;
    Ok(())
}

async fn a_service_that_returns_to_its_type_during_the_deletion_is_served_again(
    subject: &dyn BalancerSubject,
) -> Checked {
    let mut cluster = served(subject).await?;
    let expected = subject.picture().await?;
    for has_ended in [false, true] {
        let web_now = web(&mut cluster)?;
        web_now.service_type = ServiceType::NodePort;
        // The API server removes the address.
        web_now.ingress.clear();
        match has_ended {
            true => cluster.run_through().await?,
            false => cluster.pass_once().await?,
        }
        cluster.service("web").service_type = ServiceType::LoadBalancer;
        settle(&mut cluster).await?;
        web(&mut cluster)?;
        same(&subject.picture().await?, &expected)?;
    }
    Ok(())
}

async fn a_service_deleted_while_no_process_runs_leaves_nothing(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = new_cluster(subject, 2).await?;
    cluster.services.push(service("stays", &[81]));
    settle(&mut cluster).await?;
    let before = subject.picture().await?;
    cluster.services.push(service("web", &[80, 443]));
    settle(&mut cluster).await?;
    restart(subject, &mut cluster).await?;
    delete(subject, &mut cluster, &before).await?;
    ensure!(cluster.services.len() == 1, "both Services were deleted");
    Ok(())
}

/// The Service `web` gets the class of another controller and is deleted. Returns its former load balancers.
async fn delete_with_another_class(cluster: &mut TestCluster) -> Result<Vec<FormerLoadBalancer>, BoxError> {
    let web = cluster.service("web");
    web.class = Some("example.com/other".into());
    web.ingress.clear();
    settle(cluster).await?;
    cluster.service("web").deleting = true;
    settle(cluster).await?;
    let former = cluster.clean_up_former().await?;
    settle(cluster).await?;
    Ok(former)
}

async fn a_service_that_got_another_class_while_no_process_ran_leaves_nothing(
    subject: &dyn BalancerSubject,
) -> Checked {
    let mut cluster = new_cluster(subject, 2).await?;
    let empty = subject.picture().await?;
    cluster.services.push(service("web", &[80, 443]));
    settle(&mut cluster).await?;
    restart(subject, &mut cluster).await?;
    let former = delete_with_another_class(&mut cluster).await?;
    ensure!(
        matches!(former[..], [FormerLoadBalancer::Ours(_)]),
        "the former load balancer is {former:?}"
    );
    ensure!(cluster.services.is_empty(), "the Service keeps its finalizer");
    same(&subject.picture().await?, &empty)
}

async fn a_foreign_load_balancer_of_a_service_of_another_class_is_left_unchanged(
    subject: &dyn BalancerSubject,
) -> Checked {
    if !subject.reads_ownership() {
        // The Service of the other cluster has the same name and UID, so that only the tag tells them apart.
        return Ok(());
    }
    served(subject).await?;
    let theirs = subject.picture().await?;
    let mut cluster = TestCluster::new(subject.start().await?, subject.wait_until());
    cluster.ownership_tag = OwnershipTag::Known(ClusterTag::of("uid-of-the-other"));
    cluster.nodes.push(subject.create_node("conf-other").await?);
    cluster.services.push(service("web", &[80, 443]));
    let former = delete_with_another_class(&mut cluster).await?;
    ensure!(
        matches!(former[..], [FormerLoadBalancer::Unproven { .. }]),
        "the former load balancer is {former:?}"
    );
    ensure!(cluster.service("web").has_finalizer(), "the Service lost its finalizer");
    same(&subject.picture().await?, &theirs)
}

async fn members_are_kept_while_no_node_is_eligible(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = served(subject).await?;
    let before = subject.picture().await?;
    for node in &mut cluster.nodes {
        node.eligible = false;
    }
    settle_without_writes(subject, &mut cluster).await?;
    restart(subject, &mut cluster).await?;
    settle_without_writes(subject, &mut cluster).await?;
    same(&subject.picture().await?, &before)
}

async fn nodes_with_one_address_are_one_member(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = new_cluster(subject, 2).await?;
    let nodes = cluster.nodes.clone();
    for node in nodes.into_iter().filter(|node| node.address(None).is_some()) {
        let mut view = (*node.view).clone();
        view.name = format!("{}-again", view.name);
        view.uid = format!("uid-of-{}", view.name);
        cluster.nodes.push(ServiceNode {
            view: Arc::new(view),
            ..node
        });
    }
    cluster.services.push(service("web", &[80, 443]));
    settle(&mut cluster).await?;
    let twice = subject.picture().await?;
    served(subject).await?;
    same(&twice, &subject.picture().await?)
}

async fn services_do_not_disturb_each_other(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = served(subject).await?;
    let alone = subject.picture().await?;
    let address = web(&mut cluster)?.ingress.clone();
    cluster.services.push(service("api", &[80, 6443]));
    settle(&mut cluster).await?;
    let both = subject.picture().await?;
    let api = cluster.find("api").ok_or("the Service api was deleted")?;
    ensure!(
        !api.ingress.is_empty() && api.ingress != address,
        "the Service api has the addresses {:?}",
        api.ingress
    );
    ensure!(
        lines_without(&both, &alone).len() >= both.len() - alone.len(),
        "the Service api has no objects of its own"
    );
    for service in &mut cluster.services {
        service.deleting |= &*service.id.name == "api";
    }
    settle(&mut cluster).await?;
    ensure!(cluster.find("api").is_none(), "the Service api keeps its finalizer");
    ensure!(web(&mut cluster)?.ingress == address, "the address changed");
    same(&subject.picture().await?, &alone)
}

async fn an_abandoned_pass_is_finished_by_the_next(subject: &dyn BalancerSubject) -> Checked {
    let expected = {
        served(subject).await?;
        subject.picture().await?
    };
    let mut cluster = new_cluster(subject, 2).await?;
    cluster.services.push(service("web", &[80, 443]));
    for _ in 0..3 {
        // The caller gives up before the cloud can answer.
        let _ = tokio::time::timeout(Duration::ZERO, cluster.settle()).await;
    }
    settle(&mut cluster).await?;
    same(&subject.picture().await?, &expected)
}

fn edits(subject: &dyn BalancerSubject, expected: EditResult) -> Result<Vec<&'static str>, BoxError> {
    let edits = subject.edits().iter();
    let names: Vec<_> = edits.filter(|edit| edit.expected == expected).map(|edit| edit.name).collect();
    ensure!(!names.is_empty(), "the subject has no edit that is {expected:?}");
    Ok(names)
}

/// Makes an edit, which [`BalancerSubject::picture`] must show, and starts a new process.
async fn edit(subject: &dyn BalancerSubject, cluster: &mut TestCluster, name: &str) -> Checked {
    let before = subject.picture().await?;
    subject.edit(name).await?;
    ensure!(subject.picture().await? != before, "{name}: the edit is not visible");
    restart(subject, cluster).await
}

/// Adds the name of the edit to an error.
fn about(name: &str) -> impl Fn(BoxError) -> BoxError {
    move |error| format!("{name}: {error}").into()
}

async fn foreign_objects_are_left_unchanged(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = new_cluster(subject, 2).await?;
    for name in edits(subject, EditResult::Foreign)? {
        edit(subject, &mut cluster, name).await?;
    }
    let foreign = subject.picture().await?;
    cluster.services.push(service("web", &[80, 443]));
    settle(&mut cluster).await?;
    let web_now = web(&mut cluster)?;
    web_now.ports = service("web", &[443, 8080]).ports;
    subject.change(web_now);
    settle(&mut cluster).await?;
    let missing = lines_without(&foreign, &subject.picture().await?);
    ensure!(missing.is_empty(), "these were deleted or changed: {missing:#?}");
    delete(subject, &mut cluster, &foreign).await
}

async fn edits_by_users_are_kept(subject: &dyn BalancerSubject) -> Checked {
    for name in edits(subject, EditResult::Unchanged)? {
        let about = about(name);
        let mut cluster = new_cluster(subject, 2).await?;
        let empty = subject.picture().await?;
        cluster.services.push(service("web", &[80, 443]));
        settle(&mut cluster).await.map_err(&about)?;
        edit(subject, &mut cluster, name).await?;
        let edited = subject.picture().await?;
        settle_without_writes(subject, &mut cluster).await.map_err(&about)?;
        // A change of another field, and back.
        for ports in [&[80, 443, 8080][..], &[80, 443]] {
            web(&mut cluster)?.ports = service("web", ports).ports;
            settle(&mut cluster).await.map_err(&about)?;
        }
        same(&subject.picture().await?, &edited).map_err(&about)?;
        delete(subject, &mut cluster, &empty).await.map_err(&about)?;
    }
    Ok(())
}

async fn edits_of_our_objects_are_reverted(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = served(subject).await?;
    let expected = subject.picture().await?;
    for name in edits(subject, EditResult::Reverted)? {
        edit(subject, &mut cluster, name).await?;
        settle(&mut cluster).await.map_err(about(name))?;
        same(&subject.picture().await?, &expected).map_err(about(name))?;
        settle_without_writes(subject, &mut cluster).await.map_err(about(name))?;
    }
    Ok(())
}

async fn an_edited_load_balancer_is_deleted_completely(subject: &dyn BalancerSubject) -> Checked {
    for name in edits(subject, EditResult::Reverted)? {
        let mut cluster = new_cluster(subject, 2).await?;
        let empty = subject.picture().await?;
        cluster.services.push(service("web", &[80, 443]));
        settle(&mut cluster).await.map_err(about(name))?;
        edit(subject, &mut cluster, name).await?;
        delete(subject, &mut cluster, &empty).await.map_err(about(name))?;
    }
    Ok(())
}

async fn clusters_with_the_same_name_do_not_share(subject: &dyn BalancerSubject) -> Checked {
    let mut cluster = served(subject).await?;
    let ours = subject.picture().await?;
    let mut other = TestCluster::new(subject.start().await?, subject.wait_until());
    other.ownership_tag = OwnershipTag::Known(ClusterTag::of("uid-of-the-other"));
    other.nodes.push(subject.create_node("conf-other").await?);
    let mut theirs = service("web", &[80, 443]);
    theirs.id.uid = "uid-of-the-other".into();
    other.services.push(theirs);
    // If names are not unique, it has its own load balancer; otherwise, a problem is reported.
    other.settle().await?;
    let missing = lines_without(&ours, &subject.picture().await?);
    ensure!(missing.is_empty(), "these were deleted or changed: {missing:#?}");
    let theirs = other.services.first().ok_or("the other Service was deleted")?;
    ensure!(
        theirs.ingress.is_empty() != other.complaints().is_empty(),
        "the other Service has the addresses {:?} and the problems {:?}",
        theirs.ingress,
        other.complaints()
    );
    ensure!(
        theirs.ingress.is_empty() || theirs.ingress != web(&mut cluster)?.ingress,
        "both Services have the same address"
    );
    restart(subject, &mut cluster).await?;
    settle_without_writes(subject, &mut cluster).await?;
    for service in &mut other.services {
        service.deleting = true;
    }
    settle(&mut other).await?;
    ensure!(other.services.is_empty(), "the other Service keeps its finalizer");
    same(&subject.picture().await?, &ours)?;
    restart(subject, &mut cluster).await?;
    settle_without_writes(subject, &mut cluster).await
}
