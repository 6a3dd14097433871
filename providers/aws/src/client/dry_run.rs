//! Checks of permissions by API calls that change nothing.

use aws_sdk_ec2::types::Tag;
use ccm_core::{Error, ErrorKind, Result, check::in_time};
use futures_util::future::{BoxFuture, join_all};

use super::{Client, Op};

/// The documentation's example network: no cluster has Pods there.
const NETWORK: &str = "192.0.2.0/24";

impl Client {
    /// The ARN of the identity that the credentials belong to.
    ///
    /// # Errors
    ///
    /// STS cannot be reached, or refuses the credentials.
    pub(crate) async fn caller(&self) -> Result<String> {
        Ok(send!(self, CallerIdentity)?.arn.unwrap_or_default())
    }

    /// Tries operations, those for routes only with a route table. Writes are dry runs; reads are as small as possible.
    /// [`ErrorKind::PermissionDenied`] means that an operation is not allowed; any other error, that this could not be
    /// checked.
    pub(crate) async fn try_out(&self, vpc: &str, table: Option<&str>) -> Vec<(Op, Result<()>)> {
        let (has_table, table) = (table.is_some(), table.unwrap_or_default());
        // A dry run is not a write, so fences do not apply.
        macro_rules! trials {
            ($($op:ident($($fields:tt)*);)+) => {
                [$((Op::$op, Box::pin(async {
                    let request = self.call(Op::DryRun, |clients| {
                        super::ops::request!(clients, $op) $($fields)*.send()
                    });
                    in_time(request).await.map(drop).or_else(allowed)
                }) as BoxFuture<'_, Result<()>>)),+]
            };
        }
        let trials = trials! {
            Instances(.dry_run(true));
            Subnets(.dry_run(true));
            Zones(.dry_run(true));
            SecurityGroups(.dry_run(true));
            SecurityGroupCreate(.dry_run(true).group_name("validate").description("validate").vpc_id(vpc));
            TagsCreate(.dry_run(true).resources(vpc).tags(Tag::builder().key("validate").value("").build()));
            LoadBalancers(.page_size(1));
            ClassicLoadBalancers(.page_size(1));
            TargetGroups(.page_size(1));
            RouteCreate(.dry_run(true).route_table_id(table).destination_cidr_block(NETWORK).gateway_id("local"));
            RouteReplace(.dry_run(true).route_table_id(table).destination_cidr_block(NETWORK).local_target(true));
            RouteDelete(.dry_run(true).route_table_id(table).destination_cidr_block(NETWORK));
        };
        let is_of_route = |op| matches!(op, Op::RouteCreate | Op::RouteReplace | Op::RouteDelete);
        let trials = trials.into_iter();
        let trials = trials.filter(|(op, _)| has_table || !is_of_route(*op));
        join_all(trials.map(|(op, trial)| async move { (op, trial.await) })).await
    }
}

/// The result of a dry run. A request that would have succeeded, or that fails for another reason than a missing permission,
/// is allowed.
fn allowed(error: Error) -> Result<()> {
    match (crate::error::code(&error), error.kind()) {
        (Some("DryRunOperation"), _) => Ok(()),
        (Some(_), ErrorKind::InvalidSpec | ErrorKind::NotFound | ErrorKind::AlreadyExists) => Ok(()),
        _ => Err(error),
    }
}
