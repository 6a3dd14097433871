//! Rebuilds the objects of the upstream program from the recordings, with requests of the tests, for a program that has never
//! read them.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    cases::{Case, CaseState, name_of},
    play::{FINALIZER, Play},
    site::{PresentNames, Site},
};

/// The phase of a recording that is rebuilt: the last of those in which all its Services were created.
fn state_of_upstream(case: &Case, case_state: &CaseState) -> Result<Value> {
    let last = case.services.last().map(name_of).unwrap_or_default();
    let name = if case.one_by_one {
        format!("create {last}")
    } else {
        "create".to_owned()
    };
    case_state.expect(&name)
}

/// Creates the Services of a case and everything that upstream created for them. The program must not run.
pub(crate) async fn build<S: Site>(play: &Play<S>, case: &Case) -> Result<CaseState> {
    let mut case_state = CaseState::new(S::CLOUD, case)?;
    let phase = state_of_upstream(case, &case_state)?;
    play.site.seed(&case.seed).await?;
    for service in case.services.iter().filter(|service| !case.later.contains(&name_of(service))) {
        let mut service = service.clone();
        let recorded = &phase["services"][name_of(&service)]["finalizers"];
        service["metadata"]["finalizers"] = if recorded.is_array() {
            recorded.clone()
        } else {
            json!([FINALIZER])
        };
        if let Some(annotations) = service["metadata"]["annotations"].as_object_mut() {
            annotations.retain(|_, value| value.as_str().is_none_or(|value| !value.contains("${LB_OF_")));
        }
        play.create(&mut case_state, &service).await?;
    }
    play.observe(&mut case_state).await?;
    let mut now = PresentNames::default();
    for (value, name) in &case_state.words {
        let number = value.parse::<u64>().map_or_else(|_| json!(value), |number| json!(number));
        now.insert(name, number);
    }
    play.site.rebuild(&phase, &mut now).await?;
    for (name, service) in phase["services"].as_object().into_iter().flatten() {
        let annotations = json!({"metadata": {"annotations": now.value(&service["annotations"])}});
        play.services.patch(name, &PatchParams::default(), &Patch::Merge(annotations)).await?;
        let status = json!({"status": now.value(&service["status"])});
        play.services.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    Ok(case_state)
}

/// Resource versions of the Services, which change with every patch.
pub(crate) async fn versions<S: Site>(
    play: &Play<S>,
    case_states: &[CaseState],
) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for name in case_states.iter().flat_map(|case_state| case_state.uids.keys()) {
        let version = play.services.get(name).await?.metadata.resource_version;
        versions.insert(name.clone(), version.unwrap_or_default());
    }
    Ok(versions)
}
