//! Tries of API calls that change nothing: which rights there are.

use ccm_core::{ErrorKind, Priority, Result};

use super::{Api, Clients, Op};

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

impl Api {
    /// The ARN of whom AWS sees in us.
    ///
    /// # Errors
    ///
    /// STS cannot be reached, or refuses the credentials.
    pub(crate) async fn caller(&self) -> Result<String> {
        let request = |clients: &Clients| clients.sts.get_caller_identity().send();
        let reply = self.call(Op::CallerIdentity, Priority::User, request).await?;
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
        macro_rules! tried {
            ($($client:ident . $action:ident ( $request:ident => $built:expr ))+) => {{
                $(
                    let attempt = |clients: &Clients| {
                        let $request = clients.$client.$action();
                        $built.send()
                    };
                    // A dry run is no write, so that no fence refuses it.
                    return self.call(Op::DryRun, Priority::User, attempt).await.map(|_| true).or_else(allowed);
                )+
            }};
        }
        match op {
            Op::Instances => tried!(ec2.describe_instances(request => request.dry_run(true))),
            Op::Subnets => tried!(ec2.describe_subnets(request => request.dry_run(true))),
            Op::Zones => tried!(ec2.describe_availability_zones(request => request.dry_run(true))),
            Op::SecurityGroups => tried!(ec2.describe_security_groups(request => request.dry_run(true))),
            Op::SecurityGroupCreate => tried!(ec2.create_security_group(request => request
                .dry_run(true)
                .group_name("validate")
                .description("validate")
                .vpc_id(trial.vpc))),
            Op::TagsCreate => tried!(ec2.create_tags(request => request
                .dry_run(true)
                .resources(trial.vpc)
                .tags(aws_sdk_ec2::types::Tag::builder().key("validate").value("").build()))),
            Op::RouteCreate => tried!(ec2.create_route(request => request
                .dry_run(true)
                .route_table_id(table)
                .destination_cidr_block(NETWORK)
                .gateway_id("local"))),
            Op::RouteReplace => tried!(ec2.replace_route(request => request
                .dry_run(true)
                .route_table_id(table)
                .destination_cidr_block(NETWORK)
                .local_target(true))),
            Op::RouteDelete => tried!(ec2.delete_route(request => request
                .dry_run(true)
                .route_table_id(table)
                .destination_cidr_block(NETWORK))),
            Op::LoadBalancers => tried!(elbv2.describe_load_balancers(request => request.page_size(1))),
            Op::TargetGroups => tried!(elbv2.describe_target_groups(request => request.page_size(1))),
            Op::ClassicLoadBalancers => tried!(elb.describe_load_balancers(request => request.page_size(1))),
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
