//! Objects without ownership tags: two clusters in one project.

use ccm_core::{
    load_balancer::OwnNames,
    plan::objects::{Desired, Objects},
    testkit::laws::{neighbors, service_id},
};

use crate::{
    forwarding::{ForwardingKind, ForwardingObject},
    rulebook::{Rulebook, RulebookFlaw},
};

#[tokio::test(start_paused = true)]
async fn two_clusters_in_one_project_leave_each_other_alone() {
    let orphans = neighbors(&Rulebook::default()).await.unwrap();
    let orphans: Vec<_> = orphans.iter().map(|orphan| orphan.what.as_str()).collect();
    assert_eq!(orphans, ["pool pool-otheru0", "pool pool-otheru1", "pool pool-otheru2"]);
}

#[tokio::test(start_paused = true)]
async fn ownership_by_the_shape_of_a_name_breaks_neighbors() {
    for (flaw, how) in [
        (RulebookFlaw::OwnsByShape, "was changed"),
        (RulebookFlaw::ReportsByShape, "ours reports"),
        (RulebookFlaw::DeletesOrphans, "may be deleted"),
    ] {
        let flawed = Rulebook {
            flaw: Some(flaw),
            ..Rulebook::default()
        };
        let broken = neighbors(&flawed).await.unwrap_err();
        assert!(broken.law == "neighbors" && broken.how.contains(how), "{flaw:?}: {broken}");
    }
}

#[test]
fn an_object_of_a_kind_without_tags_is_changed_only_if_its_name_is_ours() {
    let note = |name: &str| ForwardingObject::new(ForwardingKind::Note, name);
    let tagged = ForwardingObject::new(ForwardingKind::Address, "any");
    let mut observed = Objects {
        all: vec![note("note-u0"), note("note-u1"), note("note-c1d"), tagged],
        refused: Vec::new(),
    };
    observed.hold_unproven(&OwnNames::new([&service_id(0)], Some("c1d")));
    let plan = Desired::default().diff(&observed);
    let mut deleted: Vec<_> = plan.steps.iter().map(ToString::to_string).collect();
    deleted.sort();
    assert_eq!(
        deleted,
        [
            "delete address any",
            "delete note note-c1d",
            "delete note note-u0"
        ]
    );
}
