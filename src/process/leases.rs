//! The leases of the process, and what is fenced by which.

use ccm_core::{
    client::{Fence, Fences},
    controllers::events::EventMetrics,
};
use kube::Client;

use crate::{
    api::{Accounts, ApiServer, Work},
    app::{self, Clients, Term},
    config::{Config, Controllers, ElectionConfig},
    controllers::{self, route, service},
    election::{self, Candidacy, Contest, Election, Elections, Leader, Purpose},
    server::{Checks, Metrics, Status, status::Leadership},
};

/// Which leases there are, before anybody contends for them.
pub(super) struct Leases<'a> {
    config: Option<&'a ElectionConfig>,
    /// What all work passes that nothing else is said of.
    main: Fence,
    migration: Option<Migration<'a>>,
}

/// The lease of the controllers that are handed over between managers.
struct Migration<'a> {
    lease: &'a str,
    fence: Fence,
    controllers: &'a Controllers,
}

/// Where metrics, events and checks of elections go.
pub(super) struct Observed<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) event_metrics: &'a EventMetrics,
    pub(super) checks: &'a Checks,
    pub(super) status: &'a Status,
}

/// The process as a candidate.
pub(super) struct Elected {
    pub(super) elections: Elections,
    /// The API server, for the stores and whatever is no controller's own.
    pub(super) client: Client,
    pub(super) main: Term,
    pub(super) migration: Option<Term>,
    /// The API server, for what a replica that does not lead may write.
    pub(super) replica_client: Client,
}

impl<'a> Leases<'a> {
    /// A dry run reads and leaves it to others to lead. Who runs none of the controllers that are handed over leaves their
    /// lease to those who do.
    pub(super) fn new(config: &'a Config) -> Self {
        let election = config.election.as_ref().filter(|_| !config.dry_run);
        let controllers = &config.controllers;
        let migration = election
            .and_then(|election| election.migration.as_ref())
            .filter(|_| !controllers.migrated.is_empty());
        Self {
            main: match (election, config.dry_run) {
                (None, false) => Fence::default(),
                _ => Fence::standby(),
            },
            migration: migration.map(|migration| Migration {
                lease: &migration.lease,
                fence: Fence::standby(),
                controllers,
            }),
            config: election,
        }
    }

    /// The fences of what is written to the cloud.
    pub(super) fn fences(&self) -> Fences {
        let of = |controller| match &self.migration {
            Some(migration) if migration.controllers.migrated.contains(controller) => &migration.fence,
            _ => &self.main,
        };
        Fences {
            load_balancers: of(service::NAME).clone(),
            routes: of(route::NAME).clone(),
            others: self.main.clone(),
        }
    }

    /// Makes the clients, and the elections, which begin when somebody wants to lead.
    pub(super) fn contend(
        self,
        api_server: &ApiServer,
        options: &Config,
        observed: &Observed<'_>,
    ) -> anyhow::Result<Elected> {
        let work = api_server.for_work(options.api_server.limit, &self.main)?;
        let client = work.client(Some(app::CLIENT))?;
        let clients = clients(options, api_server, &work, &self.main)?;
        let fence = self.main.clone();
        let Some(config) = self.config else {
            let (main, candidacy) = Election::none(self.main);
            show(observed.status, (None, &candidacy), None, options.dry_run);
            return Ok(Elected {
                elections: Elections {
                    main,
                    migration: None,
                },
                replica_client: client.clone(),
                client,
                main: Term {
                    candidacy,
                    clients,
                    fence,
                },
                migration: None,
            });
        };
        let replica_client = api_server.for_election(election::request_timeout(config))?;
        let contest = Contest::new(
            config,
            replica_client.clone(),
            observed.metrics,
            observed.event_metrics,
            observed.checks,
        );
        let (main, candidacy) = Election::start(&contest, Purpose::Main, &config.name, self.main);
        let migration = match self.migration {
            None => None,
            Some(Migration { lease, fence, .. }) => {
                let work = api_server.for_work(options.api_server.limit, &fence)?;
                let clients = self::clients(options, api_server, &work, &fence)?;
                let (election, candidacy) =
                    Election::start(&contest, Purpose::Migration, lease, fence.clone());
                let term = Term {
                    candidacy,
                    clients,
                    fence,
                };
                Some((lease, election, term))
            }
        };
        let full = |name: &str| Some(format!("{}/{name}", config.namespace));
        let second = migration
            .as_ref()
            .map(|(lease, _, term)| (full(lease), &term.candidacy));
        show(
            observed.status,
            (full(&config.name), &candidacy),
            second,
            options.dry_run,
        );
        let (second, migration) = migration.map(|(_, election, term)| (election, term)).unzip();
        Ok(Elected {
            elections: Elections {
                main,
                migration: second,
            },
            client,
            main: Term {
                candidacy,
                clients,
                fence,
            },
            migration,
            replica_client,
        })
    }
}

/// The clients of the enabled controllers: each has its name in its user agent, and acts as its own account if that is
/// asked for.
fn clients(options: &Config, api_server: &ApiServer, work: &Work, fence: &Fence) -> anyhow::Result<Clients> {
    let accounts = match options.service_accounts {
        true => {
            let others = api_server.for_others(options.api_server.limit, fence)?;
            Some(Accounts::new(others, work.client(None)?))
        }
        false => None,
    };
    let mut clients = Clients::new();
    for controller in controllers::all(options.provider) {
        let name = controller.client_name;
        if options.controllers.is_enabled(controller.name) && !clients.contains_key(name) {
            let client = match &accounts {
                Some(accounts) => accounts.client(name),
                None => work.client(Some(name)),
            };
            clients.insert(name, client?);
        }
    }
    Ok(clients)
}

/// A Lease, if there is an election, and our part in it.
type Shown<'a> = (Option<String>, &'a Candidacy);

/// Lets people see which leases are held.
fn show(status: &Status, main: Shown<'_>, migration: Option<Shown<'_>>, dry_run: bool) {
    let source = |(lease, candidacy): Shown<'_>| {
        let candidacy = candidacy.clone();
        move || {
            let leader = candidacy.leader();
            let renewed = leader.renewed().filter(|_| lease.is_some());
            Leadership {
                lease: lease.clone(),
                leads: !dry_run && leader.is_we(),
                dry_run,
                renewed_seconds_ago: renewed.map(|renewed| renewed.elapsed().as_secs()),
                leader: match leader {
                    Leader::Other(identity) => Some(identity),
                    Leader::Unknown | Leader::We(_) => None,
                },
                migration: None,
            }
        }
    };
    let (main, migration) = (source(main), migration.map(source));
    status.set_leadership(move || Leadership {
        migration: migration.as_ref().map(|migration| migration().into()),
        ..main()
    });
}
