//! The leases of the process, and their fences.

use ccm_core::{
    client::{Fence, Fences},
    controllers::events::EventMetrics,
};
use kube::Client;

use crate::{
    api::{Accounts, ApiServer, Work},
    app::{self, Clients, Term},
    config::{Config, ElectionConfig},
    controllers::{self, route, service},
    election::{self, Candidacy, Contest, Election, Elections, Leader, Purpose},
    server::{Shown, Status, status::Leadership},
};

/// The client of the cluster's ID, and its account. Every cluster has the Role `system:controller:cloud-provider` in `kube-system`, with
/// which this account reads and creates ConfigMaps.
const CLUSTER_ID_CLIENT: &str = "cloud-provider";

/// The leases, before this process contends for them.
pub(super) struct Leases<'a> {
    config: &'a Config,
    /// `None` if there is no election.
    election: Option<&'a ElectionConfig>,
    /// Passed by all work without a fence of its own.
    main: Fence,
    /// The name and the fence of the lease of controllers that migrate between managers.
    migration: Option<(&'a str, Fence)>,
}

/// The elections of the process, and its clients.
pub(super) struct Elected {
    pub(super) elections: Elections,
    /// The client of the stores, and of everything else without a controller.
    pub(super) client: Client,
    /// The client of writes by a replica that does not lead.
    pub(super) replica_client: Client,
    /// The client of reads of the cluster's ID, and of its creation.
    pub(super) cluster_id_client: Client,
    /// The lease of the process, and that of a migration if there is one.
    pub(super) terms: Vec<Term>,
}

impl<'a> Leases<'a> {
    /// A dry run reads and never leads. A process that runs no migrated controller leaves their lease to others.
    pub(super) fn new(config: &'a Config) -> Self {
        let election = if config.dry_run {
            None
        } else {
            config.election.as_ref()
        };
        let migration = if config.controllers.migrated.is_empty() {
            None
        } else {
            election.and_then(|election| election.migration.as_ref())
        };
        Self {
            main: match (election, config.dry_run) {
                (None, false) => Fence::default(),
                _ => Fence::standby(),
            },
            migration: migration.map(|migration| (migration.lease.as_str(), Fence::standby())),
            election,
            config,
        }
    }

    /// The fences of writes to the cloud.
    pub(super) fn fences(&self) -> Fences {
        let of = |controller| match &self.migration {
            Some((_, fence)) if self.config.controllers.migrated.contains(controller) => fence.clone(),
            _ => self.main.clone(),
        };
        Fences {
            load_balancers: of(service::NAME),
            routes: of(route::NAME),
            others: self.main.clone(),
        }
    }

    /// Creates the clients, and the elections, each of which begins when its candidacy is used.
    pub(super) fn contend(
        self,
        api_server: &ApiServer,
        shown: &Shown,
        event_metrics: &EventMetrics,
    ) -> anyhow::Result<Elected> {
        let limit = self.config.api_server.limit;
        let work = api_server.for_work(limit, &self.main)?;
        let client = work.client(Some(app::CLIENT))?;
        let cluster_id_client = match accounts(self.config, api_server, &work, &self.main)? {
            Some(accounts) => accounts.client(CLUSTER_ID_CLIENT)?,
            None => client.clone(),
        };
        let contest = match self.election {
            Some(election) => {
                let client = api_server.for_election(election::request_timeout(election))?;
                Some(Contest::new(election, client, shown, event_metrics))
            }
            None => None,
        };
        let (mut elections, mut terms, mut leases) = (Vec::new(), Vec::new(), Vec::new());
        let main = self.election.map(|election| election.name.as_str());
        let mut all = vec![(Purpose::Main, main, self.main, work)];
        if let Some((lease, fence)) = self.migration {
            let work = api_server.for_work(limit, &fence)?;
            all.push((Purpose::Migration, Some(lease), fence, work));
        }
        for (purpose, lease, fence, work) in all {
            let clients = clients(self.config, api_server, &work, &fence)?;
            let (election, candidacy) = match contest.as_ref().zip(lease) {
                Some((contest, lease)) => Election::start(contest, purpose, lease, fence.clone()),
                None => Election::none(fence.clone()),
            };
            let namespace = self.election.map(|election| election.namespace.as_str());
            let lease = namespace.zip(lease).map(|(namespace, name)| format!("{namespace}/{name}"));
            leases.push((lease, candidacy.clone()));
            elections.push(election);
            terms.push(Term {
                purpose,
                candidacy,
                clients,
                fence,
            });
        }
        show(&shown.status, leases, self.config.dry_run);
        Ok(Elected {
            elections: Elections(elections),
            replica_client: contest.map_or_else(|| client.clone(), |contest| contest.client),
            client,
            cluster_id_client,
            terms,
        })
    }
}

/// Creates clients with accounts of their own, if `--use-service-account-credentials` is set.
fn accounts(
    config: &Config,
    api_server: &ApiServer,
    work: &Work,
    fence: &Fence,
) -> anyhow::Result<Option<Accounts>> {
    if !config.service_accounts {
        return Ok(None);
    }
    let others = api_server.for_others(config.api_server.limit, fence)?;
    Ok(Some(Accounts::new(others, work.client(None)?)))
}

/// The clients of the enabled controllers: each has its name in its user agent, and acts as its own account if
/// `--use-service-account-credentials` is set.
fn clients(config: &Config, api_server: &ApiServer, work: &Work, fence: &Fence) -> anyhow::Result<Clients> {
    let accounts = accounts(config, api_server, work, fence)?;
    let mut clients = Clients::new();
    for controller in controllers::all(config.provider) {
        let names = controller.names();
        let name = names.client_name;
        if config.controllers.is_enabled(names.name) && !clients.contains_key(name) {
            let client = match &accounts {
                Some(accounts) => accounts.client(name),
                None => work.client(Some(name)),
            };
            clients.insert(name, client?);
        }
    }
    Ok(clients)
}

/// Shows the state of the leases. With each, its name if there is an election.
fn show(status: &Status, leases: Vec<(Option<String>, Candidacy)>, dry_run: bool) {
    status.set_leadership(move || {
        let mut all = leases.iter().map(|(lease, candidacy)| {
            let leader = candidacy.leader();
            let renewed_seconds_ago = match (lease, leader.renewed()) {
                (Some(_), Some(renewed)) => Some(renewed.elapsed().as_secs()),
                _ => None,
            };
            Leadership {
                lease: lease.clone(),
                leads: !dry_run && leader.is_we(),
                dry_run,
                renewed_seconds_ago,
                leader: match leader {
                    Leader::Other(identity) => Some(identity),
                    Leader::Unknown | Leader::We(_) => None,
                },
                migration: None,
            }
        });
        let main = all.next().unwrap_or_default();
        let migration = all.next().map(Box::new);
        Leadership { migration, ..main }
    });
}
