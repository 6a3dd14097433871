//! Flags of the section "Routes".

use clap::Args;

use super::{config::RouteConfig, value::Reader};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Routes")]
pub(super) struct RouteOptions {
    /// Keep routes in the cloud to the pods of each node (spec.podCIDRs), if the cloud provider's config says where. Else,
    /// or with false, no route is touched, and no node's condition NetworkUnavailable.
    #[arg(long, value_name = "BOOL", default_value = "true")]
    configure_cloud_routes: String,

    /// The network of all pods, such as 10.244.0.0/16; two of them, separated by a comma, with IPv4 and IPv6. Routes are
    /// made, and deleted, only inside: what is there and leads to no node goes. Needed where routes are made; without it
    /// the route controller says so and rests, and the others run.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    cluster_cidr: String,

    /// How often routes are compared with the cloud though no node has changed, to mend what was changed there (elsewhere
    /// 10s; here 5m unless it is set). A duration. What failed is tried again by itself.
    #[arg(long, value_name = "DURATION", default_value = "", hide_default_value = true)]
    route_reconciliation_period: String,
}

impl RouteOptions {
    pub(super) fn complete(&self, reader: &mut Reader) -> RouteConfig {
        let period = self.route_reconciliation_period.as_str();
        RouteConfig {
            enabled: reader.boolean("configure-cloud-routes", &self.configure_cloud_routes),
            cluster_cidr: self.cluster_cidr.clone(),
            period: (!period.is_empty())
                .then(|| reader.positive_duration("route-reconciliation-period", period)),
        }
    }
}
