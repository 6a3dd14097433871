//! Tries of API calls that change nothing: which rights there are.

use ccm_core::{ErrorKind, Result};

use super::{Client, Op, ec2::sdk_tags};

/// What dry runs are about.
pub(crate) struct Trial<'a> {
    /// The cluster's VPC.
    pub(crate) vpc: &'a str,
    /// A route table, if there is one.
    pub(crate) table: Option<&'a str>,
}

impl Trial<'_> {
    /// What can be tried.
    pub(crate) const OPERATIONS: &'static [Op] = &[
        Op::Instances,
        Op::Subnets,
        Op::Zones,
        Op::SecurityGroups,
        Op::SecurityGroupCreate,
        Op::TagsCreate,
        Op::RouteCreate,
        Op::RouteReplace,
        Op::RouteDelete,
        Op::LoadBalancers,
        Op::TargetGroups,
        Op::ClassicLoadBalancers,
    ];
}

impl Client {
    /// The ARN of whom AWS sees in us.
    ///
    /// # Errors
    ///
    /// STS cannot be reached, or refuses the credentials.
    pub(crate) async fn caller(&self) -> Result<String> {
        let reply = send!(self, CallerIdentity, sts.get_caller_identity =>)?;
        Ok(reply.arn.unwrap_or_default())
    }

    /// Whether an operation is allowed: writes are dry runs, reads read as little as possible. False: it cannot be tried.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] if it is not allowed; any other if that could not be found out.
    pub(crate) async fn try_out(&self, op: Op, trial: &Trial<'_>) -> Result<bool> {
        // The documentation's example network: no cluster has Pods there.
        const NETWORK: &str = "192.0.2.0/24";
        let table = trial.table.unwrap_or_default();
        if matches!(op, Op::RouteCreate | Op::RouteReplace | Op::RouteDelete) && trial.table.is_none() {
            return Ok(false);
        }
        // A dry run is no write, so that no fence refuses it.
        macro_rules! tried {
            ($api:ident.$action:ident $($fields:tt)*) => {
                send!(self, DryRun, $api.$action => $($fields)*).map(|_| true).or_else(allowed)
            };
        }
        match op {
            Op::Instances => tried!(ec2.describe_instances.dry_run(true)),
            Op::Subnets => tried!(ec2.describe_subnets.dry_run(true)),
            Op::Zones => tried!(ec2.describe_availability_zones.dry_run(true)),
            Op::SecurityGroups => tried!(ec2.describe_security_groups.dry_run(true)),
            Op::SecurityGroupCreate => tried!(
                ec2.create_security_group
                    .dry_run(true)
                    .group_name("validate")
                    .description("validate")
                    .vpc_id(trial.vpc)
            ),
            Op::TagsCreate => tried!(
                ec2.create_tags
                    .dry_run(true)
                    .resources(trial.vpc)
                    .set_tags(sdk_tags([("validate", "")]))
            ),
            Op::RouteCreate => tried!(
                ec2.create_route
                    .dry_run(true)
                    .route_table_id(table)
                    .destination_cidr_block(NETWORK)
                    .gateway_id("local")
            ),
            Op::RouteReplace => tried!(
                ec2.replace_route
                    .dry_run(true)
                    .route_table_id(table)
                    .destination_cidr_block(NETWORK)
                    .local_target(true)
            ),
            Op::RouteDelete => tried!(
                ec2.delete_route
                    .dry_run(true)
                    .route_table_id(table)
                    .destination_cidr_block(NETWORK)
            ),
            Op::LoadBalancers => tried!(elbv2.describe_load_balancers.page_size(1)),
            Op::TargetGroups => tried!(elbv2.describe_target_groups.page_size(1)),
            Op::ClassicLoadBalancers => tried!(elb.describe_load_balancers.page_size(1)),
            _ => Ok(false),
        }
    }
}

/// The answer to a dry run: EC2 says that the request would have succeeded, or that it is wrong in another way than that it is
/// not allowed.
fn allowed(error: ccm_core::Error) -> Result<bool> {
    match (crate::error::code(&error), error.kind()) {
        (Some("DryRunOperation"), _) => Ok(true),
        (Some(_), ErrorKind::InvalidSpec | ErrorKind::NotFound | ErrorKind::AlreadyExists) => Ok(true),
        _ => Err(error),
    }
}
