//! An account of AWS on moto, as the recorder creates it.

mod upstream;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use ccm_testbed::{
    moto::{Account, Machine, Moto},
    nodes::NodeSpec,
    proxy::{Action, Dialect as _, Request, Rule},
};
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::{
    cases,
    names::balancer_name,
    play::CLUSTER,
    site::{Call, Host, Names, PresentNames, Site},
};

/// Texts whose values differ between accounts, as in `normal` of the recorder.
const PATTERNS: [(&str, &str); 4] = [
    (r#"arn:aws:elasticloadbalancing:[^\s",]+"#, "<arn>"),
    (r"\b(k8s-[a-z0-9]+-[a-z0-9]+)-[0-9a-f]{10}\b", "${1}-<hash>"),
    (r"(?i)request ?id: ?[\w-]+", "RequestID: <id>"),
    (r"-[0-9a-f]{16}\.elb\.", "-<key>.elb."),
];

pub(crate) struct AwsSite {
    account: Account<'static>,
    machines: Vec<Machine>,
}

impl AwsSite {
    /// A new account with four instances, of which three are nodes.
    pub(crate) async fn start() -> Result<Self> {
        let account = Moto::shared().await?.account(CLUSTER, 0).await?;
        let names: Vec<_> = (1..=4).map(|at| format!("node-{at}")).collect();
        Ok(Self {
            machines: account.launch(&names).await?,
            account,
        })
    }
}

impl AwsSite {
    /// Denies the program every action that is not in upstream's documented IAM policy (`aws/upstream-rights.json`).
    pub(crate) fn restrict(&self) -> Result<()> {
        let rights: Vec<String> = serde_json::from_str(&cases::read("aws", "upstream-rights.json")?)?;
        let is_denied = move |request: &Request| {
            let action =
                |right: &String| right.split_once(':').is_some_and(|(_, action)| action == request.name);
            // Every identity may call GetCallerIdentity.
            !["", "sts"].contains(&request.resource.as_str()) && !rights.iter().any(action)
        };
        let denied = Action::status(403);
        self.account.proxy.add(Rule::when(is_denied, denied));
        Ok(())
    }
}

impl Site for AwsSite {
    const CLOUD: &'static str = "aws";
    type Moment = usize;

    fn nodes(&self) -> Vec<NodeSpec> {
        let node = |((_, name, id, zone), pool): (&Machine, &str)| NodeSpec {
            provider_id: Some(format!("aws:///{zone}/{id}")),
            labels: [("pool".to_owned(), pool.to_owned())].into(),
            ..NodeSpec::new(name)
        };
        self.machines.iter().zip(["a", "a", "b"]).map(node).collect()
    }

    fn cloud_conf(&self, changes: &Value) -> String {
        let more = changes.as_object().into_iter().flatten();
        let more: String = more
            .map(|(key, value)| format!("{key}={}\n", value.as_str().unwrap_or_default()))
            .collect();
        let conf = self.account.cloud_conf();
        conf.replacen("[Global]\n", &format!("[Global]\n{more}"), 1)
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.account.environment()
    }

    fn variable(&self, name: &str) -> Option<String> {
        Some(self.account.id(name).to_owned()).filter(|id| !id.is_empty())
    }

    fn mark(&self) -> Result<usize> {
        Ok(self.account.proxy.requests().len())
    }

    fn calls_since(&self, moment: &usize) -> Result<Vec<Call>> {
        let calls = self.account.proxy.requests().into_iter().skip(*moment);
        Ok(calls
            .filter(|request| !["", "sts"].contains(&request.resource.as_str()))
            .map(|request| Call {
                text: format!("{request} {}", request.body),
                is_write: self.account.proxy.dialect().is_change(&request),
            })
            .collect())
    }

    async fn dump(&self, uids: &BTreeMap<String, String>) -> Result<(Value, Names)> {
        let balancers = uids.iter().map(|(name, uid)| (balancer_name(uid), json!(name)));
        let balancers: Map<_, _> = balancers.collect();
        let (objects, names) = self.account.dump(&Value::Object(balancers)).await?;
        let ids = serde_json::from_value(names).context("the names of ids")?;
        let patterns = PATTERNS.map(|(pattern, name)| Ok((Regex::new(pattern)?, name)));
        Ok((
            objects,
            Names {
                ids,
                patterns: patterns.into_iter().collect::<Result<_>>()?,
                ..Names::default()
            },
        ))
    }

    async fn clear(&self) -> Result<()> {
        self.account.clean().await
    }

    async fn rebuild(&self, phase: &Value, now: &mut PresentNames) -> Result<()> {
        let made = self.account.rebuild(&phase["cloud"], &json!(now.words)).await?;
        for (name, value) in made.as_object().into_iter().flatten() {
            now.insert(name, value.clone());
        }
        Ok(())
    }

    fn writes_of_upstream(&self, got: &Value, hosts: &[Host], config: &Value) -> Vec<String> {
        upstream::writes(got, hosts, config)
    }
}
